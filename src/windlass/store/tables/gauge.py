"""Gauges for monitoring: how many tasks wait in each queue and for how long, and the number of workers."""

from __future__ import annotations

import msgspec

from windlass.store.pool import Session


class QueueGauge(msgspec.Struct, frozen=True):
    """Tasks of all namespaces in one queue and one state; `oldest_s` is how long the first in line has been due."""

    queue: str
    state: str
    depth: int
    oldest_s: float


class GaugeView:
    """Reads only."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    async def queue_gauges(self) -> tuple[QueueGauge, ...]:
        return tuple(QueueGauge(*row) for row in await self._session.fetch("queue_gauges"))

    async def worker_gauges(self) -> dict[str, int]:
        return {row[0]: row[1] for row in await self._session.fetch("worker_gauges")}

    async def dead_letter_gauges(self, queues_max: int) -> dict[str, int]:
        return {row[0]: row[1] for row in await self._session.fetch("dead_letter_gauges", queues_max)}

    async def schedule_lag(self) -> float:
        [[lag_s]] = await self._session.fetch("schedule_lag")
        return float(lag_s)
