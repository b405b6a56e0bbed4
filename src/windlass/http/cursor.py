"""Opaque cursors: the position after the last row of a page, spelled so that nobody is tempted to read it."""

from __future__ import annotations

import binascii
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import UTC, datetime, timedelta
from uuid import UUID

from windlass.core.error import Malformed

_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)


def of_id(position: UUID | None) -> str | None:
    return None if position is None else _spelled(position.bytes)


def of_name(position: str | None) -> str | None:
    return None if position is None else _spelled(position.encode())


def to_id(cursor: str | None) -> UUID | None:
    if cursor is None:
        return None
    content = _read(cursor)
    if len(content) != 16:
        raise Malformed("is not a cursor of this list", field="after")
    return UUID(bytes=content)


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


def of_moment(position: tuple[datetime, UUID] | None) -> str | None:
    if position is None:
        return None
    at, id_ = position
    return _spelled(struct.pack(">q", (at - _EPOCH) // _MICROSECOND) + id_.bytes)


def to_moment(cursor: str | None) -> tuple[datetime, UUID] | None:
    if cursor is None:
        return None
    content = _read(cursor)
    try:
        [microseconds] = struct.unpack(">q", content[:8])
        return _EPOCH + microseconds * _MICROSECOND, UUID(bytes=content[8:])
    except (struct.error, ValueError, OverflowError):
        raise Malformed("is not a cursor of this list", field="after") from None


def _spelled(content: bytes) -> str:
    return urlsafe_b64encode(content).decode().rstrip("=")


def _read(cursor: str) -> bytes:
    try:
        return urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
    except (ValueError, binascii.Error):
        raise Malformed("is not a cursor of this list", field="after") from None
