"""Workers that call back: the scope of their task tokens, and how they start, continue and cancel an attempt.

How an attempt ends is decided by `core.attempt`. A refusal is a LeaseLost: whatever its reason, the worker must stop.
"""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from functools import lru_cache
from typing import ClassVar
from uuid import UUID

import msgspec
from msgspec.structs import replace

from windlass.contracts.callback.delivery import Push
from windlass.core import task as rules
from windlass.core.attempt import AttemptRow, Credential, Denial, denied, entry, observed_time
from windlass.core.delivery import TOKEN_TTL_MAX_S, type_of
from windlass.core.outgoing import runs
from windlass.core.states import TERMINAL, Instant, State, Transition, Verb, move
from windlass.core.task import Outcome, Task
from windlass.errors import Forbidden, LeaseLost, WindlassError

PUSH = type_of(Push)


class Refusal(StrEnum):
    """Why a worker has to stop."""

    ATTEMPT_MISMATCH = "attempt_mismatch"
    TASK_ALREADY_TERMINAL = "task_already_terminal"
    ATTEMPT_ALREADY_COMPLETED = "attempt_already_completed"
    TASK_EXPIRED = "task_expired"


class Scope(Credential, frozen=True, gc=False, kw_only=True):
    """What a task token permits, and for how long. `body_attempt` is the attempt in the body if it differs from the
    token's."""

    attempt: int
    not_before: Instant
    expires_at: Instant
    tenant: str
    workspace: str
    run_id: UUID
    body_attempt: int | None = None

    deliveries: ClassVar[frozenset[str]] = frozenset({PUSH})

    def naming(self, attempt: int) -> Scope:
        """The scope of a request whose body names this attempt."""
        return self if attempt == self.attempt else replace(self, body_attempt=attempt)

    def denial(self, task: AttemptRow, now: Instant) -> Denial | None:
        denial = super().denial(task, now)
        return Denial.OTHER_ATTEMPT if denial is None and self.body_attempt is not None else denial

    def covers(self, task: AttemptRow) -> bool:
        return (self.tenant, self.workspace) == tenant_of(task.namespace) and self.run_id == (task.run_id or task.id)

    def error(self, denial: Denial, task: AttemptRow) -> WindlassError:
        match denial:
            case Denial.EXPIRED | Denial.NOT_YET_VALID:
                return denied(denial, task)
            case Denial.OTHER_NAMESPACE:
                return Forbidden("the token is for another tenant, workspace or run")
        received = self.attempt if self.body_attempt in (None, task.attempt) else self.body_attempt
        return LeaseLost(
            f"attempt {received} is not the current one, which is {task.attempt}",
            refusal=Refusal.ATTEMPT_MISMATCH, expected_attempt=task.attempt, received_attempt=received,
        )  # fmt: skip

    def ended(self, task: AttemptRow) -> LeaseLost:
        return _ended(task) if task.state in TERMINAL else _completed(task)

    def half_over(self, now: Instant) -> bool:
        """Whether less than half of the token's lifetime is left."""
        return self.expires_at - now < now - self.not_before


@lru_cache(maxsize=1024)
def tenant_of(namespace: str) -> tuple[str, str]:
    """Tenant and workspace of a namespace: the parts before and after its first slash."""
    tenant, _, workspace = namespace.partition("/")
    return tenant or namespace, workspace or "default"


def token_life(task: Task, now: Instant, usual_s: float) -> timedelta:
    """The lifetime of a token: that of its queue, but at least until the attempt times out, so that a worker can report
    until then. Never more than the contract allows; heartbeats renew the token."""
    life = timedelta(seconds=usual_s)
    for end in (task.timer_at, task.deadline_at):
        if end is not None:
            life = max(life, end - now)
    return min(life, timedelta(seconds=TOKEN_TTL_MAX_S))


def scope_of(task: AttemptRow, now: Instant, life: timedelta) -> Scope:
    """The scope of a token for the current attempt of a task. A task without a run is its own run."""
    tenant, workspace = tenant_of(task.namespace)
    return Scope(
        task.id, attempt=task.attempt, tenant=tenant, workspace=workspace, run_id=task.run_id or task.id,
        not_before=now, expires_at=now + life,
    )  # fmt: skip


# --------------------------------------------------------------------------------------------- workers


def check_goes_on(task: AttemptRow, *, starting: bool) -> None:
    """Raise unless this attempt, which is the current one, still runs."""
    if task.state is State.RUNNING:
        return
    if task.state in TERMINAL:
        if starting:
            raise _ended(task)
        raise LeaseLost("the task has ended", refusal=Refusal.TASK_EXPIRED, state=task.state)
    if starting and task.outcome is not Outcome.LOST:
        raise _completed(task)
    raise LeaseLost("the attempt has expired: no heartbeat arrived in time", refusal=Refusal.TASK_EXPIRED)


class StartAttempt(msgspec.Struct, frozen=True):
    """A worker has started an attempt, or its first heartbeat has arrived."""

    scope: Scope
    worker: str
    worker_time: Instant | None = None
    starting: bool = True
    trace: str | None = None

    @property
    def task_id(self) -> UUID:
        return self.scope.task_id

    def decide(self, task: Task, now: Instant) -> Transition:
        self.scope.check(task, now)
        check_goes_on(task, starting=self.starting)
        if task.worker is not None:
            return Transition(Verb.NOTE, task, task)
        after = replace(task, worker=self.worker)
        traced: dict[str, object] = {} if self.trace is None else {"traceparent": self.trace}
        started = entry(after, "worker_started", now, {**observed_time(self.worker_time, now), **traced})
        return move(Verb.NOTE, task, after, (started,))


class SignalCancel(msgspec.Struct, frozen=True):
    """The answer to a heartbeat carries a cancel, so the grace period of the worker starts."""

    task_id: UUID
    attempt: int

    def decide(self, task: Task, now: Instant) -> Transition:
        if not runs(task, self.attempt):
            check_goes_on(task, starting=False)
        return rules.signal_cancel(task, now)


# --------------------------------------------------------------------------------------------- shared parts


def _ended(task: AttemptRow) -> LeaseLost:
    return LeaseLost(f"the task has {task.state}", refusal=Refusal.TASK_ALREADY_TERMINAL, state=task.state)


def _completed(task: AttemptRow) -> LeaseLost:
    return LeaseLost(
        f"attempt {task.attempt} has already ended as {task.outcome}", refusal=Refusal.ATTEMPT_ALREADY_COMPLETED
    )
