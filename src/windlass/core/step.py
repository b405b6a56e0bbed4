"""The record of a workflow: which of its steps are done, and what they gave. Rules, each deciding one record.

A step is known by its name and by how often that name was asked for before; its position is its place in the order in
which the code asks. The first record of a step wins; a superseded attempt records nothing. What lies outside the
task's row and is needed to decide (`Facts`) was read under the lock of that row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec
from msgspec.structs import replace

from windlass.core.error import InvalidState, LeaseLost, NotFound
from windlass.core.failure import Category, Failure
from windlass.core.retry import Policy, retry_delay_s
from windlass.core.task import Outcome, Task, wake
from windlass.core.transition import Instant, State, Transition, Verb

if TYPE_CHECKING:
    from windlass.core.dataset import Outputs
    from windlass.core.step_attempt import StepAttempt

SIGNAL_PREFIX = "signal:"
FIRST = -1  # the position of what a fork brings with it


class StepKind(StrEnum):
    """What a workflow asked for."""

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
    """Which step: the name, how often it was asked for, and its place in the order in which the code asks."""

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


class Facts:
    """What the commands of a batch have to know besides their tasks. What one of them changes, the next one sees."""

    def __init__(
        self,
        steps: Iterable[Step] = (),
        signals: Iterable[Signal] = (),
        awaited: Iterable[tuple[UUID, str]] = (),
        children: Iterable[Task] = (),
        attempts: Iterable[StepAttempt] = (),
        positions: Mapping[UUID, int] | None = None,
        holds: Mapping[UUID, tuple[int, Outputs]] | None = None,
        events: Iterable[UUID] = (),
        publishes: Mapping[UUID, tuple[UUID, int]] | None = None,
        sent: Iterable[UUID] = (),
    ) -> None:
        self.steps = {step.key: step for step in steps}
        self.awaited, self.sent = set(awaited), set(sent)
        self._children = {child.id: child for child in children}
        self._attempts = {attempt.key: attempt for attempt in attempts}
        self._positions = dict(positions or {})
        self._pending: dict[tuple[UUID, str], list[Signal]] = {}
        for signal in signals:
            self._pending.setdefault((signal.task_id, signal.name), []).append(signal)
        self._holds = dict(holds or {})
        self.events, self.publishes = set(events), dict(publishes or {})

    def is_alive(self, task_id: UUID, attempt: int) -> bool:
        """Whether the lease of this attempt, which somebody holds, has not run out."""
        return task_id in self._holds and self._holds[task_id][0] == attempt

    def outputs(self, task_id: UUID) -> Outputs:
        """The datasets that a task may write."""
        return self._holds[task_id][1] if task_id in self._holds else {}

    def step(self, task_id: UUID, place: Place) -> Step | None:
        return self.steps.get((task_id, place.name, place.occurrence))

    def attempt(self, task_id: UUID, place: Place) -> StepAttempt | None:
        """The latest try at a step."""
        return self._attempts.get((task_id, place.name, place.occurrence))

    def open_attempt(self, task_id: UUID, attempt: int) -> StepAttempt | None:
        """The try that was begun last in this attempt and has not ended."""
        found = [a for a in self._attempts.values() if (a.task_id, a.attempt) == (task_id, attempt) and not a.ended_at]
        return max(found, key=lambda one: one.begun_at, default=None)

    def next_position(self, task_id: UUID) -> int:
        """The place of a step that was never recorded, behind all that were."""
        return self._positions.get(task_id, 0)

    def child(self, task: Task, child_id: UUID) -> Task | None:
        """The task that this one waits for. One of another namespace is not there."""
        found = self._children.get(child_id)
        return found if found is not None and found.namespace == task.namespace else None

    def pending(self, task_id: UUID, name: str) -> Signal | None:
        """The signal that is next in line."""
        line = self._pending.get((task_id, name))
        return line[0] if line else None

    def note(self, move: Transition) -> None:
        for attempt in move.attempts:
            self._attempts[attempt.key] = attempt
        for step in move.steps:
            self.steps[step.key] = step
            self._positions[step.task_id] = max(self._positions.get(step.task_id, 0), step.position + 1)
            if step.kind is StepKind.SIGNAL and not step.done:
                self.awaited.add((step.task_id, step.name.removeprefix(SIGNAL_PREFIX)))
        for signal in move.signals:
            self.sent.add(signal.id)
            self._pending.setdefault((signal.task_id, signal.name), []).append(signal)
        for signal in move.consumed:
            self._pending[signal.task_id, signal.name].remove(signal)
        self.events.update(event.id for event in move.events)
        self.publishes.update((publish.id, publish.content) for publish in move.publishes)


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
    if (answer := _answered(task, held, known)) is not None:
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
    The task's budget is not touched. To hear of the same failure again changes nothing."""
    if (answer := _answered(task, held, known)) is not None:
        return answer
    if known is not None and known.failures >= failures:
        return _told(task, known)
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
    if (answer := _answered(task, held, known)) is not None:
        return answer
    if known is not None:
        return _told(task, known)
    made = _made(task, place, StepKind.SLEEP, StepState.WAITING, now, known)
    return _recorded(task, replace(made, wake_at=until))


