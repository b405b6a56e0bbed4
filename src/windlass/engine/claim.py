"""Claims: a worker asks for tasks, and waits if there are none.

Which tasks: selected in SQL, lane by lane (`core.fairness`), within the limits (`core.queue`) that are decided under
the lock of the queue's row. What follows for each: a rule (`core.task.claim`). A reply to a commit that was lost is not
guessed at: the attempts that we tried to begin are looked up.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from windlass.core import task as rules
from windlass.core.command import Claimed
from windlass.core.error import Invalid, LeaseLost, StoreBusy, WindlassError
from windlass.core.fairness import BEGINNING, FIRST_LANE, Lane, LanePick, fitting, share
from windlass.core.lease import Lease
from windlass.core.queue import OPEN, Admission, QueueConfig, admit
from windlass.core.submission import Submission
from windlass.core.task import Task
from windlass.engine.chance import Chance
from windlass.engine.committer import Pause
from windlass.engine.hub import Hub, Ticket
from windlass.engine.scan import Scan
from windlass.store.fault import Away, CommitUnknown
from windlass.store.queue_table import ClaimView
from windlass.store.store import Store
from windlass.store.tx import Tx

LANES_MAX = 256
EMPTY_MAX = 10_000
EMPTY_FOR_S = 10.0  # after that somebody looks again, should anything ever not be announced
HELD_AGAIN_S = 0.1
HAND_OFF_COST_MAX_S = 0.02
RESOLVE_TRIES, RESOLVE_PAUSE_S = 60, 0.5


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at a queue found; `next_in_s` is when to look again if nothing is heard. `held_back` if the queue
    as a whole gives nothing now, whatever waits in it."""

    claimed: list[Claimed]
    next_in_s: float | None = None
    held_back: bool = False


class NotTaking(Exception):  # never leaves this module
    """The worker drains: it gets nothing, whatever there is."""


class ClaimTicket(Ticket):
    """A worker that waits for tasks. They may be handed to it by whoever submits them in this process."""

    __slots__ = ("claimed", "lease", "limit")

    def __init__(self, lease: Lease, limit: int) -> None:
        same = (lease.kinds, lease.labels)  # who can take the same tasks stands in the same line
        super().__init__(tuple(("queue", lease.namespace, queue, same) for queue in lease.queues))
        self.lease, self.limit = lease, limit
        self.claimed: list[Claimed] = []

    def takes(self, kind: str) -> bool:
        return self.lease.kinds is None or kind in self.lease.kinds


