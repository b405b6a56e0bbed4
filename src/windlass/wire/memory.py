"""Bytes of requests that are held in memory at the same time, of all callers together.

Whoever reads a body asks for room first, and waits in line while others use it up; who waits too long is refused with
Overloaded. A request gives back what it took when it ends. Small bodies have room of their own, so that a few long ones
do not hold up everybody else.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar

from windlass.core.error import Overloaded
from windlass.wire.throttle import Throttle

log = logging.getLogger("windlass.limits")

DEFAULT_BYTES = 128 * 1024 * 1024
SMALL_BYTES = 256 * 1024
SMALL_SHARE = 4  # a quarter of the room is for small bodies only
WAIT_S = 20.0


class Memory:
    """The room of one process. A body that is longer than all of it may be there alone."""

    def __init__(self, limit_bytes: int = DEFAULT_BYTES, wait_s: float = WAIT_S) -> None:
        self._small = _Lane(limit_bytes // SMALL_SHARE, wait_s)
        self._large = _Lane(limit_bytes - limit_bytes // SMALL_SHARE, wait_s)

    @property
    def used_bytes(self) -> int:
        return self._small.used + self._large.used

    @contextmanager
    def request(self) -> Iterator[None]:
        """One request, from its header to the end of its answer."""
        share = _Share(self)
        token = _current.set(share)
        try:
            yield
        finally:
            _current.reset(token)
            share.give_back()

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
    """Whoever came first gets room first."""

    def __init__(self, limit: int, wait_s: float) -> None:
        self.limit, self.used, self._wait_s = limit, 0, wait_s
        self._line: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._throttle = Throttle(log)

    async def take(self, size: int) -> int:
        """Returns what was taken."""
        size = min(size, self.limit)
        if not self._line and self.used + size <= self.limit:
            self.used += size
            return size
        await self._wait(size)
        return size

    async def _wait(self, size: int) -> None:
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

    def give(self, size: int) -> None:
        self.used -= size
        self._admit()

    def _admit(self) -> None:
        while self._line and self.used + self._line[0][0] <= self.limit:
            size, turn = self._line.popleft()
            if not turn.done():
                self.used += size
                turn.set_result(None)


class _Share:
    """What one request has taken."""

    def __init__(self, memory: Memory) -> None:
        self._memory, self._held = memory, list[tuple[_Lane, int]]()

    async def take(self, size: int) -> None:
        lane = self._memory.lane(size)
        self._held.append((lane, await lane.take(size)))

    def give_back(self) -> None:
        for lane, size in self._held:
            lane.give(size)
        self._held.clear()


_current: ContextVar[_Share | None] = ContextVar("windlass_request_memory", default=None)


async def room_for(size: int) -> None:
    """Wait until a body of this size may be read. Outside of `Memory.request` there is no bound."""
    share = _current.get()
    if share is not None and size:
        await share.take(size)
