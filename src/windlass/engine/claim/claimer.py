"""Claims of workers: take the tasks that are due, otherwise wait in line.

A claim joins the lines of its queues before it reads them, so that nothing announced in between is missed. `strategies`
takes tasks from a queue. The submitter in this process may also hand new tasks to a waiting claim (hand-off). Tasks
that were claimed for a caller that left meanwhile are given back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Hashable, Sequence

from windlass.core.command import Claimed
from windlass.core.lease import Lease
from windlass.core.submission import Submission
from windlass.engine.claim.lost_replies import LostReplies
from windlass.engine.claim.strategies import ClaimStrategies, WorkerDraining
from windlass.engine.commit.committer import Pause
from windlass.engine.notifications import Notifications, Waiter
from windlass.engine.randomness import Randomness
from windlass.errors import StoreBusy, WindlassError
from windlass.store.store import Store

EMPTY_MAX = 10_000
EMPTY_FOR_S = 10.0  # then the queue is read again, in case something was ever not announced
HAND_OFF_COST_MAX_S = 0.02


class ClaimWaiter(Waiter):
    """A claim that waits for tasks. A submitter in this process may hand them over in `claimed`."""

    __slots__ = ("claimed", "lease", "limit")

    def __init__(self, lease: Lease, limit: int) -> None:
        same = (lease.kinds, lease.labels)  # workers that can take the same tasks share a line
        super().__init__(tuple(("queue", lease.namespace, queue, same) for queue in lease.queues))
        self.lease, self.limit = lease, limit
        self.claimed: list[Claimed] = []


class Claimer:
    """Serves the claims of one engine. `give_back` takes tasks that were claimed for a caller that left."""

    def __init__(
        self,
        store: Store,
        notifications: Notifications,
        randomness: Randomness,
        give_back: Callable[[Sequence[Claimed]], Awaitable[None]],
        *,
        pause: Pause,
        stopwatch: Callable[[], float],
    ) -> None:
        self._notifications, self._give_back, self._stopwatch = notifications, give_back, stopwatch
        self.lost_replies = LostReplies(store, pause=pause)
        self.strategies = ClaimStrategies(store, notifications, randomness, self.lost_replies, stopwatch)
        self._turn = 0
        self._empty: dict[Hashable, tuple[tuple[int, int], float]] = {}
        self.listening = False  # whether this process receives every notification about claimable tasks
        self._orphans: set[asyncio.Future[None]] = set()

    async def claim(self, lease: Lease, limit: int, wait_s: float) -> list[Claimed]:
        """Claim up to `limit` tasks; wait up to `wait_s` for the first. Raises LeaseLost if the lease has expired."""
        deadline_s = self._stopwatch() + wait_s
        may_skip = wait_s > 0
        while True:
            waiter = ClaimWaiter(lease, limit)
            self._notifications.queue_up(waiter, lease.namespace, lease.queues)
            found_nothing = retries = draining = False
            try:
                if may_skip and self._known_empty(waiter):
                    claimed: list[Claimed] = []
                else:
                    claimed = await self._claim_and_remember(waiter)
                may_skip, found_nothing = False, not claimed
                left_s = deadline_s - self._stopwatch()
                if claimed or left_s <= 0:
                    return claimed
                woken = await waiter.wait(self._notifications.timers, left_s)
                if waiter.claimed or not woken:
                    claimed, waiter.claimed = waiter.claimed, []
                    return claimed
                retries = True
            except WorkerDraining:
                draining = True
            finally:
                self._notifications.leave(waiter)
                self.rescue(waiter.claimed)
                # This claim found some, or was woken and leaves without having read since. One that retries first wakes
                # no other: two that wait for the same would wake each other for ever.
                if not retries and (waiter.woken or not found_nothing):
                    self._notifications.pass_on(waiter)
            if draining:
                left_s = deadline_s - self._stopwatch()
                if left_s > 0:  # outside the line: inside, this claim would use up wake-ups of other workers
                    await self._notifications.wait("lease", lease.id, timeout_s=left_s)
                return []

    def _known_empty(self, waiter: ClaimWaiter) -> bool:
        """Whether a claim for the same tasks found none, and nothing was announced since. Then this claim need not
        read, and a poll that begins again every minute costs no query."""
        lease = waiter.lease
        known = self._empty.get(waiter.keys[0]) if self.listening and len(lease.queues) == 1 else None
        if known is None or self._stopwatch() - known[1] > EMPTY_FOR_S:
            return False
        return known[0] == self._notifications.stamp(lease.namespace, lease.queues[0])

    async def _claim_and_remember(self, waiter: ClaimWaiter) -> list[Claimed]:
        """Claim now, and remember a queue that gave nothing. A claim that has begun is not interrupted: if the caller
        leaves meanwhile, its tasks are given back."""
        lease = waiter.lease
        stamp = self._notifications.stamp(lease.namespace, lease.queues[0])
        claim = asyncio.ensure_future(self.claim_now(lease, waiter.limit))
        try:
            claimed = await asyncio.shield(claim)
        except asyncio.CancelledError:
            self._keep(self._give_back_result(claim))
            raise
        if len(self._empty) >= EMPTY_MAX:
            self._empty.clear()
        if not claimed and len(lease.queues) == 1:
            self._empty[waiter.keys[0]] = (stamp, self._stopwatch())
        return claimed

    async def claim_now(self, lease: Lease, limit: int) -> list[Claimed]:
        """One round through the queues of this lease, beginning with another one each time."""
        claimed: list[Claimed] = []
        turn = self._turn = self._turn + 1  # other claims take their turns while this one is under way
        for i in range(len(lease.queues)):
            queue = lease.queues[(turn + i) % len(lease.queues)]
            try:
                result = await self.strategies.claim_from_queue(lease, queue, limit - len(claimed))
            except (WindlassError, WorkerDraining):
                if claimed:  # what was claimed must not be lost with the error; the next claim will meet it again
                    return claimed
                raise
            claimed += result.claimed
            if result.retry_in_s is not None:
                self._notifications.remind(lease.namespace, queue, result.retry_in_s, self._stopwatch())
            if len(claimed) >= limit:
                break
        return claimed

    # ----------------------------------------------------------------------------------------- claims without a caller

    async def _give_back_result(self, claim: asyncio.Future[list[Claimed]]) -> None:
        with contextlib.suppress(WindlassError, WorkerDraining):
            await self._give_back(await claim)

    def rescue(self, claimed: Sequence[Claimed]) -> None:
        """Give back what no worker received, as soon as possible."""
        if claimed:
            self._keep(self._give_back(claimed))

    def _keep(self, work: Awaitable[None]) -> None:
        """Run it to its end, although no caller waits for it."""
        orphan = asyncio.ensure_future(work)
        self._orphans.add(orphan)
        orphan.add_done_callback(self._orphans.discard)

    async def close(self) -> None:
        """Wait until everything without a caller has been given back."""
        while self._orphans:
            await asyncio.wait(self._orphans)

    # ----------------------------------------------------------------------------------------- hand-off

    def reserve_waiter(self, first: Submission, count: int) -> ClaimWaiter | None:
        """Reserve a claim in this process that waits for such tasks. None if there is none, or if it has become
        expensive to find out whether older tasks wait in the queue."""
        if self.strategies.full_read_cost_s(first.namespace, first.queue) > HAND_OFF_COST_MAX_S:
            return None
        for waiter in self._notifications.idle(first.namespace, first.queue):
            if not isinstance(waiter, ClaimWaiter) or count > waiter.limit:
                continue
            if waiter.lease.kinds is None or first.kind in waiter.lease.kinds:
                waiter.idle = False
                return waiter
        return None

    def hand_over(self, waiter: ClaimWaiter, claimed: list[Claimed]) -> None:
        """Hand tasks over after the commit. If the waiter has left, they are given back; one that gets none claims
        again."""
        if waiter.left:
            self.rescue(claimed)
        else:
            waiter.claimed = claimed
            waiter.wake("hand-off")

    def hand_over_later(self, waiter: ClaimWaiter, tried: Sequence[Claimed]) -> None:
        """The submitter left during its commit: find out whether it happened, then hand over."""

        async def find_out() -> None:
            found: list[Claimed] = []
            try:
                with contextlib.suppress(StoreBusy):
                    found = await self.lost_replies.find_attempts(waiter.lease, tried)
            finally:
                self.hand_over(waiter, found)

        self._keep(find_out())
