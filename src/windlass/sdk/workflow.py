"""The context of a workflow: steps whose results are remembered, sleeps and waits that hold no worker.

A workflow is run from its beginning in every attempt. What it asks for here is looked up in what is recorded
(`ledger`); what is not there yet is done and recorded, and only then returned. When nothing can be done now, the
attempt is left (`leaving`), and the engine wakes the workflow when it is time.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import datetime
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack, cast, overload
from uuid import UUID

from msgspec.structs import replace

from windlass.core.check import (
    check_able,
    check_instant,
    check_list,
    check_name,
    check_seconds,
    check_type,
)
from windlass.core.command import Claimed
from windlass.core.error import Invalid, InvalidState, LeaseLost, Unavailable
from windlass.core.failure import Category
from windlass.core.id import derived_id
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
from windlass.sdk.asked import Asked, Child, StepContext, StepFailed
from windlass.sdk.client import Host, WorkflowSource, workflow_source
from windlass.sdk.context import Context, entered
from windlass.sdk.duration import Duration, seconds
from windlass.sdk.handler import Handler, in_thread
from windlass.sdk.leaving import AttemptLost, Leaving, Suspended
from windlass.sdk.ledger import Ledger
from windlass.sdk.note import Saying
from windlass.sdk.outcome import described
from windlass.sdk.schema import JsonType
from windlass.sdk.signals import Cancel
from windlass.sdk.step import Plan, StepFunction, StepOptions, check_options, plan_of, result_type
from windlass.sdk.trace import stepping, submit_traced

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

INLINE_WAIT_S = 2.0  # shorter waits are waited out: to sleep and be claimed again costs more
AFTER_ERROR_S = 1.0


class _Steps:
    """How steps are asked for: by the context itself, or with options."""

    def __init__(self, context: WorkflowContext, said: StepOptions) -> None:
        self._context, self._said = context, said

    @overload
    def step(
        self, step: Callable[P, Awaitable[R]] | StepFunction[P, R] | Handler[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Asked[R]: ...
    @overload
    def step(self, step: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Asked[R]: ...

    def step(self, step: Any, /, *args: Any, **kwargs: Any) -> Asked[Any]:
        """See `WorkflowContext.step`."""
        return self._context._ask_step(plan_of(step, self._said), args, kwargs)

    def transaction(
        self, step: Callable[Concatenate[Any, P], Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Asked[R]:
        """See `WorkflowContext.transaction`."""
        return self._context._ask_transaction(plan_of(step, self._said), args, kwargs)


class WorkflowContext(Context):
    """One attempt at one workflow, as its function sees it."""

    def __init__(
        self,
        claimed: Claimed,
        app: Host,
        steps: Sequence[Step] = (),
        *,
        source: WorkflowSource | None = None,
        saying: Saying | None = None,
        inline_wait_s: float = INLINE_WAIT_S,
    ) -> None:
        super().__init__(claimed, saying)
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
        self._held = (claimed.task.id, claimed.task.attempt, claimed.task.lease_id)
        self._ledger = Ledger(claimed.task.id, steps)
        self._seen_at: datetime = claimed.task.started_at
        self._inline_wait_s = inline_wait_s
        self._left: Leaving | None = None
        self._unawaited: dict[int, Place] = {}

    # ----------------------------------------------------------------------------------------- steps

    def options(self, **said: Unpack[StepOptions]) -> _Steps:
        """Ask for a step with other options: `await ctx.options(timeout="30s").step(charge, order.id)`."""
        return _Steps(self, check_options(said))

    @overload
    def step(
        self, step: Callable[P, Awaitable[R]] | StepFunction[P, R] | Handler[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Asked[R]: ...
    @overload
    def step(self, step: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Asked[R]: ...

    def step(self, step: Any, /, *args: Any, **kwargs: Any) -> Asked[Any]:
        """Call this function, once per recorded result. When `await ctx.step(…)` returns, the result is durable, and no
        later attempt calls the function again. Raises StepFailed when its own budget of tries is used up."""
        return self._ask_step(plan_of(step, {}), args, kwargs)

    def transaction(
        self, step: Callable[Concatenate[Any, P], Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Asked[R]:
        """A step whose function gets a connection to the engine's own database, inside a transaction: what it does
        there is committed together with the record of the step, or not at all."""
        return self._ask_transaction(plan_of(step, {}), args, kwargs)

    def submit(self, handler: Handler[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Asked[Child[R]]:
        """Submit a task of its own, once, however often this workflow is run."""
        if not isinstance(handler, Handler):
            raise Invalid(f"must be a handler of an app, not {type(handler).__name__}", field="handler")
        place, known = self._ask(StepKind.TASK, f"task:{handler.kind}")
        read = result_type(handler.function).read

        async def go() -> Child[R]:
            child_id, first = await self._submitted(handler, place, known, args, kwargs)
            return Child(child_id, lambda: self._child_result(place, child_id, first, read))

        return self._asked(place, go)

    async def gather(self, *asked: Asked[Any], return_exceptions: bool = False) -> list[Any]:
        """All of these side by side; their results in order. Ends when all have ended, and then raises the first
        failure in order, or returns failures too with `return_exceptions`."""
        check_type("return_exceptions", return_exceptions, bool)
        for one in asked:
            if not isinstance(one, Asked):
                raise Invalid(
                    f"must be what ctx.step, ctx.sleep, ctx.wait_signal or ctx.submit gave, not {type(one).__name__}",
                    field="gather",
                )
        outcomes = await asyncio.gather(*(_outcome(one) for one in asked))
        leaving = [outcome for outcome in outcomes if isinstance(outcome, Leaving)]
        if leaving:
            raise self._leave(_together(leaving))
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not return_exceptions:
                raise outcome
        return outcomes

    # ----------------------------------------------------------------------------------------- waiting

    def sleep(self, duration: Duration) -> Asked[None]:
        """Wait, without holding a worker, for as long as it takes. The time runs from when this was first asked for."""
        return self._sleep(StepKind.SLEEP, seconds("duration", duration), None)

    def sleep_until(self, moment: datetime) -> Asked[None]:
        """Wait until then."""
        check_instant("moment", moment)
        return self._sleep(StepKind.SLEEP, 0.0, moment)

    @overload
    def wait_signal(self, name: str, *, timeout: Duration | None = None) -> Asked[Any]: ...
    @overload
    def wait_signal(self, name: str, *, type: type[T], timeout: Duration | None = None) -> Asked[T]: ...

    def wait_signal(self, name: str, *, type: Any = Any, timeout: Duration | None = None) -> Asked[Any]:  # noqa: A002
        """The next signal of this name that no earlier wait has consumed, with its payload as `type`; it may have been
        sent long before. TimeoutError if none has come in time."""
        check_name("name", name)
        timeout_s = None if timeout is None else seconds("timeout", timeout)
        read = JsonType(f"signal {name}", type).read
        place, known = self._ask(StepKind.SIGNAL, SIGNAL_PREFIX + name)

        async def go() -> Any:
            step = known
            if step is None or not step.done:
                step = await self._say(StepSignal(*self._held, place, signal=name, timeout_s=timeout_s))
            if not step.done:
                raise self._leave(Suspended(step.wake_at, signals=(name,)))
            if step.state is StepState.FAILED:
                raise TimeoutError(step.error.message if step.error else f"the signal {name} did not come in time")
            return read(step.result)

        return self._asked(place, go)

    def _sleep(self, kind: StepKind, delay_s: float, until: datetime | None) -> Asked[None]:
        place, known = self._ask(kind, str(kind))

        async def go() -> None:
            step = known or await self._say(StepSleep(*self._held, place, delay_s, until))
            assert step.wake_at is not None, step
            await self._wait_until(step.wake_at)

        return self._asked(place, go)

    # ----------------------------------------------------------------------------------------- values that replay

    def now(self) -> Asked[datetime]:
        """What time it was when this was first asked."""
        place, known = self._ask(StepKind.TIME, "now")

        async def go() -> datetime:
            step = known or await self._say(StepTime(*self._held, place))
            return cast("datetime", _TIME.read(step.result))

        return self._asked(place, go)

    def random(self) -> float:
        """At least 0 and less than 1; the same in every attempt. Made from the task's id: no secret."""
        self._stay()
        occurrence = self._ledger.ask_for_value("random")
        return random.Random(derived_id("random", self._ledger.origin, occurrence).int).random()  # noqa: S311

    def uuid(self) -> UUID:
        """A new id; the same in every attempt. Made from the task's id: no secret."""
        self._stay()
        return derived_id("uuid", self._ledger.origin, self._ledger.ask_for_value("uuid"))

    # ----------------------------------------------------------------------------------------- for the handler

    def _end(self) -> None:
        """The function has returned: has it asked for all that is recorded, and awaited all that it asked for?"""
        if self._left is not None:
            raise self._left  # it was swallowed by an `except BaseException` or a `return` in a `finally`
        if self._unawaited:
            forgotten = ", ".join(place.name for place in self._unawaited.values())
            raise InvalidState(f"the workflow has ended without `await` for: {forgotten}")
        self._ledger.end()

    # ----------------------------------------------------------------------------------------- how steps are done

    def _ask_step(self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Asked[Any]:
        if plan.queue is not None:
            return self._ask_in_queue(plan, plan.queue, args, kwargs)
        place, known = self._ask(StepKind.STEP, plan.name)

        async def attempt() -> Step:
            context = StepContext(self._claimed, place, self._saying)
            call = functools.partial(plan.function, *args, **plan.with_context(kwargs, context))
            began = time.monotonic()
            with entered(context), stepping(place.name, place.occurrence):
                if plan.policy.timeout_s is None:
                    value = await self._called(plan, call, context)
                else:
                    async with asyncio.timeout(plan.policy.timeout_s):
                        value = await self._called(plan, call, context)
            result = plan.result.write(value)
            return await self._say(StepResult(*self._held, place, result, time.monotonic() - began))

        return self._asked(place, lambda: self._try_until_done(plan, place, known, attempt))

    async def _called(self, plan: Plan, call: Callable[[], Any], context: StepContext) -> Any:
        if plan.is_async:
            return await call()
        return await in_thread(self._app.threads, functools.partial(contextvars.copy_context().run, call), context)

    def _ask_transaction(self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Asked[Any]:
        place, known = self._ask(StepKind.STEP, plan.name)
        transact = getattr(self._source, "transact_step", None)
        if transact is None:
            raise InvalidState("ctx.transaction needs a worker beside the database; this one works through a server")

        async def attempt() -> Step:
            async def work(connection: Any) -> bytes:
                return plan.result.write(await plan.function(connection, *args, **kwargs))

            with entered(StepContext(self._claimed, place, self._saying)), stepping(place.name, place.occurrence):
                async with asyncio.timeout(plan.policy.timeout_s):
                    try:
                        return cast("Step", await transact(StepResult(*self._held, place), work))
                    except LeaseLost as error:
                        raise self._leave(AttemptLost(str(error))) from error

        return self._asked(place, lambda: self._try_until_done(plan, place, known, attempt))

    def _ask_in_queue(self, plan: Plan, queue: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Asked[Any]:
        assert plan.handler is not None, plan.name
        handler = plan.handler.options(queue=queue)
        place, known = self._ask(StepKind.TASK, plan.name)

        async def go() -> Any:
            child_id, step = await self._submitted(handler, place, known, args, kwargs, plan)
            return await self._child_result(place, child_id, step, plan.result.read)

        return self._asked(place, go)

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
        """One try, and the record of what came of it."""
        began, failures = time.monotonic(), (step.failures if step is not None else 0) + 1
        try:
            return self._saw(await attempt())
        except Cancel:
            raise
        except TimeoutError as error:
            message = words_of(error) or "it took too long"
            failure = replace(await described(plan.failure, error), category=Category.TIMEOUT, message=message)
        except Invalid as error:  # what cannot be kept will not be kept the next time either
            failure = replace(await described(plan.failure, error), category=Category.DATA_QUALITY, retryable=False)
        except Unavailable as error:
            failure = replace(await described(plan.failure, error), category=Category.INFRASTRUCTURE)
        except Exception as error:
            failure = await described(plan.failure, error)
        took_s = time.monotonic() - began
        return await self._say(
            StepFailure(*self._held, place, failure=failure, failures=failures, policy=plan.policy, took_s=took_s)
        )

    # ----------------------------------------------------------------------------------------- child tasks

    async def _submitted(
        self,
        handler: Handler[..., Any],
        place: Place,
        known: Step | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        plan: Plan | None = None,
    ) -> tuple[UUID, Step]:
        """Its id is made from ours and its place: submitted twice it is one task."""
        if known is not None and known.child_id is not None:
            return known.child_id, known
        child_id = derived_id("child", self._task.id, place.name, place.occurrence)
        submission = replace(handler.submission(args, kwargs), id=child_id, parent_id=self._task.id)
        if plan is not None:
            submission = replace(submission, policy=plan.policy)
        await self._reach(lambda: submit_traced(self._source.submit, submission))
        return child_id, await self._say(StepChild(*self._held, place, child_id=child_id))

    async def _child_result(self, place: Place, child_id: UUID, step: Step, read: Callable[[bytes | None], Any]) -> Any:
        if not step.done:
            step = await self._say(StepChild(*self._held, place, child_id=child_id))
        if not step.done:
            raise self._leave(Suspended(children=(child_id,)))
        if step.state is StepState.FAILED:
            raise StepFailed.of(step)
        return read(step.result)

    # ----------------------------------------------------------------------------------------- shared parts

    def _ask(self, kind: StepKind, name: str) -> tuple[Place, Step | None]:
        self._stay()
        place, known = self._ledger.ask(kind, name)
        return place, known

    def _asked(self, place: Place, go: Callable[[], Coroutine[Any, Any, R]]) -> Asked[R]:
        return Asked(place, go, self._unawaited)

    def _stay(self) -> None:
        """Who has left asks for nothing more, also not in a `finally`."""
        if self._left is not None:
            raise self._left

    def _leave(self, leaving: Leaving) -> Leaving:
        self._left = leaving
        return leaving

    def _over(self, moment: datetime | None) -> bool:
        """Whether this moment is known to have come, by the database's clock as far as we have heard."""
        return moment is not None and moment <= self._seen_at

    async def _wait_until(self, moment: datetime) -> None:
        if self._over(moment):
            return
        left_s = (moment - self._seen_at).total_seconds()
        if left_s > self._inline_wait_s:
            raise self._leave(Suspended(moment))
        await asyncio.sleep(left_s)

    async def _say(self, said: StepCommand) -> Step:
        return self._saw(await self._reach(lambda: self._source.record_step(said)))

    def _saw(self, step: Step) -> Step:
        self._seen_at = max(self._seen_at, step.recorded_at)
        return step

    async def _reach(self, call: Callable[[], Awaitable[T]]) -> T:
        """Until it was answered: what is said may be said twice. An attempt that is over stops here."""
        while True:
            try:
                return await call()
            except Unavailable:
                await asyncio.sleep(AFTER_ERROR_S)
            except LeaseLost as error:
                raise self._leave(AttemptLost(str(error))) from error


_TIME = JsonType("now", datetime)


async def _outcome(asked: Asked[Any]) -> Any:
    """Its result, its failure, or that it has to wait: as a value, so that the others go on."""
    try:
        return await asked
    except (Exception, Leaving) as error:
        return error


def _together(leaving: Sequence[Leaving]) -> Leaving:
    waits = [one for one in leaving if isinstance(one, Suspended)]
    if len(waits) < len(leaving):
        return next(one for one in leaving if not isinstance(one, Suspended))
    return functools.reduce(Suspended.joined, waits)
