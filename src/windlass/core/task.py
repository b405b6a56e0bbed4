"""The rules of a task. Each is a function from (record, request, now) to a Transition.

Time, jitter and ids are arguments: nothing here reads a clock, draws a random number, logs, or knows of a database.
Every report of a worker passes the fence, `_held`. All possible moves are in `states.TABLE`.
"""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from uuid import UUID

import msgspec
from msgspec.structs import replace

from windlass.core.failure import Category, Failure
from windlass.core.ids import derived_id
from windlass.core.retry import DEFAULT_POLICY, Policy, retry_delay_s
from windlass.core.states import TERMINAL, Effect, Entry, Instant, State, Transition, Verb, move
from windlass.errors import Conflict, InvalidState, LeaseLost

JOB = "job"  # the effect that tells a job of a DAG that one of its tasks has ended, or waits for its turn


class Outcome(StrEnum):
    """How the current attempt ended; None on the record while it is open."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"
    TIMED_OUT = "timed_out"
    RELEASED = "released"
    SLEPT = "slept"
    PARKED = "parked"


class Cancel(msgspec.Struct, frozen=True, omit_defaults=True):
    """A requested cancel. The grace runs from `signalled_at`: a worker can only obey a cancel that it has received."""

    requested_at: Instant
    reason: str = ""
    signalled_at: Instant | None = None


class Task(msgspec.Struct, frozen=True, gc=False):
    """One durable piece of work. Field order is the column order of the query `load_tasks`."""

    id: UUID
    namespace: str
    queue: str
    kind: str
    state: State
    available_at: Instant
    priority: int = 0
    concurrency_key: str = ""
    attempt: int = 0
    failures: int = 0
    losses: int = 0
    outcome: Outcome | None = None
    lease_id: UUID | None = None
    worker: str | None = None
    started_at: Instant | None = None
    finished_at: Instant | None = None
    deadline_at: Instant | None = None
    timer_at: Instant | None = None
    run_id: UUID | None = None
    has_dependents: bool = False
    awaited: bool = False
    cancel: Cancel | None = None
    policy: Policy = DEFAULT_POLICY
    error: Failure | None = None
    result: bytes | None = None
    trace: str | None = None
    parent_id: UUID | None = None
    job_id: UUID | None = None

    @property
    def current_worker(self) -> str | None:
        """The worker that runs the task, or ran it to its end. None for a task that waits."""
        return self.worker if self.state is State.RUNNING or self.terminal else None

    @property
    def terminal(self) -> bool:
        return self.state in TERMINAL


# --------------------------------------------------------------------------------------------- claim


def claim(task: Task, lease_id: UUID, worker: str | None, now: Instant) -> Transition:
    """A new attempt begins. Its higher number fences off every older attempt."""
    assert task.state is State.QUEUED, (task.id, task.state)
    started = replace(
        task,
        state=State.RUNNING,
        attempt=task.attempt + 1,
        outcome=None,
        lease_id=lease_id,
        worker=worker,
        started_at=now,
    )
    if task.policy.timeout_s is not None or task.deadline_at is not None or task.timer_at is not None:
        started = replace(started, timer_at=_timer(started))
    return move(Verb.CLAIM, task, started)


# --------------------------------------------------------------------------------------------- reports of a worker


def complete(task: Task, attempt: int, lease_id: UUID, result: bytes | None, now: Instant) -> Transition:
    """The handler returned. The current attempt may report that even after its lease expired, until a newer begins."""
    if (refused := _held(task, attempt, lease_id, Outcome.SUCCEEDED, now, result=result)) is not None:
        return refused
    after = _finished(task, State.SUCCEEDED, now, outcome=Outcome.SUCCEEDED, result=result)
    return move(Verb.COMPLETE, task, after, effects=_settle(after))


def fail(task: Task, attempt: int, lease_id: UUID, failure: Failure, now: Instant, jitter: float) -> Transition:
    """The handler failed. Another try follows if the failure and the budget allow it; a cancel wins over a retry."""
    if (refused := _held(task, attempt, lease_id, Outcome.FAILED, now, error=failure)) is not None:
        return refused
    if failure.category is Category.CANCELLED or (task.cancel is not None and failure.may_retry):
        return end(Verb.CANCEL, task, State.CANCELLED, failure, now, Outcome.FAILED)
    return _after_failure(Verb.FAIL, task, failure, Outcome.FAILED, now, jitter)


def report_cancelled(task: Task, attempt: int, lease_id: UUID, message: str, now: Instant) -> Transition:
    """The worker stopped the attempt, on a cancel or on its own. The task ends either way, without a retry."""
    failure = _cancelled(task, message)
    if (refused := _held(task, attempt, lease_id, Outcome.CANCELLED, now, error=failure)) is not None:
        return refused
    return end(Verb.CANCEL, task, State.CANCELLED, failure, now, Outcome.CANCELLED)


def sleep(
    task: Task, attempt: int, lease_id: UUID, until: Instant | None, now: Instant, *, come: bool = False
) -> Transition:
    """A workflow waits for a time, or with `until=None` until it is woken. It holds no worker and uses no budget. If
    what it waits for has `come` since it checked, it is queued again at once."""
    if (refused := _held(task, attempt, lease_id, Outcome.SLEPT, now)) is not None:
        return refused
    if task.cancel is not None:
        return end(Verb.CANCEL, task, State.CANCELLED, _cancelled(task), now, Outcome.SLEPT)
    if come:
        return move(Verb.SLEEP, task, _requeued(task, now, outcome=Outcome.SLEPT))
    timer_at = _earliest(until, task.deadline_at)
    after = replace(task, state=State.SLEEPING, outcome=Outcome.SLEPT, timer_at=timer_at)
    entry = _entry(task, "slept", now, until=None if until is None else until.isoformat())
    return move(Verb.SLEEP, task, after, (entry,))


def release(task: Task, attempt: int, lease_id: UUID, now: Instant) -> Transition:
    """The worker gives the task back unrun (it shuts down, or the claim never reached it). No budget is used."""
    if (refused := _held(task, attempt, lease_id, Outcome.RELEASED, now)) is not None:
        return refused
    if task.state is State.QUEUED:  # its lease had expired: it is queued for its retry already
        return Transition(Verb.NOTE, task, task)
    if task.cancel is not None:
        return end(Verb.CANCEL, task, State.CANCELLED, _cancelled(task), now, Outcome.RELEASED)
    after = _requeued(task, now, outcome=Outcome.RELEASED)
    return move(Verb.RELEASE, task, after, (_entry(task, "released", now),))


def park(task: Task, attempt: int, lease_id: UUID, failure: Failure, now: Instant) -> Transition:
    """The worker's code no longer matches the record of the workflow, so a person has to decide."""
    if (refused := _held(task, attempt, lease_id, Outcome.PARKED, now, error=failure)) is not None:
        return refused
    if task.cancel is not None:
        return end(Verb.CANCEL, task, State.CANCELLED, failure, now, Outcome.PARKED)
    after = replace(task, state=State.PARKED, outcome=Outcome.PARKED, error=failure, timer_at=task.deadline_at)
    return move(Verb.PARK, task, after, (_entry(task, "parked", now, **_described(failure)),))


