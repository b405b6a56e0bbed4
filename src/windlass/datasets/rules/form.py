"""How fields of a DAG file are read: by type, each with the problem of a value that does not fit.

A reader is a function of a form, a node and its path. It returns the value, or `BAD` after it added a problem to the
form. Knows no field of the file: those are in `dag_form`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import tzinfo
from enum import StrEnum
from typing import Any, NamedTuple

from windlass.datasets.rules.node import Mapping, Node, Place, Refused, Scalar, Sequence
from windlass.datasets.rules.problem import PROBLEMS_MAX, Code, Hints, Path, Problem, path_text, shown
from windlass.datasets.rules.scalar import NEVER, BadScalar, read_bool, read_core, read_duration, read_int

BAD: Any = object()
Reader = Callable[["Form", Node, Path], Any]
Values = dict[str, Any]


class Form:
    """The problems of a file while it is read."""

    def __init__(self, text: str, problems: list[Problem], zone_of: Callable[[str], tzinfo | None]) -> None:
        self.text, self.zone_of = text, zone_of
        self.problems = problems
        self.broken: set[Path] = set()
        self.hints = Hints()

    def add(self, place: Place, path: Path, code: Code, message: str, hint: str | None = None) -> Any:
        """Add a problem. Returns `BAD`."""
        self.broken.add(path)
        if len(self.problems) <= 2 * PROBLEMS_MAX:  # the parser's own come first, whatever their place
            self.problems.append(Problem(place.line, place.column, path_text(path), code, message, hint))
        return BAD

    def wrong(self, node: Node, path: Path, message: str, code: Code = Code.BAD_VALUE) -> Any:
        """Add a problem with a value. Returns `BAD`."""
        return self.add(node.place, path, code, message)


class Field(NamedTuple):
    """A field of a mapping."""

    read: Reader
    required: bool = False


def scalar(form: Form, node: Node, path: Path, what: str) -> Scalar | None:
    """The scalar, or None after a problem."""
    if isinstance(node, Scalar):
        return node
    _wrong_type(form, node, path, what)
    return None


def _wrong_type(form: Form, node: Node, path: Path, what: str) -> Any:
    if isinstance(node, Refused):  # has a problem already
        form.broken.add(path)
        return BAD
    found = "a mapping" if isinstance(node, Mapping) else "a list" if isinstance(node, Sequence) else "text"
    if isinstance(node, Scalar) and node.plain and not node.value:
        found = "empty"
    return form.wrong(node, path, f"must be {what}, and is {found}", Code.WRONG_TYPE)


# --------------------------------------------------------------------------------------------- scalars


def text(most: int, *, least: int = 1, lines: bool = False) -> Reader:
    """Text of a length. Without `lines` it has no line breaks and no other control characters."""

    def read(form: Form, node: Node, path: Path) -> Any:
        found = scalar(form, node, path, "text")
        if found is None:
            return BAD
        if not least <= len(found.value) <= most:
            return form.wrong(node, path, f"must have {least} to {most} characters, and has {len(found.value)}")
        if not lines and not found.value.isprintable():
            return form.wrong(node, path, "must be one line without control characters")
        return found.value

    return read


def name(pattern: re.Pattern[str], example: str) -> Reader:
    def read(form: Form, node: Node, path: Path) -> Any:
        found = scalar(form, node, path, "text")
        if found is None:
            return BAD
        if not pattern.fullmatch(found.value):
            bad_name(form, node.place, path, found.value, pattern, example)
        return found.value  # a wrong name is still the one that others refer to

    return read


def bad_name(form: Form, place: Place, path: Path, value: str, pattern: re.Pattern[str], example: str) -> None:
    message = f"{shown(value)!r} is not a name here: it must match {pattern.pattern}, such as {example}"
    form.add(place, path, Code.BAD_NAME, message)


def choice(kind: type[StrEnum], *, without: Iterable[StrEnum] = ()) -> Reader:
    known = [str(each) for each in kind if each not in without]

    def read(form: Form, node: Node, path: Path) -> Any:
        found = scalar(form, node, path, f"one of {', '.join(known)}")
        if found is None:
            return BAD
        if found.value in known:
            return kind(found.value)
        message = f"must be {' or '.join(known)}, and is {shown(found.value)!r}"
        return form.add(node.place, path, Code.BAD_VALUE, message, form.hints.nearest(found.value, known))

    return read


def _typed(what: str, convert: Callable[[str], Any]) -> Reader:
    def read(form: Form, node: Node, path: Path) -> Any:
        found = scalar(form, node, path, what)
        if found is None:
            return BAD
        if not found.plain:
            return form.wrong(node, path, f"must be {what}, and is text: remove the quotes", Code.WRONG_TYPE)
        try:
            return convert(found.value)
        except BadScalar as error:
            return form.wrong(node, path, f"{error}, and is {shown(found.value)!r}", Code.WRONG_TYPE)

    return read


_whole, flag = _typed("a whole number", read_int), _typed("true or false", read_bool)


def number(least: int, most: int) -> Reader:
    def read(form: Form, node: Node, path: Path) -> Any:
        value = _whole(form, node, path)
        if value is BAD or least <= value <= most:
            return value
        return form.wrong(node, path, f"must lie between {least} and {most}, and is {value}")

    return read


def duration(*, least: int = 0, never: bool = True) -> Reader:
    """Seconds; None is never."""

    def read(form: Form, node: Node, path: Path) -> Any:
        found = scalar(form, node, path, "a time such as 5m")
        if found is None:
            return BAD
        try:
            seconds = read_duration(found.value)
        except BadScalar as error:
            return form.wrong(node, path, f"{error}, and is {shown(found.value)!r}")
        if seconds < least and not (never and seconds == NEVER):
            return form.wrong(node, path, f"must be a time such as 90s, 5m, 2h or 1d, and is {found.value}")
        return None if seconds == NEVER else seconds

    return read


def timezone(form: Form, node: Node, path: Path) -> Any:
    found = scalar(form, node, path, "the name of a time zone")
    if found is None:
        return BAD
    if form.zone_of(found.value) is not None:
        return found.value
    return form.wrong(
        node, path, f"there is no time zone {shown(found.value)!r}; write UTC or a name like Europe/Paris"
    )


# --------------------------------------------------------------------------------------------- lists and mappings


def listing(item: Reader, what: str, *, least: int = 0, most: int = 1000, distinct: bool = True) -> Reader:
    """A list of values that can be compared. Items that cannot be read are left out."""

    def read(form: Form, node: Node, path: Path) -> Any:
        if not isinstance(node, Sequence):
            return _wrong_type(form, node, path, f"a list of {what}")
        if not least <= len(node.items) <= most:
            return form.wrong(node, path, f"must have {least} to {most} {what}, and has {len(node.items)}")
        values = [item(form, child, (*path, index)) for index, child in enumerate(node.items)]
        seen: set[Any] = set()
        for index, value in enumerate(values):
            if distinct and value is not BAD and value in seen:
                form.wrong(node.items[index], (*path, index), f"{shown(str(value))} is listed twice")
            seen.add(value)
        return tuple(value for value in values if value is not BAD)

    return read


def fields(form: Form, node: Node, path: Path, known: dict[str, Field]) -> Values | None:
    """The fields of a mapping that can be read, in the order of the file. None if it is no mapping."""
    if not isinstance(node, Mapping):
        _wrong_type(form, node, path, "a mapping")
        return None
    values: Values = {}
    for key, entry in node.entries.items():
        field = known.get(key)
        if field is None:
            hint = form.hints.nearest(key, known)
            message = f"there is no field {shown(key)!r} here"
            form.add(entry.place, (*path, key), Code.UNKNOWN_FIELD, message, hint)
        elif (value := field.read(form, entry.value, (*path, key))) is not BAD:
            values[key] = value
    for key, field in known.items():
        if field.required and key not in node.entries:
            form.add(node.place, (*path, key), Code.MISSING_FIELD, f"{key} is missing")
    return values


def mapping(known: dict[str, Field], make: Callable[[Values], Any]) -> Reader:
    """A value that is made from its fields, `BAD` if a required one is not there."""

    def read(form: Form, node: Node, path: Path) -> Any:
        values = fields(form, node, path, known)
        if values is None or any(field.required and key not in values for key, field in known.items()):
            return BAD
        return make(values)

    return read


def json_object(form: Form, node: Node, path: Path) -> Any:
    """A mapping by the core schema. The depth of a file is limited, so it may call itself."""
    return _json(form, node, path) if isinstance(node, Mapping) else _wrong_type(form, node, path, "a mapping")


def _json(form: Form, node: Node, path: Path) -> Any:
    if isinstance(node, Mapping):
        found = {key: _json(form, entry.value, (*path, key)) for key, entry in node.entries.items()}
        return {key: value for key, value in found.items() if value is not BAD}
    if isinstance(node, Sequence):
        items = [_json(form, item, (*path, index)) for index, item in enumerate(node.items)]
        return [item for item in items if item is not BAD]
    if not isinstance(node, Scalar):
        return BAD
    try:
        return read_core(node.value) if node.plain else node.value
    except BadScalar as error:
        return form.wrong(node, path, f"{shown(node.value)!r} {error}; quote it if it is text")
