"""Leases: one narrow row per live worker, and the tasks that run under it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

from windlass.core.lease import Lease
from windlass.core.task import Task
from windlass.store import records
from windlass.store.records import tasks_with_time
from windlass.store.table import Table


class LeaseTable(Table):
    """Leases within a transaction."""

    async def open_lease(self, lease: Lease) -> datetime | None:
        """Returns when it expires, or None if this lease exists already."""
        rows = await self.session.fetch(
            "open_lease", lease.id, lease.namespace, lease.worker, list(lease.queues),
            None if lease.kinds is None else list(lease.kinds), list(lease.labels), lease.ttl_s,
            lease.host, lease.pid, lease.version, lease.delivery,
        )  # fmt: skip
        return rows[0][0] if rows else None

    async def get_lease(self, lease_id: UUID) -> Lease | None:
        rows = await self.session.fetch("get_lease", lease_id)
        return records.lease_from(rows[0]) if rows else None

    async def extend_leases(self, ids: Iterable[UUID]) -> dict[UUID, tuple[datetime, bool]]:
        """For each lease that is live: when it expires now, and whether its worker must drain."""
        return {row[0]: (row[1], row[2]) for row in await self.session.fetch("extend_leases", sorted(ids))}

    async def outwait_claims(self, lease_id: UUID) -> None:
        """Wait until no claim under this lease is in progress: a claim locks the row of the lease until its end."""
        await self.session.fetch("outwait_claims", lease_id)

    async def end_leases(self, ids: Iterable[UUID]) -> None:
        await self.session.fetch("end_leases", sorted(ids))

    async def cancelling_tasks(self, lease_ids: Iterable[UUID]) -> tuple[list[Task], datetime | None]:
        return tasks_with_time(await self.session.fetch("cancelling_tasks", sorted(lease_ids)))

    async def expired_leases(self, limit: int) -> list[tuple[UUID, str, list[str], datetime]]:
        return [(row[0], row[1], row[2], row[3]) for row in await self.session.fetch("expired_leases", limit)]

    async def lease_tasks(self, namespace: str, queues: Sequence[str], lease_id: UUID, limit: int) -> list[Task]:
        rows = await self.session.fetch("lease_tasks", namespace, queues, lease_id, limit)
        return [records.task_from(row) for row in rows]

    async def forgotten_tasks(
        self, lease: Lease, active: Sequence[UUID], older_than_s: float
    ) -> tuple[list[Task], datetime | None]:
        args = (lease.namespace, list(lease.queues), lease.id, active, older_than_s)
        return tasks_with_time(await self.session.fetch("forgotten_tasks", *args))

    async def lost_tasks(self, lease_id: UUID, active: Sequence[UUID]) -> list[UUID]:
        return [row[0] for row in await self.session.fetch("lost_tasks", lease_id, active)]

    async def lease_holds_tasks(self, namespace: str, queues: Sequence[str], lease_id: UUID) -> bool:
        return bool(await self.session.fetchval("lease_holds_tasks", namespace, queues, lease_id))

    async def delete_leases(self, ids: Sequence[UUID]) -> None:
        await self.session.fetch("delete_leases", ids)
