"""Workers that are alive, and how much they run."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from msgspec import Struct

from windlass.core.access import Role
from windlass.core.lease import Lease
from windlass.http import cursor
from windlass.http.form import Listed, Paged
from windlass.http.route import Call, Table

table = Table("workers")


class WorkerForm(Struct, frozen=True):
    """A worker: who it is, what it takes, how much it runs, and until when its lease holds if nothing is heard."""

    id: UUID
    namespace: str
    name: str
    host: str
    pid: int
    version: str
    queues: tuple[str, ...]
    kinds: tuple[str, ...] | None
    labels: tuple[str, ...]
    running: int
    lease_s: float
    expires_at: datetime


@table.add("GET", "/api/v1/workers", Role.VIEWER)
async def list_workers(call: Call[Paged, None]) -> Listed[WorkerForm]:
    """The workers that are alive, the longest-lived first. `kinds` null takes every kind."""
    beyond = cursor.to_id(call.query.after)
    alive = await call.engine.views.workers(call.namespace(call.query.namespace))
    found = [_form(lease, running) for lease, running in alive if beyond is None or lease.id > beyond]
    page = found[: call.query.limit]
    return Listed(page, cursor.of_id(page[-1].id if len(found) > len(page) else None))


def _form(lease: Lease, running: int) -> WorkerForm:
    return WorkerForm(
        lease.id, lease.namespace, lease.worker, lease.host, lease.pid, lease.version, lease.queues, lease.kinds,
        lease.labels, running, lease.ttl_s, lease.expires_at,
    )  # fmt: skip
