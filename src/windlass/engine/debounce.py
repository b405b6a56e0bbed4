"""A short window that batches calls, so that a thousand idle workers cost a small transaction now and then."""

from __future__ import annotations

import asyncio


class Debounce:
    """The first caller starts a timer; later callers join until it fires."""

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._waiting: asyncio.Event | None = None

    async def together(self) -> None:
        if self._wait_s <= 0:
            return
        if self._waiting is None:
            self._waiting = asyncio.Event()
            asyncio.get_running_loop().call_later(self._wait_s, self._go, self._waiting)
        await self._waiting.wait()

    def _go(self, moment: asyncio.Event) -> None:
        self._waiting = None
        moment.set()
