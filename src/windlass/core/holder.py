"""Workers that hold one task each: they are told its id, claim it, and answer for it alone until it is over.

The rules of a task are those of `task`; here is what holding adds. A lease has a token of chance, which only its holder
knows. Every word of a holder is held against task, attempt and token, and is kept with who said it: a caller that was
known by its certificate. A lease that has run out may still report until a newer attempt begins; all else needs a live
one.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import msgspec
from msgspec.structs import replace

from windlass.core import task as rules
from windlass.core.command import Informed
from windlass.core.dataset import DatasetEvent, Publish, SaidEvent, SaidPublish, routed
from windlass.core.delivery import Delivery, Invoke, Wakeup, type_of
from windlass.core.error import Conflict, Forbidden, LeaseLost, NotFound
from windlass.core.failure import Failure
from windlass.core.id import derived_id
from windlass.core.queue import QueueConfig, Usage, admit
from windlass.core.report import judged
from windlass.core.step import Facts
from windlass.core.task import Outcome, Task
from windlass.core.token import delivery_of
from windlass.core.transition import Entry, Instant, State, Transition, Verb

STALE = "stale_lease"
HELD = frozenset({type_of(Wakeup), type_of(Invoke)})


class Caller(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who says something, by its certificate: subject, other names, and the SHA-256 of the whole. `namespaces` are
    those that the certificate is bound to; None: all."""

    subject: str
    fingerprint: str
    names: tuple[str, ...] = ()
    namespaces: tuple[str, ...] | None = None

    def reaches(self, namespace: str) -> bool:
        return self.namespaces is None or namespace in self.namespaces

    def check_reach(self, task: Task) -> None:
        """A task of another namespace is not there, as far as this caller can see."""
        if not self.reaches(task.namespace):
            raise NotFound(f"there is no task {task.id}", task_id=task.id)

    @property
    def detail(self) -> dict[str, object]:
        return {"caller": msgspec.to_builtins(self)}


class Fence(msgspec.Struct, frozen=True, gc=False):
    """Which attempt somebody says to hold. Without a token it holds nothing."""

    task_id: UUID
    attempt: int
    lease_id: UUID | None

    def checked(self) -> Fence:
        """Itself, without the token of an attempt that is not held by its id: here it is worth nothing."""
        return self if delivery_of(self.lease_id) in HELD else replace(self, lease_id=None)

    def fits(self, task: Task) -> bool:
        return self.attempt == task.attempt and self.lease_id is not None and self.lease_id == task.lease_id

    def check(self, task: Task) -> None:
        if not self.fits(task):
            raise stale(task.state, task.attempt, f"attempt {self.attempt} under this token is not the current one")

    def check_live(self, task: Task, alive: bool) -> None:
        """Only who holds a live lease may go on."""
        self.check(task)
        if task.state is not State.RUNNING or not alive:
            raise stale(task.state, task.attempt, "the lease is over")


def stale(state: State, attempt: int, message: str) -> LeaseLost:
    return LeaseLost(message, refusal=STALE, state=state, current_attempt=attempt)


# --------------------------------------------------------------------------------------------- claim


class ClaimOne(msgspec.Struct, frozen=True):
    """Somebody was told of a task, and wants to hold it. The token was drawn before the first try, so that a claim that
    is run again finds what it began."""

    task_id: UUID
    lease_id: UUID
    worker: str
    caller: Caller
    claim_id: UUID | None = None  # see `claim_of`

    def has_begun(self, task: Task, claim_id: UUID | None) -> bool:
        """Whether the attempt that runs is the one that this claim began: by itself, or by an earlier try of it."""
        if task.state is not State.RUNNING:
            return False
        return task.lease_id == self.lease_id or (self.claim_id is not None and claim_id == self.claim_id)


def claim_of(task_id: UUID, claim_id: UUID, caller: Caller) -> UUID:
    """What is kept of a claim that may be said twice. Only the same caller with the same id says it again; the token
    cannot be learned from it."""
    return derived_id("claim", task_id, claim_id, caller.fingerprint)


class NotClaimed(msgspec.Struct, frozen=True):
    """Why not: the state of the task, None if there is none; what it waits for, and until when if that is known."""

    state: State | None
    waits_for: str = ""
    until: Instant | None = None


OTHER_DELIVERY = "other_delivery"
_WAITS = {State.BLOCKED: "dependency", State.SLEEPING: "sleeping", State.PARKED: "parked"}


