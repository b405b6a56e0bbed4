"""The app: one object that knows a program's handlers and how to reach an engine.

Thin on purpose: handlers submit and run themselves, the worker claims and reports. How an engine is reached (in this
process, or far away) is given by whoever composes the program: see `windlass.app`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType
from typing import Any, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, overload
from uuid import UUID

from windlass.core.check import check_count, check_name, check_type
from windlass.core.error import Conflict, Invalid, InvalidState
from windlass.core.submission import Submission
from windlass.core.task import Task
from windlass.sdk.handle import TaskHandle
from windlass.sdk.handler import Handler
from windlass.sdk.option import Decorator, TaskOptions, made_handler
from windlass.sdk.portal import Portal
from windlass.sdk.worker import Worker, WorkSource

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

Hook = Callable[[], Awaitable[None]]


class TaskSeen(Protocol):
    @property
    def task(self) -> Task: ...


class Client(WorkSource, Protocol):
    """What an app needs of an engine."""

    async def submit(self, submission: Submission) -> UUID: ...
    async def submit_many(self, submissions: Sequence[Submission]) -> list[UUID]: ...
    async def wait(self, task_id: UUID, timeout_s: float) -> TaskSeen: ...
    async def cancel(self, task_id: UUID, reason: str = "", *, force: bool = False) -> Task: ...


class AppSettings(TypedDict, total=False):
    """What an app may be told about itself."""

    queue: str  # of handlers that name none
    namespace: str
    threads: int  # for functions that block


class App:
    """`async with app:` opens it; then its handlers can submit. `connect` says how an engine is reached."""

    def __init__(
        self,
        name: str,
        connect: Callable[[], AbstractAsyncContextManager[Client]],
        **settings: Unpack[AppSettings],
    ) -> None:
        queue, namespace = settings.get("queue", "default"), settings.get("namespace", "default")
        threads = settings.get("threads", 32)
        for field, value in (("name", name), ("queue", queue), ("namespace", namespace)):
            check_name(field, value)
        check_count("threads", threads, least=1, most=10_000)
        self.name, self.queue, self.namespace = name, queue, namespace
        self.handlers: dict[str, Handler[..., Any]] = {}
        self._connect, self._threads_max = connect, threads
        self._client: Client | None = None
        self._threads: Executor | None = None
        self._stack = AsyncExitStack()
        self._starting: list[Hook] = []
        self._ending: list[Hook] = []
        self._portal: Portal | None = None

    # ----------------------------------------------------------------------------------------- life

    async def __aenter__(self) -> App:
        if self._client is not None:
            raise InvalidState(f"the app {self.name} is open already")
        async with AsyncExitStack() as stack:
            self._client = await stack.enter_async_context(self._connect())
            for hook in self._starting:
                await hook()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hook in reversed(self._ending):
            await hook()
        if isinstance(self._threads, Executor):
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None
        self._client = None
        await self._stack.aclose()

    def on_start(self, hook: Hook) -> Hook:
        """Call this when the app has been opened."""
        self._starting.append(hook)
        return hook

    def on_end(self, hook: Hook) -> Hook:
        """Call this before the app is closed."""
        self._ending.append(hook)
        return hook

    @property
    def client(self) -> Client:
        if self._client is None:
            raise InvalidState(f"the app {self.name} is not open: use `async with app:` or the methods ending in _sync")
        return self._client

    @property
    def threads(self) -> Executor:
        """Where functions that block are run."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._threads_max, thread_name_prefix=f"windlass-{self.name}")
        return self._threads

    # ----------------------------------------------------------------------------------------- handlers

    @overload
    def task(self, function: Callable[P, Awaitable[R]], /) -> Handler[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Handler[P, R]: ...
    @overload
    def task(self, /, **options: Unpack[TaskOptions]) -> Decorator: ...

    def task(self, function: Callable[..., Any] | None = None, /, **options: Unpack[TaskOptions]) -> Any:
        """Make a function a handler: `@app.task`, or `@app.task(queue="mail", timeout="10m")`."""
        if function is not None:
            return self._add(function, options)
        return lambda decorated: self._add(decorated, options)

    def _add(self, function: Callable[..., Any], options: TaskOptions) -> Handler[..., Any]:
        if not callable(function):
            raise Invalid(f"must be a function, not {type(function).__name__}", field="function")
        handler = made_handler(self, function, options)
        if handler.kind in self.handlers:
            raise Conflict(f"the app {self.name} has a handler {handler.kind} already", kind=handler.kind)
        self.handlers[handler.kind] = handler
        return handler

    def handle(self, task_id: UUID) -> TaskHandle[Any]:
        """A handle for a task that somebody submitted, here or elsewhere."""
        check_type("task_id", task_id, UUID)
        return TaskHandle(self, task_id)

    # ----------------------------------------------------------------------------------------- working

    def worker(
        self,
        *,
        queues: Sequence[str] | None = None,
        name: str | None = None,
        concurrency: int = 32,
        lease_ttl_s: float = 30.0,
    ) -> Worker:
        """A worker for this app's handlers; by default for all the queues that they name."""
        chosen = sorted({handler.queue for handler in self.handlers.values()}) if queues is None else list(queues)
        return Worker(
            self.client, self.handlers, queues=chosen, name=name, concurrency=concurrency, lease_ttl_s=lease_ttl_s
        )

    # ----------------------------------------------------------------------------------------- without an event loop

    def call_sync(self, call: Callable[[], Awaitable[T]]) -> T:
        """Run something of this app from a thread that has no event loop; a thread of our own has one."""
        if self._portal is None:
            self._portal = Portal(self)
        return self._portal.call(call)

    def close_sync(self) -> None:
        """End the thread that `call_sync` began; otherwise it ends with the program."""
        if self._portal is not None:
            self._portal.close()
            self._portal = None
