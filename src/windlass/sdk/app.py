"""The app: one object that knows a program's handlers and how to reach an engine.

Thin on purpose: handlers submit and run themselves, the worker claims and reports. How an engine is reached (in this
process, or far away) is given by whoever composes the program: see `windlass.app`.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypedDict, TypeVar, Unpack, cast, overload
from uuid import UUID

from windlass.core.check import check_callable, check_count, check_name
from windlass.core.cron import parse_cron
from windlass.core.error import Conflict, Invalid, InvalidState
from windlass.core.retry import DEFAULT_POLICY
from windlass.core.schedule import CATCHUP_DEFAULT
from windlass.sdk.callback.worker import CallbackOptions, CallbackWorker
from windlass.sdk.client import Client
from windlass.sdk.context import Context
from windlass.sdk.handle import TaskHandle
from windlass.sdk.handler import AsyncContextHandler, AsyncHandler, Handler, SyncContextHandler, SyncHandler
from windlass.sdk.note import Notes
from windlass.sdk.option import Decorator, TaskOptions, made_handler
from windlass.sdk.portal import Calls, Portal
from windlass.sdk.process import Processes
from windlass.sdk.schedule import Calendar, Declaration, Schedule, made_schedule
from windlass.sdk.step import StepDecorator, StepFunction, StepOptions, check_options, handler_options
from windlass.sdk.worker import Worker
from windlass.sdk.worker_option import WorkerOptions
from windlass.sdk.workflow import WorkflowContext
from windlass.sdk.workflow_handler import WorkflowHandler, runnable_through

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

Hook = Callable[[], Awaitable[None] | None]
H = TypeVar("H", bound=Hook)
F = TypeVar("F", bound=Handler[..., Any])


class AppSettings(TypedDict, total=False):
    """What an app may be told about itself."""

    queue: str  # of handlers that name none
    namespace: str
    threads: int  # for functions that block
    processes: int  # for functions that run in one; default: as many as there are CPUs


class App:
    """`async with app:` opens it; then its handlers can submit. `connect` says how an engine is reached."""

    def __init__(
        self,
        name: str,
        connect: Callable[[], AbstractAsyncContextManager[Client]],
        **settings: Unpack[AppSettings],
    ) -> None:
        unknown = set(settings) - AppSettings.__annotations__.keys()
        if unknown:
            raise Invalid(f"there is no setting {min(unknown)}", field="settings")
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
        self._notes: Notes | None = None
        self._processes: Processes | None = None
        self._threads: Executor | None = None
        self._stack = AsyncExitStack()
        self._starting: list[Hook] = []
        self._ending: list[Hook] = []
        self._opening = threading.Lock()
        self._portal: Portal | None = None
        self._held_open, self._guests = False, 0  # who else has opened it meanwhile
        self._calls: Calls | None = None  # into the event loop in which the app is open

    # ----------------------------------------------------------------------------------------- life

    async def __aenter__(self) -> App:
        if self._client is not None and self._held_open:
            self._guests += 1
            return self
        if self._client is not None:
            raise InvalidState(f"the app {self.name} is open already")
        async with AsyncExitStack() as stack:
            self._stack = stack  # a hook may begin to work already, and what that needs is closed with the rest
            self._client = await stack.enter_async_context(self._connect())
            self._calls = Calls(asyncio.get_running_loop())
            stack.callback(self._forget)
            for hook in self._starting:
                await _called(hook)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._guests:
            self._guests -= 1
            return
        for hook in self._ending:
            self._stack.push_async_callback(_called, hook)  # one that fails does not keep the others from running
        await self._stack.aclose()

    @contextmanager
    def held_open(self) -> Iterator[None]:
        """For whoever runs the app in place of its program, such as a test kit: inside, `async with app:` elsewhere
        finds it open and leaves it open."""
        self._held_open = True
        try:
            yield
        finally:
            self._held_open, self._guests = False, 0

    def _forget(self) -> None:
        if self._calls is not None:
            self._calls.end()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        self._client = self._calls = self._threads = self._notes = self._processes = None

    def connect_by(
        self, connect: Callable[[], AbstractAsyncContextManager[Client]]
    ) -> Callable[[], AbstractAsyncContextManager[Client]]:
        """Reach an engine in another way from the next time on that the app is opened: for whoever runs it. Returns the
        way so far."""
        check_callable("connect", connect)
        usual, self._connect = self._connect, connect
        return usual

    def on_start(self, hook: H) -> H:
        """Call this when the app has been opened, and can submit; in the order in which they were named."""
        check_callable("hook", hook)
        self._starting.append(hook)
        return hook

    def on_end(self, hook: H) -> H:
        """Call this before the app is closed; the last one first."""
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
    def notes(self) -> Notes:
        """What the handlers that run here say."""
        if self._notes is None:
            self._notes = Notes(self.client)
            self._stack.push_async_callback(self._notes.close)
        return self._notes

    @property
    def processes(self) -> Processes:
        """Where functions run that are declared with `run_in="process"`."""
        if self._processes is None:
            self._processes = Processes(self._processes_max)
            self._stack.push_async_callback(self._processes.close)
        return self._processes

    @property
    def threads(self) -> Executor:
        """Where functions that block are run."""
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
    def workflow(self, /, **options: Unpack[TaskOptions]) -> Decorator: ...

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
        as a task of its own, for which it becomes a handler as well."""
        if function is not None:
            return self._step(function, options)
        return lambda decorated: self._step(decorated, options)

    def _step(self, function: Callable[..., Any], options: StepOptions) -> StepFunction[..., Any]:
        check_callable("function", function)
        check_options(options)
        handler = self._add(function, handler_options(options)) if "queue" in options else None
        return StepFunction(function, options, handler)

    def _add(
        self, function: Callable[..., Any], options: TaskOptions, made: type[Handler[..., Any]] = Handler
    ) -> Handler[..., Any]:
        if not callable(function):
            raise Invalid(f"must be a function, not {type(function).__name__}", field="function")
        handler = made_handler(self, function, options, made)
        if handler.kind in self.handlers:
            raise Conflict(f"the app {self.name} has a handler {handler.kind} already", kind=handler.kind)
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
        worker of the app has run; `overlap` (allow, skip, queue, cancel) is for when an earlier task has not ended,
        `max_catchup` how many missed fires are made up for."""
        parse_cron(cron)

        def declare(handler: F) -> F:
            if not isinstance(handler, Handler) or handler.app is not self:
                raise Invalid("must stand above @app.task of the same app", field="function")
            made = made_schedule(handler, cron, name, timezone, arguments, overlap, max_catchup)
            if made.name in self.schedules:
                raise Conflict(f"the app {self.name} has a schedule {made.name} already", name=made.name)
            self.schedules[made.name] = made
            return handler

        return declare

    def handle(self, task_id: UUID) -> TaskHandle[Any]:
        """A handle for a task that somebody submitted, here or elsewhere."""
        return TaskHandle(self, task_id)

    # ----------------------------------------------------------------------------------------- working

    def worker(self, **options: Unpack[WorkerOptions]) -> Worker:
        """A worker for this app's handlers; by default for all the queues that they name, 32 tasks at a time."""
        unknown = set(options) - WorkerOptions.__annotations__.keys()
        if unknown:
            raise Invalid(f"there is no option {min(unknown)}", field="options")
        handlers = runnable_through(self.client, self.handlers)
        if options.get("queues") is None:
            options["queues"] = sorted({handler.queue for handler in handlers.values()})
        options.setdefault("namespace", self.namespace)
        options.setdefault("concurrency", 32)
        worker = Worker(self.client, handlers, **options)
        if hasattr(self.client, "declare_schedules"):
            specs = [schedule.spec for schedule in self.schedules.values()]
            kinds = {h.kind: None if h.policy is DEFAULT_POLICY else h.policy for h in self.handlers.values()}
            worker.declaration = Declaration(cast("Calendar", self.client), self.name, self.namespace, specs, kinds)
        return worker

    def callback_worker(self, **options: Unpack[CallbackOptions]) -> CallbackWorker:
        """A worker for queues that push: an application for ASGI and WSGI that your service mounts. It needs the
        `secret` of the queue. The app is opened with it if it is not open already; then it cannot submit."""
        unknown = set(options) - CallbackOptions.__annotations__.keys()
        if unknown:
            raise Invalid(f"there is no option {min(unknown)}", field="options")
        if "secret" not in options:
            raise Invalid("is needed: say it here, or set WINDLASS_SIGNING_SECRET to that of the queue", field="secret")
        return CallbackWorker(self, **options)

    # ----------------------------------------------------------------------------------------- without an event loop

    def call_sync(self, call: Callable[[], Awaitable[T]]) -> T:
        """Run something of this app from a thread that has no event loop: in the loop in which the app is open, or in
        a thread of our own that opens it."""
        check_callable("call", call)
        with self._opening:
            if self._calls is None:
                self._portal = Portal(self)
            assert self._calls is not None, self.name
            calls = self._calls
        return calls.call(call)

    def close_sync(self) -> None:
        """End the thread that `call_sync` began; otherwise it ends with the program."""
        if self._portal is not None:
            self._portal.close()
            self._portal = None


async def _called(hook: Hook) -> None:
    """A hook may be async or not."""
    waiting = hook()
    if inspect.isawaitable(waiting):
        await waiting