def why_not(task: Task, delivery: Delivery, labelled: bool, now: Instant) -> NotClaimed | None:
    """None if nothing but the limits of its queue can keep this task from being claimed by its id."""
    if task.terminal or task.state is State.RUNNING:
        return NotClaimed(task.state)
    if not isinstance(delivery, Wakeup):
        return NotClaimed(task.state, OTHER_DELIVERY)
    if task.state is not State.QUEUED:
        return NotClaimed(task.state, _WAITS[task.state], task.timer_at if task.state is State.SLEEPING else None)
    if task.available_at > now:
        return NotClaimed(task.state, "scheduled", task.available_at)
    return NotClaimed(task.state, "no_capable_worker") if labelled else None  # who claims by an id has no labels


def admits(config: QueueConfig, usage: Usage, task: Task, now: Instant) -> NotClaimed | None:
    """None if this task may start beside what runs in its queue."""
    room = admit(config, usage, 1, now)
    if room.total == 0:
        return NotClaimed(task.state, room.reason or "concurrency_limit", room.next_at)
    full_key = task.concurrency_key and room.room_by_key.get(task.concurrency_key, room.room_per_key) <= 0
    return NotClaimed(task.state, "concurrency_limit") if full_key or task.kind in room.full_kinds else None


def began(usage: Usage, task: Task, now: Instant) -> Usage:
    """What runs in a queue after one more task of it has begun."""
    kind, key = task.kind, task.concurrency_key
    by_key = {**usage.running_by_key, key: usage.running_by_key.get(key, 0) + 1} if key else usage.running_by_key
    return Usage(
        usage.running + 1,
        {**usage.running_by_kind, kind: usage.running_by_kind.get(kind, 0) + 1},
        by_key,
        (*usage.starts, (now, 1)),
    )


def claim(task: Task, said: ClaimOne, now: Instant) -> Transition:
    """The task is held from now on. Who holds it is the first line of the attempt."""
    begun = rules.claim(task, said.lease_id, said.worker, now)
    entry = Entry(task.id, now, begun.after.attempt, "claimed", said.worker, said.caller.detail)
    return replace(begun, history=(entry,))


# --------------------------------------------------------------------------------------------- signs of life


class HearCancel(msgspec.Struct, frozen=True):
    """The answer to a heartbeat tells the holder of a cancel: from now on it has its grace."""

    fence: Fence

    @property
    def task_id(self) -> UUID:
        return self.fence.task_id

    def decide(self, task: Task, now: Instant) -> Transition:
        self.fence.check_live(task, True)
        return rules.signal_cancel(task, now)


# --------------------------------------------------------------------------------------------- the end


class Finish(Informed, frozen=True):
    """The holder says that its attempt is over. `events` are committed with a success, or not at all; `said` is what
    only people want to know."""

    fence: Fence
    caller: Caller
    outcome: Outcome
    result: bytes | None = None
    failure: Failure | None = None
    events: tuple[SaidEvent, ...] = ()
    said: Mapping[str, object] = {}
    jitter: float = 0.0

    @property
    def task_id(self) -> UUID:
        return self.fence.task_id

    def decide_with(self, task: Task, facts: Facts, now: Instant) -> Transition:
        self.caller.check_reach(task)
        if self._cancelled_anyway(task):
            return Transition(Verb.NOTE, task, task)
        self.fence.check(task)
        made = self._judged(_reportable(task, self.outcome), now)
        events = new_events(task, self.events, facts, self.caller, now)
        if made.refusal is not None or (not made.changed and events):
            return self._refused(task, made, now)
        if not made.changed:
            return Transition(Verb.NOTE, task, task)  # the same once more
        reported = Entry(task.id, now, task.attempt, "reported", task.worker, self.detail)
        effects = (*made.effects, *(routed(event) for event in events if event.declared))
        return replace(made, before=task, history=(*made.history, reported), events=events, effects=effects)

    @property
    def detail(self) -> dict[str, object]:
        """What is kept of a report besides its result."""
        return {"outcome": self.outcome.value, **self.said, **self.caller.detail}

    def _cancelled_anyway(self, task: Task) -> bool:
        """Who was told that a task is cancelled and does not hold it may say so; nothing follows from it."""
        asked = task.state is State.CANCELLED or (task.cancel is not None and not task.terminal)
        return self.outcome is Outcome.CANCELLED and asked and not self.fence.fits(task)

    def _judged(self, task: Task, now: Instant) -> Transition:
        attempt, lease_id = self.fence.attempt, self.fence.lease_id
        assert lease_id is not None, self.fence
        return judged(task, attempt, lease_id, self.outcome, self.result, self.failure, now, self.jitter)

    def _refused(self, task: Task, made: Transition, now: Instant) -> Transition:
        """Kept for audit, with who said it; nothing else changes."""
        why = Conflict(
            f"attempt {task.attempt} has already ended as {task.outcome}",
            state=task.state,
            current_attempt=task.attempt,
        )
        entries = made.history or (
            Entry(task.id, now, task.attempt, "refused", task.worker, {"reported": self.outcome}),
        )
        told = tuple(replace(entry, detail={**(entry.detail or {}), **self.caller.detail}) for entry in entries)
        return Transition(Verb.NOTE, task, task, history=told, refusal=why)


