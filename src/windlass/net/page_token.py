"""The position in a list as bytes: the time in microseconds, then the id. Each wire encodes them in its own way."""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from uuid import UUID

from windlass.core.position import Position
from windlass.core.validation import check_instant
from windlass.errors import Invalid

_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)


def position_bytes(position: Position) -> bytes:
    at, id_ = position
    return struct.pack(">q", (at - _EPOCH) // _MICROSECOND) + id_.bytes


def read_position(content: bytes) -> Position | None:
    """The position, or None if the bytes are not one."""
    try:
        [microseconds] = struct.unpack(">q", content[:8])
        at = _EPOCH + microseconds * _MICROSECOND
        check_instant("at", at)
        return at, UUID(bytes=content[8:])
    except (struct.error, ValueError, OverflowError, Invalid):
        return None
