"""What an operator should know of DAGs, read from PostgreSQL."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

from windlass.store.queries import register_queries
from windlass.store.table import Table

register_queries(__package__, "health.sql")


class StuckBuild(NamedTuple):
    """A version of a DAG that failed to build, or that builds without progress."""

    namespace: str
    dag: str
    number: int
    state: str


class HealthTable(Table):
    """What an operator should know of DAGs, within a transaction."""

    async def stuck_builds(self, after: timedelta) -> list[StuckBuild]:
        return [StuckBuild(*row) for row in await self.session.fetch("stuck_builds", after)]

    async def dataset_ages(self, limit: int) -> dict[str, float]:
        """Seconds since the newest event of each dataset, by name."""
        return {row[0]: row[1] for row in await self.session.fetch("dataset_ages", limit)}

    async def unreceived_batches(self, after: timedelta) -> int:
        count: int = await self.session.fetchval("unreceived_batches", after)
        return count
