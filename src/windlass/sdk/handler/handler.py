"""A handler: the user's function with its name, its options and its schema. It stays callable.

Knows how to submit itself through its app, and how to run one attempt for a worker; does not know how the app and the
worker do their part.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from copy import copy
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, Unpack, cast, overload
from uuid import UUID

from msgspec.structs import replace

from windlass.core.command import Claimed
from windlass.core.failure import Failure
from windlass.core.submission import PRIORITY_MAX, PRIORITY_MIN, Submission
from windlass.core.upstream import handover_of, results_payload
from windlass.core.validation import check_callable, check_count, check_name
from windlass.errors import Invalid
from windlass.sdk.context import Context, set_current
from windlass.sdk.duration import seconds
from windlass.sdk.handler.group_handle import GroupHandle
from windlass.sdk.handler.groups import Call, Group, Unary
from windlass.sdk.handler.handle import TaskHandle, make_handles
from windlass.sdk.handler.options import SubmitOptions, TaskOptions, check_known, check_retry_on, retry_policy
from windlass.sdk.handler.schema import Schema
from windlass.sdk.processes.pool import RemoteFailure, run_request
from windlass.sdk.signals import failure_of, invalid_is_bad_data
from windlass.sdk.trace import (
    submit_batch_with_trace,
    submit_many_with_trace,
    submit_span,
    submit_with_trace,
    with_trace,
)
from windlass.sdk.transaction import submit_in, submit_in_sync, submit_many_in, submit_many_in_sync
from windlass.sdk.worker.attempt_environment import AttemptEnvironment, ClaimedEnvironment
from windlass.sdk.worker.outcome import CallResult

if TYPE_CHECKING:
    from windlass.sdk.app import App
    from windlass.sdk.workflow.context import WorkflowContext

_ARGUMENTS = (tuple, list)  # `tuple | list` would be built again for each task of a batch

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
B = TypeVar("B")


class Handler(Generic[P, R]):
    """Made by `@app.task`."""

    takes_results = True  # may stand in a chain after its first call

    def __init__(self, app: App, function: Callable[..., Any], options: TaskOptions) -> None:
        check_callable("function", function)
        check_known(options, TaskOptions)
        functools.update_wrapper(self, function)
        self.app, self.function = app, function
        self.kind = options.get("kind", f"{app.name}.{getattr(function, '__name__', type(function).__name__)}")
        self.queue, self.priority = options.get("queue", app.queue), options.get("priority", 0)
        self._concurrency_key, self._retry_on = options.get("concurrency_key"), options.get("retry_on")
        check_name("kind", self.kind)
        check_name("queue", self.queue)
        check_count("priority", self.priority, least=PRIORITY_MIN, most=PRIORITY_MAX)
        if self._concurrency_key is not None:
            check_callable("concurrency_key", self._concurrency_key)
        check_retry_on(self._retry_on)
        self.policy, self.schema = retry_policy(options), Schema(function, Context)
        self._is_async = inspect.iscoroutinefunction(function)
        self.in_process = self._runs_in_process(options.get("run_in"))
        self._options: SubmitOptions = {}

    def _runs_in_process(self, run_in: object) -> bool:
        if run_in not in (None, "thread", "process"):
            raise Invalid(f"must be thread or process, not {run_in!r:.100}", field="run_in")
        if run_in == "thread" and self._is_async:
            raise Invalid("an async function runs in the event loop, or in a process", field="run_in")
        if run_in == "process" and "<" in getattr(self.function, "__qualname__", "<"):
            problem = "a function that runs in a process must be defined at the top level of a module"
            raise Invalid(problem, field="run_in")
        return run_in == "process"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function itself, as if it had not been decorated."""
        return self.function(*args, **kwargs)

    # ----------------------------------------------------------------------------------------- submitting

    def options(self, **changes: Unpack[SubmitOptions]) -> Handler[P, R]:
        """The same handler, submitting with other options: `send.options(delay="5m").submit(…)`."""
        check_known(changes, SubmitOptions)
        other: Handler[P, R] = copy(self)
        other._options = {**self._options, **changes}
        return other

    async def submit(self, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[R]:
        """Submit one task. When this returns, it is durable; with a connection, when the caller has committed."""
        connection = self._connection(kwargs)
        submission = self.submission(args, kwargs)
        if connection is not None:
            return self._handle(await submit_in(connection, submission))
        with submit_span(submission.kind, submission.queue) as trace:
            return self._handle(await self.app.client.submit(with_trace(submission, trace)))

    async def submit_many(self, calls: Iterable[Sequence[Any]]) -> list[TaskHandle[R]]:
        """Submit a task for each tuple of arguments, all or none, in one transaction."""
        if self.has_connection:
            ids = await submit_many_in(self._options["connection"], self._submissions(calls))
        else:
            ids = await self._prepare_many(calls)()
        return make_handles(self.app, ids, self.schema)

    def submit_sync(self, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[R]:
        """`submit` for code without an event loop."""
        connection = self._connection(kwargs)
        submission = self.submission(args, kwargs)
        if connection is not None:
            return self._handle(submit_in_sync(connection, submission))
        return self._handle(self.app.call_sync(lambda: submit_with_trace(self.app.client, submission)))

    def submit_many_sync(self, calls: Iterable[Sequence[Any]]) -> list[TaskHandle[R]]:
        """`submit_many` for code without an event loop."""
        if self.has_connection:
            ids = submit_many_in_sync(self._options["connection"], self._submissions(calls))
        else:
            ids = self.app.call_sync(self._prepare_many(calls))
        return make_handles(self.app, ids, self.schema)

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """This handler with its arguments, for a `group` or the beginning of a `chain`."""
        return Call(self, args, kwargs)

    async def map(self: Unary[A, B], items: Iterable[A], *, key: str | None = None) -> GroupHandle[B]:
        """Submit a task for each item, all or none; `await handle.results()` returns their results, in order."""
        return await Group[B](_calls(self, items)).submit(key=key)

    def map_sync(self: Unary[A, B], items: Iterable[A], *, key: str | None = None) -> GroupHandle[B]:
        """`map` for code without an event loop."""
        return Group[B](_calls(self, items)).submit_sync(key=key)

    @property
    def has_connection(self) -> bool:
        """Whether it submits on a connection of the caller."""
        return self._options.get("connection") is not None

    def _handle(self, task_id: UUID) -> TaskHandle[R]:
        return TaskHandle(self.app, task_id, self.schema)

    def _connection(self, kwargs: dict[str, Any]) -> Any:
        """The caller's connection to submit on: from `options`, or beside the arguments of the function."""
        if "connection" in kwargs and not self.schema.takes("connection"):
            return kwargs.pop("connection")
        return self._options.get("connection")

    def _prepare_many(self, calls: Iterable[Sequence[Any]]) -> Callable[[], Awaitable[list[UUID]]]:
        """Encode the arguments now; the function that this returns submits them. Tasks that differ in nothing but
        their arguments go as one batch."""
        if self._concurrency_key is not None and "concurrency_key" not in self._options:
            submissions = self._submissions(calls)
            return lambda: submit_many_with_trace(self.app.client, submissions)
        shared = self._submission(b"null", self._key((), {}))
        encode = self.schema.payload
        payloads = [encode(args, {}) for args in _arguments_of(calls)]
        return lambda: submit_batch_with_trace(self.app.client, shared, payloads)

    def _submissions(self, calls: Iterable[Sequence[Any]]) -> list[Submission]:
        return [self.submission(args, {}) for args in _arguments_of(calls)]

    def submission(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Submission:
        """The submission for these arguments, checked against the function's signature."""
        return self._submission(self.schema.payload(args, kwargs), self._key(args, kwargs))

    def _submission(self, payload: bytes, concurrency_key: str) -> Submission:
        options = self._options
        return Submission(
            kind=self.kind,
            payload=payload,
            queue=options.get("queue", self.queue),
            namespace=self.app.namespace,
            priority=options.get("priority", self.priority),
            delay_s=seconds("delay", options["delay"]) if "delay" in options else 0.0,
            available_at=options.get("available_at"),
            deadline_at=options.get("deadline_at"),
            concurrency_key=concurrency_key,
            idempotency_key=options.get("idempotency_key"),
            policy=self.policy,
            run_id=options.get("run_id"),
            after=tuple(options.get("after", ())),
        )

    def submission_after(self, parameter: str, upstream: UUID | Sequence[UUID]) -> Submission:
        """The submission of a task that runs after others, with their results as its argument."""
        if self.has_connection:
            raise Invalid("cannot be used inside a chain", field="connection")
        payload = results_payload(parameter, upstream)
        after = (upstream,) if isinstance(upstream, UUID) else tuple(upstream)
        return replace(self._submission(payload, self._options.get("concurrency_key", "")), after=after)

    def _key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        if "concurrency_key" in self._options:
            return self._options["concurrency_key"]
        return "" if self._concurrency_key is None else str(self._concurrency_key(*args, **kwargs))

    # ----------------------------------------------------------------------------------------- running

    async def run(self, claimed: Claimed, environment: AttemptEnvironment | None = None) -> bytes:
        """One attempt. A payload that does not match the signature is bad data, and not retried."""
        if environment is None:
            environment = ClaimedEnvironment(self.app, claimed)
        try:
            checkpoint = await environment.last_checkpoint()
            with invalid_is_bad_data:
                upstream = handover_of(claimed.payload)
                payload = claimed.payload
                if upstream is not None:
                    payload = upstream.filled(await environment.results(upstream.ids))
            if self.in_process:
                run = run_request(self.function, self.kind, Claimed(claimed.task, payload), checkpoint)
                return await self.app.processes.run(run, environment.progress)
            return await self._run(Context(claimed, environment.progress, checkpoint), payload)
        finally:
            await environment.close()

    async def _run(self, context: Context, payload: bytes) -> bytes:
        with invalid_is_bad_data:
            arguments = self.schema.arguments(payload)
        if self.schema.context_parameter is not None:
            arguments[self.schema.context_parameter] = context
        set_current(context)
        if self._is_async:
            result = await self.function(**arguments)
        else:
            result = await in_thread(self.app.threads, functools.partial(self.function, **arguments), context)
        with invalid_is_bad_data:
            return self.schema.result(result)

    def failure(self, error: BaseException) -> Failure:
        """The failure that an exception means. `retry_on` names those to retry; without it, all are retried."""
        if isinstance(error, RemoteFailure):
            return error.failure
        return failure_of(error, None if self._retry_on is None else isinstance(error, self._retry_on))


if TYPE_CHECKING:
    # What `@app.task` returns: handlers that differ in the type of a direct call. `submit` leaves the context out.

    class AsyncHandler(Handler[P, R]):
        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]: ...

    class SyncHandler(Handler[P, R]):
        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

    class AsyncContextHandler(Handler[P, R]):
        def __call__(self, ctx: Context, /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]: ...

    class SyncContextHandler(Handler[P, R]):
        def __call__(self, ctx: Context, /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    class Decorator(Protocol):
        @overload
        def __call__(  # type: ignore[overload-overlap]  # the first that fits is meant
            self, function: Callable[Concatenate[Context, P], Awaitable[R]], /
        ) -> AsyncContextHandler[P, R]: ...
        @overload
        def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> SyncContextHandler[P, R]: ...
        @overload
        def __call__(  # type: ignore[overload-overlap]
            self, function: Callable[P, Awaitable[R]], /
        ) -> AsyncHandler[P, R]: ...
        @overload
        def __call__(self, function: Callable[P, R], /) -> SyncHandler[P, R]: ...

    class WorkflowDecorator(Protocol):
        @overload
        def __call__(self, function: Callable[Concatenate[WorkflowContext, P], Awaitable[R]], /) -> Handler[P, R]: ...
        @overload
        def __call__(self, function: Callable[P, Awaitable[R]], /) -> Handler[P, R]: ...


def _arguments_of(calls: Iterable[Sequence[Any]]) -> Iterator[tuple[Any, ...]]:
    if isinstance(calls, str | bytes) or not isinstance(calls, Iterable):
        raise Invalid("must be tuples, each with the arguments of one task", field="calls")
    for args in calls:
        if not isinstance(args, _ARGUMENTS):
            raise Invalid(f"must be tuples of arguments; {args!r:.100} is not a tuple", field="calls")
        yield tuple(args)


def _calls(handler: Unary[A, B], items: Iterable[A]) -> list[Call[B]]:
    if isinstance(items, str | bytes) or not isinstance(items, Iterable):
        raise Invalid(f"must be iterable, not {type(items).__name__}", field="items")
    return [cast("Handler[..., B]", handler).bind(item) for item in items]


async def in_thread(threads: Executor, call: Callable[[], Any], context: Context) -> Any:
    """Run a blocking function in a thread, with a copy of the context variables. A thread cannot be stopped: when the
    caller is cancelled, `context` is marked as cancelled, and the attempt keeps its slot until the function returns."""
    call = functools.partial(contextvars.copy_context().run, call)
    running = asyncio.get_running_loop().run_in_executor(threads, CallResult, call)
    try:
        return (await asyncio.shield(running)).get()
    except asyncio.CancelledError:
        context.set_cancelled()
        await asyncio.wait({running})
        if running.result().error is None:
            return running.result().value  # it finished its work
        raise
