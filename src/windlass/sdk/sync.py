"""Calls from code without an event loop: scripts, Django views, shells. One thread with a loop keeps the app open."""

from __future__ import annotations

import asyncio
import atexit
import inspect
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, TypeVar

from windlass.errors import Draining, Invalid, InvalidState

T = TypeVar("T")


class LoopCalls:
    """Calls from threads without an event loop into a loop that another thread runs."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: set[asyncio.Task[Any] | None] = set()

    def call(self, call: Callable[[], Awaitable[T]]) -> T:
        """Run a coroutine function in that loop, and return its result or raise its exception."""
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            raise InvalidState("the caller is inside an event loop: await the method without _sync")
        try:
            return asyncio.run_coroutine_threadsafe(self._run(call), self._loop).result()
        except CancelledError:
            raise Draining("the app was closed during the call") from None

    async def _run(self, call: Callable[[], Awaitable[T]]) -> T:
        awaitable = call()
        if not inspect.isawaitable(awaitable):
            raise Invalid(f"must return an awaitable, not {type(awaitable).__name__}", field="call")
        task = asyncio.current_task()
        self._waiting.add(task)
        try:
            return await awaitable
        finally:
            self._waiting.discard(task)

    def end(self) -> None:
        """Cancel the calls that still wait, since nothing will answer them."""
        for task in self._waiting:
            if task is not None:
                task.cancel()


class SyncBridge:
    """Opens `resource` in the event loop of a separate thread, and keeps it open."""

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
