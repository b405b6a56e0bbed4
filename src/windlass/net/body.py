"""Reads the body of a request up to a limit. Each part waits for room in memory first: see `net.memory`."""

from __future__ import annotations

import io

from windlass.errors import TooLarge
from windlass.net.memory import room_for

STEP_BYTES = 64 * 1024  # of a body whose length is not declared


class BodyReader:
    """A body that arrives in parts. One part, the usual case, is kept as it is; more are written into one buffer, so
    that a long body is in memory once."""

    def __init__(self, declared: str, limit: int) -> None:
        self._declared = int(declared[:20]) if declared.isdecimal() else None
        self._limit = limit
        self._first = b""
        self._more: io.BytesIO | None = None
        self._size, self._room = 0, 0

    async def begin(self) -> None:
        """Raises TooLarge before anything is read."""
        if self._declared is None:
            return
        if self._declared > self._limit:
            raise too_large(self._limit)
        self._room = self._declared
        await room_for(self._declared)

    async def add(self, part: bytes) -> None:
        if not part:
            return
        size = self._size + len(part)
        if size > self._limit:
            raise too_large(self._limit)
        if size > self._room:
            step = max(len(part), min(STEP_BYTES, self._limit - self._room))
            self._room += step
            await room_for(step)
        if not self._size:
            self._first = part
        else:
            if self._more is None:
                self._more, self._first = io.BytesIO(self._first), b""
                self._more.seek(0, io.SEEK_END)
            self._more.write(part)
        self._size = size

    def whole(self) -> bytes:
        return self._first if self._more is None else self._more.getvalue()  # without a copy


def too_large(limit: int) -> TooLarge:
    return TooLarge(f"the body may have at most {limit} bytes", limit=limit)
