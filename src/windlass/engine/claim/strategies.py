"""Taking tasks from one queue: one function per strategy, chosen in `claim_from_queue`.

`start_from_single_lane`   one statement that commits itself: the queue has one lane and no limits
`claim_from_known_lanes`   in a transaction, from where the last claim of each lane ended
`claim_from_all_lanes`     in a transaction, from the start of the index, a page of lanes at a time

The last two differ in which lanes they read and share the rest (`_claim_from_lanes`): limits under the lock of the
queue's row (`core.queue`), fair shares (`core.fairness`), the locked tasks, and the rule that begins each attempt.
A fourth way passes this module by: `Submitter` begins new tasks for a waiting worker in the statement that adds them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from windlass.core import task as rules
from windlass.core.command import Claimed
from windlass.core.fairness import BEGINNING, FIRST_LANE, Lane, LanePick, fitting, share
from windlass.core.lease import Lease
from windlass.core.queue import OPEN, Admission, admit
from windlass.core.states import Transition
from windlass.core.task import Task
from windlass.engine.claim.cursor import ClaimCursor
from windlass.engine.claim.lost_replies import LostReplies
from windlass.engine.notifications import Notifications
from windlass.engine.randomness import Randomness
from windlass.errors import LeaseLost
from windlass.store.errors import CommitUnknown, DatabaseUnavailable
from windlass.store.store import Store
from windlass.store.tables.queue import ClaimView
from windlass.store.transaction import Transaction

LANES_MAX = 256
LOCKED_RETRY_S = 0.1

Begin = Callable[[Task, datetime], Transition]  # the rule that begins an attempt of a task at this time


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """The tasks that a claim got from a queue. `retry_in_s` is when to try again if nothing is announced; `closed`
    means that a limit or a pause keeps the queue from giving any."""

    claimed: list[Claimed]
    retry_in_s: float | None = None
    closed: bool = False


class WorkerDraining(Exception):  # never leaves this package
    """The worker drains, so it gets no tasks."""


class ClaimStrategies:
    """Takes tasks from queues for one engine."""

    def __init__(
        self,
        store: Store,
        notifications: Notifications,
        randomness: Randomness,
        lost_replies: LostReplies,
        stopwatch: Callable[[], float],
    ) -> None:
        self._store, self._notifications, self._randomness = store, notifications, randomness
        self._lost_replies, self._stopwatch = lost_replies, stopwatch
        self._cursors: dict[tuple[str, str], ClaimCursor] = {}

    def full_read_cost_s(self, namespace: str, queue: str) -> float:
        """How long the last full read of this queue took."""
        cursor = self._cursors.get((namespace, queue))
        return 0.0 if cursor is None else cursor.full_read_cost_s

    async def claim_from_queue(self, lease: Lease, queue: str, limit: int) -> ClaimResult:
        """Claim for a worker, by the cheapest strategy that fits the queue as far as its cursor knows it."""
        cursor = self._cursors.setdefault((lease.namespace, queue), ClaimCursor())
        if cursor.single_lane:
            result = await self.start_from_single_lane(lease, queue, limit, cursor)
            if result is not None:
                return result
        claim_id = self._randomness.new_id()
        try:
            async with self._store.begin() as tx:
                tx.claim_id = claim_id
                return await self.claim_within(tx, lease, queue, limit, cursor)
        except CommitUnknown:
            return ClaimResult(await self._lost_replies.find_claim(lease, queue, claim_id))

    async def claim_within(
        self,
        tx: Transaction,
        lease: Lease,
        queue: str,
        limit: int,
        cursor: ClaimCursor,
        begin: Begin | None = None,
    ) -> ClaimResult:
        """Claim inside a transaction. A full read that is too expensive right now is left out if the known lanes give
        something. `begin` is the rule that begins each attempt, otherwise that of a worker's claim."""
        begin = begin or (lambda task, now: rules.claim(task, lease.id, lease.worker, now))
        if not cursor.full_read_due(self._stopwatch()):
            result = await self.claim_from_known_lanes(tx, lease, queue, limit, cursor, begin)
            if result.claimed or cursor.misses_nothing(self._notifications.news(lease.namespace, queue)):
                return result
            if not cursor.full_read_due(self._stopwatch()):
                return self._no_later_than_full_read(result, cursor)
        return await self.claim_from_all_lanes(tx, lease, queue, limit, cursor, begin)

    # ----------------------------------------------------------------------------------------- strategies

    async def start_from_single_lane(
        self, lease: Lease, queue: str, limit: int, cursor: ClaimCursor
    ) -> ClaimResult | None:
        """One statement, which commits itself: with one lane and no limits there are no shares and nothing to count.
        Returns None if the queue has more lanes or limits now."""
        began_s, news = self._stopwatch(), self._notifications.news(lease.namespace, queue)
        full, claim_id = cursor.full_read_due(began_s), self._randomness.new_id()
        lane = None if full else cursor.lanes[0]
        floor_at = BEGINNING if lane is None else cursor.floors.get(lane, BEGINNING)
        try:
            async with self._store.single() as tx:
                view, started = await tx.queues.start_due(lease, queue, limit, claim_id, lane, floor_at)
        except (DatabaseUnavailable, CommitUnknown):
            return ClaimResult(await self._lost_replies.find_claim(lease, queue, claim_id))
        _check_lease(view, lease)
        if view.elsewhere:
            return ClaimResult([], closed=True)
        cursor.single_lane = len(view.lanes) < 2 and not view.limited
        if not cursor.single_lane:
            return None
        if full:
            cursor.record_lanes(view.lanes, LANES_MAX, news)
            cursor.record_full_read(self._stopwatch() - began_s, self._stopwatch())
        if started:
            cursor.advance([started[-1].task])  # of one lane, in the order of their age
            return ClaimResult(started)
        if not full and not cursor.misses_nothing(news) and cursor.full_read_due(self._stopwatch()):
            return await self.start_from_single_lane(lease, queue, limit, cursor)
        if not view.lanes:
            return ClaimResult([])
        async with self._store.single() as tx:
            result = await _nothing_due(tx, lease, queue, share(view.lanes, limit, OPEN, ""), OPEN, view)
        return result if full or cursor.misses_nothing(news) else self._no_later_than_full_read(result, cursor)

    async def claim_from_known_lanes(
        self, tx: Transaction, lease: Lease, queue: str, limit: int, cursor: ClaimCursor, begin: Begin
    ) -> ClaimResult:
        """Read the lanes of the last full read, each from where the last claim ended."""
        view = await tx.queues.check_claim(lease, queue, cursor.lanes)
        return await self._claim_from_lanes(tx, lease, queue, limit, view, cursor, begin)

    async def claim_from_all_lanes(
        self, tx: Transaction, lease: Lease, queue: str, limit: int, cursor: ClaimCursor, begin: Begin
    ) -> ClaimResult:
        """Read the lanes page by page, from where the last claim stopped until tasks are found. At the end start again
        at the first lane, since lanes before the starting point were not read."""
        began_s = self._stopwatch()
        from_beginning, retry_in_s = cursor.resume_after == FIRST_LANE, None
        while True:
            news = self._notifications.news(lease.namespace, queue)
            view = await tx.queues.open_claim(lease, queue, cursor.resume_after, LANES_MAX)
            cursor.record_lanes(view.lanes, LANES_MAX, news)
            cursor.single_lane = len(view.lanes) < 2 and not view.limited
            result = await self._claim_from_lanes(tx, lease, queue, limit, view, cursor, begin)
            retry_in_s = min((s for s in (retry_in_s, result.retry_in_s) if s is not None), default=None)
            at_end = cursor.resume_after == FIRST_LANE
            if result.claimed or result.closed or (at_end and from_beginning):
                break
            from_beginning = from_beginning or at_end
        ended_s = self._stopwatch()
        cursor.record_full_read(ended_s - began_s, ended_s)
        return replace(result, retry_in_s=retry_in_s)

    # ----------------------------------------------------------------------------------------- shared steps

    async def _claim_from_lanes(
        self,
        tx: Transaction,
        lease: Lease,
        queue: str,
        limit: int,
        view: ClaimView,
        cursor: ClaimCursor,
        begin: Begin,
    ) -> ClaimResult:
        """Lock the oldest due tasks of the view's lanes within limits and shares, and begin them."""
        _check_lease(view, lease)
        if view.elsewhere:  # until its delivery is changed, which wakes every waiter
            return ClaimResult([], closed=True)
        admission = OPEN
        if view.config.restricted:
            view, admission = await self._admit_under_lock(tx, lease, queue, limit, view)
        total = min(limit, admission.total)
        if total == 0:
            return ClaimResult([], _seconds_until(admission.next_at, view.now), closed=True)
        picks = cursor.with_floors(share(view.lanes, total, admission, cursor.last_key))
        if not picks:
            return ClaimResult([])
        found = await tx.queues.claim_tasks(lease, queue, picks, total, admission.full_kinds)
        if len(picks) > 1:
            lanes = [Lane(task.priority, task.concurrency_key) for task, _ in found]
            found = [found[position] for position in fitting(lanes, picks, admission)]
        if not found:
            return await _nothing_due(tx, lease, queue, picks, admission, view)
        moves = [begin(task, view.now) for task, _ in found]
        await tx.apply(moves)
        if view.config.rate is not None:
            await tx.queues.insert_rate_start(lease.namespace, queue, view.now, len(moves), view.config.rate.period_s)
        cursor.advance([task for task, _ in found])
        return ClaimResult([Claimed(move.after, payload) for move, (_, payload) in zip(moves, found, strict=True)])

    async def _admit_under_lock(
        self, tx: Transaction, lease: Lease, queue: str, limit: int, view: ClaimView
    ) -> tuple[ClaimView, Admission]:
        """Lock the queue, then count with statements that begin while the lock is held."""
        config = await tx.queues.lock_queue(lease.namespace, queue)
        usage = await tx.queues.queue_usage(lease.namespace, queue, config)
        now = await tx.now()
        return replace(view, config=config, now=now), admit(config, usage, limit, now)

    def _no_later_than_full_read(self, result: ClaimResult, cursor: ClaimCursor) -> ClaimResult:
        """Tasks that only a full read can find must not wait longer than until the next one."""
        full_in_s = cursor.full_read_at_s - self._stopwatch()
        return replace(result, retry_in_s=min(full_in_s, math.inf if result.retry_in_s is None else result.retry_in_s))


def _check_lease(view: ClaimView, lease: Lease) -> None:
    if not view.live:
        raise LeaseLost("the lease has run out or was ended", lease_id=lease.id)
    if view.draining:
        raise WorkerDraining


async def _nothing_due(
    tx: Transaction, lease: Lease, queue: str, picks: Sequence[LanePick], admission: Admission, view: ClaimView
) -> ClaimResult:
    """Nothing was found: when to try again. Rows that another transaction had locked were skipped, and no notification
    comes when a transaction ends without a change."""
    due, locked = await tx.queues.next_due(lease, queue, picks, admission.full_kinds)
    return ClaimResult([], LOCKED_RETRY_S if locked else _seconds_until(due, view.now))


def _seconds_until(at: datetime | None, now: datetime) -> float | None:
    return None if at is None else max(0.0, (at - now).total_seconds())
