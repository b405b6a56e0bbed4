"""The tree of a `where`, and what a comparison of a value with a literal means.

A literal is a string, a number or a boolean. It is compared with values of its own kind, and a string also with a
timestamp, a date or a uuid if it can be read as one. Every other comparison is NULL, so neither it nor its NOT takes
the row. In particular `'5' = 5` is NULL; nothing is converted silently.

- Numbers: an integer or a decimal is compared exactly. A float is compared with the float nearest to the literal. NaN
  equals no literal and is greater than all of them.
- Strings: by code point, which is the order of their bytes in UTF-8. LIKE is for strings only.
- Booleans: FALSE is less than TRUE.
- Timestamps: as instants; a timestamp or literal without an offset is in UTC.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, TypeAlias
from uuid import UUID

import msgspec

Literal: TypeAlias = str | bool | int | Decimal  # a number that is whole is an int
Truth: TypeAlias = bool | None  # None is NULL

COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "<>": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d(:?\d\d)?)?)?", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)


class Compare(msgspec.Struct, frozen=True, tag=True):
    """`column op literal`."""

    column: str
    op: str
    literal: Literal


class In(msgspec.Struct, frozen=True, tag=True):
    """`column IN (literals)`, which is `column = literal OR …`. NOT IN is a Not of it."""

    column: str
    literals: tuple[Literal, ...]


class Like(msgspec.Struct, frozen=True, tag=True):
    """`column LIKE pattern`: `%` is any text, `_` is one character, and nothing escapes them."""

    column: str
    pattern: str


class IsNull(msgspec.Struct, frozen=True, tag=True):
    """`column IS NULL`. A column that a row does not have is NULL."""

    column: str


class Not(msgspec.Struct, frozen=True, tag=True):
    item: Node


class And(msgspec.Struct, frozen=True, tag=True):
    """Two or more items, none of them an And."""

    items: tuple[Node, ...]


class Or(msgspec.Struct, frozen=True, tag=True):
    """Two or more items, none of them an Or."""

    items: tuple[Node, ...]


Node: TypeAlias = Compare | In | Like | IsNull | Not | And | Or


def compare(value: object, op: str, literal: Literal) -> Truth:
    """The truth of `value op literal`."""
    if isinstance(value, bool) or isinstance(literal, bool):
        fits = isinstance(value, bool) and isinstance(literal, bool)
        return COMPARE[op](value, literal) if fits else None
    if isinstance(literal, str):
        mine = _like_value(value, literal)
        return None if mine is None else COMPARE[op](_aware(value), mine)
    if isinstance(value, float):
        return COMPARE[op](math.inf, 0) if math.isnan(value) else COMPARE[op](value, float(literal))
    if isinstance(value, Decimal):
        return COMPARE[op](math.inf, 0) if value.is_nan() else COMPARE[op](value, literal)
    return COMPARE[op](value, literal) if isinstance(value, int) else None


def like(value: object, pattern: str) -> Truth:
    """The truth of `value LIKE pattern`."""
    return matcher(pattern)(value) if isinstance(value, str) else None


def as_timestamp(text: str) -> datetime | None:
    """A literal as an instant in UTC; None if it is no timestamp."""
    if not _TIMESTAMP.fullmatch(text):
        return None
    try:
        found = datetime.fromisoformat(text)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def as_date(text: str) -> date | None:
    try:
        return date.fromisoformat(text) if _DATE.fullmatch(text) else None
    except ValueError:
        return None


def as_uuid(text: str) -> UUID | None:
    return UUID(text) if _UUID.fullmatch(text) else None


def _like_value(value: object, literal: str) -> object:
    """The literal in the type of the value, None if it cannot be read as that."""
    if isinstance(value, str):
        return literal
    if isinstance(value, datetime):  # before date: a datetime is one
        return as_timestamp(literal)
    if isinstance(value, date):
        return as_date(literal)
    return as_uuid(literal) if isinstance(value, UUID) else None


def _aware(value: object) -> object:
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) and value.tzinfo is None else value


@lru_cache(maxsize=256)
def matcher(pattern: str) -> Callable[[str], bool]:
    """A function that matches a LIKE pattern. It never goes back: each part between two `%` is taken where it is first
    found. A regular expression for the whole pattern would need time exponential in the number of `%`."""
    parts = [_part(text) for text in pattern.split("%")]
    first, middle, last = parts[0], [part for part in parts[1:-1] if part.pattern], parts[-1]
    width = len(pattern.rpartition("%")[2])

    def matches(text: str) -> bool:
        if len(parts) == 1:
            return first.fullmatch(text) is not None
        found = first.match(text)
        for part in middle:
            found = found and part.search(text, found.end())
        return found is not None and len(text) - width >= found.end() and bool(last.match(text, len(text) - width))

    return matches


def _part(text: str) -> re.Pattern[str]:
    """One part of a pattern. All of its matches have the same length, so that matching is linear in the text."""
    return re.compile("".join("." if each == "_" else re.escape(each) for each in text), re.DOTALL)
