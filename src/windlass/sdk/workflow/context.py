"""The context of a workflow: steps whose results are recorded, sleeps and waits that hold no worker.

Every attempt runs a workflow from its beginning. Each call here is looked up in the `journal`; a step that is not
recorded yet runs, is recorded, and only then returns. When the workflow has to wait, the attempt ends with one of the
`exits`, and the engine wakes the workflow when it is time.
"""

from __future__ import annotations

import asyncio
import functools
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import nullcontext
from datetime import datetime
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack, cast, overload
from uuid import UUID

from msgspec.structs import replace

from windlass.core.command import Claimed
from windlass.core.failure import Category
from windlass.core.ids import derived_id
from windlass.core.step import SIGNAL_PREFIX, Place, Step, StepKind, StepState
from windlass.core.step_command import (
    StepChild,
    StepCommand,
    StepFailure,
    StepResult,
    StepSignal,
    StepSleep,
    StepTime,
)
from windlass.core.text import words_of
from windlass.core.validation import (
    check_able,
    check_instant,
    check_list,
    check_name,
    check_seconds,
    check_type,
)
from windlass.errors import Invalid, InvalidState, LeaseLost, Unavailable
from windlass.sdk.client import Host, WorkflowSource, workflow_source
from windlass.sdk.context import Context, use_context
from windlass.sdk.duration import Duration, seconds
from windlass.sdk.handler.handler import Handler, in_thread
from windlass.sdk.handler.options import StepOptions
from windlass.sdk.handler.schema import JsonType
from windlass.sdk.signals import Cancel
from windlass.sdk.trace import step_span, submit_with_trace
from windlass.sdk.worker.asyncio_tools import until_available
from windlass.sdk.worker.outcome import describe
from windlass.sdk.worker.progress import ProgressSink
from windlass.sdk.workflow.awaitables import Child, StepAwaitable, StepContext, StepFailed
from windlass.sdk.workflow.exits import AttemptLost, Suspended, WorkflowExit
from windlass.sdk.workflow.journal import Journal
from windlass.sdk.workflow.step import Plan, StepFunction, check_options, make_plan, result_type

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

INLINE_WAIT_S = 2.0  # shorter waits keep the worker: to suspend and be claimed again costs more
NO_TIMEOUT = nullcontext()  # cheaper than `asyncio.timeout(None)`