# --------------------------------------------------------------------------------------------- what the engine does


def expire(
    task: Task,
    now: Instant,
    jitter: float,
    reason: str = "LEASE_EXPIRED",
    last_output: str = "",
    *,
    as_failure: bool = False,
    message: str = "",
) -> Transition:
    """The lease expired: the worker died, hangs, or is cut off. Its last output is kept if it is known, and `message`
    describes its end. Where a contract counts that as a failure, it uses the budget of failures.

    Attempt and lease stay on the row, so that the worker may still report until a newer attempt begins.
    """
    assert task.state is State.RUNNING, (task.id, task.state)
    lost = replace(task, failures=task.failures + 1) if as_failure else replace(task, losses=task.losses + 1)
    times, most = (lost.failures, task.policy.max_attempts) if as_failure else (lost.losses, task.policy.max_losses)
    lost_by = f"the worker {task.worker} was lost in" if task.worker else "no worker started"
    failure = Failure(Category.INFRASTRUCTURE, message or f"{lost_by} attempt {task.attempt}", reason, last_output)
    if task.cancel is not None:
        return end(Verb.EXPIRE, lost, State.CANCELLED, _cancelled(task), now, Outcome.LOST, before=task)
    if times >= max(1, most) and not task.policy.unlimited:
        return end(Verb.EXPIRE, lost, State.FAILED, failure, now, Outcome.LOST, before=task)
    delay = timedelta(seconds=retry_delay_s(task.policy, failure, times, jitter))
    after = _requeued(lost, now + delay, outcome=Outcome.LOST, error=failure)
    entry = _entry(task, "lost", now, **_described(failure), retry_at=after.available_at)
    return move(Verb.EXPIRE, task, after, (entry,))


