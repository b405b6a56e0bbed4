"""Rules for step attempts: starting, ending and retrying a step, for workers that report when they start one.

A replay reads the record of the step (`core.step`), the same for every kind of worker; step attempts are kept beside
it. The engine carries out retries: a failed step that may be retried puts its run to sleep until then. A worker that
does not name its attempt is assumed to have the current one; a worker that names it is fenced by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from enum import StrEnum
from typing import ClassVar, NamedTuple
from uuid import UUID

import msgspec
from msgspec.structs import replace

from windlass.core import task as task_rules
from windlass.core.attempt import AttemptRow, Credential, Denial, denied
from windlass.core.failure import Failure
from windlass.core.retry import Policy, retry_delay_s
from windlass.core.states import Instant, State, Transition, Verb
from windlass.core.step import Place, Step, StepCommandContext, StepKind, StepState
from windlass.core.task import Outcome, Task
from windlass.errors import Conflict, InvalidState, LeaseLost, WindlassError


class StepHeld(InvalidState):
    """The step is already running."""

    code = "step_held"


class AttemptState(StrEnum):
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    RETRYING = "retrying"  # failed, and will be retried
    FAILED = "failed"


class StepAttempt(msgspec.Struct, frozen=True):
    """One attempt of a step. Field order is the column order of the queries. `attempt` is the fence of the run when the
    step started, `tries` the number of failures and losses of the run until then; `final` are prefixes of messages
    that are not retried; `given` is the input that the worker sent."""

    id: UUID
    task_id: UUID
    name: str
    occurrence: int
    number: int
    attempt: int
    tries: int
    state: AttemptState
    begun_at: Instant
    ended_at: Instant | None = None
    policy: Policy | None = None
    final: tuple[str, ...] = ()
    error: Failure | None = None
    given: bytes | None = None

    @property
    def key(self) -> tuple[UUID, str, int]:
        return (self.task_id, self.name, self.occurrence)


class StepRecord(NamedTuple):
    """A step before a command: its place, its record, and its latest attempt."""

    place: Place
    known: Step | None
    latest: StepAttempt | None

    def running(self, task: Task) -> StepAttempt | None:
        """The latest attempt, if it runs in the current attempt of the task."""
        latest = self.latest
        if latest is None or latest.state is not AttemptState.RUNNING or latest.attempt != task.attempt:
            return None
        return latest


class StepAttemptContext(StepCommandContext):
    """The steps and step attempts of a batch of commands."""

    def __init__(
        self,
        steps: Iterable[Step] = (),
        attempts: Iterable[StepAttempt] = (),
        positions: Mapping[UUID, int] | None = None,
    ) -> None:
        super().__init__(steps)
        self._attempts = {attempt.key: attempt for attempt in attempts}
        self._positions = dict(positions or {})

    def record(self, task_id: UUID, name: str, occurrence: int) -> StepRecord:
        place = Place(self.next_position(task_id), name, occurrence)
        return StepRecord(place, self.step(task_id, place), self._attempts.get((task_id, name, occurrence)))

    def open_attempt(self, task_id: UUID, attempt: int) -> StepAttempt | None:
        """The last step attempt of this attempt that has not ended."""
        found = [a for a in self._attempts.values() if (a.task_id, a.attempt) == (task_id, attempt) and not a.ended_at]
        return max(found, key=lambda one: one.begun_at, default=None)

    def next_position(self, task_id: UUID) -> int:
        """The position of a new step, after all recorded ones."""
        return self._positions.get(task_id, 0)

    def note(self, transition: Transition) -> None:
        super().note(transition)
        for write in transition.writes:
            match write:
                case StepAttempt():
                    self._attempts[write.key] = write
                case Step():
                    self._positions[write.task_id] = max(self.next_position(write.task_id), write.position + 1)


class RunCredential(Credential, frozen=True, kw_only=True):
    """The credential of a registry worker: its attempt and lease token, or its name, or nothing."""

    worker: str | None = None
    namespace: str | None = None  # of the caller; None: all

    deliveries: ClassVar[frozenset[str]] = frozenset({"pull"})

    @property
    def exact(self) -> bool:
        return bool(self.attempt) and self.token is not None

    def covers(self, task: AttemptRow) -> bool:
        return self.namespace in (None, task.namespace)

    def is_from(self, worker: str | None) -> bool:
        return self.worker is None or self.worker == worker

    def error(self, denial: Denial, task: AttemptRow) -> WindlassError:
        match denial:
            case Denial.NOT_STARTED:
                message = f"run {task.id} has not been started by a worker"
                return InvalidState(message, task_id=task.id, state=task.state)
            case Denial.OTHER_DELIVERY:
                message = f"run {task.id} does not run on a worker that polls"
                return LeaseLost(message, task_id=task.id, current_attempt=task.attempt)
            case Denial.OTHER_ATTEMPT:
                return LeaseLost(task_id=task.id, attempt=self.attempt, current_attempt=task.attempt)
        return denied(denial, task)


def stopped(task: Task, now: Instant) -> Transition | None:
    """Ends a run whose cancellation was requested. The write of its worker is refused, which notifies the worker."""
    if task.state is not State.RUNNING or task.cancel is None:
        return None
    ended = task_rules.cancel(task, task.cancel.reason, now, force=True)
    return replace(ended, refusal=InvalidState("the run was cancelled", task_id=task.id, state=State.CANCELLED))


# The rules below hold for a run that was not stopped, under a credential that was checked.


def begin(task: Task, record: StepRecord, wanted: StepAttempt, now: Instant, *, exact: bool) -> Transition:
    """Starts a step attempt, or returns the result of the step. `wanted` has the worker's fields and the new id;
    `exact` means that the worker has named its attempt."""
    if task.state is not State.RUNNING:
        raise InvalidState(f"the run is {task.state}", task_id=task.id, state=task.state)
    known, latest = record.known, record.latest
    if known is not None:
        slept = known.kind is StepKind.SLEEP and known.wake_at is not None and known.wake_at <= now
        if known.state is StepState.SUCCEEDED or slept:
            return _note(task, known)
    if (running := record.running(task)) is not None:
        if exact:
            return _note(task, running)  # the answer to the first call was lost
        raise StepHeld(f"step {wanted.name} is already running", task_id=task.id)
    if known is not None:
        _refuse_unless_due(task, known, latest, now)
    number = 1 if latest is None else latest.number + 1
    made = replace(wanted, number=number, attempt=task.attempt, tries=tries_of(task), begun_at=now)
    return _note(task, made, made)


def complete(task: Task, record: StepRecord, result: bytes, now: Instant, new_id: UUID) -> Transition:
    """The function of the step returned. A step that was never started counts as started now."""
    place, known = record.place, record.known
    if known is not None and known.state is StepState.SUCCEEDED:
        if known.result == result:
            return _note(task, known)
        raise Conflict(f"the step {place.name} has already given another result", task_id=task.id)
    if known is not None and known.kind is StepKind.SLEEP:
        return _note(task, known)  # a sleep ends when its time has come
    began = _began(task, record, now, new_id)
    step = Step(
        task.id, place.name, place.occurrence, place.position if known is None else known.position,
        StepKind.SLEEP if task.state is State.SLEEPING else StepKind.STEP, StepState.SUCCEEDED, task.attempt, now,
        took_s=max(0.0, (now - began.begun_at).total_seconds()), result=result,
    )  # fmt: skip
    return _note(task, step, step, replace(began, state=AttemptState.SUCCEEDED, ended_at=now))


def fail(task: Task, record: StepRecord, failure: Failure, now: Instant, jitter: float, new_id: UUID) -> Transition:
    """The function of the step failed. If the step is retried, the run sleeps until then and this execution ends."""
    place, known, latest = record
    if known is not None and latest is not None and latest.ended_at is not None and latest.error == failure:
        return _note(task, known)  # a repeated report
    if known is not None and known.state is StepState.SUCCEEDED:
        raise Conflict(f"the step {place.name} has already succeeded", task_id=task.id)
    began = _began(task, record, now, new_id)
    policy = began.policy or task.policy
    failures = (known.failures if known is not None and known.state is StepState.WAITING else 0) + 1
    step = Step(
        task.id, place.name, place.occurrence, place.position if known is None else known.position, StepKind.STEP,
        StepState.FAILED, task.attempt, now, failures=failures, error=failure,
    )  # fmt: skip
    ended = replace(began, state=AttemptState.FAILED, ended_at=now, error=failure)
    if not failure.may_retry or failures >= policy.max_attempts:
        return _note(task, step, step, ended)
    wake_at = now + timedelta(seconds=retry_delay_s(policy, failure, failures, jitter))
    waiting = replace(step, state=StepState.WAITING, wake_at=wake_at)
    writes = (waiting, replace(ended, state=AttemptState.RETRYING))
    return replace(_sleep(task, wake_at, now), writes=writes, answer=waiting)


def sleep(task: Task, open_attempt: StepAttempt | None, position: int, duration_s: float, now: Instant) -> Transition:
    """The run sleeps. The open step is the sleep: its end is recorded with it, so that the run does not sleep twice if
    the worker reports nothing more. With a duration of 0 the run is queued again at once."""
    until = now + timedelta(seconds=duration_s)
    slept = _sleep(task, until, now, come=duration_s <= 0)
    if open_attempt is None or slept.refusal is not None or not slept.changed:
        return slept
    step = Step(
        task.id, open_attempt.name, open_attempt.occurrence, position, StepKind.SLEEP, StepState.WAITING, task.attempt,
        now, wake_at=until,
    )  # fmt: skip
    ended = replace(open_attempt, state=AttemptState.SUCCEEDED, ended_at=now)
    return replace(slept, writes=(step, ended), answer=step)


def tries_of(task: Task) -> int:
    """The number of failed and lost attempts of the run: a claim after a sleep does not count."""
    return task.failures + task.losses


def _note(task: Task, answer: object, *writes: object) -> Transition:
    return Transition(Verb.NOTE, task, task, writes=writes, answer=answer)


def _sleep(task: Task, until: Instant, now: Instant, *, come: bool = False) -> Transition:
    assert task.lease_id is not None, task.id  # the credential was checked
    return task_rules.sleep(task, task.attempt, task.lease_id, until, now, come=come)


def _refuse_unless_due(task: Task, known: Step, latest: StepAttempt | None, now: Instant) -> None:
    if known.state is StepState.WAITING:
        if known.wake_at is None or known.wake_at > now:
            until = "" if known.wake_at is None else f" until {known.wake_at.isoformat()}"
            raise InvalidState(f"the step {known.name} waits{until}", task_id=task.id)
    elif latest is None or latest.tries >= tries_of(task):
        why = known.error.message if known.error is not None else "for good"
        raise InvalidState(f"the step {known.name} has failed in this attempt of its run: {why}", task_id=task.id)


def _began(task: Task, record: StepRecord, now: Instant, new_id: UUID) -> StepAttempt:
    """The running attempt of a step that may be reported, or a new one."""
    asleep = task.state is State.SLEEPING and task.outcome is Outcome.SLEPT
    if not task_rules.may_report(task) and not asleep:
        raise InvalidState(f"the run is {task.state}", task_id=task.id, state=task.state)
    if (running := record.running(task)) is not None:
        return running
    place, known, latest = record
    if known is not None:
        raise Conflict(f"the step {place.name} has already failed", task_id=task.id)
    number = 1 if latest is None else latest.number + 1
    return StepAttempt(
        new_id, task.id, place.name, place.occurrence, number, task.attempt, tries_of(task), AttemptState.RUNNING, now
    )
