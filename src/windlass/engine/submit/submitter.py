"""Submissions: checked, given their ids, written in groups.

Ids are made before the first try, so that a batch that is run again after a lost reply finds its own rows. A table of
its own decides idempotency keys: the same key with the same content is the same task, with other content a conflict.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple, TypeVar
from uuid import UUID

from msgspec.structs import replace

from windlass.core import task as rules
from windlass.core.command import Claimed
from windlass.core.ids import derived_id
from windlass.core.lease import Lease
from windlass.core.payload_reference import same_json
from windlass.core.states import TERMINAL, Effect, State
from windlass.core.submission import Batch, Submission, check_submission
from windlass.core.task import Task
from windlass.core.validation import LARGE_MAX_BYTES, PAYLOAD_MAX_BYTES, check_payload
from windlass.engine.claim.claimer import Claimer, ClaimWaiter
from windlass.engine.commit.committer import Committer, Later, Pause
from windlass.engine.commit.lock_waits import LONG_MS, SHORT_MS, LockWaits
from windlass.engine.payloads.objects import Objects
from windlass.engine.randomness import Randomness
from windlass.errors import Conflict, Invalid, Rejected, StoreBusy, WindlassError
from windlass.store.errors import Duplicate, LockHeld
from windlass.store.notify import PendingNotifications
from windlass.store.store import Store
from windlass.store.tables.task import Written
from windlass.store.tables.view import TaskView
from windlass.store.transaction import Transaction, is_plain

BATCH_MAX = 1000
T = TypeVar("T")
UNKNOWN = datetime.max.replace(tzinfo=UTC)  # until the database answers


class Started(NamedTuple):
    """How plain tasks were added: begun under a lease, or queued (None)."""

    lease: Lease | None
    written: Written


Added = tuple[UUID, Started | None]  # None if its view has to be read


class Submitter:
    """Accepts the submissions of one engine; `submit_all` is all or nothing."""

    def __init__(
        self,
        store: Store,
        randomness: Randomness,
        claimer: Claimer,
        lock_waits: LockWaits,
        objects: Objects,
        *,
        pause: Pause,
    ) -> None:
        self._store, self._randomness, self._claimer, self._lock_waits = store, randomness, claimer, lock_waits
        self._objects = objects
        self._plain = Committer(self._commit_plain, batch_max=BATCH_MAX, pause=pause)
        self._batches = Committer(self._commit_batch, batch_max=1, pause=pause)
        self._keyed = Committer(self._commit_keyed, batch_max=BATCH_MAX, pause=pause)
        self._grouped = Committer(self._commit_grouped, batch_max=1, pause=pause)
        # What a room checks of submissions that have fields of a contract.
        self.checks: list[Callable[[Sequence[Submission]], Awaitable[None]]] = []

    async def submit(self, submission: Submission) -> Added:
        """Submit a task. Returns its id, and how it was begun if its view needs no read: see `view_of`."""
        check_submission(submission, LARGE_MAX_BYTES)
        if submission.wire is not None:
            await self._check([submission])
        ready = self._identified(submission)
        if len(ready.payload) > PAYLOAD_MAX_BYTES:
            return (await self._submit_large([ready]))[0], None
        if ready.run_id is not None:
            return (await self._grouped.call([ready]))[0], None
        if ready.idempotency_key is not None:
            return await self._keyed.call(ready), None
        return await self._plain.call(ready)

    async def submit_all(self, submissions: Sequence[Submission]) -> list[UUID]:
        for submission in submissions:
            check_submission(submission, LARGE_MAX_BYTES)
        if any(submission.wire is not None for submission in submissions):
            await self._check(submissions)
        ready = [self._identified(s) for s in submissions]
        if len({s.id for s in ready}) < len(ready):
            raise Invalid("two of the tasks have the same id", field="id")
        if any(len(s.payload) > PAYLOAD_MAX_BYTES for s in ready):
            return await self._submit_large(ready)
        # Ids that are made here are always free: only then can no task be refused after others were added.
        if all(s.id is None and s.idempotency_key is None and s.run_id is None for s in submissions):
            return [added[0] for added in _all_or_raise(await self._plain.call_all(ready))]
        return await self._grouped.call(ready)

    async def submit_batch(self, shared: Submission, payloads: Sequence[bytes]) -> list[UUID]:
        """Submit a task for each payload. The shared fields are checked once; a task costs little more than its row."""
        check_submission(shared, LARGE_MAX_BYTES)
        for payload in payloads:
            check_payload("payload", payload, LARGE_MAX_BYTES)
        longest = max(map(len, payloads), default=0)
        if not payloads or shared.id is not None or longest > PAYLOAD_MAX_BYTES or not is_plain([shared]):
            return await self.submit_all([replace(shared, payload=payload) for payload in payloads])
        return await self._batches.call(Batch(shared, [self._randomness.new_id() for _ in payloads], list(payloads)))

    async def _check(self, submissions: Sequence[Submission]) -> None:
        for check in self.checks:
            await check(submissions)

    async def _submit_large(self, ready: Sequence[Submission]) -> list[UUID]:
        """Submit tasks of which some payloads are too long for a row: those are stored as objects first."""
        async with AsyncExitStack() as stack:
            stored = []
            for s in ready:
                payload = s.payload
                if len(payload) > PAYLOAD_MAX_BYTES:
                    kept = self._objects.kept("payload", payload, _id(s), "payload", s.namespace)
                    payload = await stack.enter_async_context(kept)
                stored.append(replace(s, payload=payload))
            return await self._grouped.call(stored)

    async def close(self) -> None:
        for committer in (self._plain, self._batches, self._keyed, self._grouped):
            await committer.close()

    def _identified(self, submission: Submission) -> Submission:
        return submission if submission.id is not None else replace(submission, id=self._randomness.new_id())

    # ----------------------------------------------------------------------------------------- without key and run

    async def _commit_plain(self, batch: list[Submission]) -> list[Added | WindlassError]:
        plain, begun = is_plain(batch), None
        waiter = self._claimer.reserve_waiter(batch[0], len(batch)) if plain else None
        try:
            if waiter is not None:
                begun = await self._hand_off(batch, waiter)
            else:
                async with self._store.single() as tx:
                    if plain:
                        begun = Started(None, await tx.add_plain(batch))
                    else:
                        await tx.add(batch)
        except Duplicate:
            found = await self._add_missing(batch)
            return [one if isinstance(one, WindlassError) else (one, None) for one in found]
        return [(_id(s), begun) for s in batch]

    async def _commit_batch(self, batches: list[Batch]) -> list[list[UUID]]:
        [batch] = batches
        waiter = self._claimer.reserve_waiter(batch.shared, len(batch.ids))
        try:
            if waiter is not None:
                await self._hand_off(batch.submissions(), waiter)
            else:
                async with self._store.single() as tx:
                    await tx.add_batch(batch)
        except Duplicate:  # an earlier try of this batch
            return [_all_or_raise(await self._add_missing(batch.submissions()))]
        return [batch.ids]

    async def _add_missing(self, batch: list[Submission]) -> list[UUID | WindlassError]:
        """Add a batch of which some ids exist: from an earlier try, a repeat by the caller, or another task."""
        async with self._store.begin() as tx:
            new = await tx.add_missing(batch)
            return [
                _id(s) if _id(s) in new
                else _same_task_or_conflict(s, (await tx.tasks.same_tasks([_id(s)])).get(_id(s)))
                for s in batch
            ]  # fmt: skip

    async def _hand_off(self, batch: list[Submission], waiter: ClaimWaiter) -> Started:
        """Begin these tasks for a claim in this process, in the statement that adds them, unless an older task waits or
        a limit applies."""
        lease = waiter.lease
        claimed = [_claimed(s, lease, UNKNOWN) for s in batch]
        try:
            async with self._store.single() as tx:
                started, written = await tx.add_started(batch, claimed[0].task, lease.delivery)
        except asyncio.CancelledError:
            self._claimer.hand_over_later(waiter, claimed)
            raise
        except StoreBusy:  # it may have been committed; the batch is run again, and then finds its own rows
            self._claimer.hand_over(waiter, await self._claimer.lost_replies.find_attempts(lease, claimed))
            raise
        except BaseException:
            self._claimer.hand_over(waiter, [])
            raise
        self._claimer.hand_over(waiter, [_claimed(s, lease, written.at) for s in batch] if started else [])
        return Started(lease if started else None, written)

    # ----------------------------------------------------------------------------------------- with a key each

    async def _commit_keyed(self, batch: list[Submission]) -> Sequence[Later[UUID]]:
        try:
            return await self._add_keyed(batch, SHORT_MS)
        except LockHeld:  # an open transaction holds one of the keys; the others need not wait for it
            return [self._lock_waits.later(partial(self._add_one_keyed, s)) for s in batch]

    async def _add_one_keyed(self, submission: Submission) -> UUID | WindlassError:
        return (await self._add_keyed([submission], LONG_MS))[0]

    async def _add_keyed(self, batch: list[Submission], lock_wait_ms: int) -> list[UUID | WindlassError]:
        async with self._store.begin() as tx:
            await tx.limit_waits(lock_wait_ms)
            outcomes = await _take_keys(tx, batch)
            new = [s for s, outcome in zip(batch, outcomes, strict=True) if outcome == s.id]
            added = await tx.add_missing(new) if new else set()
            await _check_repeats(tx, [s for s in new if _id(s) not in added])  # tasks of an earlier try
        return outcomes

    # ----------------------------------------------------------------------------------------- with runs, all or none

    async def _commit_grouped(self, batch: list[list[Submission]]) -> Sequence[Later[list[UUID]]]:
        [group] = batch
        try:
            return [await self._add_grouped(group, SHORT_MS)]
        except LockHeld:
            return [self._lock_waits.later(partial(self._add_grouped, group, LONG_MS))]

    async def _add_grouped(self, group: list[Submission], lock_wait_ms: int) -> list[UUID] | WindlassError:
        try:
            async with self._store.begin() as tx:
                await tx.limit_waits(lock_wait_ms)
                return await _add_group(tx, group)
        except Rejected as error:
            return error


async def _add_group(tx: Transaction, group: list[Submission]) -> list[UUID]:
    """Add a caller's tasks, with their keys and their run, in one transaction. Raises to roll all of it back."""
    if not await _lock_runs(tx, group):
        raise Invalid("the run belongs to another namespace", field="run_id")
    ids = _all_or_raise(await _take_keys(tx, group))
    await _add_with_edges(tx, [s for s, id_ in zip(group, ids, strict=True) if id_ == s.id])
    return ids


