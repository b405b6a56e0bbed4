"""Gauges for monitoring: how many tasks wait in each queue and for how long, and the number of workers."""

from __future__ import annotations

import msgspec

from windlass.store.table import Table


class QueueGauge(msgspec.Struct, frozen=True):
    """Tasks of all namespaces in one queue and one state; `oldest_s` is for how long the oldest has been due."""

    queue: str
    state: str
    depth: int
    oldest_s: float


class GaugeView(Table):
    """Reads only."""

    async def queue_gauges(self) -> tuple[QueueGauge, ...]:
        return tuple(QueueGauge(*row) for row in await self.session.fetch("queue_gauges"))

    async def worker_gauges(self) -> dict[str, int]:
        return {row[0]: row[1] for row in await self.session.fetch("worker_gauges")}

    async def dead_letter_gauges(self, queues_max: int) -> dict[str, int]:
        return {row[0]: row[1] for row in await self.session.fetch("dead_letter_gauges", queues_max)}

    async def schedule_lag(self) -> float:
        return float(await self.session.fetchval("schedule_lag"))
