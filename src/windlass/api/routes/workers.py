"""Workers of every contract: list them, drain one, or declare one offline."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

from msgspec import Meta, Struct

from windlass.api.framework import cursor
from windlass.api.framework.forms import In, Listed, Name, Nothing, Paged, Seconds
from windlass.api.framework.route import Call, Table
from windlass.core.access import Role
from windlass.core.worker import Worker, WorkerState, label_of

table = Table("workers")


class WorkerForm(Struct, frozen=True):
    """A worker. `expires_at` is when its lease ends unless a heartbeat arrives. `completed` and `failed` count
    attempts, as the worker reports them. `concurrency` is how many tasks it runs at once, 0 if unknown."""

    id: UUID
    namespace: str
    contract: str
    name: str
    state: str
    host: str
    pid: int
    version: str
    queues: tuple[str, ...]
    kinds: tuple[str, ...] | None
    labels: tuple[str, ...]
    running: int
    active: int
    completed: int
    failed: int
    lease_s: float
    expires_at: datetime
    registered_at: datetime
    heartbeat_at: datetime
    offline_at: datetime | None
    concurrency: int


class WorkerFilter(Paged, frozen=True, forbid_unknown_fields=True):
    """A filter. Without `state`, all workers: those that are online, and for a week those that are offline."""

    state: tuple[WorkerState, ...] = ()
    queue: Name | None = None


class WorkerDrain(Struct, frozen=True, forbid_unknown_fields=True):
    """After `timeout_s`, tasks that still run are taken from the worker. Default: the time in the settings."""

    timeout_s: Annotated[Seconds | None, Meta(description="seconds")] = None


@table.add("GET", "/api/v1/workers", Role.VIEWER)
async def list_workers(call: Call[WorkerFilter, None]) -> Listed[WorkerForm]:
    """List workers, newest first. A worker whose `kinds` is null takes every kind."""
    query = call.query
    page = await call.engine.workers.page(
        call.namespace(query.namespace),
        queue=query.queue,
        states=query.state or None,
        after=cursor.to_position(query.after),
        limit=query.limit,
    )
    return Listed([_form(worker) for worker in page.workers], cursor.of_position(page.next))


@table.add("GET", "/api/v1/workers/{worker_id}", Role.VIEWER)
async def get_worker(call: Call[In, None]) -> WorkerForm:
    """Get a worker. An offline worker is kept for a week."""
    return _form(await _find(call))


@table.add("POST", "/api/v1/workers/{worker_id}/drain", Role.OPERATOR)
async def drain_worker(call: Call[None, WorkerDrain]) -> WorkerForm:
    """Drain a worker: it finishes its tasks and gets no new ones."""
    worker = await _find(call)
    return _form(await call.engine.workers.drain(worker.id, call.body.timeout_s))


@table.add("POST", "/api/v1/workers/{worker_id}/offline", Role.OPERATOR)
async def take_worker_offline(call: Call[None, Nothing]) -> WorkerForm:
    """Declare a worker offline. Its tasks become available to other workers at once."""
    worker = await _find(call)
    return _form(await call.engine.workers.take_offline(worker.id))


async def _find(call: Call[In, None] | Call[None, WorkerDrain] | Call[None, Nothing]) -> Worker:
    worker = await call.engine.workers.get(call.id("worker_id"))
    call.reach(worker.namespace)
    return worker


def _form(worker: Worker) -> WorkerForm:
    labels = tuple(label_of(key, value) for key, value in worker.labels.items())
    return WorkerForm(
        worker.id, worker.namespace, worker.contract, worker.name, worker.state, worker.host, worker.pid,
        worker.version, worker.queues, worker.kinds, labels, worker.running, worker.active, worker.completed,
        worker.failed, worker.lease_s, worker.expires_at, worker.registered_at, worker.heartbeat_at, worker.offline_at,
        worker.max_running,
    )  # fmt: skip
