"""The app: one object that knows a program's handlers and how to reach an engine.

Handlers submit and run themselves, the worker claims and reports. How an engine is reached, in this process or on a
remote server, is an argument: see `windlass.connect`.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypedDict, TypeVar, Unpack, cast, overload
from uuid import UUID

from windlass.core.cron import parse_cron
from windlass.core.retry import DEFAULT_POLICY
from windlass.core.schedule import CATCHUP_DEFAULT
from windlass.core.validation import check_callable, check_count, check_name
from windlass.errors import Conflict, Invalid, InvalidState
from windlass.sdk.client import Client
from windlass.sdk.context import Context
from windlass.sdk.handler.handle import TaskHandle
from windlass.sdk.handler.handler import Handler
from windlass.sdk.handler.options import StepOptions, TaskOptions, WorkerOptions, check_known
from windlass.sdk.processes.pool import ProcessPool
from windlass.sdk.schedule import Declaration, DeclarationTarget, Schedule, make_schedule
from windlass.sdk.sync import LoopCalls, SyncBridge
from windlass.sdk.worker.progress import ProgressSender
from windlass.sdk.worker.worker import Worker
from windlass.sdk.workflow.context import WorkflowContext
from windlass.sdk.workflow.handler import WorkflowHandler, supported_handlers
from windlass.sdk.workflow.step import StepDecorator, StepFunction

if TYPE_CHECKING:
    from windlass.sdk.handler.handler import (
        AsyncContextHandler,
        AsyncHandler,
        Decorator,
        SyncContextHandler,
        SyncHandler,
        WorkflowDecorator,
    )

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

Hook = Callable[[], Awaitable[None] | None]
H = TypeVar("H", bound=Hook)
F = TypeVar("F", bound=Handler[..., Any])


class AppSettings(TypedDict, total=False):
    """The settings of an app."""

    queue: str  # of handlers that name none
    namespace: str
    threads: int  # for functions that block
    processes: int  # for functions that run in one; default: the number of CPUs


class App:
    """A program's handlers and its connection to an engine. `async with app:` opens the connection that `connect`
    makes; then handlers can submit."""

    def __init__(
        self,
        name: str,
        connect: Callable[[], AbstractAsyncContextManager[Client]],
        **settings: Unpack[AppSettings],
    ) -> None:
        check_known(settings, AppSettings, "setting")
        check_callable("connect", connect)
        queue, namespace = settings.get("queue", "default"), settings.get("namespace", "default")
        threads = settings.get("threads", 32)
        for field, value in (("name", name), ("queue", queue), ("namespace", namespace)):
            check_name(field, value)
        processes = settings.get("processes", os.cpu_count() or 1)
        check_count("threads", threads, least=1, most=10_000)
        check_count("processes", processes, least=1, most=10_000)
        self.name, self.queue, self.namespace = name, queue, namespace
        self.handlers: dict[str, Handler[..., Any]] = {}
        self.schedules: dict[str, Schedule] = {}
        self._connect, self._threads_max, self._processes_max = connect, threads, processes
        self._client: Client | None = None
        self._progress_sender: ProgressSender | None = None
        self._processes: ProcessPool | None = None
        self._threads: Executor | None = None
        self._stack = AsyncExitStack()
        self._starting: list[Hook] = []
        self._ending: list[Hook] = []
        self._opening = threading.Lock()
        self._sync_bridge: SyncBridge | None = None
        self._shared, self._nested = False, 0  # how often it was opened again while it is shared
        self._calls: LoopCalls | None = None  # into the event loop in which the app is open

    # ----------------------------------------------------------------------------------------- life

    async def __aenter__(self) -> App:
        if self._client is not None and self._shared:
            self._nested += 1
            return self
        if self._client is not None:
            raise InvalidState(f"the app {self.name} is already open")
        async with AsyncExitStack() as stack:
            self._stack = stack  # a hook may already use the app, and resources that it opens are closed with the rest
            self._client = await stack.enter_async_context(self._connect())
            self._calls = LoopCalls(asyncio.get_running_loop())
            stack.callback(self._close)
            for hook in self._starting:
                await _call_hook(hook)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._nested:
            self._nested -= 1
            return
        for hook in self._ending:
            self._stack.push_async_callback(_call_hook, hook)  # if one fails, the others still run
        await self._stack.aclose()

    @contextmanager
    def shared(self) -> Iterator[None]:
        """For the test kit: inside, another `async with app:` finds the app open and leaves it open."""
        self._shared = True
        try:
            yield
        finally:
            self._shared, self._nested = False, 0

    def _close(self) -> None:
        if self._calls is not None:
            self._calls.end()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        self._client = self._calls = self._threads = self._progress_sender = self._processes = None

    def connect_by(
        self, connect: Callable[[], AbstractAsyncContextManager[Client]]
    ) -> Callable[[], AbstractAsyncContextManager[Client]]:
        """Use another `connect` the next time that the app is opened. Returns the previous one."""
        check_callable("connect", connect)
        previous, self._connect = self._connect, connect
        return previous

    def on_start(self, hook: H) -> H:
        """Call this function when the app is open and can submit. Hooks run in the order of their registration."""
        check_callable("hook", hook)
        self._starting.append(hook)
        return hook

    def on_end(self, hook: H) -> H:
        """Call this function before the app is closed. Hooks run in the reverse order of their registration."""
        check_callable("hook", hook)
        self._ending.append(hook)
        return hook

    @property
    def is_open(self) -> bool:
        return self._client is not None

    @property
    def client(self) -> Client:
        if self._client is None:
            raise InvalidState(f"the app {self.name} is not open: use `async with app:` or the methods ending in _sync")
        return self._client

    @property
    def progress_sender(self) -> ProgressSender:
        """Sends the progress of the handlers that run here."""
        if self._progress_sender is None:
            self._progress_sender = ProgressSender(self.client)
            self._stack.push_async_callback(self._progress_sender.close)
        return self._progress_sender

    @property
    def processes(self) -> ProcessPool:
        """Runs functions that are declared with `run_in="process"`."""
        if self._processes is None:
            self._processes = ProcessPool(self._processes_max)
            self._stack.push_async_callback(self._processes.close)
        return self._processes

    @property
    def threads(self) -> Executor:
        """Runs functions that block."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._threads_max, thread_name_prefix=f"windlass-{self.name}")
        return self._threads

    # ----------------------------------------------------------------------------------------- handlers

    @overload
    def task(  # type: ignore[overload-overlap]  # the first that fits is meant
        self, function: Callable[Concatenate[Context, P], Awaitable[R]], /
    ) -> AsyncContextHandler[P, R]: ...
    @overload
    def task(self, function: Callable[Concatenate[Context, P], R], /) -> SyncContextHandler[P, R]: ...
    @overload
    def task(  # type: ignore[overload-overlap]
        self, function: Callable[P, Awaitable[R]], /
    ) -> AsyncHandler[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> SyncHandler[P, R]: ...
    @overload
    def task(self, /, **options: Unpack[TaskOptions]) -> Decorator: ...

    def task(self, function: Callable[..., Any] | None = None, /, **options: Unpack[TaskOptions]) -> Any:
        """Make a function a handler: `@app.task`, or `@app.task(queue="mail", timeout="10m")`."""
        if function is not None:
            return self._add(function, options)
        return lambda decorated: self._add(decorated, options)

    @overload
    def workflow(self, function: Callable[Concatenate[WorkflowContext, P], Awaitable[R]], /) -> Handler[P, R]: ...
    @overload
    def workflow(self, function: Callable[P, Awaitable[R]], /) -> Handler[P, R]: ...
    @overload
    def workflow(self, /, **options: Unpack[TaskOptions]) -> WorkflowDecorator: ...

    def workflow(self, function: Callable[..., Any] | None = None, /, **options: Unpack[TaskOptions]) -> Any:
        """Make an async function with a parameter `ctx: WorkflowContext` a workflow; options as for a task."""
        if function is not None:
            return self._add(function, options, WorkflowHandler)
        return lambda decorated: self._add(decorated, options, WorkflowHandler)

    @overload
    def step(self, function: Callable[P, Awaitable[R]], /) -> StepFunction[P, R]: ...
    @overload
    def step(self, function: Callable[P, R], /) -> StepFunction[P, R]: ...
    @overload
    def step(self, /, **options: Unpack[StepOptions]) -> StepDecorator: ...

    def step(self, function: Callable[..., Any] | None = None, /, **options: Unpack[StepOptions]) -> Any:
        """Declare how a function is called as a step: `@app.step(timeout="30s", max_attempts=3)`. With a queue it runs
        as a separate task, and becomes a handler as well."""
        if function is not None:
            return self._step(function, options)
        return lambda decorated: self._step(decorated, options)

    def _step(self, function: Callable[..., Any], options: StepOptions) -> StepFunction[..., Any]:
        step = StepFunction[..., Any](function, options)
        if "queue" in options:
            known = {name: value for name, value in options.items() if name in TaskOptions.__annotations__}
            step.handler = self._add(function, cast("TaskOptions", known))
        return step

    def _add(
        self, function: Callable[..., Any], options: TaskOptions, handler_class: type[Handler[..., Any]] = Handler
    ) -> Handler[..., Any]:
        handler = handler_class(self, function, options)
        if handler.kind in self.handlers:
            raise Conflict(f"the app {self.name} already has a handler {handler.kind}", kind=handler.kind)
        self.handlers[handler.kind] = handler
        return handler

    def schedule(
        self,
        cron: str,
        *,
        name: str | None = None,
        timezone: str = "UTC",
        arguments: Mapping[str, Any] | None = None,
        overlap: str = "allow",
        max_catchup: int = CATCHUP_DEFAULT,
    ) -> Callable[[F], F]:
        """Submit a handler at these times: `@app.schedule("0 9 * * MON")` above `@app.task`. Servers fire it once a
        worker of the app has run. `overlap` (allow, skip, queue, cancel) decides what happens when an earlier task has
        not ended; at most `max_catchup` missed fires are caught up."""
        parse_cron(cron)  # raise here, at the decorator

        def declare(handler: F) -> F:
            if not isinstance(handler, Handler) or handler.app is not self:
                raise Invalid("must stand above @app.task of the same app", field="function")
            schedule = make_schedule(handler, cron, name, timezone, arguments, overlap, max_catchup)
            if schedule.name in self.schedules:
                raise Conflict(f"the app {self.name} already has a schedule {schedule.name}", name=schedule.name)
            self.schedules[schedule.name] = schedule
            return handler

        return declare

    def handle(self, task_id: UUID) -> TaskHandle[Any]:
        """A handle for a task that was submitted before, here or elsewhere."""
        return TaskHandle(self, task_id)

    # ----------------------------------------------------------------------------------------- working

    def worker(self, **options: Unpack[WorkerOptions]) -> Worker:
        """A worker for this app's handlers; by default for all queues that they name, 32 tasks at a time."""
        check_known(options, WorkerOptions)
        handlers = supported_handlers(self.client, self.handlers)
        if options.get("queues") is None:
            options["queues"] = sorted({handler.queue for handler in handlers.values()})
        options.setdefault("namespace", self.namespace)
        options.setdefault("concurrency", 32)
        worker = Worker(self.client, handlers, **options)
        if hasattr(self.client, "declare_schedules"):
            specs = [schedule.spec for schedule in self.schedules.values()]
            kinds = {h.kind: None if h.policy is DEFAULT_POLICY else h.policy for h in self.handlers.values()}
            target = cast("DeclarationTarget", self.client)
            worker.declaration = Declaration(target, self.name, self.namespace, specs, kinds)
        return worker

    # ----------------------------------------------------------------------------------------- without an event loop

    def call_sync(self, call: Callable[[], Awaitable[T]]) -> T:
        """Run a coroutine function of this app from a thread without an event loop: in the loop in which the app is
        open, or in a new thread that opens it."""
        check_callable("call", call)
        with self._opening:
            if self._calls is None:
                self._sync_bridge = SyncBridge(self)
            assert self._calls is not None, self.name
            calls = self._calls
        return calls.call(call)

    def close_sync(self) -> None:
        """End the thread that `call_sync` started; otherwise it ends with the program."""
        if self._sync_bridge is not None:
            self._sync_bridge.close()
            self._sync_bridge = None


async def _call_hook(hook: Hook) -> None:
    """Call a hook, which may be async."""
    result = hook()
    if inspect.isawaitable(result):
        await result
