"""The line to the engine: a thread with an event loop of its own, in which attempts talk about themselves.

Apart from the event loop of the service, so that heartbeats go on while a handler blocks that one.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Line:
    """Open from its construction until it is closed."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="windlass-line", daemon=True)
        self._thread.start()

    def begin(self, talk: Coroutine[Any, Any, T]) -> Future[T]:
        """From any thread."""
        return asyncio.run_coroutine_threadsafe(talk, self.loop)

    def close(self) -> None:
        """What is still being said is broken off."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    def _run(self) -> None:
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(_break_off(asyncio.all_tasks(self.loop)))
        finally:
            self.loop.close()


async def _break_off(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
