"""The commands about the steps of a workflow, with their rules, and the signal that a client sends to a workflow.

Like the reports (`core.command`) they are decided under the lock of the task's row, and a superseded attempt changes
nothing. Each may be repeated: ids, jitter and counts were drawn before the first try.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, get_args
from uuid import UUID

import msgspec
from msgspec.structs import replace

from windlass.core.command import storable
from windlass.core.context import CommandWithContext
from windlass.core.failure import Category, Failure
from windlass.core.retry import DEFAULT_POLICY, Policy, retry_delay_s
from windlass.core.states import Instant, State, Transition, Verb
from windlass.core.step import (
    SIGNAL_PREFIX,
    ConsumeSignal,
    Place,
    Signal,
    Step,
    StepCommandContext,
    StepKind,
    StepState,
)
from windlass.core.submission import check_policy
from windlass.core.task import Task, check_fence, may_report, wake
from windlass.core.validation import (
    check_attempt,
    check_count,
    check_instant,
    check_name,
    check_payload,
    check_seconds,
    check_type,
)
from windlass.errors import Invalid, InvalidState, LeaseLost

POSITION_MAX = 1_000_000


class _StepCommand(CommandWithContext, frozen=True):
    """A command of an attempt about one step. The first record of a step wins."""

    context = StepCommandContext

    task_id: UUID
    attempt: int
    lease_id: UUID
    place: Place

    def decide_with(self, task: Task, context: StepCommandContext, now: Instant) -> Transition:
        check_fence(task, self.attempt, self.lease_id)
        known = context.step(task.id, self.place)
        if known is not None and known.done:  # a repeat gets the record, even after the end of the attempt
            return _unchanged(task, known)
        if not may_report(task):
            message = f"attempt {self.attempt} has already ended as {task.outcome}"
            raise LeaseLost(message, task_id=task.id, attempt=self.attempt)
        return self.record(task, known, context, now)

    def record(self, task: Task, known: Step | None, context: StepCommandContext, now: Instant) -> Transition:
        """The rule of this command. `known` is the record of the step, which is still waiting."""
        raise NotImplementedError

    def step(
        self, task: Task, known: Step | None, kind: StepKind, state: StepState, now: Instant, **fields: Any
    ) -> Step:
        name, occurrence, position = self.place.name, self.place.occurrence, self.place.position
        if known is not None:
            fields.setdefault("failures", known.failures)
        return Step(task.id, name, occurrence, position, kind, state, task.attempt, now, **fields)


class StepResult(_StepCommand, frozen=True):
    """The step's function returned; `result` is JSON text."""

    result: bytes = b"null"
    took_s: float = 0.0

    def record(self, task: Task, known: Step | None, _: StepCommandContext, now: Instant) -> Transition:
        fields = {"took_s": self.took_s, "result": self.result}
        return _recorded(task, self.step(task, known, StepKind.STEP, StepState.SUCCEEDED, now, **fields))


class StepFailure(_StepCommand, frozen=True, kw_only=True):
    """The step's function failed; `failures` counts this failure too. The step is tried again within its own budget;
    the budget of the task is not touched."""

    failure: Failure
    failures: int
    policy: Policy = DEFAULT_POLICY
    took_s: float = 0.0
    jitter: float = 0.0

    def record(self, task: Task, known: Step | None, _: StepCommandContext, now: Instant) -> Transition:
        if known is not None and known.failures >= self.failures:  # a repeat of the same report
            return _unchanged(task, known)
        state, wake_at = StepState.FAILED, None
        if self.failure.may_retry and self.failures < self.policy.max_attempts:
            delay_s = retry_delay_s(self.policy, self.failure, self.failures, self.jitter)
            state, wake_at = StepState.WAITING, now + timedelta(seconds=delay_s)
        step = self.step(
            task, known, StepKind.STEP, state, now, took_s=self.took_s, error=self.failure, failures=self.failures,
            wake_at=wake_at,
        )  # fmt: skip
        return _recorded(task, step)


class StepSleep(_StepCommand, frozen=True):
    """The workflow sleeps for a while (by the database's clock) or until an instant. Its end is decided once; no record
    follows when the time has come."""

    delay_s: float = 0.0
    until: Instant | None = None

    def record(self, task: Task, known: Step | None, _: StepCommandContext, now: Instant) -> Transition:
        if known is not None:
            return _unchanged(task, known)
        until = now + timedelta(seconds=self.delay_s) if self.until is None else self.until
        return _recorded(task, self.step(task, known, StepKind.SLEEP, StepState.WAITING, now, wake_at=until))


class StepTime(_StepCommand, frozen=True):
    """The workflow reads the time, which every later attempt gets again."""

    def record(self, task: Task, known: Step | None, _: StepCommandContext, now: Instant) -> Transition:
        result = msgspec.json.encode(now)
        return _recorded(task, self.step(task, known, StepKind.TIME, StepState.SUCCEEDED, now, result=result))


