"""Submissions: checked, given their ids, written in groups.

Ids are made before the first try, so that running a batch again after a lost reply finds its own rows and is a repeat.
An idempotency key is decided by its own table: same key and same content is the same task, other content a conflict.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from uuid import UUID

import msgspec
from msgspec.structs import replace

from windlass.core import task as rules
from windlass.core.check import LARGE_MAX_BYTES, PAYLOAD_MAX_BYTES, check_payload
from windlass.core.command import Claimed
from windlass.core.error import Conflict, Invalid, Rejected, StoreBusy, WindlassError
from windlass.core.id import derived_id
from windlass.core.lease import Lease
from windlass.core.reference import is_reference, same_reference
from windlass.core.submission import Batch, Submission, check_submission
from windlass.core.task import Task
from windlass.core.transition import TERMINAL, Effect, State
from windlass.engine.chance import Chance
from windlass.engine.claim import Claimer, ClaimTicket
from windlass.engine.committer import Committer, Later, Pause
from windlass.engine.objects import Objects
from windlass.engine.patience import LONG_MS, SHORT_MS, Patience
from windlass.store.fault import Duplicate, LockHeld
from windlass.store.store import Store
from windlass.store.tx import Tx, is_plain
from windlass.store.wake import Wakes

BATCH_MAX = 1000
UNKNOWN = datetime.max.replace(tzinfo=UTC)  # until the database has said


class Submitter:
    """Takes submissions in; `submit_all` is all or nothing."""

    def __init__(
        self, store: Store, chance: Chance, claimer: Claimer, patience: Patience, objects: Objects, *, pause: Pause
    ) -> None:
        self._store, self._chance, self._claimer, self._patience = store, chance, claimer, patience
        self._objects = objects
        self._plain = Committer(self._commit_plain, batch_max=BATCH_MAX, pause=pause)
        self._batches = Committer(self._commit_batch, batch_max=1, pause=pause)
        self._keyed = Committer(self._commit_keyed, batch_max=BATCH_MAX, pause=pause)
        self._grouped = Committer(self._commit_grouped, batch_max=1, pause=pause)

    async def submit(self, submission: Submission) -> UUID:
        check_submission(submission, LARGE_MAX_BYTES)
        ready = self._identified(submission)
        if len(ready.payload) > PAYLOAD_MAX_BYTES:
            return (await self._submit_large([ready]))[0]
        if ready.run_id is not None:
            return (await self._grouped.call([ready]))[0]
        return await (self._plain if ready.idempotency_key is None else self._keyed).call(ready)

    async def submit_all(self, submissions: Sequence[Submission]) -> list[UUID]:
        for submission in submissions:
            check_submission(submission, LARGE_MAX_BYTES)
        ready = [self._identified(s) for s in submissions]
        if len({s.id for s in ready}) < len(ready):
            raise Invalid("the same id is there twice", field="id")
        if any(len(s.payload) > PAYLOAD_MAX_BYTES for s in ready):
            return await self._submit_large(ready)
        # Ids of our own making cannot be taken: only then nothing can be refused after others were added.
        if all(s.id is None and s.idempotency_key is None and s.run_id is None for s in submissions):
            return _all_or_raise(await self._plain.call_all(ready))
        return await self._grouped.call(ready)

    async def submit_batch(self, shared: Submission, payloads: Sequence[bytes]) -> list[UUID]:
        """A task for each payload. What most of them share is checked once, and each costs little more than its row."""
        check_submission(shared, LARGE_MAX_BYTES)
        for payload in payloads:
            check_payload("payload", payload, LARGE_MAX_BYTES)
        longest = max(map(len, payloads), default=0)
        if not payloads or shared.id is not None or longest > PAYLOAD_MAX_BYTES or not is_plain([shared]):
            return await self.submit_all([replace(shared, payload=payload) for payload in payloads])
        return await self._batches.call(Batch(shared, [self._chance.new_id() for _ in payloads], list(payloads)))

    async def _submit_large(self, ready: Sequence[Submission]) -> list[UUID]:
        """Some payloads are too long for a row: they are kept first, and what is submitted refers to them."""
        stowed: dict[int, bytes] = {}
        try:
            for place, s in enumerate(ready):
                if len(s.payload) > PAYLOAD_MAX_BYTES:
                    stowed[place] = await self._objects.stow("payload", s.payload, _id(s), "payload", s.namespace)
            referring = [replace(s, payload=stowed.get(place, s.payload)) for place, s in enumerate(ready)]
            ids = await self._grouped.call(referring)
        except Rejected:
            await self._settle(ready, stowed)
            raise
        await self._settle(ready, stowed)
        return ids

    async def _settle(self, ready: Sequence[Submission], stowed: dict[int, bytes]) -> None:
        for place, text in stowed.items():
            await self._objects.settle(text, ready[place].payload, _id(ready[place]))

    async def close(self) -> None:
        for committer in (self._plain, self._batches, self._keyed, self._grouped):
            await committer.close()

    def _identified(self, submission: Submission) -> Submission:
        return submission if submission.id is not None else replace(submission, id=self._chance.new_id())

    # ----------------------------------------------------------------------------------------- without key and run

    async def _commit_plain(self, batch: list[Submission]) -> list[UUID | WindlassError]:
        plain = is_plain(batch)
        waiter = self._claimer.waiter(batch[0], len(batch)) if plain else None
        try:
            if waiter is not None:
                await self._hand_off(batch, waiter)
            else:
                async with self._store.single() as tx:
                    await (tx.add_plain(batch) if plain else tx.add(batch))
        except Duplicate:
            return await self._add_missing(batch)
        return [_id(s) for s in batch]

    async def _commit_batch(self, batches: list[Batch]) -> list[list[UUID]]:
        [batch] = batches
        waiter = self._claimer.waiter(batch.shared, len(batch.ids))
        try:
            if waiter is not None:
                await self._hand_off(batch.submissions(), waiter)
            else:
                async with self._store.single() as tx:
                    await tx.add_batch(batch)
        except Duplicate:  # an earlier try of ours
            return [_all_or_raise(await self._add_missing(batch.submissions()))]
        return [batch.ids]

    async def _add_missing(self, batch: list[Submission]) -> list[UUID | WindlassError]:
        """Some are there already: an earlier try of ours, a repeat of a caller, or something else under the same id."""
        async with self._store.begin() as tx:
            new = await tx.add_missing(batch)
            return [_id(s) if _id(s) in new else await _told_apart(tx, s) for s in batch]

    async def _hand_off(self, batch: list[Submission], waiter: ClaimTicket) -> None:
        """Somebody here waits for just these: they are begun for it in the statement that adds them, unless that would
        pass by others who wait, or a limit. What a begun task is, is said by the rule."""
        lease = waiter.lease
        claimed = [_begun(s, lease, UNKNOWN) for s in batch]
        try:
            async with self._store.single() as tx:
                started, at = await tx.add_started(batch, claimed[0].task, lease.delivery)
        except asyncio.CancelledError:
            self._claimer.hand_over_later(waiter, claimed)
            raise
        except StoreBusy:  # it may have been committed; it is run again, and then finds its own rows
            self._claimer.hand_over(waiter, await self._claimer.resolve(lease, claimed))
            raise
        except BaseException:
            self._claimer.hand_over(waiter, [])
            raise
        self._claimer.hand_over(waiter, [_begun(s, lease, at) for s in batch] if started else [])

    # ----------------------------------------------------------------------------------------- with a key each

    async def _commit_keyed(self, batch: list[Submission]) -> Sequence[Later[UUID]]:
        try:
            return await self._add_keyed(batch, SHORT_MS)
        except LockHeld:  # one of the keys is in somebody's open transaction; the others need not wait for it
            return [self._patience.later(partial(self._add_one_keyed, s)) for s in batch]

    async def _add_keyed(self, batch: list[Submission], patience_ms: int) -> list[UUID | WindlassError]:
        async with self._store.begin() as tx:
            await tx.limit_waits(patience_ms)
            outcomes = await _take_keys(tx, batch)
            new = [s for s, outcome in zip(batch, outcomes, strict=True) if outcome == s.id]
            await _add_or_find(tx, new)
        return outcomes

    async def _add_one_keyed(self, submission: Submission) -> UUID | WindlassError:
        return (await self._add_keyed([submission], LONG_MS))[0]

    # ----------------------------------------------------------------------------------------- with runs, all or none

    async def _commit_grouped(self, batch: list[list[Submission]]) -> Sequence[Later[list[UUID]]]:
        [group] = batch
        try:
            return [await self._add_grouped(group, SHORT_MS)]
        except LockHeld:
            return [self._patience.later(partial(self._add_grouped, group, LONG_MS))]

    async def _add_grouped(self, group: list[Submission], patience_ms: int) -> list[UUID] | WindlassError:
        try:
            async with self._store.begin() as tx:
                await tx.limit_waits(patience_ms)
                return await _add_group(tx, group)
        except Rejected as error:
            return error


async def _add_group(tx: Tx, group: list[Submission]) -> list[UUID]:
    """A caller's tasks, with their keys and their run, in one transaction. Raises to roll all of it back."""
    runs = {s.run_id: s.namespace for s in group if s.run_id is not None}
    if runs:
        await tx.runs.insert_runs(runs)
        known = await tx.runs.lock_runs(runs)
        if known != runs:
            raise Invalid("the run belongs to another namespace", field="run_id")
    ids = _all_or_raise(await _take_keys(tx, group))
    new = [s for s, id_ in zip(group, ids, strict=True) if id_ == s.id]
    if new:
        await _add_with_edges(tx, new)
    return ids