def elapse(task: Task, now: Instant, jitter: float) -> Transition:
    """The task's timer is due: a deadline, an attempt's timeout, the end of a cancel's grace, or a sleep's end."""
    if task.timer_at is None or task.timer_at > now:
        return Transition(Verb.NOTE, task, task)
    if task.deadline_at is not None and task.deadline_at <= now:
        failure = Failure(Category.TIMEOUT, "the task's deadline passed", "DEADLINE_EXCEEDED", retryable=False)
        outcome = Outcome.TIMED_OUT if task.state is State.RUNNING else None
        return end(Verb.TIME_OUT, task, State.FAILED, failure, now, outcome)
    if task.state is State.SLEEPING:
        return wake(task, now)
    assert task.state is State.RUNNING, (task.id, task.state, task.timer_at)
    if _grace_over(task, now):
        failure = Failure(Category.CANCELLED, "still running after the grace period of its cancel", "CANCEL_TIMEOUT")
        return end(Verb.TIME_OUT, task, State.FAILED, failure, now, Outcome.TIMED_OUT)
    failure = Failure(Category.TIMEOUT, f"no result within {task.policy.timeout_s:g} s", "ATTEMPT_TIMEOUT")
    if task.cancel is not None:
        return end(Verb.TIME_OUT, task, State.CANCELLED, _cancelled(task), now, Outcome.TIMED_OUT)
    return _after_failure(Verb.TIME_OUT, task, failure, Outcome.TIMED_OUT, now, jitter)


def wake(task: Task, now: Instant) -> Transition:
    """The sleep is over, or the signal came: the task is queued behind those that became available before it."""
    if task.state is not State.SLEEPING:
        raise InvalidState(f"the task is {task.state}, not sleeping", task_id=task.id, state=task.state)
    return move(Verb.WAKE, task, _requeued(task, now, outcome=task.outcome))


def wake_parent(task: Task, now: Instant) -> Transition:
    """A child task ended. A workflow that is not asleep checks its children before it sleeps: see `sleep`."""
    return wake(task, now) if task.state is State.SLEEPING else Transition(Verb.NOTE, task, task)


def resume(task: Task, now: Instant) -> Transition:
    """A person lets a parked task go on, since the code matches its record again."""
    if task.state is not State.PARKED:
        raise InvalidState(f"the task is {task.state}, not parked", task_id=task.id, state=task.state)
    after = replace(_requeued(task, now, outcome=task.outcome), error=None)
    return move(Verb.RESUME, task, after, (_entry(task, "resumed", now),))


# --------------------------------------------------------------------------------------------- cancel


def cancel(task: Task, reason: str, now: Instant, *, force: bool = False) -> Transition:
    """Cancel a task. A task that waits ends at once, and so does one whose attempt was sent but not started. The worker
    of a running task is signalled, and its grace begins then."""
    if task.state is State.CANCELLED:
        return Transition(Verb.NOTE, task, task)
    if task.terminal:
        raise InvalidState(f"the task has already {task.state}", task_id=task.id, state=task.state)
    request = task.cancel or Cancel(now, reason)
    if task.state is not State.RUNNING or task.worker is None or force:
        outcome = Outcome.CANCELLED if task.state is State.RUNNING else None
        ended = replace(task, cancel=request)
        return end(Verb.CANCEL, ended, State.CANCELLED, _cancelled(task, reason), now, outcome, before=task)
    if task.cancel is not None:
        return Transition(Verb.NOTE, task, task)
    history = (_entry(task, "cancel_requested", now, reason=reason),)
    return move(Verb.NOTE, task, replace(task, cancel=request), history)


def signal_cancel(task: Task, now: Instant) -> Transition:
    """The worker received the cancel: its grace begins. Signalling it again changes nothing."""
    if task.state is not State.RUNNING or task.cancel is None or task.cancel.signalled_at is not None:
        return Transition(Verb.NOTE, task, task)
    signalled = replace(task, cancel=replace(task.cancel, signalled_at=now))
    after = replace(signalled, timer_at=_timer(signalled))
    return move(Verb.NOTE, task, after, (_entry(task, "cancel_signalled", now),))


# --------------------------------------------------------------------------------------------- the fence


def check_fence(task: Task, attempt: int, lease_id: UUID) -> None:
    """Raise LeaseLost unless this is the current attempt under its own lease."""
    if attempt != task.attempt or lease_id != task.lease_id:
        raise LeaseLost(task_id=task.id, attempt=attempt, current_attempt=task.attempt)


def may_report(task: Task) -> bool:
    """Whether the current attempt is open to reports: it runs, or it was lost and no newer one has begun."""
    return task.state is State.RUNNING or (task.state is State.QUEUED and task.outcome is Outcome.LOST)


def _held(
    task: Task,
    attempt: int,
    lease_id: UUID,
    outcome: Outcome,
    now: Instant,
    *,
    result: bytes | None = None,
    error: Failure | None = None,
) -> Transition | None:
    """None if this attempt may report now; otherwise the answer that it gets.

    A superseded attempt changes nothing. The same report again gets the same answer. A different report about an
    attempt that has ended is a conflict, and is kept for audit.
    """
    check_fence(task, attempt, lease_id)
    if may_report(task):
        return None
    if outcome is Outcome.CANCELLED and task.state is State.CANCELLED:  # the messages may differ
        return Transition(Verb.NOTE, task, task)
    if task.outcome is outcome and task.result == result and (error is None or task.error == error):
        return Transition(Verb.NOTE, task, task)
    refusal = Conflict(
        f"attempt {attempt} has already ended as {task.outcome}", task_id=task.id, state=task.state, attempt=attempt
    )
    entry = _entry(task, "refused", now, reported=outcome, **(_described(error) if error else {}))
    return Transition(Verb.NOTE, task, task, history=(entry,), refusal=refusal)