class StepSignal(_StepCommand, frozen=True, kw_only=True):
    """The workflow waits for a signal. A signal that has come is received, even one that came after the timeout."""

    signal: str
    timeout_s: float | None = None

    def record(self, task: Task, known: Step | None, context: StepCommandContext, now: Instant) -> Transition:
        pending = context.pending(task.id, self.signal)
        if pending is not None:
            step = self.step(task, known, StepKind.SIGNAL, StepState.SUCCEEDED, now, result=pending.payload)
            return Transition(Verb.NOTE, task, task, writes=(step, ConsumeSignal(pending)), answer=step)
        if known is None:
            until = None if self.timeout_s is None else now + timedelta(seconds=self.timeout_s)
            return _recorded(task, self.step(task, known, StepKind.SIGNAL, StepState.WAITING, now, wake_at=until))
        if known.wake_at is None or known.wake_at > now:
            return _unchanged(task, known)
        message = f"the signal {self.place.name.removeprefix(SIGNAL_PREFIX)} did not come in time"
        late = Failure(Category.TIMEOUT, message, "SIGNAL_TIMEOUT", retryable=False)
        return _recorded(task, self.step(task, known, StepKind.SIGNAL, StepState.FAILED, now, error=late))


class StepChild(_StepCommand, frozen=True, kw_only=True):
    """The workflow submitted a child task, or waits for it. The outcome of the child is recorded when it has ended."""

    child_id: UUID

    def record(self, task: Task, known: Step | None, context: StepCommandContext, now: Instant) -> Transition:
        child = context.child(task, self.child_id)
        state, result, error = StepState.WAITING, None, None
        if child is None:
            message = f"the task {self.child_id} no longer exists"
            state, error = StepState.FAILED, Failure(Category.INFRASTRUCTURE, message, "GONE", retryable=False)
        elif child.state is State.SUCCEEDED:
            state, result = StepState.SUCCEEDED, child.result
        elif child.terminal:
            state, error = StepState.FAILED, child.error
        elif known is not None:
            return _unchanged(task, known)
        step = self.step(task, known, StepKind.TASK, state, now, child_id=self.child_id, result=result, error=error)
        return _recorded(task, step)


StepCommand = StepResult | StepFailure | StepSleep | StepTime | StepSignal | StepChild
STEP_COMMANDS = frozenset(get_args(StepCommand))  # tested by the exact type, which is cheap


def _recorded(task: Task, step: Step) -> Transition:
    return Transition(Verb.NOTE, task, task, writes=(step,), answer=step)


def _unchanged(task: Task, known: Step) -> Transition:
    return Transition(Verb.NOTE, task, task, answer=known)


class SendSignal(CommandWithContext, frozen=True):
    """A client sends a signal, which is kept until the workflow receives it. A workflow that sleeps and waits for it is
    woken. Repeating an id has no effect."""

    context = StepCommandContext

    task_id: UUID
    signal_id: UUID
    name: str
    payload: bytes

    def decide_with(self, task: Task, context: StepCommandContext, now: Instant) -> Transition:
        if self.signal_id in context.sent:  # a repeat, even if the task has ended since
            return Transition(Verb.NOTE, task, task)
        if task.terminal:
            raise InvalidState(f"the task has already {task.state}", task_id=task.id, state=task.state)
        signal = Signal(self.signal_id, task.id, self.name, self.payload, now)
        if task.state is State.SLEEPING and (task.id, self.name) in context.awaited:
            return replace(wake(task, now), writes=(signal,))
        return Transition(Verb.NOTE, task, task, writes=(signal,))


def checked_step(command: StepCommand, jitter: float) -> StepCommand:
    """The command, checked, with its jitter. Raises Invalid naming the first field that cannot be accepted."""
    if type(command) not in STEP_COMMANDS:
        raise Invalid(f"must be about a step, not {type(command).__name__}", field="command")
    check_attempt(command)
    check_type("place", command.place, Place)
    check_name("place.name", command.place.name)
    check_count("place.occurrence", command.place.occurrence, least=1, most=POSITION_MAX)
    check_count("place.position", command.place.position, most=POSITION_MAX)
    match command:
        case StepResult():
            check_payload("result", command.result)
            check_seconds("took_s", command.took_s)
        case StepFailure():
            check_count("failures", command.failures, least=1)
            check_policy(command.policy)
            check_seconds("took_s", command.took_s)
            return replace(command, failure=storable(command.failure), jitter=jitter)
        case StepSleep():
            check_seconds("delay_s", command.delay_s)
            if command.until is not None:
                check_instant("until", command.until)
        case StepSignal():
            check_name("signal", command.signal)
            if command.timeout_s is not None:
                check_seconds("timeout_s", command.timeout_s)
        case StepChild():
            check_type("child_id", command.child_id, UUID)
    return command
