"""A client of the wire as others write it: generated stubs, nothing of our SDK."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest
from google.rpc.status_pb2 import Status

from windlass.contracts.registry.wire import kagzi_pb2 as pb

DETAILS = "grpc-status-details-bin"


class Client:
    """`client.StartWorkflow(...)` takes the fields of the request."""

    def __init__(self, stub: Any, channel: Any, key: str | None, metadata: dict[str, str]) -> None:
        self.stub, self.channel = stub, channel
        self.metadata = [(name.replace("_", "-"), value) for name, value in metadata.items()]
        if key is not None:
            self.metadata.append(("authorization", f"Bearer {key}"))

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.stub, name)
        request = getattr(pb, pb.DESCRIPTOR.services_by_name["WorkflowService"].methods_by_name[name].input_type.name)

        def call(metadata: tuple[tuple[str, str], ...] = (), timeout: float = 30.0, **fields: Any) -> Any:
            return method(request(**fields), metadata=[*self.metadata, *metadata], timeout=timeout)

        return call

    async def start(self, kind: str = "greet", queue: str = "q", payload: Any = None, **fields: Any) -> str:
        started = await self.StartWorkflow(
            workflow_type=kind, task_queue=queue, input=json.dumps(payload).encode(), **fields
        )
        return str(started.run_id)

    async def run(self, run_id: str, **fields: Any) -> Any:
        return (await self.GetWorkflowRun(run_id=run_id, **fields)).workflow_run

    async def status(self, run_id: str) -> str:
        return shown((await self.run(run_id)).status)

    async def register(self, queue: str = "q", kinds: tuple[str, ...] = ("greet",), **fields: Any) -> str:
        registered = await self.RegisterWorker(task_queue=queue, workflow_types=list(kinds), **fields)
        return str(registered.worker_id)

    async def poll(self, worker_id: str, queue: str = "q", kinds: tuple[str, ...] = ("greet",), **more: Any) -> Any:
        return await self.PollActivity(worker_id=worker_id, task_queue=queue, supported_workflow_types=kinds, **more)


def shown(status: int) -> str:
    return str(pb.WorkflowStatus.Name(status)).removeprefix("WORKFLOW_STATUS_")


class Refused:
    """`with Refused("NOT_FOUND", "NOT_FOUND") as refused:` a call that ends with this status and these details."""

    def __init__(self, status: str, code: str, says: str = "") -> None:
        self.status, self.code, self.says = status, code, says

    def __enter__(self) -> Refused:
        self._raises = pytest.raises(grpc.aio.AioRpcError)
        self._caught = self._raises.__enter__()
        return self

    def __exit__(self, *error: Any) -> bool:
        answered = bool(self._raises.__exit__(*error))
        failed: Any = self._caught.value
        assert failed.code().name == self.status, failed
        self.detail = pb.ErrorDetail()
        [detail] = Status.FromString(dict(failed.trailing_metadata())[DETAILS]).details
        assert detail.Unpack(self.detail)
        assert pb.ErrorCode.Name(self.detail.code) == f"ERROR_CODE_{self.code}"
        assert self.says in failed.details(), failed.details()
        return answered