async def add_each(tx: Tx, batch: list[Submission]) -> list[UUID | WindlassError]:
    """Within a caller's transaction: tasks with a key each, in runs or not. For each the id of its task, which is
    another's where its key was used before; a key that was used for other content is an error as a value."""
    if not batch:
        return []
    runs = {s.run_id: s.namespace for s in batch if s.run_id is not None}
    if runs:
        await tx.runs.insert_runs(runs)
        await tx.runs.lock_runs(runs)
    outcomes = await _take_keys(tx, batch)
    await _add_with_edges(tx, [s for s, outcome in zip(batch, outcomes, strict=True) if outcome == s.id])
    return outcomes


async def _add_with_edges(tx: Tx, group: list[Submission]) -> None:
    """What is there already is a repeat: it keeps its edges as they are now, since those that were settled are gone."""
    _check_acyclic(group)
    known = await tx.tasks.existing_tasks([_id(s) for s in group])
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
        raise StoreBusy("a task with one of these ids is just being submitted")
    edges = [
        (_id(s), upstream, s.run_id, s.after_any_outcome)
        for s in group
        if s.run_id is not None
        for upstream in dict.fromkeys(s.after)
    ]
    if edges:
        await tx.runs.insert_edges(edges)


async def _check_repeats(tx: Tx, group: list[Submission]) -> None:
    known = await tx.tasks.same_tasks([_id(s) for s in group]) if group else {}
    _all_or_raise([_same_task_or_conflict(s, known.get(_id(s))) for s in group])


