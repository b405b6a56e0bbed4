"""The life of a worker on the wire: register, heartbeat, drain, go; and who is there."""

from __future__ import annotations

import asyncio
from uuid import UUID

from windlass.contracts.registry.call import ACTIVE, LEASE_TOKEN, Call, missing
from windlass.contracts.registry.words import in_words_of_the_wire
from windlass.core.access import Role
from windlass.core.check import check_count
from windlass.core.error import LeaseLost, NotFound
from windlass.core.queue import QueueConfig
from windlass.core.worker import Beat, Worker
from windlass.wire.protos import kagzi_pb2 as pb
from windlass.wire.registry import page_size, page_token, read_id, read_page_token
from windlass.wire.registry_worker import Token, read_token, registration_from, states_of, worker_message

ACTIVE_MAX = 100_000


async def register_worker(call: Call, request: pb.RegisterWorkerRequest) -> pb.RegisterWorkerResponse:
    namespace = call.may(Role.SUBMITTER, request.namespace_id)
    said = registration_from(request, namespace)
    with in_words_of_the_wire():
        worker_id, lease = await call.engine.workers.register(said, stale_s=call.options.stale_s)
    call.house.seen.forget(worker_id)
    call.house.polls.note(lease.id)
    await call.engine.access.declare_namespace(namespace)
    call.tell((LEASE_TOKEN, str(Token(lease.id))))
    return pb.RegisterWorkerResponse(
        worker_id=str(worker_id), heartbeat_interval_secs=max(1, int(call.options.heartbeat_s))
    )


async def worker_heartbeat(call: Call, request: pb.WorkerHeartbeatRequest) -> pb.WorkerHeartbeatResponse:
    """A sign of life for all that the worker runs. If it names what that is, the rest is taken from it."""
    asked_s = asyncio.get_running_loop().time()
    check_count("active_count", request.active_count, most=2**31 - 1)
    worker_id = read_id("worker_id", request.worker_id, "worker")
    await _seen_lately(call, worker_id)
    token = call.metadata.get(LEASE_TOKEN)
    lease_id = None if token is None else read_token(token).lease_id
    ended = max(0, request.completed_delta), max(0, request.failed_delta)
    await call.house.beats.together()
    try:
        beaten = await call.engine.workers.beat(Beat(worker_id, request.active_count, *ended, lease_id))
    except NotFound:
        call.house.seen.forget(worker_id)
        raise
    call.house.polls.note(beaten.lease_id)
    if beaten.draining:
        call.house.seen.forget(worker_id)
    else:
        call.house.seen.keep(worker_id, beaten.lease_id)
    if (active := call.metadata.get(ACTIVE)) is not None:
        await _forget_others(call, beaten.lease_id, active, asked_s)
    return pb.WorkerHeartbeatResponse(accepted=True, should_drain=beaten.draining)


async def _forget_others(call: Call, lease_id: UUID, active: str, asked_s: float) -> None:
    """What the worker does not name is no longer run by it."""
    ids = [read_id(ACTIVE, part.strip()) for part in active.split(",") if part.strip()][:ACTIVE_MAX]
    lease = await call.engine.leases.get(lease_id)
    try:
        await call.engine.leases.extend(lease, ids, asked_s=asked_s)
    except LeaseLost:
        raise missing("worker", lease.worker) from None


async def deregister_worker(call: Call, request: pb.DeregisterWorkerRequest) -> pb.Empty:
    worker = await _seen(call, read_id("worker_id", request.worker_id, "worker"))
    call.house.seen.forget(worker.id)
    if request.drain:
        await call.engine.workers.drain(worker.id)
    else:
        await call.engine.workers.take_offline(worker.id)
    return pb.Empty()


async def list_workers(call: Call, request: pb.ListWorkersRequest) -> pb.ListWorkersResponse:
    namespace = call.may(Role.VIEWER, request.namespace_id)
    page = await call.engine.workers.page(
        namespace,
        queue=request.task_queue or None,
        states=states_of(request.filter_status),
        after=read_page_token(request.page_token),
        limit=page_size(request.page_size),
    )
    settings = await call.engine.queues.settings(namespace, [worker.queues[0] for worker in page.workers])
    configs = {queue: known.config for queue, known in settings.items()}
    return pb.ListWorkersResponse(
        workers=[worker_message(worker, configs.get(worker.queues[0], QueueConfig())) for worker in page.workers],
        next_page_token=page_token(page.next),
        total_count=page.total,
    )


async def get_worker(call: Call, request: pb.GetWorkerRequest) -> pb.GetWorkerResponse:
    call.may_by_id(Role.VIEWER)
    worker = await _seen(call, read_id("worker_id", request.worker_id, "worker"), Role.VIEWER)
    known = (await call.engine.queues.settings(worker.namespace, worker.queues[:1])).get(worker.queues[0])
    return pb.GetWorkerResponse(worker=worker_message(worker, QueueConfig() if known is None else known.config))


async def _seen_lately(call: Call, worker_id: UUID) -> None:
    """Where a worker is does not change, so that a heartbeat need not ask for it each time."""
    call.may_by_id(Role.SUBMITTER)
    if call.principal.namespace is not None:
        try:
            worker, _ = await call.house.seen.get(worker_id)
        except NotFound:
            raise missing("worker", worker_id) from None
        if not call.reaches(worker.namespace):
            raise missing("worker", worker_id)


async def _seen(call: Call, worker_id: UUID, role: Role = Role.SUBMITTER) -> Worker:
    """A worker of another namespace is not there."""
    call.may_by_id(role)
    try:
        worker = await call.engine.workers.get(worker_id)
    except NotFound:
        raise missing("worker", worker_id) from None
    if not call.reaches(worker.namespace):
        raise missing("worker", worker_id)
    return worker