async def add_each(tx: Transaction, batch: list[Submission]) -> list[UUID | WindlassError]:
    """Add tasks with a key each, in runs or not, within a caller's transaction. Returns for each the id of its task,
    which is an older one if its key was used before, or a Conflict if the key was used for other content."""
    if not batch:
        return []
    await _lock_runs(tx, batch)
    outcomes = await _take_keys(tx, batch)
    await _add_with_edges(tx, [s for s, outcome in zip(batch, outcomes, strict=True) if outcome == s.id])
    return outcomes


async def _lock_runs(tx: Transaction, group: list[Submission]) -> bool:
    """Insert and lock the runs of these tasks. Returns whether all are in the namespace of their tasks."""
    runs = {s.run_id: s.namespace for s in group if s.run_id is not None}
    if not runs:
        return True
    await tx.runs.insert_runs(runs)
    return await tx.runs.lock_runs(runs) == runs


async def _add_with_edges(tx: Transaction, group: list[Submission]) -> None:
    """A task that exists already is a repeat: it keeps its edges as they are, since settled ones are gone."""
    _check_acyclic(group)
    known = await tx.tasks.existing_tasks([_id(s) for s in group]) if group else set()
    await _check_repeats(tx, [s for s in group if _id(s) in known])
    group = [s for s in group if _id(s) not in known]
    if not group:
        return
    inside = {_id(s) for s in group}
    waited_for = {upstream for s in group for upstream in s.after}
    await _join_outside(tx, group, waited_for - inside)
    blocked = frozenset(_id(s) for s in group if s.after)
    added = await tx.add_missing(group, upstream=frozenset(waited_for & inside), blocked=blocked)
    if len(added) < len(group):
        raise StoreBusy("another transaction is submitting a task with one of these ids")
    edges = [
        (_id(s), upstream, s.run_id, s.after_any_outcome)
        for s in group
        if s.run_id is not None
        for upstream in dict.fromkeys(s.after)
    ]
    if edges:
        await tx.runs.insert_edges(edges)


