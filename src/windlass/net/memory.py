"""Limits the memory that the bodies of all open requests use together.

A body waits in line until there is room for it; after 20 seconds it is refused with Overloaded. A request releases its
room when it ends. Small bodies have room of their own, so that a few long ones do not delay all others.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar

from windlass.errors import Overloaded
from windlass.net.log_throttle import Throttle

log = logging.getLogger("windlass.limits")

DEFAULT_BYTES = 128 * 1024 * 1024
SMALL_BYTES = 256 * 1024
SMALL_SHARE = 4  # a quarter of the room is for small bodies only
WAIT_S = 20.0


class Memory:
    """The memory of one process for bodies. A body that is longer than all of it is read alone."""

    def __init__(self, limit_bytes: int = DEFAULT_BYTES, wait_s: float = WAIT_S) -> None:
        self._small = _Lane(limit_bytes // SMALL_SHARE, wait_s)
        self._large = _Lane(limit_bytes - limit_bytes // SMALL_SHARE, wait_s)

    @property
    def used_bytes(self) -> int:
        return self._small.used + self._large.used

    @contextmanager
    def request(self) -> Iterator[None]:
        """One request, from its header to the end of its answer."""
        held: _Held = []
        token = _current.set((self, held))
        try:
            yield
        finally:
            _current.reset(token)
            for lane, size in held:
                lane.give(size)

    @asynccontextmanager
    async def hold(self, size: int) -> AsyncIterator[None]:
        """Room for something of this size until the block ends. Raises Overloaded."""
        lane = self.lane(size)
        held = await lane.take(size)
        try:
            yield
        finally:
            lane.give(held)

    def lane(self, size: int) -> _Lane:
        return self._small if size <= SMALL_BYTES else self._large


class _Lane:
    """First come, first served."""

    def __init__(self, limit: int, wait_s: float) -> None:
        self.limit, self.used, self._wait_s = limit, 0, wait_s
        self._line: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._throttle = Throttle(log)

    async def take(self, size: int) -> int:
        """Returns the number of bytes taken."""
        size = min(size, self.limit)
        if not self._line and self.used + size <= self.limit:
            self.used += size
            return size
        self._throttle.warn(
            "bodies of requests wait for memory", f"{self.used} of {self.limit} bytes are in use (request_memory_bytes)"
        )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        place = size, turn
        self._line.append(place)
        try:
            async with asyncio.timeout(self._wait_s):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self.give(size)
            else:
                self._line.remove(place)
                self._admit()
            if isinstance(error, TimeoutError):
                raise Overloaded("other requests use up the memory for bodies") from None
            raise
        return size

    def give(self, size: int) -> None:
        self.used -= size
        self._admit()

    def _admit(self) -> None:
        while self._line and self.used + self._line[0][0] <= self.limit:
            size, turn = self._line.popleft()
            if not turn.done():
                self.used += size
                turn.set_result(None)


_Held = list[tuple[_Lane, int]]  # the room that one request has taken
_current: ContextVar[tuple[Memory, _Held] | None] = ContextVar("windlass_request_memory", default=None)


async def room_for(size: int) -> None:
    """Wait until a body of this size may be read. Outside of `Memory.request` there is no bound."""
    current = _current.get()
    if current is not None and size:
        memory, held = current
        lane = memory.lane(size)
        held.append((lane, await lane.take(size)))
