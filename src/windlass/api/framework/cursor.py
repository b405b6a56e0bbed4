"""Opaque cursors: the position after the last row of a page, in base64."""

from __future__ import annotations

import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from typing import TypeVar

from windlass.core.position import Position
from windlass.errors import Malformed
from windlass.net.page_token import position_bytes, read_position

T = TypeVar("T")


def of_position(position: Position | None) -> str | None:
    return None if position is None else _encode(position_bytes(position))


def to_position(cursor: str | None) -> Position | None:
    return _decode(cursor, read_position)


def of_name(name: str | None) -> str | None:
    return None if name is None else _encode(name.encode())


def to_name(cursor: str | None) -> str | None:
    return _decode(cursor, lambda content: None if b"\x00" in content else content.decode())


def of_pair(pair: tuple[int, int] | None) -> str | None:
    return None if pair is None else _encode(struct.pack(">ii", *pair))


def to_pair(cursor: str | None) -> tuple[int, int] | None:
    def read(content: bytes) -> tuple[int, int] | None:
        first, second = struct.unpack(">ii", content)
        return (first, second) if first >= 0 and second >= -1 else None

    return _decode(cursor, read)


def of_number(number: int | None) -> str | None:
    return None if number is None else _encode(struct.pack(">i", number))


def to_number(cursor: str | None) -> int | None:
    return _decode(cursor, lambda content: int(struct.unpack(">i", content)[0]))


def of_place(place: tuple[int | None, str] | None) -> str | None:
    """The cursor of a place by a number, which may be missing, and a text."""
    if place is None:
        return None
    first, text = place
    return _encode(struct.pack(">?q", first is not None, first or 0) + text.encode())


def to_place(cursor: str | None) -> tuple[int | None, str] | None:
    def read(content: bytes) -> tuple[int | None, str] | None:
        numbered, first = struct.unpack(">?q", content[:9])
        return None if b"\x00" in content[9:] else (first if numbered else None, content[9:].decode())

    return _decode(cursor, read)


def page_of(found: Sequence[T], limit: int, position_of: Callable[[T], Position]) -> tuple[list[T], str | None]:
    """Splits up to `limit` + 1 rows into the rows of the page and the cursor of the next page."""
    page = list(found[:limit])
    return page, of_position(position_of(page[-1])) if len(found) > limit else None


def _encode(content: bytes) -> str:
    return urlsafe_b64encode(content).decode().rstrip("=")


def _decode(cursor: str | None, read: Callable[[bytes], T | None]) -> T | None:
    """The position in a cursor. `read` returns None or raises ValueError if it is not one of this list."""
    if cursor is None:
        return None
    try:
        position = read(urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4)))
    except (ValueError, struct.error):
        position = None
    if position is None:
        raise Malformed("is not a cursor of this list", field="after")
    return position
