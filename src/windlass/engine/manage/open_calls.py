"""Open calls whose key may be revoked before they end.

One query every `CHECK_S` checks the keys of all open calls, of every protocol. A call whose key was revoked is
cancelled where it waits, and ends as Unauthenticated.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection
from types import TracebackType

from windlass.errors import Unauthenticated, Unavailable

CHECK_S = 2.0

Live = Callable[[Collection[bytes]], Awaitable[set[bytes]]]


class OpenCalls:
    """The open calls of one engine. `live` returns which of the keys with these hashes may still be used."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._open: dict[bytes, set[OpenCall]] = {}
        self._checking: asyncio.Task[None] | None = None
        self._soon = asyncio.Event()

    def check_soon(self) -> None:
        """Check now, since a key was revoked here."""
        self._soon.set()

    def add(self, call: OpenCall) -> None:
        self._open.setdefault(call.hashed, set()).add(call)
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._check())

    def remove(self, call: OpenCall) -> None:
        calls = self._open.get(call.hashed)
        if calls is not None:
            calls.discard(call)
            if not calls:
                del self._open[call.hashed]

    async def close(self) -> None:
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.gather(self._checking, return_exceptions=True)

    async def _check(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CHECK_S):
                    await self._soon.wait()
            self._soon.clear()
            if not self._open:
                return
            with contextlib.suppress(Unavailable):
                shown = set(self._open)
                for hashed in shown - await self._live(shown):
                    for call in list(self._open.get(hashed, ())):
                        call.revoke()


class OpenCall:
    """One call, by the asyncio task that carries it out. Use as a context manager around all of it."""

    __slots__ = ("_calls", "_cancelling", "_revoked", "_task", "hashed")

    def __init__(self, calls: OpenCalls, hashed: bytes) -> None:
        self._calls, self.hashed, self._revoked = calls, hashed, False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancelling = task, task.cancelling()
        self._calls.add(self)

    def revoke(self) -> None:
        if not self._revoked:
            self._revoked = True
            self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._calls.remove(self)
        if self._revoked and self._task.uncancel() <= self._cancelling and isinstance(error, asyncio.CancelledError):
            raise Unauthenticated("this key was revoked") from None
