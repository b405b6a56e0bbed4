"""Problems that are found in a file that was read: each rule names a path, and this finds its place."""

from __future__ import annotations

from collections.abc import Iterable

from windlass.datasets.rules.dag_form import Reading
from windlass.datasets.rules.node import Node, Place, Scalar, Sequence, character_place, find, key_place, nearest_place
from windlass.datasets.rules.problem import PROBLEMS_MAX, Code, Hints, Path, Problem, path_text


class Findings:
    """The problems of a file, as rules find them."""

    def __init__(self, reading: Reading, root: Node) -> None:
        self.problems: list[Problem] = []
        self._broken, self._text, self._root = reading.broken, reading.text, root
        self._above = {path[:length] for path in reading.broken for length in range(len(path))}
        self._hints = Hints()

    def readable(self, *path: str | int) -> bool:
        """Whether the field at a path, and all above it, was read. A rule must not judge what could not be read."""
        return not self._broken or not any(path[:length] in self._broken for length in range(1, len(path) + 1))

    def whole(self, *path: str | int) -> bool:
        """Whether everything at and below a path was read: the items of a list have the index that the file gives."""
        return self.readable(*path) and path not in self._above

    def has(self, *path: str | int) -> bool:
        """Whether the file has this field."""
        return find(self._root, path) is not None

    def is_list(self, *path: str | int) -> bool:
        return isinstance(find(self._root, path), Sequence)

    def value(self, path: Path, code: Code, message: str, *, similar: tuple[str, Iterable[str]] | None = None) -> None:
        """A problem at a value; at the mapping, if the field is missing. `similar` is a name that is not known, and
        those that are."""
        hint = self._hints.nearest(*similar) if similar else None
        self._add(nearest_place(self._root, path), path, code, message, hint)

    def key(self, path: Path, code: Code, message: str) -> None:
        """A problem at the key of a field."""
        self._add(key_place(self._root, path), path, code, message)

    def character(
        self, path: Path, offset: int, code: Code, message: str, *, similar: tuple[str, Iterable[str]] | None = None
    ) -> None:
        """A problem at a character of a text."""
        hint = self._hints.nearest(*similar) if similar else None
        node = find(self._root, path)
        place = character_place(node, self._text, offset) if isinstance(node, Scalar) else self._root.place
        self._add(place, path, code, message, hint)

    def _add(self, place: Place, path: Path, code: Code, message: str, hint: str | None = None) -> None:
        if len(self.problems) <= 2 * PROBLEMS_MAX:
            self.problems.append(Problem(place.line, place.column, path_text(path), code, message, hint))
