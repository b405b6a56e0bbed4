"""Nodes of a YAML document with their places: what the reader of YAML makes, and what the rules of the file read.

Lines and columns count from 1, offsets are characters of the file.
"""

from __future__ import annotations

import re

import msgspec

from windlass.datasets.rules.problem import Path

_BREAK = r"[ \t]*(?:\r\n|[\r\n\x85\u2028\u2029])\s*"
_STEPS = {
    "'": re.compile(rf"''|{_BREAK}|.", re.DOTALL),
    '"': re.compile(
        rf"\\(?:x[0-9A-Fa-f]{{2}}|u[0-9A-Fa-f]{{4}}|U[0-9A-Fa-f]{{8}}|(?:\r\n|[\r\n])[ \t]*|.)|{_BREAK}|.", re.DOTALL
    ),
    "": re.compile(rf"{_BREAK}|.", re.DOTALL),
}
_BREAKS = re.compile(r"\r\n|[\r\n\x85\u2028\u2029]")
_LINE = re.compile(r"([^\r\n]*)(\r\n|\r|\n|\Z)")


class Place(msgspec.Struct, frozen=True, gc=False):
    """A place in the file."""

    line: int
    column: int


class Node(msgspec.Struct, frozen=True):
    """A node, and where it begins."""

    line: int
    column: int

    @property
    def place(self) -> Place:
        return Place(self.line, self.column)


class Scalar(Node, frozen=True, gc=False):
    """A text. `style` is its quote, `|` or `>`, or empty for a plain one. `start` and `end` are its offsets."""

    value: str
    style: str
    start: int
    end: int

    @property
    def plain(self) -> bool:
        return self.style == ""


class Sequence(Node, frozen=True):
    """A list."""

    items: list[Node]


class Entry(msgspec.Struct, frozen=True):
    """A value of a mapping, and where its key begins."""

    line: int
    column: int
    value: Node

    @property
    def place(self) -> Place:
        return Place(self.line, self.column)


class Mapping(Node, frozen=True):
    """A mapping with text keys, in the order of the file."""

    entries: dict[str, Entry]


class Refused(Node, frozen=True, gc=False):
    """A node that has a problem already: no other is reported for it."""


def find(root: Node, path: Path) -> Node | None:
    """The node at a path, or None."""
    node: Node | None = root
    for part in path:
        if isinstance(node, Mapping) and isinstance(part, str):
            entry = node.entries.get(part)
            node = entry.value if entry else None
        elif isinstance(node, Sequence) and isinstance(part, int) and part < len(node.items):
            node = node.items[part]
        else:
            return None
    return node


def nearest_place(root: Node, path: Path) -> Place:
    """Where the node at a path begins, or what is nearest above it: the mapping that misses a field."""
    node, found = root, root
    for length in range(1, len(path) + 1):
        step = find(node, path[length - 1 : length])
        if step is None:
            break
        node = found = step
    return found.place


def key_place(root: Node, path: Path) -> Place:
    """Where the key of a path begins, or what is nearest above it."""
    parent, key = find(root, path[:-1]), path[-1] if path else ""
    if isinstance(parent, Mapping) and isinstance(key, str) and key in parent.entries:
        return parent.entries[key].place
    return nearest_place(root, path)


def character_place(scalar: Scalar, text: str, offset: int) -> Place:
    """Where the character of a scalar's value stands in the file, which is `text`: quotes, escapes, folded lines and
    the indentation of blocks lie between."""
    walk = _block_offset if scalar.style in ("|", ">") else _flow_offset
    at = walk(scalar, text, offset)
    begin = max(text.rfind("\n", 0, at), text.rfind("\r", 0, at)) + 1
    # Counted from the scalar, since YAML knows more line breaks than these.
    before = text[scalar.start : at].replace("\r\n", "\n").replace("\r", "\n")
    breaks = before.count("\n")
    return Place(scalar.line + breaks, at - begin + 1 if breaks else scalar.column + at - scalar.start)


def _flow_offset(scalar: Scalar, text: str, offset: int) -> int:
    quotes = len(scalar.style)
    at, end, made = scalar.start + quotes, scalar.end - quotes, 0
    step = _STEPS[scalar.style].match
    while at < end and made < offset and (found := step(text, at, end)):
        made += _made(found[0], scalar.style)
        at = found.end()
    return at


def _made(piece: str, style: str) -> int:
    """How many characters of the value a piece of the file makes."""
    if style == '"' and piece[0] == "\\":
        return 0 if piece[1] in "\r\n" else 1
    return max(1, len(_BREAKS.findall(piece)) - 1)  # one break is a space, each further one a line


def _block_offset(scalar: Scalar, text: str, offset: int) -> int:
    """In a folded block, a line break counts like the space that it becomes."""
    header = _LINE.match(text, scalar.start)
    at = header.end() if header else scalar.start
    lines = _lines(text, at, scalar.end)
    indent = next((len(line) - len(line.lstrip(" ")) for _, line in lines if line.strip(" ")), 0)
    made = 0
    for begin, line in lines:
        if offset <= made + max(len(line) - indent, 0):
            return begin + min(indent, len(line)) + offset - made
        made += max(len(line) - indent, 0) + 1
    return scalar.end


def _lines(text: str, at: int, end: int) -> list[tuple[int, str]]:
    found = []
    while at < end and (line := _LINE.match(text, at)):
        found.append((at, line[1]))
        at = line.end()
    return found
