"""A handler: the user's function with its name, its options and its schema. It stays callable as it was.

Knows how to submit itself through its app, and how to run one attempt for a worker; what the app and the worker are
made of it does not know.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from copy import copy
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypedDict, TypeVar, Unpack, cast
from uuid import UUID

from msgspec.structs import replace

from windlass.core.command import Claimed
from windlass.core.error import Invalid
from windlass.core.failure import Failure
from windlass.core.handover import handover_of, results_payload
from windlass.core.retry import Policy
from windlass.core.submission import Submission
from windlass.sdk.around import Around, AtTheEngine
from windlass.sdk.compose import Call, Group, Takes
from windlass.sdk.context import Context, enter
from windlass.sdk.duration import Duration, seconds
from windlass.sdk.group_handle import GroupHandle
from windlass.sdk.handle import TaskHandle, handles_of
from windlass.sdk.outcome import Returned
from windlass.sdk.process import RemoteFailure, run_of
from windlass.sdk.schema import Schema
from windlass.sdk.signals import failure_of, unfit_is_bad_data
from windlass.sdk.trace import submitting, traced
from windlass.sdk.transaction import submit_in, submit_in_sync, submit_many_in, submit_many_in_sync

if TYPE_CHECKING:
    from windlass.sdk.app import App

_ARGUMENTS = (tuple, list)  # as `tuple | list` it would be made anew for each task of a batch

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
B = TypeVar("B")


class SubmitOptions(TypedDict, total=False):
    """How a submission may differ from the handler's own settings."""

    queue: str
    priority: int
    delay: Duration
    available_at: datetime
    deadline_at: datetime
    idempotency_key: str
    concurrency_key: str
    run_id: UUID
    after: Sequence[UUID]
    connection: Any  # of asyncpg, psycopg, SQLAlchemy or Django: joins its transaction, which must have begun


