"""The record of a workflow: which of its steps are done, and what they gave. Rules, each deciding one record.

A step is known by its name and its occurrence (1 for the first step of that name); its position is its place in the
order in which the code runs. The first record of a step wins; a superseded attempt records nothing. What lies outside
the task's row and is needed to decide (`StepCommandContext`) was read under the lock of that row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from enum import StrEnum
from uuid import UUID

import msgspec
from msgspec.structs import replace

from windlass.core.context import CommandContext
from windlass.core.failure import Category, Failure
from windlass.core.retry import Policy, retry_delay_s
from windlass.core.states import Instant, State, Transition, Verb
from windlass.core.task import Task, check_fence, may_report, wake
from windlass.errors import InvalidState, LeaseLost, NotFound

SIGNAL_PREFIX = "signal:"
FIRST = -1  # the position of what a fork brings with it


class StepKind(StrEnum):
    """What a step of a workflow is."""

    STEP = "step"
    SLEEP = "sleep"
    SIGNAL = "signal"
    TASK = "task"  # a child task
    TIME = "time"
    ORIGIN = "origin"  # the task that this one was forked from


class StepState(StrEnum):
    WAITING = "waiting"  # for a time, a signal, a child task, or its next try
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class Place(msgspec.Struct, frozen=True, gc=False):
    """Which step: its name, which one of that name it is, and its place in the order in which the code runs."""

    position: int
    name: str
    occurrence: int = 1


class Step(msgspec.Struct, frozen=True, gc=False):
    """One step of one workflow as it is recorded. Field order is the column order of the queries."""

    task_id: UUID
    name: str
    occurrence: int
    position: int
    kind: StepKind
    state: StepState
    attempt: int
    recorded_at: Instant
    took_s: float = 0.0
    failures: int = 0
    wake_at: Instant | None = None
    child_id: UUID | None = None
    error: Failure | None = None
    result: bytes | None = None

    @property
    def done(self) -> bool:
        return self.state is not StepState.WAITING

    @property
    def key(self) -> tuple[UUID, str, int]:
        return (self.task_id, self.name, self.occurrence)


class Signal(msgspec.Struct, frozen=True):
    """A named message to a workflow; `payload` is JSON text."""

    id: UUID
    task_id: UUID
    name: str
    payload: bytes
    sent_at: Instant


class ConsumeSignal(msgspec.Struct, frozen=True):
    """A signal that a workflow has received: nobody gets it again."""

    signal: Signal


class StepCommandContext(CommandContext):
    """Steps, signals and child tasks that the commands of a batch are about."""

    def __init__(
        self,
        steps: Iterable[Step] = (),
        signals: Iterable[Signal] = (),
        awaited: Iterable[tuple[UUID, str]] = (),
        children: Iterable[Task] = (),
        sent: Iterable[UUID] = (),
    ) -> None:
        self.steps = {step.key: step for step in steps}
        self.awaited, self.sent = set(awaited), set(sent)
        self._children = {child.id: child for child in children}
        self._pending: dict[tuple[UUID, str], list[Signal]] = {}
        for signal in signals:
            self._pending.setdefault((signal.task_id, signal.name), []).append(signal)

    def step(self, task_id: UUID, place: Place) -> Step | None:
        return self.steps.get((task_id, place.name, place.occurrence))

    def child(self, task: Task, child_id: UUID) -> Task | None:
        """The task that this one waits for. One of another namespace is not there."""
        found = self._children.get(child_id)
        return found if found is not None and found.namespace == task.namespace else None

    def pending(self, task_id: UUID, name: str) -> Signal | None:
        """The signal that is next in line."""
        line = self._pending.get((task_id, name))
        return line[0] if line else None

    def note(self, transition: Transition) -> None:
        for write in transition.writes:
            match write:
                case Step():
                    self.steps[write.key] = write
                    if write.kind is StepKind.SIGNAL and not write.done:
                        self.awaited.add((write.task_id, write.name.removeprefix(SIGNAL_PREFIX)))
                case Signal():
                    self.sent.add(write.id)
                    self._pending.setdefault((write.task_id, write.name), []).append(write)
                case ConsumeSignal(signal):
                    line = self._pending.get((signal.task_id, signal.name), [])
                    if signal in line:  # otherwise nobody here asks for it
                        line.remove(signal)


# --------------------------------------------------------------------------------------------- rules


def record_result(
    task: Task,
    held: tuple[int, UUID],
    place: Place,
    known: Step | None,
    result: bytes,
    now: Instant,
    *,
    took_s: float,
) -> Transition:
    """The step's function returned."""
    if (answer := _refuse_or_repeat(task, held, known)) is not None:
        return answer
    made = _made(task, place, StepKind.STEP, StepState.SUCCEEDED, now, known)
    return _recorded(task, replace(made, took_s=took_s, result=result))


