"""A client of the registry contract: starts workflows, reads, awaits and cancels runs, and lists workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

from windlass.contracts.registry.wire import kagzi_pb2 as pb
from windlass.contracts.registry.worker.call import Connection, Refused
from windlass.contracts.registry.worker.options import Retry
from windlass.contracts.registry.worker.value import read_value, write_value
from windlass.core.validation import check_instant, check_name, check_seconds, check_text
from windlass.errors import Unavailable, WindlassError
from windlass.net.grpc_channel import error_of

ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED"})
FIRST_POLL_S, MAX_POLL_S = 0.05, 2.0
CALL_S, RETRY_S = 15.0, 60.0


class RunFailed(WindlassError):
    """The run failed or was cancelled: it has no result."""

    code = "run_failed"


@dataclass(frozen=True, slots=True)
class Run:
    """A workflow run as the server knows it. `status` is PENDING, RUNNING, SLEEPING, COMPLETED, FAILED or CANCELLED."""

    run_id: str
    workflow_id: str
    workflow_type: str
    task_queue: str
    namespace: str
    status: str
    input: Any
    output: Any
    error: str
    attempts: int
    worker_id: str
    version: str
    context: Any
    created_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    wake_up_at: datetime | None
    deadline_at: datetime | None

    @property
    def ended(self) -> bool:
        return self.status in ENDED


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker as the server knows it. `status` is ONLINE, DRAINING or OFFLINE."""

    worker_id: str
    namespace: str
    task_queue: str
    status: str
    hostname: str
    pid: int
    version: str
    workflow_types: tuple[str, ...]
    max_concurrent: int
    active_count: int
    total_completed: int
    total_failed: int
    registered_at: datetime | None
    last_heartbeat_at: datetime | None
    labels: dict[str, str]


class Client:
    """A client of one server and namespace. `async with Client(address) as client:`"""

    def __init__(self, address: str, *, namespace: str = "default", api_key: str | None = None) -> None:
        check_name("namespace", namespace)
        self._connection, self._namespace = Connection(address, api_key), namespace

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._connection.close()

    async def start(
        self,
        workflow_type: str,
        input: Any = None,  # noqa: A002
        *,
        queue: str,
        workflow_id: str = "",
        idempotency_key: str = "",
        context: Any = None,
        deadline_at: datetime | None = None,
        version: str = "",
        retry: Retry | None = None,
    ) -> str:
        """Starts a run and returns its id. The same idempotency key returns the same run."""
        request = pb.StartWorkflowRequest(
            workflow_id=workflow_id, task_queue=queue, workflow_type=workflow_type, input=write_value("input", input),
            namespace_id=self._namespace, idempotency_key=idempotency_key, version=version,
            context=b"" if context is None else write_value("context", context),
            retry_policy=None if retry is None else retry.message(),
        )  # fmt: skip
        if deadline_at is not None:
            check_instant("deadline_at", deadline_at)
            request.deadline_at.FromDatetime(deadline_at)
        return str((await self._call("StartWorkflow", request)).run_id)

    async def get(self, run_id: str) -> Run:
        """Raises NotFound."""
        request = pb.GetWorkflowRunRequest(run_id=run_id, namespace_id=self._namespace)
        return _run((await self._call("GetWorkflowRun", request)).workflow_run)

    async def list(self, *, status: str = "", page_size: int = 100) -> AsyncIterator[Run]:
        """All runs, newest first, or those of one status."""
        request = pb.ListWorkflowRunsRequest(page_size=page_size, filter_status=status, namespace_id=self._namespace)
        async for page in self._pages("ListWorkflowRuns", request):
            for message in page.workflow_runs:
                yield _run(message)

    async def cancel(self, run_id: str) -> None:
        """Cancels a run. Raises InvalidState if it has ended."""
        await self._call("CancelWorkflowRun", pb.CancelWorkflowRunRequest(run_id=run_id, namespace_id=self._namespace))

    async def wait(self, run_id: str, timeout_s: float | None = None) -> Run:
        """Waits until the run has ended. Raises TimeoutError."""
        if timeout_s is not None:
            check_seconds("timeout_s", timeout_s)
        pause_s = FIRST_POLL_S
        async with asyncio.timeout(timeout_s):
            while not (run := await self.get(run_id)).ended:
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 1.5, MAX_POLL_S)
        return run

    async def result(self, run_id: str, timeout_s: float | None = None) -> Any:
        """Waits for the run and returns its output. Raises RunFailed if it did not complete."""
        run = await self.wait(run_id, timeout_s)
        if run.status != "COMPLETED":
            raise RunFailed(run.error or f"the run is {run.status}", run_id=run_id, status=run.status)
        return run.output

    async def workers(self, *, queue: str = "", status: str = "", page_size: int = 100) -> AsyncIterator[WorkerInfo]:
        """The workers, newest first, or those of one queue or status."""
        request = pb.ListWorkersRequest(
            namespace_id=self._namespace, task_queue=queue, filter_status=status, page_size=page_size
        )
        async for page in self._pages("ListWorkers", request):
            for message in page.workers:
                yield _worker(message)

    async def worker(self, worker_id: str) -> WorkerInfo:
        """Raises NotFound."""
        check_text("worker_id", worker_id, 100)
        return _worker((await self._call("GetWorker", pb.GetWorkerRequest(worker_id=worker_id))).worker)

    async def _pages(self, name: str, request: Any) -> AsyncIterator[Any]:
        while True:
            page = await self._call(name, request)
            yield page
            request.page_token = page.next_page_token
            if not request.page_token:
                return

    async def _call(self, name: str, request: Any) -> Any:
        """Calls the server. Retries for up to `RETRY_S` seconds while it is unavailable."""
        try:
            async with asyncio.timeout(RETRY_S):
                return await self._connection.call(name, request, timeout_s=CALL_S)
        except Refused as refused:
            raise error_of(refused.error) from None
        except TimeoutError:
            raise Unavailable(f"no answer to {name} within {RETRY_S:.0f} s") from None


def _run(message: pb.WorkflowRun) -> Run:
    return Run(
        message.run_id, message.business_id, message.workflow_type, message.task_queue, message.namespace_id,
        str(pb.WorkflowStatus.Name(message.status)).removeprefix("WORKFLOW_STATUS_"),
        read_value("input", message.input), read_value("output", message.output), message.error.message,
        message.attempts, message.worker_id, message.version,
        read_value("context", message.context), _at(message, "created_at"), _at(message, "started_at"),
        _at(message, "finished_at"), _at(message, "wake_up_at"), _at(message, "deadline_at"),
    )  # fmt: skip


def _worker(message: pb.Worker) -> WorkerInfo:
    return WorkerInfo(
        message.worker_id, message.namespace_id, message.task_queue,
        str(pb.WorkerStatus.Name(message.status)).removeprefix("WORKER_STATUS_"), message.hostname, message.pid,
        message.version, tuple(message.workflow_types), message.max_concurrent, message.active_count,
        message.total_completed, message.total_failed, _at(message, "registered_at"), _at(message, "last_heartbeat_at"),
        dict(message.labels),
    )  # fmt: skip


def _at(message: Any, field: str) -> datetime | None:
    if not message.HasField(field):
        return None
    at: datetime = getattr(message, field).ToDatetime(tzinfo=UTC)
    return at