class Handler(Generic[P, R]):
    """Made by `@app.task`."""

    takes_results = True  # of other tasks, as a later part of a chain

    def __init__(
        self,
        app: App,
        function: Callable[..., Any],
        *,
        kind: str,
        queue: str,
        priority: int,
        policy: Policy,
        concurrency_key: Callable[..., object] | None,
        retry_on: tuple[type[BaseException], ...] | None,
        in_process: bool = False,
    ) -> None:
        functools.update_wrapper(self, function)
        self.app, self._function = app, function
        self.kind, self.queue, self.priority, self.policy = kind, queue, priority, policy
        self._concurrency_key, self._retry_on = concurrency_key, retry_on
        self._is_async, self.in_process = inspect.iscoroutinefunction(function), in_process
        self.schema = Schema(function, Context)
        self._options: SubmitOptions = {}

    @property
    def function(self) -> Callable[..., Awaitable[R] | R]:
        return self._function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function itself, as if it had not been decorated."""
        return self._function(*args, **kwargs)

    # ----------------------------------------------------------------------------------------- submitting

    def options(self, **changes: Unpack[SubmitOptions]) -> Handler[P, R]:
        """The same handler, submitting with other options: `send.options(delay="5m").submit(…)`."""
        unknown = set(changes) - SubmitOptions.__annotations__.keys()
        if unknown:
            raise Invalid(f"there is no option {min(unknown)}", field="options")
        other: Handler[P, R] = copy(self)
        other._options = {**self._options, **changes}
        return other

    async def submit(self, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[R]:
        """Submit one task. When this returns, it is durable; with a connection, when the caller has committed."""
        connection = self._connection(kwargs)
        submission = self.submission(args, kwargs)
        if connection is not None:
            return self._handle(await submit_in(connection, submission))
        with submitting(self.kind, submission.queue) as trace:
            return self._handle(await self.app.client.submit(traced(submission, trace)))

    async def submit_many(self, calls: Iterable[Sequence[Any]]) -> list[TaskHandle[R]]:
        """Submit a task for each tuple of arguments, all or none, in one transaction."""
        if self._alike:
            shared, payloads = self._submission(b"null", self._key((), {})), self._payloads(calls)
            with submitting(self.kind, self.queue, len(payloads)) as trace:
                ids = await self.app.client.submit_batch(traced(shared, trace), payloads)
            return handles_of(self.app, ids, self.schema)
        submissions, connection = self._submissions(calls), self._connection({})
        if connection is not None:
            return [self._handle(task_id) for task_id in await submit_many_in(connection, submissions)]
        with submitting(self.kind, self.queue, len(submissions)) as trace:
            ids = await self.app.client.submit_many([traced(submission, trace) for submission in submissions])
        return [self._handle(task_id) for task_id in ids]

    def submit_sync(self, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[R]:
        """`submit` for code without an event loop."""
        connection = self._connection(kwargs)
        submission = self.submission(args, kwargs)
        if connection is not None:
            return self._handle(submit_in_sync(connection, submission))
        with submitting(self.kind, submission.queue) as trace:
            sent = traced(submission, trace)
            return self._handle(self.app.call_sync(lambda: self.app.client.submit(sent)))

    def submit_many_sync(self, calls: Iterable[Sequence[Any]]) -> list[TaskHandle[R]]:
        """`submit_many` for code without an event loop."""
        if self._alike:
            shared, payloads = self._submission(b"null", self._key((), {})), self._payloads(calls)
            with submitting(self.kind, self.queue, len(payloads)) as trace:
                sent_batch = traced(shared, trace)
                ids = self.app.call_sync(lambda: self.app.client.submit_batch(sent_batch, payloads))
            return handles_of(self.app, ids, self.schema)
        submissions, connection = self._submissions(calls), self._connection({})
        if connection is not None:
            return [self._handle(task_id) for task_id in submit_many_in_sync(connection, submissions)]
        with submitting(self.kind, self.queue, len(submissions)) as trace:
            sent = [traced(submission, trace) for submission in submissions]
            ids = self.app.call_sync(lambda: self.app.client.submit_many(sent))
        return [self._handle(task_id) for task_id in ids]

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """This handler with its arguments, for a `group` or the beginning of a `chain`."""
        return Call(self, args, kwargs)

    async def map(self: Takes[A, B], items: Iterable[A], *, key: str | None = None) -> GroupHandle[B]:
        """Submit a task for each item, all or none; `await handle.results()` has what they return, in their order."""
        return await Group[B](_calls(self, items)).submit(key=key)

    def map_sync(self: Takes[A, B], items: Iterable[A], *, key: str | None = None) -> GroupHandle[B]:
        """`map` for code without an event loop."""
        return Group[B](_calls(self, items)).submit_sync(key=key)

    @property
    def submits_elsewhere(self) -> bool:
        """Whether it submits on somebody's own connection."""
        return self._options.get("connection") is not None

    def _handle(self, task_id: UUID) -> TaskHandle[R]:
        return TaskHandle(self.app, task_id, self.schema)

    def _connection(self, kwargs: dict[str, Any]) -> Any:
        """The caller's, in whose transaction to submit: from `options`, or beside the arguments of the function."""
        if "connection" in kwargs and not self.schema.takes("connection"):
            return kwargs.pop("connection")
        return self._options.get("connection")

    @property
    def _alike(self) -> bool:
        """Whether tasks that are submitted together differ in nothing but their arguments, and go to the engine."""
        own_key = self._concurrency_key is not None and "concurrency_key" not in self._options
        return not own_key and not self.submits_elsewhere

    def _payloads(self, calls: Iterable[Sequence[Any]]) -> list[bytes]:
        payload = self.schema.payload
        return [payload(args, {}) for args in _arguments_of(calls)]

    def _submissions(self, calls: Iterable[Sequence[Any]]) -> list[Submission]:
        return [self.submission(args, {}) for args in _arguments_of(calls)]

    def submission(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Submission:
        """What would be submitted, checked against the function's own signature."""
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
        """What would be submitted to run after others, with what they returned as its argument."""
        if self.submits_elsewhere:
            raise Invalid("cannot be used by what is part of a chain", field="connection")
        payload = results_payload(parameter, upstream)
        after = (upstream,) if isinstance(upstream, UUID) else tuple(upstream)
        return replace(self._submission(payload, self._options.get("concurrency_key", "")), after=after)

    def _key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        if "concurrency_key" in self._options:
            return self._options["concurrency_key"]
        return "" if self._concurrency_key is None else str(self._concurrency_key(*args, **kwargs))

    # ----------------------------------------------------------------------------------------- running

    async def run(self, claimed: Claimed, around: Around | None = None) -> bytes:
        """One attempt. Payloads that do not fit the signature are bad data, and not tried again."""
        if around is None:
            around = AtTheEngine(self.app, claimed)
        try:
            left_behind = await around.left_behind()
            with unfit_is_bad_data():
                asked = handover_of(claimed.payload)
                payload = claimed.payload if asked is None else asked.filled(await around.results(asked.ids))
            if self.in_process:
                run = run_of(self._function, self.kind, Claimed(claimed.task, payload), left_behind)
                return await self.app.processes.run(run, around.notes)
            return await self._run(Context(claimed, around.notes, left_behind), payload)
        finally:
            await around.close()

    async def _run(self, context: Context, payload: bytes) -> bytes:
        with unfit_is_bad_data():
            arguments = self.schema.arguments(payload)
        if self.schema.context_parameter is not None:
            arguments[self.schema.context_parameter] = context
        enter(context)
        if self._is_async:
            result = await cast("Awaitable[R]", self._function(**arguments))
        else:
            call = functools.partial(contextvars.copy_context().run, functools.partial(self._function, **arguments))
            result = await in_thread(self.app.threads, call, context)
        with unfit_is_bad_data():
            return self.schema.result(result)

    def failure(self, error: BaseException) -> Failure:
        """What an exception means. `retry_on` names those worth another try; without it, all are."""
        if isinstance(error, RemoteFailure):
            return error.failure
        return failure_of(error, None if self._retry_on is None else isinstance(error, self._retry_on))


class AsyncHandler(Handler[P, R]):
    """Of an async function. This and the next three only tell type checkers what calling the function itself means."""

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]: ...