def record_failure(
    task: Task,
    held: tuple[int, UUID],
    place: Place,
    known: Step | None,
    failure: Failure,
    policy: Policy,
    failures: int,
    now: Instant,
    jitter: float,
    *,
    took_s: float,
) -> Transition:
    """The step's function failed, for the time whose number is `failures`: another try, or the end, by its own budget.
    The task's budget is not touched. A repeat of the same report changes nothing."""
    if (answer := _refuse_or_repeat(task, held, known)) is not None:
        return answer
    if known is not None and known.failures >= failures:
        return _answer(task, known)
    made = replace(
        _made(task, place, StepKind.STEP, StepState.FAILED, now, known), took_s=took_s, error=failure, failures=failures
    )
    if not failure.may_retry or failures >= policy.max_attempts:
        return _recorded(task, made)
    delay = timedelta(seconds=retry_delay_s(policy, failures, jitter, failure.retry_after_s))
    return _recorded(task, replace(made, state=StepState.WAITING, wake_at=now + delay))


def record_sleep(
    task: Task, held: tuple[int, UUID], place: Place, known: Step | None, until: Instant, now: Instant
) -> Transition:
    """When the sleep ends is decided once. It is over when that moment has come; nobody has to record that."""
    if (answer := _refuse_or_repeat(task, held, known)) is not None:
        return answer
    if known is not None:
        return _answer(task, known)
    made = _made(task, place, StepKind.SLEEP, StepState.WAITING, now, known)
    return _recorded(task, replace(made, wake_at=until))


def record_time(task: Task, held: tuple[int, UUID], place: Place, known: Step | None, now: Instant) -> Transition:
    """What time it is, once and for all."""
    if (answer := _refuse_or_repeat(task, held, known)) is not None:
        return answer
    made = _made(task, place, StepKind.TIME, StepState.SUCCEEDED, now, known)
    return _recorded(task, replace(made, result=msgspec.json.encode(now)))


def record_signal(
    task: Task,
    held: tuple[int, UUID],
    place: Place,
    known: Step | None,
    pending: Signal | None,
    timeout_s: float | None,
    now: Instant,
) -> Transition:
    """A signal that is there is consumed, even if it came after the time was over: it was not too late for us."""
    if (answer := _refuse_or_repeat(task, held, known)) is not None:
        return answer
    made = _made(task, place, StepKind.SIGNAL, StepState.WAITING, now, known)
    if pending is not None:
        step = replace(made, state=StepState.SUCCEEDED, result=pending.payload)
        return Transition(Verb.NOTE, task, task, writes=(step, ConsumeSignal(pending)), answer=step)
    if known is None:
        until = None if timeout_s is None else now + timedelta(seconds=timeout_s)
        return _recorded(task, replace(made, wake_at=until))
    if known.wake_at is not None and known.wake_at <= now:
        name = place.name.removeprefix(SIGNAL_PREFIX)
        late = Failure(Category.TIMEOUT, f"the signal {name} did not come in time", "SIGNAL_TIMEOUT", retryable=False)
        return _recorded(task, replace(made, state=StepState.FAILED, error=late))
    return _answer(task, known)


