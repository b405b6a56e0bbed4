"""Workers of every kind: who is here, how much each runs; drain one, or say that it is gone."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

from msgspec import Meta, Struct

from windlass.core.access import Role
from windlass.core.worker import Worker, WorkerState, label_of
from windlass.http import cursor
from windlass.http.form import In, Listed, Name, Nothing, Paged, Seconds
from windlass.http.route import Call, Table

table = Table("workers")


class WorkerForm(Struct, frozen=True):
    """A worker: who it is, what it takes, how much it runs, and until when its lease holds if nothing is heard.

    `completed` and `failed` count attempts, as the worker tells with its heartbeats; `concurrency` is how many tasks it
    runs side by side, 0 if it does not say."""

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
    """Without `state`, all that are known: those that are here, and for a week those that went."""

    state: tuple[WorkerState, ...] = ()
    queue: Name | None = None


class WorkerDrain(Struct, frozen=True, forbid_unknown_fields=True):
    """What still runs after `timeout_s` is taken from the worker; without it, after the time that is set."""

    timeout_s: Annotated[Seconds | None, Meta(description="seconds")] = None


@table.add("GET", "/api/v1/workers", Role.VIEWER)
async def list_workers(call: Call[WorkerFilter, None]) -> Listed[WorkerForm]:
    """Workers, those that came last first. `kinds` null takes every kind."""
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
    """One worker, also one that has gone, for a week."""
    return _form(await _seen(call))


@table.add("POST", "/api/v1/workers/{worker_id}/drain", Role.OPERATOR)
async def drain_worker(call: Call[None, WorkerDrain]) -> WorkerForm:
    """Let a worker finish what it has, and give it nothing new."""
    worker = await _seen(call)
    return _form(await call.engine.workers.drain(worker.id, call.body.timeout_s))


@table.add("POST", "/api/v1/workers/{worker_id}/offline", Role.OPERATOR)
async def take_worker_offline(call: Call[None, Nothing]) -> WorkerForm:
    """Say that a worker is gone: what it ran is given to others now."""
    worker = await _seen(call)
    return _form(await call.engine.workers.take_offline(worker.id))


async def _seen(call: Call[In, None] | Call[None, WorkerDrain] | Call[None, Nothing]) -> Worker:
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
