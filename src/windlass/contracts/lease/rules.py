"""Rules of lease holders: workers that claim one task by its id and hold its lease until it is over.

They add to the rules of `core.task`. A lease has a random token that only its holder knows. Every request is checked
against task, attempt and token, and recorded with the caller, which is known by its certificate. A holder whose lease
has expired may still report until a newer attempt starts; everything else needs a live lease.
"""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

import msgspec
from msgspec.structs import replace

from windlass.contracts.lease.delivery import Invoke, Wakeup
from windlass.core import task as rules
from windlass.core.attempt import AttemptReport, AttemptRow, Credential, Denial, denied
from windlass.core.context import CommandWithContext
from windlass.core.delivery import Delivery, type_of
from windlass.core.failure import Category, Failure
from windlass.core.ids import derived_id
from windlass.core.lease_token import delivery_of
from windlass.core.queue import QueueConfig, Usage, admit
from windlass.core.states import Entry, Instant, State, Transition, Verb
from windlass.core.task import Outcome, Task
from windlass.datasets.rules.batch import check_batch
from windlass.datasets.rules.events import BatchReport, DatasetContext, EventReport, Publish, record_events
from windlass.datasets.rules.invalidation import Invalidation, InvalidPart, Scope, reported_id
from windlass.datasets.rules.invalidation import check as check_invalid
from windlass.datasets.rules.job import turn_of
from windlass.datasets.rules.schema import DatasetSchema
from windlass.errors import Conflict, Forbidden, Invalid, LeaseLost, Unavailable, WindlassError

STALE = "stale_lease"
HELD = frozenset({type_of(Wakeup), type_of(Invoke)})


class Caller(msgspec.Struct, frozen=True, omit_defaults=True):
    """A caller by its certificate: subject, alternative names, and the SHA-256 of the whole. `namespaces` are those
    that the certificate is bound to; None means all."""

    subject: str
    fingerprint: str
    names: tuple[str, ...] = ()
    namespaces: tuple[str, ...] | None = None

    def reaches(self, namespace: str) -> bool:
        return self.namespaces is None or namespace in self.namespaces

    @property
    def detail(self) -> dict[str, object]:
        return {"caller": msgspec.to_builtins(self)}


class LeaseCredential(Credential, frozen=True, gc=False, kw_only=True):
    """What a lease holder shows: its attempt, its lease token, and its certificate."""

    attempt: int
    caller: Caller

    deliveries: ClassVar[frozenset[str]] = HELD
    token_required: ClassVar[bool] = True

    def checked(self) -> LeaseCredential:
        """Itself, without a token of another delivery: statements that compare tokens only must not accept it."""
        return self if delivery_of(self.token) in self.deliveries else replace(self, token=None)

    def covers(self, task: AttemptRow) -> bool:
        return self.caller.reaches(task.namespace)

    def error(self, denial: Denial, task: AttemptRow) -> WindlassError:
        if denial is Denial.OTHER_NAMESPACE:
            return denied(denial, task)
        return stale(task.state, task.attempt, f"attempt {self.attempt} under this token is not the current one")

    def ended(self, task: AttemptRow) -> Conflict:
        message = f"attempt {task.attempt} has already ended as {task.outcome}"
        return Conflict(message, state=task.state, current_attempt=task.attempt)

    @property
    def caller_detail(self) -> dict[str, object]:
        return self.caller.detail

    def check_live(self, task: Task, now: Instant, *, alive: bool) -> None:
        """Raise unless the lease is live."""
        self.check(task, now)
        if task.state is not State.RUNNING or not alive:
            raise stale(task.state, task.attempt, "the lease is over")


def stale(state: State, attempt: int, message: str) -> LeaseLost:
    return LeaseLost(message, refusal=STALE, state=state, current_attempt=attempt)


# --------------------------------------------------------------------------------------------- claim


class ClaimById(msgspec.Struct, frozen=True):
    """A worker claims a task by its id. The token is drawn before the first try, so that a repeated claim finds the
    attempt that it started."""

    task_id: UUID
    lease_id: UUID
    worker: str
    caller: Caller
    claim_id: UUID | None = None  # see `claim_of`

    def has_begun(self, task: Task, claim_id: UUID | None) -> bool:
        """Whether this claim, or an earlier try of it, started the running attempt."""
        if task.state is not State.RUNNING:
            return False
        return task.lease_id == self.lease_id or (self.claim_id is not None and claim_id == self.claim_id)


def claim_of(task_id: UUID, claim_id: UUID, caller: Caller) -> UUID:
    """The stored id of a claim that may be repeated. Only the same caller with the same id can repeat it, and it does
    not reveal the token."""
    return derived_id("claim", task_id, claim_id, caller.fingerprint)


class NotClaimed(msgspec.Struct, frozen=True):
    """Why a claim was refused: the state of the task (None if there is no task), what it waits for, and until when."""

    state: State | None
    waits_for: str = ""
    until: Instant | None = None


OTHER_DELIVERY = "other_delivery"
_WAITS = {State.BLOCKED: "dependency", State.SLEEPING: "sleeping", State.PARKED: "parked"}


