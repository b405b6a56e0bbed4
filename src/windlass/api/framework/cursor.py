"""Opaque cursors: the position after the last row of a page, spelled so that nobody is tempted to read it."""

from __future__ import annotations

import binascii
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from typing import TypeVar

from windlass.core.position import Position
from windlass.errors import Malformed
from windlass.net.page_token import position_bytes, read_position

T = TypeVar("T")


def of_position(position: Position | None) -> str | None:
    return None if position is None else _spelled(position_bytes(position))


def of_name(position: str | None) -> str | None:
    return None if position is None else _spelled(position.encode())


def to_position(cursor: str | None) -> Position | None:
    if cursor is None:
        return None
    position = read_position(_read(cursor))
    if position is None:
        raise Malformed("is not a cursor of this list", field="after")
    return position


def to_name(cursor: str | None) -> str | None:
    if cursor is None:
        return None
    try:
        name = _read(cursor).decode()
    except UnicodeDecodeError:
        name = "\x00"
    if "\x00" in name:
        raise Malformed("is not a cursor of this list", field="after")
    return name


def of_pair(position: tuple[int, int] | None) -> str | None:
    return None if position is None else _spelled(struct.pack(">ii", *position))


def to_pair(cursor: str | None) -> tuple[int, int] | None:
    if cursor is None:
        return None
    content = _read(cursor)
    if len(content) != 8:
        raise Malformed("is not a cursor of this list", field="after")
    first, second = struct.unpack(">ii", content)
    if first < 0 or second < -1:
        raise Malformed("is not a cursor of this list", field="after")
    return first, second


def page_of(found: Sequence[T], limit: int, position_of: Callable[[T], Position]) -> tuple[list[T], str | None]:
    """Of up to `limit` + 1 rows those of the page, and where the next begins."""
    page = list(found[:limit])
    return page, of_position(position_of(page[-1])) if len(found) > limit else None


def _spelled(content: bytes) -> str:
    return urlsafe_b64encode(content).decode().rstrip("=")


def _read(cursor: str) -> bytes:
    try:
        return urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
    except (ValueError, binascii.Error):
        raise Malformed("is not a cursor of this list", field="after") from None
