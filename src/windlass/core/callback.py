"""What a worker that calls back says about its attempt, which was sent to it (see `sent`).

The rules of a task are those of `task`; every word of the worker is held against the scope of its token first. A
refusal is a LeaseLost: whatever its reason, this worker has to stop.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Protocol
from uuid import UUID

import msgspec
from msgspec.structs import replace

from windlass.core import task as rules
from windlass.core.delivery import TOKEN_TTL_MAX_S, Push, type_of
from windlass.core.error import Forbidden, LeaseLost, Unauthenticated
from windlass.core.failure import Failure
from windlass.core.report import entry, judged
from windlass.core.sent import runs
from windlass.core.task import Cancel, Outcome, Task
from windlass.core.token import delivery_of
from windlass.core.transition import TERMINAL, Entry, Instant, State, Transition, Verb, move

LEEWAY = timedelta(seconds=5)
SKEW_MAX, CLOCK_SKEW = timedelta(minutes=5), "clockSkewS"
DEFAULT_WORKSPACE = "default"
PUSH = type_of(Push)


class Refusal(StrEnum):
    """Why a worker has to stop."""

    ATTEMPT_MISMATCH = "attempt_mismatch"
    TASK_ALREADY_TERMINAL = "task_already_terminal"
    ATTEMPT_ALREADY_COMPLETED = "attempt_already_completed"
    TASK_EXPIRED = "task_expired"


class Fenced(Protocol):
    """What of a task says whose turn it is: the task itself, or its few columns that a heartbeat needs."""

    @property
    def id(self) -> UUID: ...
    @property
    def namespace(self) -> str: ...
    @property
    def run_id(self) -> UUID | None: ...
    @property
    def state(self) -> State: ...
    @property
    def attempt(self) -> int: ...
    @property
    def outcome(self) -> Outcome | None: ...
    @property
    def lease_id(self) -> UUID | None: ...


class Scope(msgspec.Struct, frozen=True, gc=False):
    """What a token is good for, and for how long."""

    task_id: UUID
    tenant: str
    workspace: str
    run_id: UUID
    attempt: int
    not_before: Instant
    expires_at: Instant

    def check_time(self, now: Instant) -> None:
        if now > self.expires_at + LEEWAY:
            raise Unauthenticated("the token has expired")
        if now < self.not_before - LEEWAY:
            raise Unauthenticated("the token is not valid yet")

    def check(self, task: Fenced, attempt: int, now: Instant) -> None:
        """In its time, of this tenant and run, and of the current attempt, which was pushed."""
        self.check_time(now)
        if (self.tenant, self.workspace) != tenant_of(task.namespace) or self.run_id != (task.run_id or task.id):
            raise Forbidden("the token is for another tenant, workspace or run")
        for received in (attempt, self.attempt):
            if received != task.attempt:
                raise _superseded(task, received)
        if delivery_of(task.lease_id) != PUSH:
            raise _superseded(task, attempt)

    def half_over(self, now: Instant) -> bool:
        """Whether less than half of its life is left."""
        return self.expires_at - now < now - self.not_before


@lru_cache(maxsize=1024)
def tenant_of(namespace: str) -> tuple[str, str]:
    """Tenant and workspace of a namespace: what stands before and behind its first slash."""
    tenant, _, workspace = namespace.partition("/")
    return tenant or namespace, workspace or DEFAULT_WORKSPACE


def token_life(task: Task, now: Instant, usual_s: float) -> timedelta:
    """For how long a token is good: as is usual in its queue, and at least until its attempt is taken away, so that a
    worker can report until then. Never for more than the contract allows; heartbeats renew it beyond that."""
    life = timedelta(seconds=usual_s)
    for end in (task.timer_at, task.deadline_at):
        if end is not None:
            life = max(life, end - now)
    return min(life, timedelta(seconds=TOKEN_TTL_MAX_S))


def scope_of(task: Fenced, now: Instant, life: timedelta) -> Scope:
    """What a token for the current attempt of a task is good for. A task without a run is one of its own."""
    return Scope(task.id, *tenant_of(task.namespace), task.run_id or task.id, task.attempt, now, now + life)


# --------------------------------------------------------------------------------------------- what a worker says


def check_goes_on(task: Fenced, *, starting: bool) -> None:
    """Raise unless this attempt, which is the current one, still runs."""
    if task.state is State.RUNNING:
        return
    if task.state in TERMINAL:
        if starting:
            raise _ended(task)
        raise LeaseLost("the task has ended", refusal=Refusal.TASK_EXPIRED, state=task.state)
    if starting and task.outcome is not Outcome.LOST:
        raise _completed(task)
    raise LeaseLost("the attempt is over: nothing was heard of it for too long", refusal=Refusal.TASK_EXPIRED)


class TakeUp(msgspec.Struct, frozen=True):
    """A worker has begun, or is heard of for the first time."""

    scope: Scope
    attempt: int
    worker: str
    seen_at: Instant | None = None
    starting: bool = True
    trace: str | None = None

    @property
    def task_id(self) -> UUID:
        return self.scope.task_id

    def decide(self, task: Task, now: Instant) -> Transition:
        self.scope.check(task, self.attempt, now)
        check_goes_on(task, starting=self.starting)
        if task.worker is not None:
            return Transition(Verb.NOTE, task, task)
        after = _taken_up(task, self.worker)
        traced: dict[str, object] = {} if self.trace is None else {"traceparent": self.trace}
        taken_up = entry(after, "taken_up", now, {**_observed("startedAt", self.seen_at, now), **traced})
        return move(Verb.NOTE, task, after, (taken_up,))


class HearCancel(msgspec.Struct, frozen=True):
    """The answer to a heartbeat tells the worker of a cancel: from now on it has its grace."""

    task_id: UUID
    attempt: int

    def decide(self, task: Task, now: Instant) -> Transition:
        if not runs(task, self.attempt):
            check_goes_on(task, starting=False)
        return rules.signal_cancel(task, now)


class Finish(msgspec.Struct, frozen=True):
    """A worker says that its attempt is over. `said` is what only people want to know of it. An attempt that failed
    because its worker stops may be `released`: then it uses no budget."""

    scope: Scope
    attempt: int
    worker: str
    outcome: Outcome
    result: bytes | None = None
    failure: Failure | None = None
    said: Mapping[str, object] = {}
    seen_at: Instant | None = None
    jitter: float = 0.0
    released: bool = False

    @property
    def task_id(self) -> UUID:
        return self.scope.task_id

    def decide(self, task: Task, now: Instant) -> Transition:
        self.scope.check(task, self.attempt, now)
        heard = task if task.worker is not None else _taken_up(task, self.worker)
        made = self._judged(heard, now)
        if made.refusal is not None:
            why = _ended(task) if task.terminal else _completed(task)
            audit = tuple(replace(line, worker=self.worker) for line in made.history)
            return replace(made, before=task, after=task, refusal=why, history=audit)
        if not made.changed:
            return Transition(Verb.NOTE, task, task)  # the same once more
        detail = {**self.said, **_observed("completedAt", self.seen_at, now), "outcome": self.outcome}
        told = (*made.history, Entry(task.id, now, task.attempt, "reported", self.worker, detail))
        verb = made.verb if heard is task else Verb.NOTE  # which writes the worker's name as well
        return replace(made, before=task, verb=verb, history=told)

    def _judged(self, task: Task, now: Instant) -> Transition:
        lease_id = task.lease_id
        assert lease_id is not None, task.id  # the scope was checked
        if self.released and self.outcome is Outcome.FAILED:
            return rules.release(task, self.attempt, lease_id, now)
        return judged(task, self.attempt, lease_id, self.outcome, self.result, self.failure, now, self.jitter)


def cancel_reason(cancel: Cancel) -> str:
    return cancel.reason or "user_requested"


# --------------------------------------------------------------------------------------------- shared parts


def _taken_up(task: Task, worker: str) -> Task:
    return replace(task, worker=worker)


def _observed(name: str, seen_at: Instant | None, now: Instant) -> dict[str, object]:
    """What a worker's clock said, and by how many seconds it is off if that is much."""
    if seen_at is None:
        return {}
    off = seen_at - now
    return {name: seen_at, **({CLOCK_SKEW: off.total_seconds()} if abs(off) > SKEW_MAX else {})}


def _superseded(task: Fenced, received: int) -> LeaseLost:
    return LeaseLost(
        f"attempt {received} is not the current one, which is {task.attempt}",
        refusal=Refusal.ATTEMPT_MISMATCH, expected_attempt=task.attempt, received_attempt=received,
    )  # fmt: skip


def _ended(task: Fenced) -> LeaseLost:
    return LeaseLost(f"the task has {task.state}", refusal=Refusal.TASK_ALREADY_TERMINAL, state=task.state)


def _completed(task: Fenced) -> LeaseLost:
    return LeaseLost(
        f"attempt {task.attempt} has already ended as {task.outcome}", refusal=Refusal.ATTEMPT_ALREADY_COMPLETED
    )