def why_not(
    task: Task, delivery: Delivery, labelled: bool, now: Instant, wire: bytes | None = None
) -> NotClaimed | None:
    """None if only the limits of its queue can keep this task from being claimed by its id."""
    if task.terminal or task.state is State.RUNNING:
        return NotClaimed(task.state)
    if not isinstance(delivery, Wakeup):
        return NotClaimed(task.state, OTHER_DELIVERY)
    if task.state is State.BLOCKED and task.job_id is not None:
        return NotClaimed(task.state, turn_of(wire))
    if task.state is not State.QUEUED:
        return NotClaimed(task.state, _WAITS[task.state], task.timer_at if task.state is State.SLEEPING else None)
    if task.available_at > now:
        return NotClaimed(task.state, "scheduled", task.available_at)
    return NotClaimed(task.state, "no_capable_worker") if labelled else None  # workers that claim by id have no labels


def admits(config: QueueConfig, usage: Usage, task: Task, now: Instant) -> NotClaimed | None:
    """None if this task may start beside what runs in its queue."""
    room = admit(config, usage, 1, now)
    if room.total == 0:
        return NotClaimed(task.state, room.reason or "concurrency_limit", room.next_at)
    full_key = task.concurrency_key and room.room_by_key.get(task.concurrency_key, room.room_per_key) <= 0
    return NotClaimed(task.state, "concurrency_limit") if full_key or task.kind in room.full_kinds else None


def began(usage: Usage, task: Task, now: Instant) -> Usage:
    """The usage of a queue after one more of its tasks has started."""
    key = task.concurrency_key
    return with_started(usage, Usage(1, {task.kind: 1}, {key: 1} if key else {}), now)


def with_started(usage: Usage, started: Usage, now: Instant) -> Usage:
    """The usage of a queue after more of its tasks have started: they take slots and their share of the rate."""
    by_kind, by_key = dict(usage.running_by_kind), dict(usage.running_by_key)
    for counts, more in ((by_kind, started.running_by_kind), (by_key, started.running_by_key)):
        for name, count in more.items():
            counts[name] = counts.get(name, 0) + count
    starts = (*usage.starts, (now, started.running)) if started.running else usage.starts
    return Usage(usage.running + started.running, by_kind, by_key, starts)


def claim(task: Task, request: ClaimById, now: Instant) -> Transition:
    """Start the attempt. The first history entry of the attempt names its holder."""
    begun = rules.claim(task, request.lease_id, request.worker, now)
    entry = Entry(task.id, now, begun.after.attempt, "claimed", request.worker, request.caller.detail)
    return replace(begun, history=(entry,))


class SignalCancel(msgspec.Struct, frozen=True):
    """The answer to a heartbeat carries a cancel: the grace of the lease holder begins."""

    credential: LeaseCredential

    @property
    def task_id(self) -> UUID:
        return self.credential.task_id

    def decide(self, task: Task, now: Instant) -> Transition:
        self.credential.check_live(task, now, alive=True)
        return rules.signal_cancel(task, now)


# --------------------------------------------------------------------------------------------- the end


class LeaseReport(CommandWithContext, AttemptReport[LeaseCredential], frozen=True):
    """A lease holder's report that its attempt is over. `events` are committed with a success, or not at all. `unread`
    are those of outputs in the lake whose files were not read, since the task had ended already."""

    context = DatasetContext

    events: tuple[EventReport, ...] = ()
    unread: frozenset[UUID] = frozenset()

    def decide_with(self, task: Task, context: DatasetContext, now: Instant) -> Transition:
        denial = self.credential.denial(task, now)
        if denial is not None:
            if denial is not Denial.OTHER_NAMESPACE and self._acknowledges_cancel(task):
                return Transition(Verb.NOTE, task, task)
            raise self.credential.error(denial, task)
        if self.events and not context.writer(task.id).live:
            return self._too_late(task, now)
        verdict = self.follow(task, now)
        if verdict.refusal is not None:
            return verdict
        recorded = record_events(task, self.events, context, self.credential.caller.fingerprint, now)
        if not recorded.events:
            return verdict
        if not verdict.changed:  # the attempt has ended, with other events
            refused = Entry(task.id, now, task.attempt, "refused", task.worker, {"reported": self.outcome})
            return self.refuse(task, (refused,))
        if self.unread & {event.id for event in recorded.events}:  # the task had ended when its outputs were to be read
            raise Unavailable("the task has been queued again since its outputs were read")
        return replace(verdict, writes=recorded.writes, effects=(*verdict.effects, *recorded.effects))

    def _too_late(self, task: Task, now: Instant) -> Transition:
        """The task was cancelled with its version of the DAG. It ends as cancelled and commits nothing, so that its
        work is owed again if that version comes back."""
        if task.terminal:
            return Transition(Verb.NOTE, task, task)
        failure = Failure(Category.CANCELLED, "" if task.cancel is None else task.cancel.reason)
        late = replace(self, outcome=Outcome.CANCELLED, result=None, failure=failure, events=(), unread=frozenset())
        return late.follow(task, now)

    def judge(self, task: Task, now: Instant) -> Transition:
        return super().judge(_reportable(task, self.outcome), now)

    def _acknowledges_cancel(self, task: Task) -> bool:
        """A worker that knows of a cancel and does not hold the lease may report it. This changes nothing."""
        cancelled = task.state is State.CANCELLED or (task.cancel is not None and not task.terminal)
        return self.outcome is Outcome.CANCELLED and cancelled


