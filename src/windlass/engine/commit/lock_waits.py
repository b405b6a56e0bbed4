"""Work that waits for a lock of another transaction: outside the batches, few at a time, with a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from windlass.errors import WindlassError

R = TypeVar("R")

AT_ONCE = 2  # each waits on a connection that others could use
SHORT_MS = 50  # in a batch; a lock that is held for longer is waited for here
LONG_MS = 2000


class LockWaits:
    """The lock waits of one engine."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._waiting: set[asyncio.Future[Any]] = set()

    def later(self, work: Callable[[], Awaitable[R | WindlassError]]) -> asyncio.Future[R | WindlassError]:
        """Run this work when its turn comes. Returns a future of its outcome; a WindlassError is an outcome too."""
        outcome = asyncio.ensure_future(self._in_turn(work))
        self._waiting.add(outcome)
        outcome.add_done_callback(self._waiting.discard)
        return outcome

    async def close(self) -> None:
        while self._waiting:
            await asyncio.wait(self._waiting)

    async def _in_turn(self, work: Callable[[], Awaitable[R | WindlassError]]) -> R | WindlassError:
        async with self._turns:
            try:
                return await work()
            except WindlassError as error:
                return error