async def _check_repeats(tx: Transaction, group: list[Submission]) -> None:
    known = await tx.tasks.same_tasks([_id(s) for s in group]) if group else {}
    _all_or_raise([_same_task_or_conflict(s, known.get(_id(s))) for s in group])


async def _join_outside(tx: Transaction, group: list[Submission], outside: set[UUID]) -> None:
    """Handle edges to tasks that existed before: open ones are marked as having dependents; the edge to an ended one is
    settled like any other, by an effect."""
    if not outside:
        return
    await tx.runs.mark_upstream(outside)
    states = await tx.runs.upstream_states(outside)
    effects = []
    for s in group:
        for upstream in s.after:
            if upstream not in outside:
                continue
            if upstream not in states or states[upstream][1] != s.run_id:
                raise Invalid(f"there is no task {upstream} in run {s.run_id}", field="after")
            if states[upstream][0] in TERMINAL:
                body: dict[str, object] = {"run_id": str(s.run_id)}
                id_ = derived_id("settle", upstream, s.id)
                effects.append(Effect(id_, "settle", s.namespace, upstream, 0, body))
    await tx.outbox.insert_outbox(effects)
    if effects:
        await tx.wake(PendingNotifications(effects=True))


def _check_acyclic(group: list[Submission]) -> None:
    """Raise Invalid if tasks wait for each other: they would wait for ever."""
    waiting = {_id(s): set(s.after) for s in group}
    inside = set(waiting)
    open_count = {id_: len(after & inside) for id_, after in waiting.items()}
    dependents: dict[UUID, list[UUID]] = {}
    for id_, after in waiting.items():
        for upstream in after & inside:
            dependents.setdefault(upstream, []).append(id_)
    free = [id_ for id_, count in open_count.items() if count == 0]
    seen = 0
    while free:
        seen += 1
        for dependent in dependents.get(free.pop(), ()):
            open_count[dependent] -= 1
            if open_count[dependent] == 0:
                free.append(dependent)
    if seen < len(group):
        raise Invalid("these tasks wait for each other in a circle", field="after")