def record_time(task: Task, held: tuple[int, UUID], place: Place, known: Step | None, now: Instant) -> Transition:
    """What time it is, once and for all."""
    if (answer := _answered(task, held, known)) is not None:
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
    if (answer := _answered(task, held, known)) is not None:
        return answer
    made = _made(task, place, StepKind.SIGNAL, StepState.WAITING, now, known)
    if pending is not None:
        step = replace(made, state=StepState.SUCCEEDED, result=pending.payload)
        return Transition(Verb.NOTE, task, task, steps=(step,), consumed=(pending,))
    if known is None:
        until = None if timeout_s is None else now + timedelta(seconds=timeout_s)
        return _recorded(task, replace(made, wake_at=until))
    if known.wake_at is not None and known.wake_at <= now:
        name = place.name.removeprefix(SIGNAL_PREFIX)
        late = Failure(Category.TIMEOUT, f"the signal {name} did not come in time", "SIGNAL_TIMEOUT", retryable=False)
        return _recorded(task, replace(made, state=StepState.FAILED, error=late))
    return _told(task, known)


def record_child(
    task: Task,
    held: tuple[int, UUID],
    place: Place,
    known: Step | None,
    child_id: UUID,
    child: Task | None,
    now: Instant,
) -> Transition:
    """A child task was submitted, or is asked after: what became of it is recorded when it has ended. `child` is None
    if it is not there any more."""
    if (answer := _answered(task, held, known)) is not None:
        return answer
    made = replace(_made(task, place, StepKind.TASK, StepState.WAITING, now, known), child_id=child_id)
    if child is None:
        gone = Failure(Category.INFRASTRUCTURE, f"the task {child_id} is not there any more", "GONE", retryable=False)
        return _recorded(task, replace(made, state=StepState.FAILED, error=gone))
    if child.state is State.SUCCEEDED:
        return _recorded(task, replace(made, state=StepState.SUCCEEDED, result=child.result))
    if child.terminal:
        return _recorded(task, replace(made, state=StepState.FAILED, error=child.error))
    return _recorded(task, made) if known is None else _told(task, known)


def send_signal(task: Task, signal: Signal, awaited: bool) -> Transition:
    """Kept until the workflow asks for it. One that sleeps and waits for just this is woken."""
    if task.terminal:
        raise InvalidState(f"the task has already {task.state}", task_id=task.id, state=task.state)
    if task.state is State.SLEEPING and awaited:
        woken = wake(task, signal.sent_at)
        return Transition(woken.verb, task, woken.after, woken.history, signals=(signal,))
    return Transition(Verb.NOTE, task, task, signals=(signal,))


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


def _answered(task: Task, held: tuple[int, UUID], known: Step | None) -> Transition | None:
    """None if this attempt may record now. A repeat of the attempt that recorded gets the record, also at its end."""
    if held != (task.attempt, task.lease_id):
        raise LeaseLost(task_id=task.id, attempt=held[0], current_attempt=task.attempt)
    if known is not None and known.done:
        return _told(task, known)
    if task.state is State.RUNNING or (task.state is State.QUEUED and task.outcome is Outcome.LOST):
        return None
    raise LeaseLost(f"attempt {held[0]} has already ended as {task.outcome}", task_id=task.id, attempt=held[0])


def _made(task: Task, place: Place, kind: StepKind, state: StepState, now: Instant, known: Step | None) -> Step:
    failures = 0 if known is None else known.failures
    return Step(
        task.id, place.name, place.occurrence, place.position, kind, state, task.attempt, now, failures=failures
    )


def _recorded(task: Task, step: Step) -> Transition:
    return Transition(Verb.NOTE, task, task, steps=(step,))


def _told(task: Task, known: Step) -> Transition:
    """Nothing is written; the answer is what is recorded."""
    return Transition(Verb.NOTE, task, task, told=known)
