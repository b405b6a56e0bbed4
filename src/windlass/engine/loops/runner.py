"""One life cycle for every loop: start, wake, stop.

A loop calls its tick, again at once while there is work, otherwise when it is woken or its interval has passed. A tick
that fails is logged and tried again: a loop never dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from windlass.errors import Unavailable

log = logging.getLogger("windlass.loop")

AFTER_ERROR_S = 1.0


class Loop:
    def __init__(self, name: str, tick: Callable[[], Awaitable[int]], *, every_s: float) -> None:
        self.name, self._tick, self.every_s = name, tick, every_s
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @classmethod
    def forever(cls, name: str, run: Callable[[], Awaitable[None]]) -> Loop:
        """A loop whose tick does not end by itself, such as listening."""

        async def tick() -> int:
            await run()
            return 0

        return cls(name, tick, every_s=AFTER_ERROR_S)

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"windlass-{self.name}")

    def wake(self) -> None:
        self._woken.set()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])  # raises only a cancel of the caller

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            if await self._once() == 0:
                # Not wait_for: on Python 3.11 it swallows a cancel that comes together with the wake-up.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.every_s):
                        await self._woken.wait()

    async def _once(self) -> int:
        try:
            return await self._tick()
        except Unavailable as error:
            log.warning("loop %s: %s", self.name, error)
        except Exception:
            log.exception("loop %s failed and goes on", self.name)
        await asyncio.sleep(AFTER_ERROR_S)
        return 0
