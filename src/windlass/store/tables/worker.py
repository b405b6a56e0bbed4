"""The registry of workers: who is there, who was, and how much each does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from uuid import UUID

import msgspec
from msgspec.structs import replace

from windlass.core.lease import Lease
from windlass.core.position import NOWHERE, Position
from windlass.core.worker import Contract, Registration, Worker, WorkerHeartbeat, WorkerState
from windlass.store.pool import Session
from windlass.store.records import Row, as_json

_decode_labels = msgspec.json.Decoder(dict[str, str]).decode


class WorkerTable:
    """Workers within a transaction."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    async def insert_worker(self, worker_id: UUID, lease: Lease, max_running: int) -> None:
        await self._session.fetch(
            "insert_worker", worker_id, lease.id, lease.namespace, lease.worker, list(lease.queues),
            None if lease.kinds is None else list(lease.kinds), list(lease.labels), lease.host, lease.pid,
            lease.version, max_running,
        )  # fmt: skip

    async def register_worker(self, worker_id: UUID, lease_id: UUID, name: str, new: Registration) -> UUID:
        """Returns the id of the worker: the earlier one, if it was registered before."""
        [[known_id]] = await self._session.fetch(
            "register_worker", worker_id, lease_id, new.namespace, name, [new.queue], list(new.kinds),
            as_json(dict(new.labels)), new.host, new.pid, new.version, new.max_running,
        )  # fmt: skip
        assert isinstance(known_id, UUID), known_id
        return known_id

    async def record_worker_heartbeats(
        self, heartbeats: Sequence[WorkerHeartbeat]
    ) -> dict[UUID, tuple[UUID, datetime, bool]]:
        """Takes at most one heartbeat per worker. Returns the lease, its end and whether to drain, for each worker that
        exists."""
        rows = await self._session.fetch(
            "record_worker_heartbeats", [h.worker_id for h in heartbeats], [h.lease_id for h in heartbeats],
            [h.active for h in heartbeats], [h.completed for h in heartbeats], [h.failed for h in heartbeats],
        )  # fmt: skip
        return {row[0]: (row[1], row[2], row[3]) for row in rows}

    async def count_work(self, ended: Mapping[UUID, tuple[int, int]]) -> None:
        """By lease, how many attempts succeeded and how many failed."""
        completed, failed = [one[0] for one in ended.values()], [one[1] for one in ended.values()]
        await self._session.fetch("count_work", list(ended), completed, failed)

    async def drain_leases(self, lease_ids: Iterable[UUID]) -> None:
        await self._session.fetch("drain_leases", sorted(lease_ids))

    async def drain_lease(self, lease_id: UUID, timeout_s: float) -> None:
        await self._session.fetch("drain_lease", lease_id, timeout_s)

    async def workers_offline(self, lease_ids: Iterable[UUID]) -> list[tuple[UUID, str]]:
        """Id and name of those that were not known to be gone."""
        rows = await self._session.fetch("workers_offline", sorted(lease_ids))
        return [(row[0], row[1]) for row in rows]

    async def get_worker(self, worker_id: UUID) -> Worker | None:
        rows = await self._session.fetch("get_worker", worker_id)
        return (await self._with_loads(rows))[0] if rows else None

    async def list_workers(
        self, namespace: str, *, after: Position | None, queue: str | None, states: Sequence[str] | None, limit: int
    ) -> list[tuple[Position, Worker]]:
        rows = await self._session.fetch("list_workers", namespace, *(after or NOWHERE), queue, states, limit)
        workers = await self._with_loads([row[:-1] for row in rows])
        return [((row[-1], worker.id), worker) for row, worker in zip(rows, workers, strict=True)]

    async def count_workers(self, namespace: str, queue: str | None, states: Sequence[str] | None) -> int:
        [[count]] = await self._session.fetch("count_workers", namespace, queue, states)
        return int(count)

    async def delete_workers(self, before: datetime, limit: int) -> None:
        await self._session.fetch("delete_workers", before, limit)

    async def _with_loads(self, rows: Sequence[Row]) -> list[Worker]:
        loads = {}
        if rows:
            found = await self._session.fetch("worker_loads", [row[0] for row in rows])
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