class Claimer:
    """Serves the claims of one engine. `give_back` is for tasks that were claimed for somebody who is gone."""

    def __init__(
        self,
        store: Store,
        hub: Hub,
        chance: Chance,
        give_back: Callable[[Sequence[Claimed]], Awaitable[None]],
        *,
        pause: Pause,
        stopwatch: Callable[[], float],
    ) -> None:
        self._store, self._hub, self._give_back = store, hub, give_back
        self._chance, self._pause, self._stopwatch = chance, pause, stopwatch
        self._scans: dict[tuple[str, str], Scan] = {}
        self._turn = 0
        self._empty: dict[Hashable, tuple[tuple[int, int], float]] = {}
        self.hears = False  # whether all that may make a task claimable is heard of here, whoever does it
        self._orphans: set[asyncio.Future[None]] = set()

    async def claim(self, lease: Lease, limit: int, wait_s: float) -> list[Claimed]:
        """Up to `limit` tasks; waits up to `wait_s` for the first. Raises LeaseLost when the lease has run out."""
        deadline_s = self._stopwatch() + wait_s
        may_skip = wait_s > 0
        while True:
            ticket = ClaimTicket(lease, limit)
            self._hub.queue_up(ticket, lease.namespace, lease.queues)
            found_nothing = looks_again = drains = False
            try:
                if may_skip and self._is_empty(ticket):
                    claimed: list[Claimed] = []
                else:
                    claimed = await self._look_and_note(ticket)
                may_skip, found_nothing = False, not claimed
                left_s = deadline_s - self._stopwatch()
                if claimed or left_s <= 0:
                    return claimed
                woken = await ticket.wait(self._hub.timers, left_s)
                if ticket.claimed or not woken:
                    claimed, ticket.claimed = ticket.claimed, []
                    return claimed
                looks_again = True
            except NotTaking:
                drains = True
            finally:
                self._hub.leave(ticket)
                self.rescue(ticket.claimed)
                # We found some, or were woken and go without having looked since. Who looks again first tells nobody:
                # two who wait for the same would wake each other for ever.
                if not looks_again and (ticket.woken or not found_nothing):
                    self._hub.pass_on(ticket)
            if drains:
                return await self._sit_out(lease, deadline_s - self._stopwatch())

    def _is_empty(self, ticket: ClaimTicket) -> bool:
        """Whether somebody who takes the same has looked, found nothing, and nothing was heard since: then the next to
        wait need not look, and a poll that begins again every minute costs no query."""
        lease = ticket.lease
        known = self._empty.get(ticket.keys[0]) if self.hears and len(lease.queues) == 1 else None
        if known is None or self._stopwatch() - known[1] > EMPTY_FOR_S:
            return False
        return known[0] == self._hub.stamp(lease.namespace, lease.queues[0])

    async def _look_and_note(self, ticket: ClaimTicket) -> list[Claimed]:
        lease, key = ticket.lease, ticket.keys[0]
        stamp = self._hub.stamp(lease.namespace, lease.queues[0])
        claimed = await self._look_to_the_end(lease, ticket.limit)
        if len(self._empty) >= EMPTY_MAX:
            self._empty.clear()
        if not claimed and len(lease.queues) == 1:
            self._empty[key] = (stamp, self._stopwatch())
        return claimed

    async def _sit_out(self, lease: Lease, left_s: float) -> list[Claimed]:
        """Outside the line, where a wake-up that is for others would end."""
        ticket = self._hub.ticket("lease", lease.id)
        try:
            if left_s > 0:
                await ticket.wait(self._hub.timers, left_s)
        finally:
            self._hub.leave(ticket)
        return []

    async def _look_to_the_end(self, lease: Lease, limit: int) -> list[Claimed]:
        """A look that has begun is not torn: if the caller goes meanwhile, what it claimed is given back."""
        look = asyncio.ensure_future(self.look(lease, limit))
        try:
            return await asyncio.shield(look)
        except asyncio.CancelledError:
            self._keep(self._give_back_found(look))
            raise

    async def _give_back_found(self, look: asyncio.Future[list[Claimed]]) -> None:
        with contextlib.suppress(WindlassError, NotTaking):
            await self._give_back(await look)

    def rescue(self, claimed: Sequence[Claimed]) -> None:
        """Give back what nobody received, as soon as may be."""
        if claimed:
            self._keep(self._give_back(claimed))

    def _keep(self, work: Awaitable[None]) -> None:
        """Done to its end, also when nobody waits for it."""
        orphan = asyncio.ensure_future(work)
        self._orphans.add(orphan)
        orphan.add_done_callback(self._orphans.discard)

    async def close(self) -> None:
        """Wait until all that nobody wants any more has been given back."""
        while self._orphans:
            await asyncio.wait(self._orphans)

    # ----------------------------------------------------------------------------------------- hand-off

    def waiter(self, first: Submission, count: int) -> ClaimTicket | None:
        """Somebody in this process who waits for just these tasks, and is spoken for from now on. None where looking
        whether others wait in the queue has become dear."""
        scan = self._scans.get((first.namespace, first.queue))
        if scan is not None and scan.cost_s > HAND_OFF_COST_MAX_S:
            return None
        for ticket in self._hub.idle(first.namespace, first.queue):
            if isinstance(ticket, ClaimTicket) and ticket.takes(first.kind) and count <= ticket.limit:
                ticket.idle = False
                return ticket
        return None

    def hand_over(self, ticket: ClaimTicket, claimed: list[Claimed]) -> None:
        """After the commit. A waiter that has gone meanwhile, or for whom nothing was found, is not left hanging."""
        if ticket.left:
            self.rescue(claimed)
        else:
            ticket.claimed = claimed
            ticket.wake("hand-off")

    def hand_over_later(self, ticket: ClaimTicket, claimed: Sequence[Claimed]) -> None:
        """The submitter went while its commit was on its way: find out what became of it, then hand over."""

        async def find_out() -> None:
            found: list[Claimed] = []
            try:
                with contextlib.suppress(StoreBusy):
                    found = await self.resolve(ticket.lease, claimed)
            finally:
                self.hand_over(ticket, found)

        self._keep(find_out())

    # ----------------------------------------------------------------------------------------- looking

    async def look(self, lease: Lease, limit: int) -> list[Claimed]:
        """One round through the queues of this lease, beginning with another one each time."""
        claimed: list[Claimed] = []
        turn = self._turn = self._turn + 1  # others take their turns while this look is under way
        for i in range(len(lease.queues)):
            queue = lease.queues[(turn + i) % len(lease.queues)]
            try:
                found = await self._look_at(lease, queue, limit - len(claimed))
            except (WindlassError, NotTaking):
                if claimed:  # what we hold already must not be lost with the error; the next look will meet it again
                    return claimed
                raise
            claimed += found.claimed
            if found.next_in_s is not None:
                self._hub.remind(lease.namespace, queue, found.next_in_s, self._stopwatch())
            if len(claimed) >= limit:
                break
        return claimed

    async def _look_at(self, lease: Lease, queue: str, limit: int) -> Look:
        scan = self._scans.setdefault((lease.namespace, queue), Scan())
        if scan.alone:
            found = await self._look_at_once(lease, queue, limit, scan)
            if found is not None:
                return found
        look = Look([])
        try:
            async with self._store.begin() as tx:
                look = await self.look_within(tx, lease, queue, limit, scan)
        except CommitUnknown:
            return Look(await self.resolve(lease, look.claimed))
        return look

    async def _look_at_once(self, lease: Lease, queue: str, limit: int, scan: Scan) -> Look | None:
        """One statement, which commits itself, at a queue with one lane that nobody limited: there is nothing to share
        and nothing to count. None if the queue is not like that any more."""
        began_s, news = self._stopwatch(), self._hub.news(lease.namespace, queue)
        full, claim_id = scan.full_look_due(began_s), self._chance.new_id()
        lane = None if full else scan.lanes[0]
        floor_at = BEGINNING if lane is None else scan.floors.get(lane, BEGINNING)
        try:
            async with self._store.single() as tx:
                view, started = await tx.queues.start_due(lease, queue, limit, claim_id, lane, floor_at)
        except (Away, CommitUnknown):
            return Look(await self._find_out(lease, lambda tx: tx.queues.claimed_at_once(lease, queue, claim_id)))
        _check_live(view, lease)
        if view.elsewhere:
            return Look([], held_back=True)
        scan.alone = len(view.lanes) < 2 and not view.limited
        if not scan.alone:
            return None
        if full:
            scan.looked_fully(view.lanes, LANES_MAX, news)
            scan.paid(self._stopwatch() - began_s, self._stopwatch())
        if started:
            scan.claimed([started[-1].task])  # of one lane, in the order of their age
            return Look(started)
        if not full and not scan.sees_all(news) and scan.full_look_due(self._stopwatch()):
            return await self._look_at_once(lease, queue, limit, scan)
        if not view.lanes:
            return Look([])
        async with self._store.single() as tx:
            look = await _look_again(tx, lease, queue, share(view.lanes, limit, OPEN, ""), OPEN, view)
        return look if full or scan.sees_all(news) else self._not_before(look, scan)

    def _not_before(self, look: Look, scan: Scan) -> Look:
        """What only a full look can see must not wait for longer than until the next one."""
        full_in_s = scan.full_look_at_s - self._stopwatch()
        return replace(look, next_in_s=min(full_in_s, math.inf if look.next_in_s is None else look.next_in_s))

    async def look_within(self, tx: Tx, lease: Lease, queue: str, limit: int, scan: Scan) -> Look:
        """A look inside a transaction: short if a full one is too dear right now and the short one finds enough."""
        if not scan.full_look_due(self._stopwatch()):
            view = await tx.queues.check_claim(lease, queue, scan.lanes)
            look = await self._take(tx, lease, queue, limit, view, scan)
            if look.claimed:
                return look
            if scan.sees_all(self._hub.news(lease.namespace, queue)):
                return look
            if not scan.full_look_due(self._stopwatch()):
                return self._not_before(look, scan)
        began_s = self._stopwatch()
        look = await self._look_around(tx, lease, queue, limit, scan)
        ended_s = self._stopwatch()
        scan.paid(ended_s - began_s, ended_s)
        return look

    async def _look_around(self, tx: Tx, lease: Lease, queue: str, limit: int, scan: Scan) -> Look:
        """Through the lanes, so many at a time, from where the last look stopped until something is found; at the end
        once more from the beginning, so that nothing is said not to be there that was merely behind us."""
        from_beginning, next_in_s = scan.resume_after == FIRST_LANE, None
        while True:
            news = self._hub.news(lease.namespace, queue)
            view = await tx.queues.open_claim(lease, queue, scan.resume_after, LANES_MAX)
            scan.looked_fully(view.lanes, LANES_MAX, news)
            scan.alone = len(view.lanes) < 2 and not view.limited
            look = await self._take(tx, lease, queue, limit, view, scan)
            next_in_s = min((s for s in (next_in_s, look.next_in_s) if s is not None), default=None)
            at_end = scan.resume_after == FIRST_LANE
            if look.claimed or look.held_back or (at_end and from_beginning):
                return replace(look, next_in_s=next_in_s)
            from_beginning = from_beginning or at_end

    async def _take(self, tx: Tx, lease: Lease, queue: str, limit: int, view: ClaimView, scan: Scan) -> Look:
        _check_live(view, lease)
        if view.elsewhere:  # until that is changed, which wakes everybody
            return Look([], held_back=True)
        admission = OPEN
        if view.config.restricted:
            view, admission = await self._admitted(tx, lease, queue, limit, view)
        total = min(limit, admission.total)
        if total == 0:
            return Look([], _seconds_until(admission.next_at, view.now), held_back=True)
        picks = scan.with_floors(share(view.lanes, total, admission, scan.last_key))
        found = await tx.queues.claim_tasks(lease, queue, picks, total, admission.full_kinds) if picks else []
        if len(picks) > 1:
            lanes = [Lane(task.priority, task.concurrency_key) for task, _ in found]
            found = [found[position] for position in fitting(lanes, picks, admission)]
        if found:
            claimed = await self._start(tx, lease, queue, found, view)
            scan.claimed([task for task, _ in found])
            return Look(claimed)
        if not picks:
            return Look([])
        return await _look_again(tx, lease, queue, picks, admission, view)

    async def _admitted(
        self, tx: Tx, lease: Lease, queue: str, limit: int, view: ClaimView
    ) -> tuple[ClaimView, Admission]:
        """Lock the queue, then count by statements that begin after the lock was held."""
        config = await tx.queues.lock_queue(lease.namespace, queue)
        usage = await tx.queues.queue_usage(lease.namespace, queue, config)
        now = await tx.now()
        return replace(view, config=config, now=now), admit(config, usage, limit, now)

    async def _start(
        self, tx: Tx, lease: Lease, queue: str, found: Sequence[tuple[Task, bytes]], view: ClaimView
    ) -> list[Claimed]:
        moves = [rules.claim(task, lease.id, lease.worker, view.now) for task, _ in found]
        await tx.apply(moves)
        await _record_rate(tx, lease.namespace, queue, view.config, view.now, len(moves))
        return [Claimed(move.after, payload) for move, (_, payload) in zip(moves, found, strict=True)]

    async def resolve(self, lease: Lease, claimed: Sequence[Claimed]) -> list[Claimed]:
        """Did the commit happen? If not, nothing did; if so, the tasks are ours and must not be forgotten."""
        attempts = {c.task.id: c.task.attempt for c in claimed}
        return await self._find_out(lease, lambda tx: tx.queues.claimed_tasks(lease.id, attempts))

    async def _find_out(
        self, lease: Lease, ask: Callable[[Tx], Awaitable[Sequence[tuple[Task, bytes]]]]
    ) -> list[Claimed]:
        """Ask once nothing is under way any more, and until the database answers."""
        for _ in range(RESOLVE_TRIES):
            with contextlib.suppress(StoreBusy):
                async with self._store.begin() as tx:
                    await tx.leases.outwait_claims(lease.id)
                    rows = await ask(tx)
                return [Claimed(task, payload) for task, payload in rows]
            await self._pause(RESOLVE_PAUSE_S)
        raise StoreBusy("the database did not come back in time to say what was claimed")


