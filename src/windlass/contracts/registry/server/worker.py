"""Calls of workers about themselves: register, heartbeat, deregister; and lists of workers."""

from __future__ import annotations

import asyncio
from uuid import UUID

from windlass.contracts.registry.server.call import Call, missing, not_found_as
from windlass.contracts.registry.wire import kagzi_pb2 as pb
from windlass.contracts.registry.wire.field_names import wire_field_names
from windlass.contracts.registry.wire.messages import page_size, page_token, read_id, read_page_token
from windlass.contracts.registry.wire.service import ACTIVE, LEASE_TOKEN
from windlass.contracts.registry.wire.worker import Token, read_token, registration_from, states_of, worker_message
from windlass.core.access import Role, check_role
from windlass.core.queue import QueueConfig
from windlass.core.validation import check_count
from windlass.core.worker import Worker, WorkerHeartbeat
from windlass.errors import LeaseLost, NotFound

ACTIVE_MAX = 100_000


async def register_worker(call: Call, request: pb.RegisterWorkerRequest) -> pb.RegisterWorkerResponse:
    namespace = call.may(Role.SUBMITTER, request.namespace_id)
    registration = registration_from(request, namespace)
    with wire_field_names():
        worker_id, lease = await call.engine.workers.register(registration, stale_s=call.options.stale_s)
    call.shared.workers.forget(worker_id)
    call.shared.polls.note(lease.id)
    await call.engine.keys.declare_namespace(namespace)
    call.context.set_trailing_metadata(((LEASE_TOKEN, str(Token(lease.id))),))
    heartbeat_s = max(1, int(call.options.heartbeat_s))
    return pb.RegisterWorkerResponse(worker_id=str(worker_id), heartbeat_interval_secs=heartbeat_s)


async def worker_heartbeat(call: Call, request: pb.WorkerHeartbeatRequest) -> pb.WorkerHeartbeatResponse:
    """Extends all runs of the worker. If it names its active runs, the others are taken from it."""
    received_s = asyncio.get_running_loop().time()
    check_count("active_count", request.active_count, most=2**31 - 1)
    worker_id = read_id("worker_id", request.worker_id, "worker")
    await _check_worker(call, worker_id)
    token = call.metadata.get(LEASE_TOKEN)
    named = None if token is None else read_token(token).lease_id
    ended = max(0, request.completed_delta), max(0, request.failed_delta)
    await call.shared.heartbeats.together()
    try:
        report = WorkerHeartbeat(worker_id, request.active_count, *ended, named)
        lease_id, extension = await call.engine.workers.heartbeat(report)
    except NotFound:
        call.shared.workers.forget(worker_id)
        raise
    call.shared.polls.note(lease_id)
    if extension.drain:
        call.shared.workers.forget(worker_id)
    else:
        call.shared.workers.keep(worker_id, lease_id)
    if (active := call.metadata.get(ACTIVE)) is not None:
        await _take_unnamed_runs(call, lease_id, active, received_s)
    return pb.WorkerHeartbeatResponse(accepted=True, should_drain=extension.drain)


async def _take_unnamed_runs(call: Call, lease_id: UUID, active: str, received_s: float) -> None:
    """Takes the runs that the worker does not name from it."""
    ids = [read_id(ACTIVE, part.strip()) for part in active.split(",") if part.strip()][:ACTIVE_MAX]
    lease = await call.engine.parts.leases.get(lease_id)
    try:
        await call.engine.parts.leases.extend(lease, ids, received_s=received_s)
    except LeaseLost:
        raise missing("worker", lease.worker) from None


async def deregister_worker(call: Call, request: pb.DeregisterWorkerRequest) -> pb.Empty:
    worker = await _get_worker(call, Role.SUBMITTER, request.worker_id)
    call.shared.workers.forget(worker.id)
    if request.drain:
        await call.engine.workers.drain(worker.id)
    else:
        await call.engine.workers.take_offline(worker.id)
    return pb.Empty()


async def list_workers(call: Call, request: pb.ListWorkersRequest) -> pb.ListWorkersResponse:
    namespace = call.may(Role.VIEWER, request.namespace_id)
    page = await call.engine.workers.page(
        namespace,
        queue=call.queue_filter(request.task_queue),
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
    worker = await _get_worker(call, Role.VIEWER, request.worker_id)
    known = (await call.engine.queues.settings(worker.namespace, worker.queues[:1])).get(worker.queues[0])
    return pb.GetWorkerResponse(worker=worker_message(worker, QueueConfig() if known is None else known.config))


async def _check_worker(call: Call, worker_id: UUID) -> None:
    """Checks the namespace of the worker. It never changes, so the cache saves a read per heartbeat."""
    check_role(call.principal, Role.SUBMITTER)
    if call.principal.namespace is not None:
        with not_found_as("worker", worker_id):
            worker, _ = await call.shared.workers.get(worker_id)
        if not call.reaches(worker.namespace):
            raise missing("worker", worker_id)


async def _get_worker(call: Call, role: Role, id_text: str) -> Worker:
    """Raises NotFound for a worker of another namespace."""
    check_role(call.principal, role)
    worker_id = read_id("worker_id", id_text, "worker")
    with not_found_as("worker", worker_id):
        worker = await call.engine.workers.get(worker_id)
    if not call.reaches(worker.namespace):
        raise missing("worker", worker_id)
    return worker
