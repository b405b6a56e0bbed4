"""Purges of dataset versions in PostgreSQL."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from windlass.datasets.rules.deployment import DeploymentState
from windlass.datasets.rules.purge import PointingDeployment
from windlass.store.queries import register_queries
from windlass.store.table import Table

register_queries(__package__, "purge.sql")


class PurgedVersion(NamedTuple):
    """A version whose data is being deleted."""

    id: UUID
    dataset_uuid: UUID
    namespace: str
    has_table: bool


class PurgeTable(Table):
    """Purges within a transaction."""

    async def created_at(self, dataset_uuid: UUID, version: UUID) -> datetime | None:
        """When a version of a dataset was made; None if there is no such version."""
        rows = await self.session.fetch("version_created_at", dataset_uuid, version)
        return rows[0][0] if rows else None

    async def pointing(self, version: UUID) -> list[PointingDeployment]:
        """The deployments that point to a version, the newest first."""
        rows = await self.session.fetch("pointing_deployments", version)
        return [PointingDeployment(row[0], DeploymentState(row[1]), row[2], row[3]) for row in rows]

    async def carrying(self, version: UUID) -> str | None:
        """A job (DAG/job) that still reads a version until it is carried over to the current one."""
        found: str | None = await self.session.fetchval("carrying_job", version)
        return found

    async def mark(self, version: UUID) -> None:
        """Purge a version, unless it is."""
        await self.session.fetch("mark_purged", version)

    async def open(self, limit: int) -> list[PurgedVersion]:
        """The purged versions whose data is not deleted yet."""
        return [PurgedVersion(*row) for row in await self.session.fetch("purging_versions", limit)]

    async def lock(self, version: UUID) -> bool:
        """Lock a version whose data is not deleted yet. Returns False if another server does that, or has done it."""
        return bool(await self.session.fetch("lock_purging", version))

    async def jobs(self, version: UUID) -> tuple[set[UUID], set[UUID]]:
        """The jobs that have written a version, and those that have read its dataset."""
        rows = await self.session.fetch("jobs_of_version", version)
        return {row[0] for row in rows if row[1]}, {row[0] for row in rows if not row[1]}

    async def delete_rows(self, version: UUID, limit: int) -> int:
        """Delete what is recorded of the data of a version. Returns the number of rows; 0 if none is left."""
        return int(await self.session.fetchval("delete_purged_rows", version, limit))

    async def forget_reads(
        self, version: UUID, writers: Collection[UUID], readers: Collection[UUID], limit: int
    ) -> int:
        """Forget what the writers of a version were given, and what its readers were given of it, so that all of it is
        owed again. Returns the number of rows; 0 if none is left."""
        return int(await self.session.fetchval("forget_reads", version, list(writers), list(readers), limit))

    async def end(self, version: UUID) -> bool:
        """Record that all data of a version is deleted. Returns False while its table exists."""
        return bool(await self.session.fetch("end_purge", version))

    async def still_purging(self, versions: Collection[UUID]) -> list[UUID]:
        """Those of these versions whose data is being deleted."""
        return [row[0] for row in await self.session.fetch("still_purging", list(versions))]

    async def revive(self, versions: Collection[UUID]) -> list[UUID]:
        """Let purged versions be built again. Returns those that were purged."""
        return [row[0] for row in await self.session.fetch("revive_versions", list(versions))]

    async def purged_pointers(self, deployment_id: UUID) -> list[UUID]:
        """The purged versions that a deployment points to."""
        return [row[0] for row in await self.session.fetch("purged_pointers", deployment_id)]
