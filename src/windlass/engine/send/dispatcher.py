"""Begins the attempts that are sent to workers, within the same limits and fair shares as any claim.

One transaction writes the attempt with its token, the effect that carries it, and the row for its heartbeats, so that a
repeated effect finds the same token. Queues whose effects this engine cannot carry out are left to other servers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container
from datetime import UTC, datetime
from uuid import UUID

from windlass.core.command import Claimed
from windlass.core.delivery import Outgoing, QueueSettings, outgoing_types, type_of
from windlass.core.lease import Lease
from windlass.core.outgoing import dispatch
from windlass.core.queue import QueueName
from windlass.core.task import Task
from windlass.engine.claim.claimer import Claimer
from windlass.engine.claim.cursor import ClaimCursor
from windlass.engine.notifications import Notifications
from windlass.engine.randomness import Randomness
from windlass.engine.read.metrics import Tally
from windlass.engine.send.dirty_queues import DirtyQueues
from windlass.errors import LeaseLost
from windlass.store.errors import CommitUnknown
from windlass.store.store import Store

DISPATCH_LEASE = UUID(int=1)
BATCH = 100
UNDELIVERED_MAX = 1000  # per queue: more would wait in the outbox, where limits and pauses do not apply
FULL_RETRY_S = 0.5
CHECKS_PER_LEASE = 8
NEVER = datetime.max.replace(tzinfo=UTC)


class Dispatcher(DirtyQueues):
    """Begins and sends the outgoing attempts of one engine, of all namespaces."""

    def __init__(
        self,
        store: Store,
        randomness: Randomness,
        notifications: Notifications,
        claimer: Claimer,
        effects: Container[str],
        stopwatch: Callable[[], float],
    ) -> None:
        super().__init__()
        self._store, self._randomness, self._notifications, self._claimer = store, randomness, notifications, claimer
        self._stopwatch = stopwatch
        self._effects = effects
        self.on_reload: Callable[[], None] = lambda: None
        self.tally: Tally | None = None
        self._cursors: dict[QueueName, ClaimCursor] = {}
        self._shortest_ms: int | None = None

    async def reload(self) -> None:
        """Read the queues that send."""
        async with self.reloading():
            async with self._store.begin() as tx:
                all_queues = await tx.queues.queues_delivered(outgoing_types())
                shortest_ms = await tx.heartbeats.shortest_lease_ms()
                queues = {name: s for name, s in all_queues.items() if _outgoing(s).effect in self._effects}
                if queues:
                    await tx.heartbeats.open_dispatch(DISPATCH_LEASE)
            self.queues, self._shortest_ms = queues, shortest_ms
        self.on_reload()

    async def tick(self) -> int:
        """Begin and send due attempts, a batch of each queue. Returns the number of attempts that began."""
        if self._stale:
            await self.reload()
        try:
            return await self.serve(self._dispatch_from)
        except LeaseLost:
            self._stale = True  # the row of the dispatch lease is gone: reload inserts it again
            raise

    def intervals_s(self) -> list[float]:
        """How soon silence has to be noticed: for each queue that sends, and for the shortest lease claimed by id."""
        outgoing_s = [_outgoing(settings).notice_ms / 1000 for settings in self.queues.values()]
        return outgoing_s if self._shortest_ms is None else [*outgoing_s, self._shortest_ms / CHECKS_PER_LEASE / 1000]

    async def _dispatch_from(self, namespace: str, queue: str) -> int:
        settings = self.queues[namespace, queue]
        outgoing, by = _outgoing(settings), type_of(settings.delivery)
        lease = Lease(DISPATCH_LEASE, namespace, "dispatch", (queue,), None, outgoing.labels, 0.0, NEVER, delivery=by)
        cursor = self._cursors.setdefault((namespace, queue), ClaimCursor())
        claimed: list[Claimed] = []
        retry_in_s: float | None = None
        with contextlib.suppress(CommitUnknown):  # what was begun is in the outbox, or was not begun
            async with self._store.begin() as tx:
                waiting = await tx.heartbeats.undelivered(outgoing.effect, namespace, queue, UNDELIVERED_MAX)
                room = UNDELIVERED_MAX - waiting
                if room > 0:
                    result = await self._claimer.strategies.claim_within(
                        tx, lease, queue, min(BATCH, room), cursor,
                        lambda task, now: dispatch(task, outgoing.effect, self._randomness.new_token(by), now),
                    )  # fmt: skip
                    claimed, retry_in_s = result.claimed, result.retry_in_s
                else:
                    retry_in_s = FULL_RETRY_S
                if claimed:
                    attempts = [(one.task.id, one.task.attempt, _timeout_ms(outgoing, one.task)) for one in claimed]
                    await tx.heartbeats.insert_heartbeats(attempts, outgoing.slack_ms)
        if retry_in_s is not None:
            self._notifications.remind(namespace, queue, retry_in_s, self._stopwatch())
        if claimed:
            self._dirty.add((namespace, queue))  # there may be more
            if self.tally is not None:
                self.tally.started(claimed)
        return len(claimed)


def _timeout_ms(outgoing: Outgoing, task: Task) -> int:
    own_s = task.policy.lease_s if outgoing.own_lease else None
    return outgoing.timeout_ms if own_s is None else int(own_s * 1000)


def _outgoing(settings: QueueSettings) -> Outgoing:
    outgoing = settings.delivery.outgoing
    assert outgoing is not None, settings.delivery
    return outgoing
