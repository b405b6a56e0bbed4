"""Reads DAG files: YAML text to nodes with their places, then to the model with all of its problems.

The only module that knows PyYAML. It takes the events of the parser and builds the nodes itself: the parser's own
`compose` calls itself for every level, in C, so that 100 KB of brackets end the process. Anchors, aliases, merge keys
and tags are refused, so that nothing in a file can expand.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import tzinfo
from typing import Any

import yaml

from windlass.datasets.rules.dag_form import Reading, read_dag
from windlass.datasets.rules.node import Entry, Mapping, Node, Place, Refused, Scalar, Sequence
from windlass.datasets.rules.problem import PROBLEMS_MAX, Code, Path, Problem, in_order, path_text, shown
from windlass.engine.manage.timezones import zone_of
from windlass.errors import Invalid

BYTES_MAX = 1024 * 1024
DEPTH_MAX = 64
_Loader: Any = getattr(yaml, "CLoader", yaml.Loader)
_UNFIT = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")  # escapes can make them
_LINE_END = re.compile("\r\n|[\r\n]")
_BOM = "\ufeff"


def read(file: bytes | str) -> Reading:
    """Read a DAG file. Never raises: what is wrong is in the problems, in the order of the file."""
    text, problem = _text(file)
    if problem is not None:
        return Reading(problems=(problem,))
    composer = _Composer(text)
    root = composer.compose()
    if root is None:
        return Reading(problems=in_order(composer.problems), text=text)
    return read_dag(root, text, composer.problems, _zone)


def _zone(name: str) -> tzinfo | None:
    try:
        return zone_of(name)
    except Invalid:
        return None


def _text(file: bytes | str) -> tuple[str, Problem | None]:
    """The text of a file, or what is wrong with its bytes."""
    if (
        len(file) > BYTES_MAX
        or len(data := file.encode(errors="replace") if isinstance(file, str) else file) > BYTES_MAX
    ):
        return "", Problem(1, 1, "", Code.TOO_LARGE, f"the file has more than {BYTES_MAX} bytes")
    try:
        text = file if isinstance(file, str) else data.decode()
    except UnicodeDecodeError as error:
        before = data[: error.start].decode()
        return "", _problem(_place(before), f"the file is not UTF-8: byte {data[error.start]:#04x} cannot be read")
    text = text.removeprefix(_BOM)
    if found := _UNFIT.search(text):
        place = _place(text[: found.start()])
        return "", _problem(place, f"the character U+{ord(found[0]):04X} is not allowed in YAML: remove it")
    return text, None


def _place(before: str) -> Place:
    """The place after this text."""
    lines = _LINE_END.split(before)
    return Place(len(lines), len(lines[-1]) + 1)


def _problem(place: Place, message: str, code: Code = Code.YAML_SYNTAX, path: Path = ()) -> Problem:
    return Problem(place.line, place.column, path_text(path), code, message)


class _Open:
    """A list or mapping whose end has not come yet."""

    __slots__ = ("entries", "items", "key", "node", "path")

    def __init__(self, node: Node, path: Path) -> None:
        self.node, self.path = node, path
        self.items: list[Node] | None = node.items if isinstance(node, Sequence) else None
        self.entries: dict[str, Entry] = node.entries if isinstance(node, Mapping) else {}
        self.key: Scalar | None = None

    @property
    def next_path(self) -> Path:
        """The path of the node that comes next."""
        if self.items is not None:
            return (*self.path, len(self.items))
        return self.path if self.key is None else (*self.path, self.key.value)


class _Composer:
    """Builds the nodes of a document from the parser's events, with a stack of its own."""

    def __init__(self, text: str) -> None:
        self.problems: list[Problem] = []
        self._text = text
        self._open: list[_Open] = []
        self._root: Node | None = None
        self._documents = 0
        self._skipped = 0  # levels of a key that is no text, which is read and dropped
        self._handlers: dict[type, Callable[[Any], None]] = {
            yaml.ScalarEvent: self._scalar,
            yaml.SequenceStartEvent: self._sequence,
            yaml.MappingStartEvent: self._mapping,
            yaml.SequenceEndEvent: self._end,
            yaml.MappingEndEvent: self._end,
            yaml.AliasEvent: self._alias,
            yaml.DocumentStartEvent: self._document,
        }

    def compose(self) -> Node | None:
        """The root of the document. None if it cannot be read, or is too deep."""
        loader = _Loader(self._text)
        try:
            while self._may_go_on() and loader.check_event():
                event = loader.get_event()
                handler = self._handlers.get(type(event))
                if handler is not None:
                    handler(event)
        except yaml.MarkedYAMLError as error:
            self._syntax(error)
            return None
        except yaml.YAMLError as error:
            self.problems.append(_problem(Place(1, 1), f"the file is not YAML: {shown(str(error))}"))
            return None
        finally:
            loader.dispose()
        return self._whole()

    def _may_go_on(self) -> bool:
        few = self._documents < 2 and len(self.problems) <= PROBLEMS_MAX
        return few and len(self._open) + self._skipped <= DEPTH_MAX

    def _whole(self) -> Node | None:
        if self._documents > 1 or len(self.problems) > PROBLEMS_MAX:
            return None
        if self._open:
            deepest = self._open[-1].node
            message = f"is nested deeper than {DEPTH_MAX} levels"
            self.problems.append(_problem(deepest.place, message, Code.TOO_LARGE))
            return None
        if self._root is None:
            self.problems.append(_problem(Place(1, 1), "the file is empty"))
        return self._root

    def _syntax(self, error: yaml.MarkedYAMLError) -> None:
        mark = error.problem_mark or error.context_mark
        end = _place(self._text)
        place = _mark_place(mark) if mark and mark.line < end.line else end  # the parser adds a line at the end
        words = ", ".join(part for part in (error.context, error.problem) if part)
        self.problems.append(_problem(place, f"the file is not YAML: {shown(words)}"))

    # ----------------------------------------------------------------------------------------- events

    def _document(self, event: yaml.DocumentStartEvent) -> None:
        self._documents += 1
        if self._documents > 1:
            message = "a second document begins here: a file has one DAG"
            self.problems.append(_problem(_mark_place(event.start_mark), message))

    def _scalar(self, event: yaml.ScalarEvent) -> None:
        start = event.start_mark
        if event.anchor is not None or event.tag is not None:
            self._decorated(event)
        node: Node = Scalar(
            start.line + 1, start.column + 1, event.value, event.style or "", start.index, event.end_mark.index
        )
        if not event.value.isprintable() and _UNSTORABLE.search(event.value):
            path = self._open[-1].next_path if self._open else ()
            message = "must not contain a NUL or half of a character, which no database can store"
            self.problems.append(_problem(node.place, message, Code.BAD_VALUE, path))
            node = Refused(node.line, node.column)
        self._add(node)

    def _sequence(self, event: yaml.SequenceStartEvent) -> None:
        self._begin(event, Sequence(*_line_column(event), []))

    def _mapping(self, event: yaml.MappingStartEvent) -> None:
        self._begin(event, Mapping(*_line_column(event), {}))

    def _begin(self, event: Any, node: Node) -> None:
        if event.anchor is not None or event.tag is not None:
            self._decorated(event)
        if self._skipped or self._expects_key():
            self._skipped += 1
            if self._skipped == 1:
                self.problems.append(_problem(node.place, "a key must be text", Code.WRONG_TYPE, self._open[-1].path))
            return
        path = self._open[-1].next_path if self._open else ()
        self._add(node)
        self._open.append(_Open(node, path))

    def _end(self, _: Any) -> None:
        if not self._skipped:
            self._open.pop()
            return
        self._skipped -= 1
        if not self._skipped:
            node = self._open[-1].node
            self._open[-1].key = Scalar(node.line, node.column, "", "?", 0, 0)

    def _alias(self, event: yaml.AliasEvent) -> None:
        node = Refused(*_line_column(event))
        self._refuse(node.place, f"the alias *{shown(event.anchor)} is refused: write the value again")
        self._add(node)

    def _decorated(self, event: Any) -> None:
        place = _mark_place(event.start_mark)
        if event.anchor is not None:
            self._refuse(place, f"the anchor &{shown(event.anchor)} is refused: write the value where it is used")
        if event.tag is not None:
            self._refuse(place, f"the tag {shown(event.tag)} is refused: remove it", Code.YAML_SYNTAX)

    def _refuse(self, place: Place, message: str, code: Code = Code.YAML_ALIAS) -> None:
        path = self._open[-1].next_path if self._open else ()
        self.problems.append(_problem(place, message, code, path))

    # ----------------------------------------------------------------------------------------- nodes

    def _expects_key(self) -> bool:
        return bool(self._open) and self._open[-1].items is None and self._open[-1].key is None

    def _add(self, node: Node) -> None:
        """Put a node where it belongs: it is the next item, the next key, or the value of the last key."""
        if self._skipped:
            return
        if not self._open:
            self._root = node
            return
        parent = self._open[-1]
        if parent.items is not None:
            parent.items.append(node)
        elif parent.key is None:
            parent.key = node if isinstance(node, Scalar) else Scalar(node.line, node.column, "", "?", 0, 0)
        else:
            self._set(parent, parent.key, node)
            parent.key = None

    def _set(self, parent: _Open, key: Scalar, value: Node) -> None:
        if key.style == "?":  # refused already
            return
        path = (*parent.path, key.value)
        if key.value == "<<" and key.plain:
            message = "the merge key << is refused: write the fields again"
            self.problems.append(_problem(key.place, message, Code.YAML_ALIAS, path))
        elif (first := parent.entries.get(key.value)) is not None:
            message = f"the key {shown(key.value)} is there already, on line {first.line}"
            self.problems.append(_problem(key.place, message, Code.DUPLICATE_KEY, path))
        else:
            parent.entries[key.value] = Entry(key.line, key.column, value)


def _mark_place(mark: Any) -> Place:
    return Place(mark.line + 1, mark.column + 1)


def _line_column(event: Any) -> tuple[int, int]:
    return event.start_mark.line + 1, event.start_mark.column + 1
