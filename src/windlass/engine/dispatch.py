"""Sends tasks out: attempts that no worker asks for are begun here, within the same limits and turns as any claim.

An attempt with its token, the effect that carries it to its worker, and the row for its signs of life are written in
one transaction: an effect that is carried out again finds the token that the first time carried.
A queue is looked at when something may have become claimable in it, and not otherwise; one whose effects this engine
cannot carry out is left to others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container
from datetime import UTC, datetime
from uuid import UUID

from windlass.core import sent
from windlass.core.command import Claimed
from windlass.core.delivery import OUTGOING_TYPES, Outgoing, QueueSettings, type_of
from windlass.core.error import LeaseLost
from windlass.core.lease import Lease
from windlass.core.queue import QueueName
from windlass.engine.chance import Chance
from windlass.engine.claim import Claimer
from windlass.engine.due import DueQueues
from windlass.engine.hub import Hub
from windlass.engine.metrics import Tally
from windlass.engine.scan import Scan
from windlass.store.fault import CommitUnknown
from windlass.store.store import Store

DISPATCH_LEASE = UUID(int=1)
BATCH = 100
UNDELIVERED_MAX = 1000  # of a queue: more would only wait elsewhere, where nobody can set them back
FULL_AGAIN_S = 0.5
LOOKS_A_LEASE = 8
NEVER = datetime.max.replace(tzinfo=UTC)


class Dispatcher(DueQueues):
    """What one engine sends out, of all namespaces."""

    def __init__(
        self,
        store: Store,
        chance: Chance,
        hub: Hub,
        claimer: Claimer,
        effects: Container[str],
        stopwatch: Callable[[], float],
    ) -> None:
        super().__init__()
        self._store, self._chance, self._hub, self._claimer = store, chance, hub, claimer
        self._stopwatch = stopwatch
        self._effects = effects
        self.learned: Callable[[], None] = lambda: None
        self.tally: Tally | None = None
        self._scans: dict[QueueName, Scan] = {}
        self._shortest_ms: int | None = None

    async def learn(self) -> None:
        """Which queues send, and how."""
        async with self.learning():
            async with self._store.begin() as tx:
                all_queues = await tx.queues.queues_delivered(OUTGOING_TYPES)
                shortest_ms = await tx.heartbeats.shortest_lease_ms()
                queues = {key: settings for key, settings in all_queues.items() if self._carries(settings)}
                if queues:
                    await tx.heartbeats.open_dispatch(DISPATCH_LEASE)
            self.queues, self._shortest_ms = queues, shortest_ms
        self.learned()

    async def tick(self) -> int:
        """Everything that can be sent out now, a batch a queue; returns how many attempts began."""
        if self._stale:
            await self.learn()
        try:
            return await self.look(self._send_out)
        except LeaseLost:
            self._stale = True  # somebody took the lease of the engines away: it is opened again
            raise

    def intervals_s(self) -> list[float]:
        """How soon silence has to be noticed, queue by queue; of those whose workers claim by id the soonest."""
        sent_s = [_outgoing(settings).notice_ms / 1000 for settings in self.queues.values()]
        return sent_s if self._shortest_ms is None else [*sent_s, self._shortest_ms / LOOKS_A_LEASE / 1000]

    def _carries(self, settings: QueueSettings) -> bool:
        return _outgoing(settings).effect in self._effects

    async def _send_out(self, namespace: str, queue: str) -> int:
        settings = self.queues[namespace, queue]
        how, by = _outgoing(settings), type_of(settings.delivery)
        lease = Lease(DISPATCH_LEASE, namespace, "dispatch", (queue,), None, how.labels, 0.0, NEVER, delivery=by)
        scan = self._scans.setdefault((namespace, queue), Scan())
        claimed: list[Claimed] = []
        next_in_s: float | None = None
        with contextlib.suppress(CommitUnknown):  # what was begun is in the outbox, or was not begun
            async with self._store.begin() as tx:
                room = UNDELIVERED_MAX - await tx.heartbeats.undelivered(how.effect, namespace, queue, UNDELIVERED_MAX)
                if room > 0:
                    look = await self._claimer.look_within(tx, lease, queue, min(BATCH, room), scan)
                    claimed, next_in_s = look.claimed, look.next_in_s
                else:
                    next_in_s = FULL_AGAIN_S
                if claimed:
                    await tx.apply([sent.send(one.task, how.effect, self._chance.new_token(by)) for one in claimed])
                    attempts = [(one.task.id, one.task.attempt) for one in claimed]
                    await tx.heartbeats.send_out(attempts, how.timeout_ms, how.slack_ms)
        if next_in_s is not None:
            self._hub.remind(namespace, queue, next_in_s, self._stopwatch())
        if claimed:
            self._due.add((namespace, queue))  # there may be more
            if self.tally is not None:
                self.tally.started(claimed)
        return len(claimed)


def _outgoing(settings: QueueSettings) -> Outgoing:
    how = settings.delivery.outgoing
    assert how is not None, settings.delivery
    return how
