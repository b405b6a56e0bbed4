"""Tries at a step, for workers that say when they begin one: rules for beginning, ending and repeating a step.

What a replay reads is the record of the step (`core.step`), the same for every kind of worker; a try is kept beside
it. The engine carries out retries: a step that failed and may be tried again puts its run to sleep until then. A worker
that cannot name its attempt is taken at its word for the attempt that is current; one that can is fenced by it.
"""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from uuid import UUID

import msgspec
from msgspec.structs import replace

from windlass.core import task as task_rules
from windlass.core.error import Conflict, InvalidState, LeaseLost
from windlass.core.failure import Failure
from windlass.core.retry import Policy, retry_delay_s
from windlass.core.step import Place, Step, StepKind, StepState
from windlass.core.task import Outcome, Task
from windlass.core.token import delivery_of
from windlass.core.transition import Instant, State, Transition, Verb

PULL = "pull"


class StepHeld(InvalidState):
    """Somebody else is at this step."""

    code = "step_held"


class AttemptState(StrEnum):
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    RETRYING = "retrying"  # it failed, and another try follows
    FAILED = "failed"


class StepAttempt(msgspec.Struct, frozen=True):
    """One try. Field order is the column order of the queries. `attempt` is the run's fence when it began, `tries` how
    often the run had failed or been lost by then; `final` are beginnings of messages that end all tries, `given`
    what the worker said it works on."""

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


class Holder(msgspec.Struct, frozen=True):
    """Who says that it runs the attempt: its exact fence, or the worker's name, or nothing at all."""

    attempt: int | None = None
    lease_id: UUID | None = None
    worker: str | None = None

    @property
    def exact(self) -> bool:
        return bool(self.attempt) and self.lease_id is not None


def held_by(task: Task, holder: Holder) -> tuple[int, UUID]:
    """The attempt that is meant. Raises LeaseLost for a worker that has it no longer, InvalidState if there is none."""
    if task.attempt == 0 or task.lease_id is None:
        raise InvalidState("no worker has taken the run yet", task_id=task.id, state=task.state)
    stranger = holder.worker is not None and holder.worker != task.worker
    if delivery_of(task.lease_id) != PULL:
        raise LeaseLost("the run is not with a worker that polls", task_id=task.id, current_attempt=task.attempt)
    if stranger or (holder.lease_id is not None and holder.lease_id != task.lease_id):
        raise LeaseLost(task_id=task.id, current_attempt=task.attempt)
    if holder.exact and holder.attempt != task.attempt:
        raise LeaseLost(task_id=task.id, attempt=holder.attempt, current_attempt=task.attempt)
    return task.attempt, task.lease_id


def stopped(task: Task, now: Instant) -> Transition | None:
    """The end of a run that was asked to stop, for a worker that hears of it only now: its write is refused."""
    if task.state is not State.RUNNING or task.cancel is None:
        return None
    ended = task_rules.cancel(task, task.cancel.reason, now, force=True)
    refusal = InvalidState("the run was cancelled", task_id=task.id, state=State.CANCELLED)
    return msgspec.structs.replace(ended, refusal=refusal)


def begin(
    task: Task,
    holder: Holder,
    known: Step | None,
    latest: StepAttempt | None,
    wanted: StepAttempt,
    now: Instant,
) -> Transition:
    """Begin a try, or hear what the step gave. `wanted` carries what the worker says and the new id."""
    held_by(task, holder)
    if (end := stopped(task, now)) is not None:
        return end
    if task.state is not State.RUNNING:
        raise InvalidState(f"the run is {task.state}", task_id=task.id, state=task.state)
    if known is not None and (known.state is StepState.SUCCEEDED or _slept(known, now)):
        return Transition(Verb.NOTE, task, task, told=known)
    if latest is not None and latest.state is AttemptState.RUNNING and latest.attempt == task.attempt:
        if holder.exact:
            return Transition(Verb.NOTE, task, task, attempts=(latest,))  # the answer to the first was lost
        raise StepHeld(f"the step {wanted.name} has been begun and has not ended", task_id=task.id)
    _refuse_unless_due(task, known, latest, now)
    number = 1 if latest is None else latest.number + 1
    made = replace(wanted, number=number, attempt=task.attempt, tries=tries_of(task), begun_at=now)
    return Transition(Verb.NOTE, task, task, attempts=(made,))


def complete(
    task: Task,
    holder: Holder,
    place: Place,
    known: Step | None,
    latest: StepAttempt | None,
    result: bytes,
    now: Instant,
    new_id: UUID,
) -> Transition:
    """The step's function returned. Without a beginning it counts as begun now."""
    attempt, _ = held_by(task, holder)
    if (end := stopped(task, now)) is not None:
        return end
    if known is not None and known.state is StepState.SUCCEEDED:
        if known.result == result:
            return Transition(Verb.NOTE, task, task, told=known)
        raise Conflict(f"the step {place.name} has already given another result", task_id=task.id)
    if known is not None and known.kind is StepKind.SLEEP:
        return Transition(Verb.NOTE, task, task, told=known)  # it is over when its time has come
    _refuse_unless_open(task)
    began = _running(task, latest)
    if began is None and known is not None:
        raise Conflict(f"the step {place.name} has already failed", task_id=task.id)
    ended = _ended(task, place, began, latest, AttemptState.SUCCEEDED, now, new_id)
    took_s = (now - ended.begun_at).total_seconds()
    kind = StepKind.SLEEP if task.state is State.SLEEPING else StepKind.STEP
    step = Step(
        task.id, place.name, place.occurrence, _position(place, known), kind, StepState.SUCCEEDED, attempt, now,
        took_s=max(0.0, took_s), result=result,
    )  # fmt: skip
    return Transition(Verb.NOTE, task, task, steps=(step,), attempts=(ended,))


