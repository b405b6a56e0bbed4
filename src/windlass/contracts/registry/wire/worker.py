"""Converts workers of the registry contract to and from messages, and reads lease tokens."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from windlass.contracts.registry.wire import kagzi_pb2 as pb
from windlass.contracts.registry.wire.messages import timestamp
from windlass.contracts.registry.wire.service import LEASE_TOKEN
from windlass.core.queue import QueueConfig
from windlass.core.worker import Registration, Worker, WorkerState, limit_of
from windlass.errors import Invalid

STATUS = {
    WorkerState.ONLINE: pb.WORKER_STATUS_ONLINE,
    WorkerState.DRAINING: pb.WORKER_STATUS_DRAINING,
    WorkerState.OFFLINE: pb.WORKER_STATUS_OFFLINE,
}


class Token(NamedTuple):
    """A lease and, for a polled run, its attempt. Attempt 0 means the registration of the worker itself."""

    lease_id: UUID
    attempt: int = 0

    def __str__(self) -> str:
        return f"{self.lease_id.hex}.{self.attempt}"


def read_token(text: str) -> Token:
    lease, _, attempt = text.partition(".")
    try:
        return Token(UUID(hex=lease), int(attempt))
    except ValueError:
        raise Invalid("is not a lease token of this server", field=LEASE_TOKEN) from None


def registration_from(request: pb.RegisterWorkerRequest, namespace: str) -> Registration:
    limits = {limit.workflow_type: limit_of(limit.max_concurrent) for limit in request.workflow_type_concurrency}
    return Registration(
        namespace=namespace,
        queue=request.task_queue,
        kinds=tuple(dict.fromkeys(request.workflow_types)),
        host=request.hostname,
        pid=max(0, request.pid),
        version=request.version,
        max_running=max(1, request.max_concurrent),
        labels=dict(request.labels),
        queue_limit=limit_of(request.queue_concurrency_limit),
        kind_limits={kind: limit for kind, limit in limits.items() if limit is not None},
    )


def worker_message(worker: Worker, config: QueueConfig) -> pb.Worker:
    """`config` is the configuration of its queue."""
    return pb.Worker(
        worker_id=str(worker.id), namespace_id=worker.namespace, task_queue=worker.queues[0],
        status=STATUS[worker.state], hostname=worker.host, pid=worker.pid, version=worker.version,
        workflow_types=worker.kinds or (), max_concurrent=worker.max_running, active_count=worker.active,
        total_completed=worker.completed, total_failed=worker.failed, registered_at=timestamp(worker.registered_at),
        last_heartbeat_at=timestamp(worker.heartbeat_at), labels=worker.labels,
        queue_concurrency_limit=config.max_running or 0,
        workflow_type_concurrency=[
            pb.WorkflowTypeConcurrency(workflow_type=kind, max_concurrent=limit)
            for kind, limit in sorted(config.max_running_per_kind.items())
            if worker.kinds is None or kind in worker.kinds
        ],
    )  # fmt: skip


def states_of(filter_status: str) -> list[WorkerState] | None:
    if not filter_status:
        return None
    if filter_status not in WorkerState.__members__:
        raise Invalid(f"{filter_status!r} is not a status of a worker", field="filter_status")
    return [WorkerState[filter_status]]