def _check_live(view: ClaimView, lease: Lease) -> None:
    if not view.live:
        raise LeaseLost("the lease has run out or was ended", lease_id=lease.id)
    if view.draining:
        raise NotTaking


async def _look_again(
    tx: Tx, lease: Lease, queue: str, picks: Sequence[LanePick], admission: Admission, view: ClaimView
) -> Look:
    """Nothing was found: when to look again. What somebody holds was passed by, and nobody tells of the end of a
    transaction that changed nothing."""
    due, held = await tx.queues.next_due(lease, queue, picks, admission.full_kinds)
    return Look([], HELD_AGAIN_S if held else _seconds_until(due, view.now))


async def _record_rate(tx: Tx, namespace: str, queue: str, config: QueueConfig, now: datetime, count: int) -> None:
    if config.rate is not None:
        await tx.queues.insert_rate_start(namespace, queue, now, count, config.rate.period_s)


def _seconds_until(at: datetime | None, now: datetime) -> float | None:
    return None if at is None else max(0.0, (at - now).total_seconds())


def claimed_task(claimed: object) -> Task:
    if not isinstance(claimed, Claimed) or not isinstance(claimed.task, Task):
        raise Invalid(f"must be a claimed task, not {type(claimed).__name__}", field="claimed")
    return claimed.task


def lease_of(task: Task) -> UUID:
    if task.lease_id is None:
        raise Invalid("no attempt has begun", field="claimed")
    return task.lease_id
