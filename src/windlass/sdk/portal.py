"""Async for those who have no event loop: scripts, Django views, shells. One thread with a loop keeps the app open."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from windlass.core.error import InvalidState

T = TypeVar("T")


class Portal:
    """Opens `resource` in a thread of its own, and runs there what is handed to `call`."""

    def __init__(self, resource: AbstractAsyncContextManager[Any]) -> None:
        self._resource = resource
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._opened = threading.Event()
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="windlass-portal", daemon=True)
        self._thread.start()
        self._opened.wait()
        if self._problem is not None:
            raise self._problem
        atexit.register(self.close)

    def call(self, call: Callable[[], Awaitable[T]]) -> T:
        """What the awaitable returns, or raises."""
        if threading.current_thread() is self._thread:
            raise InvalidState("this is already inside an event loop: await it")

        async def run() -> T:
            return await call()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()
        atexit.unregister(self.close)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as problem:
            self._problem = problem
        finally:
            self._opened.set()
            self._loop.close()

    async def _serve(self) -> None:
        async with self._resource:
            self._opened.set()
            await self._closing.wait()