def fail(
    task: Task,
    holder: Holder,
    place: Place,
    known: Step | None,
    latest: StepAttempt | None,
    failure: Failure,
    now: Instant,
    jitter: float,
    new_id: UUID,
) -> Transition:
    """The step's function failed. If another try follows, the run sleeps until then; the worker's part is over."""
    attempt, lease_id = held_by(task, holder)
    if (end := stopped(task, now)) is not None:
        return end
    if known is not None and latest is not None and latest.ended_at is not None and latest.error == failure:
        return Transition(Verb.NOTE, task, task, told=known)  # said before
    if known is not None and known.state is StepState.SUCCEEDED:
        raise Conflict(f"the step {place.name} has already succeeded", task_id=task.id)
    _refuse_unless_open(task)
    began = _running(task, latest)
    if began is None and known is not None:
        raise Conflict(f"the step {place.name} has already failed", task_id=task.id)
    policy = task.policy if began is None or began.policy is None else began.policy
    failures = (known.failures if known is not None and known.state is StepState.WAITING else 0) + 1
    step = Step(
        task.id, place.name, place.occurrence, _position(place, known), StepKind.STEP, StepState.FAILED, attempt, now,
        failures=failures, error=failure,
    )  # fmt: skip
    if not failure.may_retry or failures >= policy.max_attempts:
        ended = _ended(task, place, began, latest, AttemptState.FAILED, now, new_id, failure)
        return Transition(Verb.NOTE, task, task, steps=(step,), attempts=(ended,))
    ended = _ended(task, place, began, latest, AttemptState.RETRYING, now, new_id, failure)
    wake_at = now + timedelta(seconds=retry_delay_s(policy, failures, jitter, failure.retry_after_s))
    waiting = replace(step, state=StepState.WAITING, wake_at=wake_at)
    slept = task_rules.sleep(task, attempt, lease_id, wake_at, now)
    return replace(slept, steps=(waiting,), attempts=(ended,))


def sleep(
    task: Task,
    holder: Holder,
    open_attempt: StepAttempt | None,
    position: int,
    duration_s: float,
    now: Instant,
) -> Transition:
    """The run sleeps. The step that is open is the sleep: that it is over when its time has come is recorded with it,
    so that nothing is slept twice if the worker says no more. No duration at all is back in line at once."""
    attempt, lease_id = held_by(task, holder)
    if (end := stopped(task, now)) is not None:
        return end
    until = now + timedelta(seconds=duration_s)
    slept = task_rules.sleep(task, attempt, lease_id, until, now, come=duration_s <= 0)
    if open_attempt is None or slept.refusal is not None or not slept.changed:
        return slept
    step = Step(
        task.id, open_attempt.name, open_attempt.occurrence, position, StepKind.SLEEP, StepState.WAITING, attempt, now,
        wake_at=until,
    )  # fmt: skip
    ended = replace(open_attempt, state=AttemptState.SUCCEEDED, ended_at=now)
    return replace(slept, steps=(step,), attempts=(ended,))


def tries_of(task: Task) -> int:
    """How often the run was tried before: a claim after a sleep is no new try."""
    return task.failures + task.losses


# --------------------------------------------------------------------------------------------- shared parts


def _slept(known: Step, now: Instant) -> bool:
    return known.kind is StepKind.SLEEP and known.wake_at is not None and known.wake_at <= now


def _refuse_unless_due(task: Task, known: Step | None, latest: StepAttempt | None, now: Instant) -> None:
    if known is None:
        return
    if known.state is StepState.WAITING:
        if known.wake_at is None or known.wake_at > now:
            until = "" if known.wake_at is None else f" until {known.wake_at.isoformat()}"
            raise InvalidState(f"the step {known.name} waits{until}", task_id=task.id)
        return
    if latest is None or latest.tries >= tries_of(task):
        why = known.error.message if known.error is not None else "for good"
        raise InvalidState(f"the step {known.name} has failed in this attempt of its run: {why}", task_id=task.id)


def _refuse_unless_open(task: Task) -> None:
    late = task.state is State.QUEUED and task.outcome is Outcome.LOST  # nobody has taken it since
    asleep = task.state is State.SLEEPING and task.outcome is Outcome.SLEPT
    if task.state is not State.RUNNING and not late and not asleep:
        raise InvalidState(f"the run is {task.state}", task_id=task.id, state=task.state)


def _running(task: Task, latest: StepAttempt | None) -> StepAttempt | None:
    if latest is None or latest.state is not AttemptState.RUNNING or latest.attempt != task.attempt:
        return None
    return latest


def _ended(
    task: Task,
    place: Place,
    began: StepAttempt | None,
    latest: StepAttempt | None,
    state: AttemptState,
    now: Instant,
    new_id: UUID,
    error: Failure | None = None,
) -> StepAttempt:
    if began is None:
        number = 1 if latest is None else latest.number + 1
        began = StepAttempt(
            new_id, task.id, place.name, place.occurrence, number, task.attempt, tries_of(task), state, now
        )
    return replace(began, state=state, ended_at=now, error=error)


def _position(place: Place, known: Step | None) -> int:
    return place.position if known is None else known.position
