"""A kit for code in another event loop, such as a web server that a test client runs in a thread.

Calls of the app run in the kit's loop, from any loop or thread. For a test without an event loop, the kit runs in a
separate thread.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from windlass.core.states import State
from windlass.errors import InvalidState
from windlass.sdk import App, Duration, TaskHandle
from windlass.sdk.sync import LoopCalls, SyncBridge
from windlass.testing.database import TestServer

if TYPE_CHECKING:
    from windlass.testing.kit import Kit

R = TypeVar("R")

BLOCKED_S = 10.0
BLOCKED = (
    "the event loop of the test is blocked, most likely by a synchronous test client: "
    "use the fixture windlass_kit_sync in a test that is not async"
)


class AnyLoop:
    """A client of the kit's engine that may be used from any event loop."""

    def __init__(self, client: Any) -> None:
        self._client, self._loop = client, asyncio.get_running_loop()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if not inspect.iscoroutinefunction(found):
            return found

        @functools.wraps(found)
        async def call(*args: Any, **kwargs: Any) -> Any:
            if asyncio.get_running_loop() is self._loop:
                return await found(*args, **kwargs)
            await self._check_responsive()
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(found(*args, **kwargs), self._loop))

        return call

    async def _check_responsive(self) -> None:
        """Raise InvalidState if the loop is blocked, instead of waiting for ever for a loop that waits for us."""
        responded = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop))
        try:
            await asyncio.wait_for(responded, BLOCKED_S)
        except TimeoutError:
            raise InvalidState(BLOCKED) from None


class OpenSyncKit(Protocol):
    """The fixture `windlass_kit_sync`: `with windlass_kit_sync(app) as kit:`."""

    def __call__(self, app: App) -> AbstractContextManager[SyncKit]: ...


class SyncKit:
    """A kit for tests without an event loop. Get it from the fixture `windlass_kit_sync`, or from `open_kit_sync`."""

    def __init__(self, kit: Kit, calls: LoopCalls) -> None:
        self.kit, self._calls = kit, calls

    def now(self) -> datetime:
        return self.call(self.kit.now)

    def advance(self, duration: Duration) -> None:
        """Let this much time pass, and run what becomes due."""
        self.call(lambda: self.kit.advance(duration))

    def settle(self) -> None:
        """Wait until all that is due now has been done."""
        self.call(self.kit.settle)

    def result(self, handle: TaskHandle[R]) -> R:
        """Let time pass until the task has ended, and return its result. Raises TaskFailed if it failed."""
        return self.call(lambda: self.kit.result(handle))

    def until(self, handle: TaskHandle[Any], state: State | str) -> None:
        """Let time pass until the task is in this state."""
        self.call(lambda: self.kit.until(handle, state))

    def call(self, call: Callable[[], Awaitable[R]]) -> R:
        """Anything else of the kit, in its own event loop: `kit.call(lambda: kit.kit.engine.tasks.get(task_id))`."""
        return self._calls.call(call)


@contextmanager
def open_kit_sync(app: App, server: TestServer) -> Iterator[SyncKit]:
    """The same as `open_kit`, in an event loop in a separate thread."""
    from windlass.testing.kit import open_kit

    opened: list[SyncKit] = []

    @asynccontextmanager
    async def open_in_thread() -> AsyncIterator[None]:
        async with open_kit(app, server) as kit:
            opened.append(SyncKit(kit, LoopCalls(asyncio.get_running_loop())))
            yield

    bridge = SyncBridge(open_in_thread())
    try:
        yield opened[0]
    finally:
        bridge.close()