async def _add_or_find(tx: Tx, group: list[Submission]) -> None:
    """Add them. One that is there already must be the same task (an earlier try of ours); otherwise all is undone."""
    if group:
        added = await tx.add_missing(group)
        await _check_repeats(tx, [s for s in group if _id(s) not in added])


async def _join_outside(tx: Tx, group: list[Submission], outside: set[UUID]) -> None:
    """Tasks that were there before: those still open learn that they are waited for; for those that have ended, the
    edge is settled like any other, by an effect."""
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
        await tx.wake(Wakes(effects=True))


def _check_acyclic(group: list[Submission]) -> None:
    """Tasks that wait for each other would wait for ever."""
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


async def _take_keys(tx: Tx, batch: list[Submission]) -> list[UUID | WindlassError]:
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
            raise StoreBusy("the task with this idempotency key is just being removed")
    return outcomes


def _same_or_conflict(s: Submission, task_id: UUID, queue: str, kind: str, payload: bytes) -> UUID | WindlassError:
    if (queue, kind) == (s.queue, s.kind) and same_json(payload, s.payload):
        return task_id
    return Conflict(
        f"the idempotency key {s.idempotency_key!r} was used for other content", task_id=task_id, key=s.idempotency_key
    )


async def _told_apart(tx: Tx, s: Submission) -> UUID | WindlassError:
    """The id is taken: by ourselves in an earlier try, by a repeat of the caller, or by something else."""
    return _same_task_or_conflict(s, (await tx.tasks.same_tasks([_id(s)])).get(_id(s)))


def _same_task_or_conflict(s: Submission, known: tuple[str, str, str, bytes] | None) -> UUID | WindlassError:
    if known is None:
        raise StoreBusy("the task with this id is just being removed")
    namespace, queue, kind, payload = known
    if (namespace, queue, kind) == (s.namespace, s.queue, s.kind) and same_json(payload, s.payload):
        return _id(s)
    return Conflict(f"the id {s.id} was used for other content", task_id=s.id)


def same_json(one: bytes, other: bytes) -> bool:
    """Equal as JSON, however it is spelled: a program may submit by SQL first and by Python next. What is kept as an
    object is not read for that, and so must be the same byte by byte."""
    if is_reference(one) or is_reference(other):
        return same_reference(one, other)
    return one == other or _canonical(one) == _canonical(other)


def _canonical(payload: bytes) -> bytes:
    return msgspec.json.encode(msgspec.json.decode(payload), order="deterministic")


def _begun(s: Submission, lease: Lease, at: datetime) -> Claimed:
    """A plain task, claimed at the moment of its submission."""
    queued = Task(_id(s), s.namespace, s.queue, s.kind, State.QUEUED, at)
    return Claimed(rules.claim(queued, lease.id, lease.worker, at).after, s.payload)


def _id(submission: Submission) -> UUID:
    assert submission.id is not None, submission
    return submission.id


def _all_or_raise(outcomes: Sequence[UUID | WindlassError]) -> list[UUID]:
    for outcome in outcomes:
        if isinstance(outcome, WindlassError):
            raise outcome
    return [outcome for outcome in outcomes if isinstance(outcome, UUID)]
