"""Retention: forgets finished tasks after a while, and keeps the history in daily partitions that are dropped whole."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from windlass.store.retention_table import Walked
from windlass.store.store import Store

BATCH = 1000
PARTITIONS_AHEAD = 3
WORKERS_KEPT_DAYS = 7


@dataclass(slots=True)
class Retention:
    """How long finished tasks and their history are kept. A walk goes through the old tasks of each
    namespace by age, batch by batch."""

    keep_s: float
    position: Walked | None = None

    async def tick(self, store: Store) -> int:
        """One batch of the walk; at its end the history is looked after, and the next walk begins with the oldest."""
        async with store.begin() as tx:
            now = await tx.now()
            before = now - timedelta(seconds=self.keep_s)
            gone, seen, reached = await tx.retention.delete_finished(before, self.position, BATCH)
        if seen == BATCH:
            self.position = reached
            return BATCH  # there is more to look at
        self.position = None
        async with store.begin() as tx:
            await tx.retention.delete_empty_runs(before, BATCH)
            await tx.retention.delete_default_history(before)
            await tx.wakeups.forget_dead_messages(before, BATCH)
            await tx.workers.delete_workers(now - timedelta(days=WORKERS_KEPT_DAYS), BATCH)
        await self._keep_partitions(store, now, before)
        return gone

    async def _keep_partitions(self, store: Store, now: datetime, before: datetime) -> None:
        async with store.begin() as tx:
            await tx.retention.keep_partitions(now.date(), PARTITIONS_AHEAD, before.date())