def _reportable(task: Task, reported: Outcome) -> Task:
    """A timed-out or lost attempt may still report while its task waits for the retry. It was already counted as a
    failure; if it reports a failure, that counts once."""
    if task.state is not State.QUEUED or task.outcome not in (Outcome.LOST, Outcome.TIMED_OUT):
        return task
    counted = max(0, task.failures - 1) if reported is Outcome.FAILED else task.failures
    return replace(task, outcome=Outcome.LOST, failures=counted)


# --------------------------------------------------------------------------------------------- events and batches


class Emit(CommandWithContext, frozen=True):
    """The holder reports dataset events. A repeated event is recorded once."""

    context = DatasetContext

    credential: LeaseCredential
    events: tuple[EventReport, ...]

    @property
    def task_id(self) -> UUID:
        return self.credential.task_id

    def decide_with(self, task: Task, context: DatasetContext, now: Instant) -> Transition:
        self.credential.check(task, now)
        recorded = record_events(task, self.events, context, self.credential.caller.fingerprint, now)
        if recorded.events:
            self.credential.check_live(task, now, alive=context.is_alive(task.id, task.attempt))
        return Transition(Verb.NOTE, task, task, writes=recorded.writes, effects=recorded.effects)


class PublishBatch(CommandWithContext, frozen=True):
    """The holder publishes a batch that it has written. `prefixes` are the folders of this attempt."""

    context = DatasetContext

    credential: LeaseCredential
    batch: BatchReport
    prefixes: tuple[str, ...]

    @property
    def task_id(self) -> UUID:
        return self.credential.task_id

    def decide_with(self, task: Task, context: DatasetContext, now: Instant) -> Transition:
        self.credential.check(task, now)
        publish = Publish.of(task, self.batch, self.credential.caller.fingerprint, now)
        known = context.publishes.get(publish.id)
        if known is not None:
            if known != self.batch.content:
                raise Conflict("this batch was published with another version or number of records")
            return Transition(Verb.NOTE, task, task)
        self.credential.check_live(task, now, alive=context.is_alive(task.id, task.attempt))
        version = context.writer(task.id).outputs.get(self.batch.dataset_uuid)
        if version is None:
            raise Forbidden("the dataset is not among the outputs of this task", field="dataset_uuid")
        if version != self.batch.dataset_version:
            raise Forbidden("the task writes another version of this dataset", field="dataset_version")
        if not self.batch.is_under(self.prefixes):
            raise Forbidden(f"the batch must lie under {self.prefixes[0]}", field="batch_uri")
        production = context.writer(task.id).production
        if production is not None:
            check_batch(self.batch, production.places[self.batch.dataset_uuid])
        return Transition(Verb.NOTE, task, task, writes=(publish,), effects=(publish.effect,))


class Invalidate(CommandWithContext, frozen=True):
    """The holder reports that a part of one of its own outputs was wrong. `schema` is that of the dataset, and
    `partition_known` whether its version has the partition."""

    context = DatasetContext

    credential: LeaseCredential
    dataset_uuid: UUID
    dataset_version: UUID
    part: InvalidPart
    schema: DatasetSchema | None = None
    partition_known: bool = False

    @property
    def task_id(self) -> UUID:
        return self.credential.task_id

    @property
    def id(self) -> UUID:
        return reported_id(self.task_id, self.dataset_uuid, self.dataset_version, self.part)

    def decide_with(self, task: Task, context: DatasetContext, now: Instant) -> Transition:
        self.credential.check(task, now)
        self.credential.check_live(task, now, alive=context.is_alive(task.id, task.attempt))
        version = context.writer(task.id).outputs.get(self.dataset_uuid)
        if version is None:
            raise Forbidden("the dataset is not among the outputs of this task", field="dataset_uuid")
        if version != self.dataset_version:
            raise Forbidden("the task writes another version of this dataset", field="dataset_version")
        check_invalid(self.part, self.schema)
        if self.part.scope is Scope.PARTITION and not self.partition_known:
            raise Invalid("the version has no such partition", field="partition_key")
        source = {"kind": "task", "task_id": str(task.id), "attempt": task.attempt}
        recorded = Invalidation(
            self.id, task.namespace, self.dataset_uuid, self.dataset_version, self.part.scope, self.part.partition_key,
            self.part.filter_json, self.part.reason, msgspec.json.encode(source).decode(), now,
        )  # fmt: skip
        effect = recorded.effect(task.id, task.attempt)
        return Transition(Verb.NOTE, task, task, writes=(recorded,), effects=(effect,))