def _reportable(task: Task, reported: Outcome) -> Task:
    """An attempt whose time was over may still report while it waits for its retry, as one that was lost. That was
    counted as a failure then; if it says that it failed, it is the same failure and counts once."""
    if task.state is not State.QUEUED or task.outcome not in (Outcome.LOST, Outcome.TIMED_OUT):
        return task
    counted = max(0, task.failures - 1) if reported is Outcome.FAILED else task.failures
    return replace(task, outcome=Outcome.LOST, failures=counted)


# --------------------------------------------------------------------------------------------- events and batches


class Emit(Informed, frozen=True):
    """The holder tells of data that is there. The same event again is the same."""

    fence: Fence
    caller: Caller
    events: tuple[SaidEvent, ...]

    @property
    def task_id(self) -> UUID:
        return self.fence.task_id

    def decide_with(self, task: Task, facts: Facts, now: Instant) -> Transition:
        self.caller.check_reach(task)
        self.fence.check(task)
        events = new_events(task, self.events, facts, self.caller, now)
        if events:
            self.fence.check_live(task, facts.is_alive(task.id, task.attempt))
        effects = tuple(routed(event) for event in events if event.declared)
        return Transition(Verb.NOTE, task, task, events=events, effects=effects)


class PublishBatch(Informed, frozen=True):
    """The holder hands over a batch that it has written. `prefixes` are the places that are this attempt's own."""

    fence: Fence
    caller: Caller
    batch: SaidPublish
    prefixes: tuple[str, ...]

    @property
    def task_id(self) -> UUID:
        return self.fence.task_id

    def decide_with(self, task: Task, facts: Facts, now: Instant) -> Transition:
        self.caller.check_reach(task)
        self.fence.check(task)
        publish = Publish.of(task, self.batch, self.caller.fingerprint, now)
        known = facts.publishes.get(publish.id)
        if known is not None:
            if known != self.batch.content:
                raise Conflict("this batch was published with another version or number of records")
            return Transition(Verb.NOTE, task, task)
        self.fence.check_live(task, facts.is_alive(task.id, task.attempt))
        self._check_allowed(task, facts)
        return Transition(Verb.NOTE, task, task, publishes=(publish,), effects=(publish.effect,))

    def _check_allowed(self, task: Task, facts: Facts) -> None:
        version = facts.outputs(task.id).get(self.batch.dataset_uuid)
        if version is None:
            raise Forbidden("the dataset is not among the outputs of this task", field="dataset_uuid")
        if version != self.batch.dataset_version:
            raise Forbidden("the task writes another version of this dataset", field="dataset_version")
        if not self.batch.is_under(self.prefixes):
            raise Forbidden(f"the batch must lie under {self.prefixes[0]}", field="batch_uri")


def new_events(
    task: Task, said: tuple[SaidEvent, ...], facts: Facts, caller: Caller, now: Instant
) -> tuple[DatasetEvent, ...]:
    """Those that are not recorded yet, each once."""
    outputs = facts.outputs(task.id) if said else {}
    found: dict[UUID, DatasetEvent] = {}
    for one in said:
        declared = outputs.get(one.dataset_uuid) == one.dataset_version
        event = DatasetEvent.of(task, one, declared, caller.fingerprint, now)
        if event.id not in facts.events:
            found.setdefault(event.id, event)
    return tuple(found.values())