async def _take_keys(tx: Transaction, batch: list[Submission]) -> list[UUID | WindlassError]:
    """For each submission the id of its task: its own, or that of the task that has its key already."""
    first: dict[tuple[str, str], Submission] = {}
    for s in batch:
        if s.idempotency_key is not None:
            first.setdefault((s.namespace, s.idempotency_key), s)
    if not first:
        return [_id(s) for s in batch]
    taken = await tx.tasks.take_idempotency_keys([(ns, key, _id(s)) for (ns, key), s in sorted(first.items())])
    found = await tx.tasks.find_idempotency_keys([pair for pair in first if pair not in taken])
    outcomes: list[UUID | WindlassError] = []
    for s in batch:
        pair = (s.namespace, s.idempotency_key or "")
        if s.idempotency_key is None or (pair in taken and first[pair] is s):
            outcomes.append(_id(s))
        elif pair in taken:
            outcomes.append(
                _same_or_conflict(s, _id(first[pair]), first[pair].queue, first[pair].kind, first[pair].payload)
            )
        elif pair in found:
            outcomes.append(_same_or_conflict(s, *found[pair]))
        else:
            raise StoreBusy("the task with this idempotency key is being deleted")
    return outcomes


def _same_or_conflict(s: Submission, task_id: UUID, queue: str, kind: str, payload: bytes) -> UUID | WindlassError:
    if (queue, kind) == (s.queue, s.kind) and same_json(payload, s.payload):
        return task_id
    return Conflict(
        f"the idempotency key {s.idempotency_key!r} was used for other content", task_id=task_id, key=s.idempotency_key
    )


def _same_task_or_conflict(s: Submission, known: tuple[str, str, str, bytes] | None) -> UUID | WindlassError:
    if known is None:
        raise StoreBusy("the task with this id is being deleted")
    namespace, queue, kind, payload = known
    if (namespace, queue, kind) == (s.namespace, s.queue, s.kind) and same_json(payload, s.payload):
        return _id(s)
    return Conflict(f"the id {s.id} was used for other content", task_id=s.id)


def _claimed(s: Submission, lease: Lease, at: datetime) -> Claimed:
    """A plain task, claimed at the moment of its submission."""
    queued = Task(_id(s), s.namespace, s.queue, s.kind, State.QUEUED, at)
    return Claimed(rules.claim(queued, lease.id, lease.worker, at).after, s.payload)


def view_of(s: Submission, id_: UUID, begun: Started) -> TaskView:
    """A plain task as it was added."""
    at, policy = begun.written
    task = Task(id_, s.namespace, s.queue, s.kind, State.QUEUED, at, policy=policy)
    if begun.lease is not None:
        task = _claimed(replace(s, id=id_), begun.lease, at).task
    return TaskView(task, at, s.payload, (), None)


def _id(submission: Submission) -> UUID:
    assert submission.id is not None, submission
    return submission.id


def _all_or_raise(outcomes: Sequence[T | WindlassError]) -> list[T]:
    for outcome in outcomes:
        if isinstance(outcome, WindlassError):
            raise outcome
    return [outcome for outcome in outcomes if not isinstance(outcome, WindlassError)]
