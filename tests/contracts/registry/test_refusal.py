"""What a refusal is to the clients of each gRPC library: the status, the text, and the details beside them."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import status_pb2
from grpc_status import rpc_status
from tests.contracts.registry.client import DETAILS, Client
from tests.kit.world import KEY

from windlass import Engine
from windlass.contracts.registry.wire import kagzi_pb2 as pb
from windlass.contracts.registry.wire.status import asks_for_origin

pytestmark = pytest.mark.slow

NOBODY = "01890a5d-ac96-774b-bcce-b302099a8057"
LONG = "x" * 20_000
PROGRAM = Path(__file__).parent / "go"

REFUSED = [
    ("GetWorkflowRun", {"run_id": NOBODY}, "NOT_FOUND", "NOT_FOUND"),
    ("GetWorkflowRun", {"run_id": "no id"}, "INVALID_ARGUMENT", "INVALID_ARGUMENT"),
    ("ListWorkflowRuns", {"filter_status": LONG}, "INVALID_ARGUMENT", "INVALID_ARGUMENT"),
    ("ListWorkflowRuns", {"filter_status": "größer\n"}, "INVALID_ARGUMENT", "INVALID_ARGUMENT"),
    (
        "PollActivity",
        {"worker_id": NOBODY, "task_queue": "q", "supported_workflow_types": ["greet"]},
        "FAILED_PRECONDITION",
        "PRECONDITION_FAILED",
    ),
]


@pytest.mark.parametrize(("method", "fields", "status", "code"), REFUSED)
async def test_a_python_client_reads_the_details_with_grpcio_status(
    client: Client, method: str, fields: dict[str, Any], status: str, code: str
) -> None:
    call = getattr(client, method)(**fields)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call

    told = await rpc_status.aio.from_call(call)

    assert told.code == getattr(grpc.StatusCode, status).value[0]
    assert told.message == refused.value.details()
    [one] = told.details
    detail = pb.ErrorDetail()
    assert one.type_url == "type.googleapis.com/kagzi.ErrorDetail"
    assert one.Unpack(detail)
    assert pb.ErrorCode.Name(detail.code) == f"ERROR_CODE_{code}"
    assert detail.message == told.message
    assert len(detail.message) <= 1000


async def test_a_tonic_client_gets_the_bytes_of_the_origin(server: str, stubs: Any) -> None:
    options = (("grpc.primary_user_agent", "tonic/0.14.2"), ("grpc.use_local_subchannel_pool", 1))
    async with grpc.aio.insecure_channel(server.removeprefix("http://"), options=options) as channel:
        client = Client(stubs.WorkflowServiceStub(channel), channel, KEY, {})
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await client.GetWorkflowRun(run_id=NOBODY)

    detail = pb.ErrorDetail.FromString(dict(refused.value.trailing_metadata() or ())[DETAILS])
    assert (detail.code, detail.subject, detail.subject_id) == (pb.ERROR_CODE_NOT_FOUND, "workflow_run", NOBODY)


@pytest.mark.parametrize(
    ("user_agent", "origin"),
    [
        ("tonic/0.12.3", True),
        ("billing/2.0 tonic/0.14.2", True),
        ("grpc-go/1.85.0", False),
        ("grpc-python-asyncio/1.85.1 grpc-c/55.0.0 (linux; chttp2)", False),
        ("tectonic/1.0 grpc-go/1.85.0", False),
        ("", False),
        (None, False),
    ],
)
def test_the_form_is_chosen_by_user_agent(user_agent: str | None, origin: bool) -> None:
    assert asks_for_origin(user_agent) is origin


async def test_a_defect_has_details_too(client: Client, live_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(live_engine.tasks, "page", broken)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client.ListWorkflowRuns()

    told = status_pb2.Status.FromString(dict(refused.value.trailing_metadata() or ())[DETAILS])
    assert told.code == grpc.StatusCode.INTERNAL.value[0]
    assert told.message == refused.value.details()


@pytest.fixture(scope="session")
def go_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A client that is built with grpc-go."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("needs Go, which is not installed")
    made = tmp_path_factory.mktemp("go") / "refusals"
    known = {**os.environ, "GOFLAGS": "-buildvcs=false -mod=readonly"}

    def run(*words: str) -> Any:
        return subprocess.run([go, *words], cwd=PROGRAM, env=known, capture_output=True, text=True, check=False)

    fetched = run("mod", "download")
    if fetched.returncode != 0:
        pytest.skip(f"needs the modules of {PROGRAM.name}/go.mod, which cannot be fetched: {fetched.stderr[-300:]}")
    built = run("build", "-o", str(made), ".")
    assert built.returncode == 0, built.stderr
    return made


async def test_a_go_client_sees_the_status_and_the_details(server: str, go_program: Path) -> None:
    calls = [(method, fields) for method, fields, _, _ in REFUSED]
    calls.append(("StartWorkflow", {"workflow_type": "greet", "task_queue": "q"}))
    words = [word for method, fields in calls for word in (method, json.dumps(fields))]
    process = await asyncio.create_subprocess_exec(
        go_program, server.removeprefix("http://"), KEY, *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()

    *refused, accepted = [json.loads(line) for line in out.splitlines()]
    assert accepted["code"] == "OK"
    assert accepted["reply"]["run_id"]
    for seen, (_, _, status, code) in zip(refused, REFUSED, strict=True):
        assert seen["code"].upper() == status.replace("_", ""), seen
        assert seen["kinds"] == ["kagzi.ErrorDetail"]
        [detail] = seen["details"]
        assert detail["code"] == f"ERROR_CODE_{code}"
        assert detail["message"] == seen["message"]
