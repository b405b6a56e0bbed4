"""The registry of workers, online and offline, and how much each of them does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from uuid import UUID

import msgspec
from msgspec.structs import replace

from windlass.core.lease import Extension, Lease
from windlass.core.position import NOWHERE, Position
from windlass.core.worker import Contract, Registration, Worker, WorkerHeartbeat, WorkerState
from windlass.store.records import Row, as_json
from windlass.store.table import Table

_decode_labels = msgspec.json.Decoder(dict[str, str]).decode


class WorkerTable(Table):
    """Workers within a transaction."""

    async def insert_worker(self, worker_id: UUID, lease: Lease, max_running: int) -> None:
        await self.session.fetch(
            "insert_worker", worker_id, lease.id, lease.namespace, lease.worker, list(lease.queues),
            None if lease.kinds is None else list(lease.kinds), list(lease.labels), lease.host, lease.pid,
            lease.version, max_running,
        )  # fmt: skip

    async def register_worker(self, worker_id: UUID, lease_id: UUID, name: str, new: Registration) -> UUID:
        """Returns the id of the worker: the earlier one, if it was registered before."""
        known_id: UUID = await self.session.fetchval(
            "register_worker", worker_id, lease_id, new.namespace, name, [new.queue], list(new.kinds),
            as_json(dict(new.labels)), new.host, new.pid, new.version, new.max_running,
        )  # fmt: skip
        return known_id

    async def record_worker_heartbeats(
        self, heartbeats: Sequence[WorkerHeartbeat]
    ) -> dict[UUID, tuple[UUID, Extension]]:
        """Write at most one heartbeat per worker. Returns the lease and its extension for each worker with a live
        lease."""
        rows = await self.session.fetch(
            "record_worker_heartbeats", [h.worker_id for h in heartbeats], [h.lease_id for h in heartbeats],
            [h.active for h in heartbeats], [h.completed for h in heartbeats], [h.failed for h in heartbeats],
        )  # fmt: skip
        return {row[0]: (row[1], Extension(row[2], drain=row[3])) for row in rows}

    async def count_work(self, ended: Mapping[UUID, tuple[int, int]]) -> None:
        """Add the numbers of attempts that succeeded and failed, by lease."""
        completed, failed = zip(*ended.values(), strict=True)
        await self.session.fetch("count_work", list(ended), completed, failed)

    async def drain_leases(self, lease_ids: Iterable[UUID]) -> None:
        await self.session.fetch("drain_leases", sorted(lease_ids))

    async def drain_lease(self, lease_id: UUID, timeout_s: float) -> None:
        await self.session.fetch("drain_lease", lease_id, timeout_s)

    async def workers_offline(self, lease_ids: Iterable[UUID]) -> list[tuple[UUID, str]]:
        """Returns id and name of each worker that was online."""
        return [(row[0], row[1]) for row in await self.session.fetch("workers_offline", sorted(lease_ids))]

    async def get_worker(self, worker_id: UUID) -> Worker | None:
        rows = await self.session.fetch("get_worker", worker_id)
        return (await self._with_loads(rows))[0] if rows else None

    async def list_workers(
        self, namespace: str, *, after: Position | None, queue: str | None, states: Sequence[str] | None, limit: int
    ) -> list[tuple[Position, Worker]]:
        rows = await self.session.fetch("list_workers", namespace, *(after or NOWHERE), queue, states, limit)
        workers = await self._with_loads([row[:-1] for row in rows])
        return [((row[-1], worker.id), worker) for row, worker in zip(rows, workers, strict=True)]

    async def count_workers(self, namespace: str, queue: str | None, states: Sequence[str] | None) -> int:
        return int(await self.session.fetchval("count_workers", namespace, queue, states))

    async def delete_workers(self, before: datetime, limit: int) -> None:
        await self.session.fetch("delete_workers", before, limit)

    async def _with_loads(self, rows: Sequence[Row]) -> list[Worker]:
        loads = {}
        if rows:
            found = await self.session.fetch("worker_loads", [row[0] for row in rows])
            loads = {row[0]: (row[1], row[2]) for row in found}
        return [_worker(row, *loads.get(row[0], (0, 0))) for row in rows]


def _worker(row: Row, running: int, begun_since: int) -> Worker:
    (
        id_, lease_id, namespace, contract, name, queues, kinds, labels, host, pid, version, max_running, incarnation,
        registered_at, heartbeat_at, offline_at, completed, failed, state, lease_s, expires_at, reported,
    ) = row  # fmt: skip
    worker = Worker(
        id_, lease_id, namespace, Contract(contract), name, tuple(queues), None if kinds is None else tuple(kinds),
        _decode_labels(labels), host, pid, version, max_running, incarnation, registered_at, heartbeat_at, offline_at,
        completed, failed, WorkerState(state), lease_s, expires_at, running=running,
    )  # fmt: skip
    active = reported + begun_since if worker.contract is Contract.REGISTRY else running
    return replace(worker, active=0 if worker.state is WorkerState.OFFLINE else active)