# --------------------------------------------------------------------------------------------- shared parts


def _after_failure(
    verb: Verb, before: Task, failure: Failure, outcome: Outcome, now: Instant, jitter: float
) -> Transition:
    """Another try or the end, decided by the category of the failure and the budget alone."""
    counted = replace(before, failures=before.failures + 1)
    may_retry = failure.may_retry and counted.failures < counted.policy.max_attempts
    if not may_retry and not counted.policy.unlimited:
        return end(verb, counted, State.FAILED, failure, now, outcome, before=before)
    delay = timedelta(seconds=retry_delay_s(counted.policy, failure, counted.failures, jitter))
    after = _requeued(counted, now + delay, outcome=outcome, error=failure)
    entry = _entry(before, outcome, now, **_described(failure), retry_at=after.available_at)
    return move(Verb.RETRY if verb is Verb.FAIL else verb, before, after, (entry,))


def end(
    verb: Verb,
    task: Task,
    state: State,
    failure: Failure,
    now: Instant,
    outcome: Outcome | None = None,
    *,
    before: Task | None = None,
) -> Transition:
    """A terminal state other than success. The row itself is the last entry of its history. Without an `outcome`, the
    attempt keeps the one that it has."""
    after = _finished(task, state, now, outcome=outcome or task.outcome, error=failure)
    return move(verb, before or task, after, effects=_settle(after))


def _finished(
    task: Task,
    state: State,
    now: Instant,
    *,
    outcome: Outcome | None,
    result: bytes | None = None,
    error: Failure | None = None,
) -> Task:
    return replace(task, state=state, outcome=outcome, finished_at=now, timer_at=None, result=result, error=error)


def _requeued(task: Task, available_at: Instant, *, outcome: Outcome | None, error: Failure | None = None) -> Task:
    return replace(
        task,
        state=State.QUEUED,
        available_at=available_at,
        outcome=outcome,
        error=error or task.error,
        timer_at=task.deadline_at,
    )


def _settle(after: Task) -> tuple[Effect, ...]:
    """Effects that settle the tasks waiting for this one, wake the workflow that submitted it, and move its job on, in
    transactions of their own: see `run.settle`, `wake_parent` and `datasets.router`."""
    if not after.has_dependents and after.parent_id is None and after.job_id is None:  # nearly all
        return ()
    effects = []
    if after.has_dependents:
        effects.append(_effect(after, "settle", run_id=str(after.run_id)))
    if after.parent_id is not None:
        effects.append(_effect(after, "wake", parent_id=str(after.parent_id)))
    if after.job_id is not None:
        effects.append(_effect(after, JOB, job_id=str(after.job_id)))
    return tuple(effects)


def _effect(after: Task, kind: str, **body: object) -> Effect:
    return Effect(derived_id(kind, after.id), kind, after.namespace, after.id, after.attempt, body)


def _entry(task: Task, what: str, now: Instant, **detail: object) -> Entry:
    kept = {name: value for name, value in detail.items() if value is not None}
    if task.started_at is not None:
        kept["started_at"] = task.started_at
    return Entry(task.id, now, task.attempt, what, task.worker, kept or None)


def _described(failure: Failure) -> dict[str, object]:
    return {
        "category": failure.category,
        "reason": failure.reason or None,
        "error": failure.message,
        "trace": failure.trace or None,
    }


def _timer(task: Task) -> Instant | None:
    """When the engine has to check a running task even if nothing is reported."""
    timeout_at = grace_ends_at = None
    if task.policy.timeout_s is not None and task.started_at is not None:
        timeout_at = task.started_at + timedelta(seconds=task.policy.timeout_s)
    if task.cancel is not None and task.cancel.signalled_at is not None:
        grace_ends_at = task.cancel.signalled_at + timedelta(seconds=task.policy.cancel_grace_s)
    return _earliest(timeout_at, grace_ends_at, task.deadline_at)


def _grace_over(task: Task, now: Instant) -> bool:
    if task.cancel is None or task.cancel.signalled_at is None:
        return False
    return task.cancel.signalled_at + timedelta(seconds=task.policy.cancel_grace_s) <= now


def _earliest(*instants: Instant | None) -> Instant | None:
    return min((i for i in instants if i is not None), default=None)


def _cancelled(task: Task, reason: str = "") -> Failure:
    if not reason and task.cancel is not None:
        reason = task.cancel.reason
    return Failure(Category.CANCELLED, reason or "cancelled", "CANCELLED", retryable=False)
