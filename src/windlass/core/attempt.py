"""One attempt: the credential that authorises its worker, its heartbeats, and the rule for its report.

Contracts read what a worker sends (a token, a signature, a lease) into a `Credential`, and its report into an
`AttemptReport`. They translate denials back into errors of their wire. The rules of a task are those of `task`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import ClassVar, Generic, Protocol, TypeVar
from uuid import UUID

import msgspec
from msgspec.structs import replace

from windlass.core import task as rules
from windlass.core.failure import Category, Failure
from windlass.core.lease_token import delivery_of
from windlass.core.payload_reference import same_json
from windlass.core.states import Entry, Instant, State, Transition, Verb
from windlass.core.task import Cancel, Outcome, Task
from windlass.errors import Conflict, LeaseLost, NotFound, Unauthenticated, WindlassError

LEEWAY = timedelta(seconds=5)  # for clocks that differ
SKEW_MAX = timedelta(minutes=5)
WORKER_TIME, CLOCK_SKEW = "worker_time", "clock_skew_s"  # in the detail of a line of history


# --------------------------------------------------------------------------------------------- credentials


class Denial(StrEnum):
    """Why a credential is not valid for the current attempt of a task."""

    EXPIRED = "expired"
    NOT_YET_VALID = "not_yet_valid"
    OTHER_NAMESPACE = "other_namespace"
    NOT_STARTED = "not_started"  # no attempt of the task has begun
    OTHER_ATTEMPT = "other_attempt"
    OTHER_DELIVERY = "other_delivery"  # the attempt reports over another wire
    OTHER_TOKEN = "other_token"  # noqa: S105
    OTHER_WORKER = "other_worker"


_OUT_OF_TIME = {Denial.EXPIRED: "the token has expired", Denial.NOT_YET_VALID: "the token is not valid yet"}


class AttemptRow(Protocol):
    """The fields that identify the current attempt: of a task, or of the few columns that a heartbeat reads."""

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
    @property
    def worker(self) -> str | None: ...


class Credential(msgspec.Struct, frozen=True, gc=False):
    """Sent by a worker with every request. Each contract has a subclass.

    `attempt` None means the current one: some workers cannot name theirs. `token` is the lease token of the attempt,
    where the wire carries it; a signature or a scope proves the attempt without it.
    """

    task_id: UUID
    attempt: int | None = None
    token: UUID | None = None
    not_before: Instant | None = None
    expires_at: Instant | None = None

    deliveries: ClassVar[frozenset[str]] = frozenset()  # an attempt must have begun under one of these
    token_required: ClassVar[bool] = False

    def check(self, task: AttemptRow, now: Instant) -> None:
        """Raise unless this is valid for the current attempt of the task."""
        denial = self.denial(task, now)
        if denial is not None:
            raise self.error(denial, task)

    def denial(self, task: AttemptRow, now: Instant) -> Denial | None:
        """The fence of attempts that are sent out or claimed by id. A token is compared as a whole.

        Workers that claim in batches report with their lease: see `core.task.check_fence`.
        """
        denial = self.time_denial(now)
        if denial is not None:
            return denial
        if not self.covers(task):
            return Denial.OTHER_NAMESPACE
        if task.attempt == 0 or task.lease_id is None:
            return Denial.NOT_STARTED
        if self.attempt is not None and self.attempt != task.attempt:
            return Denial.OTHER_ATTEMPT
        if delivery_of(task.lease_id) not in self.deliveries:
            return Denial.OTHER_DELIVERY
        if self.token != task.lease_id and (self.token is not None or self.token_required):
            return Denial.OTHER_TOKEN
        return None if self.is_from(task.worker) else Denial.OTHER_WORKER

    def time_denial(self, now: Instant) -> Denial | None:
        if self.expires_at is not None and now > self.expires_at + LEEWAY:
            return Denial.EXPIRED
        if self.not_before is not None and now < self.not_before - LEEWAY:
            return Denial.NOT_YET_VALID
        return None

    def check_time(self, now: Instant) -> None:
        """Raise Unauthenticated unless this is valid now."""
        denial = self.time_denial(now)
        if denial is not None:
            raise Unauthenticated(_OUT_OF_TIME[denial])

    def covers(self, task: AttemptRow) -> bool:  # noqa: ARG002
        """Whether this is for the namespace of the task, and for its run if it names one."""
        return True

    def is_from(self, worker: str | None) -> bool:  # noqa: ARG002
        """Whether the sender may be the worker that runs the attempt."""
        return True

    def error(self, denial: Denial, task: AttemptRow) -> WindlassError:
        """The error of a denial on this wire."""
        return denied(denial, task, self.attempt)

    def ended(self, task: AttemptRow) -> WindlassError:
        """The refusal of a report that contradicts the recorded end of its attempt."""
        return Conflict(
            f"attempt {task.attempt} has already ended as {task.outcome}",
            task_id=task.id, state=task.state, attempt=task.attempt,
        )  # fmt: skip

    @property
    def caller_detail(self) -> dict[str, object]:
        """Details about the caller for the history."""
        return {}


C = TypeVar("C", bound=Credential)


def denied(denial: Denial, task: AttemptRow, attempt: int | None = None) -> WindlassError:
    """The error of a denial, for wires that have none of their own for it."""
    match denial:
        case Denial.EXPIRED | Denial.NOT_YET_VALID:
            return Unauthenticated(_OUT_OF_TIME[denial])
        case Denial.OTHER_NAMESPACE:
            return NotFound(f"there is no task {task.id}", task_id=task.id)
        case Denial.OTHER_ATTEMPT | Denial.NOT_STARTED if attempt is not None:
            message = f"attempt {attempt} is not the current one, which is {task.attempt}"
            return LeaseLost(message, task_id=task.id, attempt=attempt, current_attempt=task.attempt)
    return LeaseLost(task_id=task.id, current_attempt=task.attempt)


# --------------------------------------------------------------------------------------------- heartbeats


class Heartbeat(msgspec.Struct, Generic[C], frozen=True, gc=False):
    """A heartbeat of one attempt. `starting`: the worker has just begun; `with_progress`: progress comes with it."""

    credential: C
    worker: str | None = None
    starting: bool = False
    worker_time: Instant | None = None
    trace: str | None = None
    with_progress: bool = False


class HeartbeatAnswer(msgspec.Struct, frozen=True, gc=False):
    """The answer to a heartbeat: until when the attempt may run, if its wire carries that, and whether to stop it.

    `worker` runs the attempt; it is not the caller if a push reached two workers. `token` is the attempt's lease token,
    under which progress is written; it is never sent to a worker.
    """

    now: Instant
    expires_at: Instant | None = None
    cancel: Cancel | None = None
    worker: str | None = None
    token: UUID | None = None

    @property
    def starts_grace(self) -> bool:
        """Whether this answer is the first that carries the cancel, with which the worker's grace begins."""
        return self.cancel is not None and self.cancel.signalled_at is None