class _StepsWithOptions:
    """Calls steps with options of the call."""

    def __init__(self, context: WorkflowContext, options: StepOptions) -> None:
        self._context, self._options = context, options

    @overload
    def step(
        self, step: Callable[P, Awaitable[R]] | StepFunction[P, R] | Handler[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> StepAwaitable[R]: ...
    @overload
    def step(self, step: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> StepAwaitable[R]: ...

    def step(self, step: Any, /, *args: Any, **kwargs: Any) -> StepAwaitable[Any]:
        """See `WorkflowContext.step`."""
        return self._context._step(make_plan(step, self._options), args, kwargs)

    def transaction(
        self, step: Callable[Concatenate[Any, P], Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> StepAwaitable[R]:
        """See `WorkflowContext.transaction`."""
        return self._context._transaction(make_plan(step, self._options), args, kwargs)


class WorkflowContext(Context):
    """One attempt at one workflow, as its function sees it."""

    def __init__(
        self,
        claimed: Claimed,
        app: Host,
        steps: Sequence[Step] = (),
        *,
        source: WorkflowSource | None = None,
        sink: ProgressSink | None = None,
        inline_wait_s: float = INLINE_WAIT_S,
    ) -> None:
        super().__init__(claimed, sink)
        if claimed.task.lease_id is None or claimed.task.started_at is None:
            raise Invalid("no attempt has begun", field="claimed")
        check_able("app", app, "call_sync")
        for step in check_list("steps", steps):
            check_type("steps", step, Step)
        if source is not None:
            check_able("source", source, "record_step", "load_steps", "submit")
        check_seconds("inline_wait_s", inline_wait_s)
        self._claimed, self._app = claimed, app
        self._source: WorkflowSource = source or workflow_source(app.client)
        self._lease = (claimed.task.id, claimed.task.attempt, claimed.task.lease_id)
        self._journal = Journal(claimed.task.id, steps)
        self._latest_at: datetime = claimed.task.started_at  # the latest known time of the database
        self._inline_wait_s = inline_wait_s
        self._exit: WorkflowExit | None = None
        self._unawaited: dict[int, Place] = {}

    # ----------------------------------------------------------------------------------------- steps

    def options(self, **options: Unpack[StepOptions]) -> _StepsWithOptions:
        """Call a step with other options: `await ctx.options(timeout="30s").step(charge, order.id)`."""
        return _StepsWithOptions(self, check_options(options))

    @overload
    def step(
        self, step: Callable[P, Awaitable[R]] | StepFunction[P, R] | Handler[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> StepAwaitable[R]: ...
    @overload
    def step(self, step: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> StepAwaitable[R]: ...

    def step(self, step: Any, /, *args: Any, **kwargs: Any) -> StepAwaitable[Any]:
        """Call this function as a step. When `await ctx.step(…)` returns, the result is durable, and no later attempt
        calls the function again. Raises StepFailed when the step has used up its tries."""
        return self._step(make_plan(step, {}), args, kwargs)

    def transaction(
        self, step: Callable[Concatenate[Any, P], Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> StepAwaitable[R]:
        """A step whose function gets a connection to the engine's database, inside a transaction. Its changes are
        committed together with the record of the step, or not at all."""
        return self._transaction(make_plan(step, {}), args, kwargs)

    def submit(self, handler: Handler[P, R], /, *args: P.args, **kwargs: P.kwargs) -> StepAwaitable[Child[R]]:
        """Submit a separate task. Later attempts of this workflow do not submit it again."""
        if not isinstance(handler, Handler):
            raise Invalid(f"must be a handler of an app, not {type(handler).__name__}", field="handler")
        place, existing = self._next(StepKind.TASK, f"task:{handler.kind}")
        read = result_type(handler.function).read

        async def run() -> Child[R]:
            child_id, first = await self._submit_child(handler, place, existing, args, kwargs)
            return Child(child_id, lambda: self._child_result(place, child_id, first, read))

        return self._awaitable(place, run)

    async def gather(self, *steps: StepAwaitable[Any], return_exceptions: bool = False) -> list[Any]:
        """Run all of these concurrently and return their results in order. Waits until all have ended; then raises the
        first failure in order, or returns failures too with `return_exceptions`."""
        check_type("return_exceptions", return_exceptions, bool)
        for one in steps:
            if not isinstance(one, StepAwaitable):
                raise Invalid(
                    f"must be made by ctx.step, ctx.sleep, ctx.wait_signal or ctx.submit, not {type(one).__name__}",
                    field="gather",
                )
        outcomes = await asyncio.gather(*(_outcome(one) for one in steps))
        exits = [outcome for outcome in outcomes if isinstance(outcome, WorkflowExit)]
        if exits:
            raise self._exit_with(_merge(exits))
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not return_exceptions:
                raise outcome
        return outcomes

    # ----------------------------------------------------------------------------------------- waiting

    def sleep(self, duration: Duration) -> StepAwaitable[None]:
        """Wait without holding a worker, for any length of time, counted from the first call."""
        return self._sleep(seconds("duration", duration), None)

    def sleep_until(self, moment: datetime) -> StepAwaitable[None]:
        """Wait until this moment without holding a worker."""
        check_instant("moment", moment)
        return self._sleep(0.0, moment)

    @overload
    def wait_signal(self, name: str, *, timeout: Duration | None = None) -> StepAwaitable[Any]: ...
    @overload
    def wait_signal(self, name: str, *, type: type[T], timeout: Duration | None = None) -> StepAwaitable[T]: ...

    def wait_signal(self, name: str, *, type: Any = Any, timeout: Duration | None = None) -> StepAwaitable[Any]:  # noqa: A002
        """The payload, as `type`, of the next signal of this name that no earlier wait has consumed; it may have been
        sent long before. Raises TimeoutError if none comes in time."""
        check_name("name", name)
        timeout_s = None if timeout is None else seconds("timeout", timeout)
        read = JsonType(f"signal {name}", type).read
        place, existing = self._next(StepKind.SIGNAL, SIGNAL_PREFIX + name)

        async def run() -> Any:
            step = existing
            if step is None or not step.done:
                step = await self._record(StepSignal(*self._lease, place, signal=name, timeout_s=timeout_s))
            if not step.done:
                raise self._exit_with(Suspended(step.wake_at, signals=(name,)))
            if step.state is StepState.FAILED:
                raise TimeoutError(step.error.message if step.error else f"the signal {name} did not come in time")
            return read(step.result)

        return self._awaitable(place, run)

    def _sleep(self, delay_s: float, until: datetime | None) -> StepAwaitable[None]:
        place, existing = self._next(StepKind.SLEEP, str(StepKind.SLEEP))

        async def run() -> None:
            step = existing or await self._record(StepSleep(*self._lease, place, delay_s, until))
            assert step.wake_at is not None, step
            await self._wait_until(step.wake_at)

        return self._awaitable(place, run)

    # ----------------------------------------------------------------------------------------- values that replay

    def now(self) -> StepAwaitable[datetime]:
        """The time of the first call; the same in every attempt."""
        place, existing = self._next(StepKind.TIME, "now")

        async def run() -> datetime:
            step = existing or await self._record(StepTime(*self._lease, place))
            return cast("datetime", _TIME.read(step.result))

        return self._awaitable(place, run)

    def random(self) -> float:
        """A number from 0 to less than 1; the same in every attempt. Derived from the task's id, so not secret."""
        self._check_not_exited()
        occurrence = self._journal.next_value("random")
        return random.Random(derived_id("random", self._journal.origin, occurrence).int).random()  # noqa: S311

    def uuid(self) -> UUID:
        """A new id; the same in every attempt. Derived from the task's id, so not secret."""
        self._check_not_exited()
        return derived_id("uuid", self._journal.origin, self._journal.next_value("uuid"))

    # ----------------------------------------------------------------------------------------- for the handler

    def _end(self) -> None:
        """The function has returned: check that it reached every recorded step, and awaited every step it called."""
        self._check_not_exited()  # the exit was swallowed by an `except BaseException` or a `return` in a `finally`
        if self._unawaited:
            forgotten = ", ".join(place.name for place in self._unawaited.values())
            raise InvalidState(f"the workflow has ended without `await` for: {forgotten}")
        self._journal.end()

    # ----------------------------------------------------------------------------------------- running steps

    def _step(self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> StepAwaitable[Any]:
        if plan.queue is not None:
            return self._step_in_queue(plan, plan.queue, args, kwargs)
        place, existing = self._next(StepKind.STEP, plan.name)

        async def attempt() -> Step:
            context = StepContext(self._claimed, place, self._sink)
            call = functools.partial(plan.function, *args, **plan.with_context(kwargs, context))
            began = time.monotonic()
            limit = NO_TIMEOUT if plan.policy.timeout_s is None else asyncio.timeout(plan.policy.timeout_s)
            with use_context(context), step_span(place.name, place.occurrence):
                async with limit:
                    value = await (call() if plan.is_async else in_thread(self._app.threads, call, context))
            result = plan.result.write(value)
            return await self._record(StepResult(*self._lease, place, result, time.monotonic() - began))

        return self._awaitable(place, lambda: self._try_until_done(plan, place, existing, attempt))

    def _transaction(self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> StepAwaitable[Any]:
        place, existing = self._next(StepKind.STEP, plan.name)
        transact = getattr(self._source, "transact_step", None)
        if transact is None:
            raise InvalidState("ctx.transaction needs a worker beside the database; this one works through a server")

        async def attempt() -> Step:
            async def work(connection: Any) -> bytes:
                return plan.result.write(await plan.function(connection, *args, **kwargs))

            with use_context(StepContext(self._claimed, place, self._sink)), step_span(place.name, place.occurrence):
                async with asyncio.timeout(plan.policy.timeout_s):
                    try:
                        return cast("Step", await transact(StepResult(*self._lease, place), work))
                    except LeaseLost as error:
                        raise self._exit_with(AttemptLost(str(error))) from error

        return self._awaitable(place, lambda: self._try_until_done(plan, place, existing, attempt))

    def _step_in_queue(
        self, plan: Plan, queue: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> StepAwaitable[Any]:
        assert plan.handler is not None, plan.name
        handler = plan.handler.options(queue=queue)
        place, existing = self._next(StepKind.TASK, plan.name)

        async def run() -> Any:
            child_id, step = await self._submit_child(handler, place, existing, args, kwargs, plan)
            return await self._child_result(place, child_id, step, plan.result.read)

        return self._awaitable(place, run)

    async def _try_until_done(
        self, plan: Plan, place: Place, step: Step | None, attempt: Callable[[], Awaitable[Step]]
    ) -> Any:
        while step is None or not step.done:
            if step is not None and step.wake_at is not None:
                await self._wait_until(step.wake_at)
            step = await self._try(plan, place, step, attempt)
        if step.state is StepState.FAILED:
            raise StepFailed.of(step)
        return plan.result.read(step.result)

    async def _try(self, plan: Plan, place: Place, step: Step | None, attempt: Callable[[], Awaitable[Step]]) -> Step:
        """One try; records its result or its failure."""
        began, failures = time.monotonic(), (step.failures if step is not None else 0) + 1
        try:
            return self._note_time(await attempt())
        except Cancel:
            raise
        except TimeoutError as error:
            message = words_of(error) or "it took too long"
            failure = replace(await describe(plan.failure, error), category=Category.TIMEOUT, message=message)
        except Invalid as error:  # a result that cannot be stored will not be storable the next time either
            failure = replace(await describe(plan.failure, error), category=Category.DATA_QUALITY, retryable=False)
        except Unavailable as error:
            failure = replace(await describe(plan.failure, error), category=Category.INFRASTRUCTURE)
        except Exception as error:
            failure = await describe(plan.failure, error)
        took_s = time.monotonic() - began
        return await self._record(
            StepFailure(*self._lease, place, failure=failure, failures=failures, policy=plan.policy, took_s=took_s)
        )

    # ----------------------------------------------------------------------------------------- child tasks

    async def _submit_child(
        self,
        handler: Handler[..., Any],
        place: Place,
        existing: Step | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        plan: Plan | None = None,
    ) -> tuple[UUID, Step]:
        """The child's id is derived from this task's id and the place, so submitting it twice makes one task."""
        if existing is not None and existing.child_id is not None:
            return existing.child_id, existing
        child_id = derived_id("child", self._task.id, place.name, place.occurrence)
        submission = replace(handler.submission(args, kwargs), id=child_id, parent_id=self._task.id)
        if plan is not None:
            submission = replace(submission, policy=plan.policy)
        await self._retry(lambda: submit_with_trace(self._source, submission))
        return child_id, await self._record(StepChild(*self._lease, place, child_id=child_id))

    async def _child_result(self, place: Place, child_id: UUID, step: Step, read: Callable[[bytes | None], Any]) -> Any:
        if not step.done:
            step = await self._record(StepChild(*self._lease, place, child_id=child_id))
        if not step.done:
            raise self._exit_with(Suspended(children=(child_id,)))
        if step.state is StepState.FAILED:
            raise StepFailed.of(step)
        return read(step.result)

    # ----------------------------------------------------------------------------------------- shared parts

    def _next(self, kind: StepKind, name: str) -> tuple[Place, Step | None]:
        """The next place of the code, and the step that is recorded there."""
        self._check_not_exited()
        return self._journal.next(kind, name)

    def _awaitable(self, place: Place, run: Callable[[], Coroutine[Any, Any, R]]) -> StepAwaitable[R]:
        return StepAwaitable(place, run, self._unawaited)

    def _check_not_exited(self) -> None:
        """A workflow that has exited runs no further steps, not even in a `finally`."""
        if self._exit is not None:
            raise self._exit

    def _exit_with(self, end: WorkflowExit) -> WorkflowExit:
        self._exit = end
        return end

    async def _wait_until(self, moment: datetime) -> None:
        """Wait until this moment, by the latest known time of the database."""
        if moment <= self._latest_at:
            return
        wait_s = (moment - self._latest_at).total_seconds()
        if wait_s > self._inline_wait_s:
            raise self._exit_with(Suspended(moment))
        await asyncio.sleep(wait_s)

    async def _record(self, command: StepCommand) -> Step:
        return self._note_time(await self._retry(lambda: self._source.record_step(command)))

    def _note_time(self, step: Step) -> Step:
        self._latest_at = max(self._latest_at, step.recorded_at)
        return step

    async def _retry(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat an idempotent call until it is answered. Exits if the attempt is over."""
        try:
            return await until_available(call)
        except LeaseLost as error:
            raise self._exit_with(AttemptLost(str(error))) from error


_TIME = JsonType("now", datetime)


async def _outcome(step: StepAwaitable[Any]) -> Any:
    """Its result, its failure or its exit as a value, so that the other steps go on."""
    try:
        return await step
    except (Exception, WorkflowExit) as error:
        return error


def _merge(exits: Sequence[WorkflowExit]) -> WorkflowExit:
    waits = [one for one in exits if isinstance(one, Suspended)]
    if len(waits) < len(exits):
        return next(one for one in exits if not isinstance(one, Suspended))
    return functools.reduce(Suspended.merge, waits)