class SyncHandler(Handler[P, R]):
    """Of a function that blocks."""

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...


class AsyncContextHandler(Handler[P, R]):
    """Of an async function whose first parameter is its context, which those who submit leave out."""

    if TYPE_CHECKING:

        def __call__(self, ctx: Context, /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]: ...


class SyncContextHandler(Handler[P, R]):
    """Of a function that blocks, whose first parameter is its context, which those who submit leave out."""

    if TYPE_CHECKING:

        def __call__(self, ctx: Context, /, *args: P.args, **kwargs: P.kwargs) -> R: ...


def _arguments_of(calls: Iterable[Sequence[Any]]) -> Iterator[tuple[Any, ...]]:
    if isinstance(calls, str | bytes) or not isinstance(calls, Iterable):
        raise Invalid("must be the arguments of each task, as tuples", field="calls")
    for args in calls:
        if not isinstance(args, _ARGUMENTS):
            raise Invalid(f"must be tuples of arguments; {args!r:.100} is none", field="calls")
        yield tuple(args)


def _calls(handler: Takes[A, B], items: Iterable[A]) -> list[Call[B]]:
    if isinstance(items, str | bytes) or not isinstance(items, Iterable):
        raise Invalid(f"must be something to go through, not {type(items).__name__}", field="items")
    return [cast("Handler[..., B]", handler).bind(item) for item in items]


async def in_thread(threads: Executor, call: Callable[[], Any], context: Context) -> Any:
    """Run a blocking function. A thread cannot be stopped: it is told, waited for, and keeps its place until then."""
    running = asyncio.get_running_loop().run_in_executor(threads, Returned, call)
    try:
        return (await asyncio.shield(running)).get()
    except asyncio.CancelledError:
        context.tell_cancelled()
        await asyncio.wait({running})
        if running.result().error is None:
            return running.result().value  # it finished all the same
        raise