# --------------------------------------------------------------------------------------------- reports


class AttemptReport(msgspec.Struct, Generic[C], frozen=True):
    """A worker's report that its attempt is over. `detail` goes into the history. An attempt that failed because its
    worker stops may be `released`: then it uses no budget."""

    credential: C
    outcome: Outcome
    result: bytes | None = None
    failure: Failure | None = None
    worker: str | None = None  # the name of the worker that reports; None: that of the attempt
    detail: Mapping[str, object] = {}
    worker_time: Instant | None = None
    released: bool = False
    jitter: float = 0.0

    @property
    def task_id(self) -> UUID:
        return self.credential.task_id

    def decide(self, task: Task, now: Instant) -> Transition:
        self.credential.check(task, now)
        return self.follow(task, now)

    def follow(self, task: Task, now: Instant) -> Transition:
        """The transition after the credential was checked: the end of the attempt and a line of history, or a refusal,
        which is recorded for audit. The same report again changes nothing."""
        known = replace(task, worker=self.worker) if task.worker is None else task
        verdict = self.judge(known, now)
        if verdict.refusal is not None:
            return self.refuse(task, verdict.history)
        if not verdict.changed:
            return Transition(Verb.NOTE, task, task)
        detail = {**self.kept, **observed_time(self.worker_time, now)}
        reported = Entry(task.id, now, task.attempt, "reported", self.worker or known.worker, detail)
        verb = verdict.verb if known is task else Verb.NOTE  # which writes the worker's name as well
        return replace(verdict, before=task, verb=verb, history=(*verdict.history, reported))

    def judge(self, task: Task, now: Instant) -> Transition:
        return judge(task, self.outcome, self.result, self.failure, now, self.jitter, released=self.released)

    def refuse(self, task: Task, history: tuple[Entry, ...]) -> Transition:
        """Nothing changes; the refused report is recorded with its caller."""
        caller = self.credential.caller_detail
        audit = tuple(
            replace(line, worker=self.worker or line.worker, detail={**(line.detail or {}), **caller} or None)
            for line in history
        )
        return Transition(Verb.NOTE, task, task, history=audit, refusal=self.credential.ended(task))

    @property
    def kept(self) -> dict[str, object]:
        """The details of the report for the history."""
        return {"outcome": self.outcome.value, **self.detail, **self.credential.caller_detail}


def judge(
    task: Task,
    outcome: Outcome,
    result: bytes | None,
    failure: Failure | None,
    now: Instant,
    jitter: float,
    *,
    released: bool = False,
) -> Transition:
    """The transition for a reported outcome of the current attempt, whose credential was checked."""
    attempt, lease_id = task.attempt, task.lease_id
    assert lease_id is not None, task.id
    if outcome is Outcome.SUCCEEDED:
        return rules.complete(task, attempt, lease_id, as_recorded(task, result), now)
    if outcome is Outcome.CANCELLED:
        return rules.report_cancelled(task, attempt, lease_id, "" if failure is None else failure.message, now)
    if released:
        return rules.release(task, attempt, lease_id, now)
    failure = failure or Failure(Category.USER_CODE, "the worker did not say why")
    return rules.fail(task, attempt, lease_id, failure, now, jitter)


def final_state(task: Task) -> State:
    """The state for the answer to a report: failed if the attempt failed, even if another one follows."""
    return task.state if task.terminal else State.FAILED


def as_recorded(task: Task, result: bytes | None) -> bytes | None:
    """The recorded result if this one is equal JSON, however it is written: then it is the same report."""
    known = task.result
    return known if known is not None and result is not None and same_json(known, result) else result


def entry(task: Task, what: str, now: Instant, detail: dict[str, object]) -> Entry:
    """A line of history about the current attempt, by its worker."""
    return Entry(task.id, now, task.attempt, what, task.worker, detail or None)


def observed_time(worker_time: Instant | None, now: Instant) -> dict[str, object]:
    """The time by the worker's clock, and by how many seconds that clock is off if it is more than `SKEW_MAX`."""
    if worker_time is None:
        return {}
    skew = worker_time - now
    return {WORKER_TIME: worker_time, **({CLOCK_SKEW: skew.total_seconds()} if abs(skew) > SKEW_MAX else {})}