def record_child(
    task: Task,
    held: tuple[int, UUID],
    place: Place,
    known: Step | None,
    child_id: UUID,
    child: Task | None,
    now: Instant,
) -> Transition:
    """A child task was submitted, or the workflow waits for it: how it ended is recorded when it has. `child` is None
    if it is not there any more."""
    if (answer := _refuse_or_repeat(task, held, known)) is not None:
        return answer
    made = replace(_made(task, place, StepKind.TASK, StepState.WAITING, now, known), child_id=child_id)
    if child is None:
        gone = Failure(Category.INFRASTRUCTURE, f"the task {child_id} is not there any more", "GONE", retryable=False)
        return _recorded(task, replace(made, state=StepState.FAILED, error=gone))
    if child.state is State.SUCCEEDED:
        return _recorded(task, replace(made, state=StepState.SUCCEEDED, result=child.result))
    if child.terminal:
        return _recorded(task, replace(made, state=StepState.FAILED, error=child.error))
    return _recorded(task, made) if known is None else _answer(task, known)


def send_signal(task: Task, signal: Signal, awaited: bool) -> Transition:
    """Kept until the workflow asks for it. One that sleeps and waits for just this is woken."""
    if task.terminal:
        raise InvalidState(f"the task has already {task.state}", task_id=task.id, state=task.state)
    if task.state is State.SLEEPING and awaited:
        woken = wake(task, signal.sent_at)
        return Transition(woken.verb, task, woken.after, woken.history, writes=(signal,))
    return Transition(Verb.NOTE, task, task, writes=(signal,))


def kept_by_fork(steps: Sequence[Step], name: str, occurrence: int, fork_id: UUID, now: Instant) -> list[Step]:
    """The records that a fork begins with: all that the code asks for before that step and that came to an end. Values
    that are made from the task's id go on as they were, so the fork remembers the task that it comes from."""
    found = [step for step in steps if (step.name, step.occurrence) == (name, occurrence)]
    if not found:
        raise NotFound(f"the workflow has no record of step {name} ({occurrence})", step=name, occurrence=occurrence)
    [at] = found
    kept = [s for s in steps if s.position < at.position and (s.done or (s.wake_at is not None and s.wake_at <= now))]
    if not any(step.kind is StepKind.ORIGIN for step in kept):
        origin = msgspec.json.encode(at.task_id)
        kept.append(Step(at.task_id, "origin", 1, FIRST, StepKind.ORIGIN, StepState.SUCCEEDED, 0, now, result=origin))
    return [replace(step, task_id=fork_id) for step in kept]


# --------------------------------------------------------------------------------------------- shared parts


def _refuse_or_repeat(task: Task, held: tuple[int, UUID], known: Step | None) -> Transition | None:
    """None if this attempt may record now. A repeat of the attempt that recorded gets the record, also at its end."""
    check_fence(task, *held)
    if known is not None and known.done:
        return _answer(task, known)
    if may_report(task):
        return None
    raise LeaseLost(f"attempt {held[0]} has already ended as {task.outcome}", task_id=task.id, attempt=held[0])


def _made(task: Task, place: Place, kind: StepKind, state: StepState, now: Instant, known: Step | None) -> Step:
    failures = 0 if known is None else known.failures
    return Step(
        task.id, place.name, place.occurrence, place.position, kind, state, task.attempt, now, failures=failures
    )


def _recorded(task: Task, step: Step) -> Transition:
    return Transition(Verb.NOTE, task, task, writes=(step,), answer=step)


def _answer(task: Task, known: Step) -> Transition:
    """Nothing is written; the answer is what is recorded."""
    return Transition(Verb.NOTE, task, task, answer=known)
