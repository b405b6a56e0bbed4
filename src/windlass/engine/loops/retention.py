"""Retention: deletes finished tasks after a while. History is kept in daily partitions that are dropped as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from windlass.store.store import Store
from windlass.store.tables.retention import Walked

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
        """Delete one batch of the walk. At its end, maintain the partitions; the next walk begins with the oldest."""
        async with store.begin() as tx:
            now = await tx.now()
            before = now - timedelta(seconds=self.keep_s)
            gone, seen, reached = await tx.retention.delete_finished(before, self.position, BATCH)
        if seen == BATCH:
            self.position = reached
            return BATCH  # there is more to delete
        self.position = None
        async with store.begin() as tx:
            await tx.retention.delete_empty_runs(before, BATCH)
            await tx.retention.delete_default_history(before)
            await tx.retention.forget_registered(before, BATCH)
            await tx.workers.delete_workers(now - timedelta(days=WORKERS_KEPT_DAYS), BATCH)
        async with store.begin() as tx:
            await tx.retention.keep_partitions(now.date(), PARTITIONS_AHEAD, before.date())
        return gone
