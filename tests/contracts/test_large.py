"""A payload and a result that are too long for a row, over every wire: who uses one sees no difference."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import grpc
import httpx
import pytest
from tests.contracts.callback.world import World, open_world
from tests.contracts.lease import world as leases
from tests.contracts.registry.client import Client
from tests.kit.work import soon
from tests.kit.world import KEY, open_still

from windlass import App, Engine, QueueConfig, State, Submission, TaskFailed
from windlass.contracts.registry.wire import kagzi_pb2 as pb
from windlass.contracts.stdio.delivery import Stdio, StdioHandler
from windlass.core.validation import PAYLOAD_MAX_BYTES
from windlass.engine.payloads.objects import MARKER
from windlass.net.grpc_channel import MESSAGE_MAX_BYTES
from windlass.serve import open_blobs, open_engine, open_pools, open_server, open_sessions
from windlass.testing.clock import VirtualClock

pytestmark = pytest.mark.slow

BIG = "é" + "b" * PAYLOAD_MAX_BYTES + "é"  # the same from both ends
LIMIT = 8 * 1024 * 1024


@pytest.fixture
async def engine(database: str, tmp_path: Path) -> AsyncIterator[Engine]:
    async with open_engine(database, blobs=str(tmp_path / "blobs"), payload_max_bytes=LIMIT) as engine:
        engine.keys.accept_root(KEY)
        yield engine


def same(one: object, other: object) -> bool:
    """Without a look at how they differ, which would take minutes."""
    return one == other


def objects(tmp_path: Path) -> int:
    return len([file for file in (tmp_path / "blobs").rglob("*") if file.is_file() and file.name != MARKER])


@asynccontextmanager
async def working(app: App) -> AsyncIterator[None]:
    async with app:
        worker = app.worker(heartbeat_process=False)
        running = asyncio.create_task(worker.run())
        yield
        worker.stop()
        await running


def mirror(app: App) -> Any:
    @app.task
    async def mirrored(text: str) -> str:
        return text[::-1]

    return mirrored


async def test_beside_the_database(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WINDLASS_BLOBS", str(tmp_path / "blobs"))
    monkeypatch.setenv("WINDLASS_PAYLOAD_MAX_BYTES", str(LIMIT))
    app = App("shop", database)
    mirrored = mirror(app)

    @app.task
    async def too_much(length: int) -> str:
        return "x" * length

    async with working(app):
        assert same(await (await mirrored.submit("a" + BIG)).result(timeout=60), BIG + "a")
        with pytest.raises(TaskFailed, match=f"the limit is {LIMIT}"):
            await (await too_much.submit(LIMIT)).result(timeout=60)
    assert objects(tmp_path) == 2


async def test_far_from_the_database(engine: Engine, tmp_path: Path) -> None:
    async with open_sessions(engine, grpc="127.0.0.1:0", api_key=KEY) as url:
        app = App("shop", server=url, api_key=KEY)
        mirrored = mirror(app)
        async with working(app):
            small = await mirrored.submit("ab")
            handle = await mirrored.submit("a" + BIG)
            assert same(await handle.result(timeout=60), BIG + "a")
            assert await small.result(timeout=60) == "ba"
    assert objects(tmp_path) == 2


async def test_over_http(engine: Engine, tmp_path: Path) -> None:
    app = App("shop")
    app.connect_by(lambda: _open(engine))
    kind = mirror(app).kind
    headers = {"Authorization": f"Bearer {KEY}"}
    async with (
        working(app),
        open_server(engine, http="127.0.0.1:0", api_key=KEY) as url,
        httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as api,
    ):
        made = await api.post("/api/v1/tasks", json={"kind": kind, "payload": {"text": "a" + BIG}})
        assert made.status_code == 201, made.text[:500]
        assert same(made.json()["payload"], {"text": "a" + BIG})
        path = f"/api/v1/tasks/{made.json()['id']}"
        await soon(engine.wait(UUID(made.json()["id"]), 45))
        seen = await api.get(path)
        assert (seen.json()["state"], seen.json()["omitted"]) == ("succeeded", [])
        assert same(seen.json()["result"], BIG + "a")
        assert len(seen.content) == int(seen.headers["content-length"])
        head = await api.head(path)
        assert (head.content, head.headers["content-length"]) == (b"", seen.headers["content-length"])
        [listed] = (await api.get("/api/v1/tasks")).json()["items"]
        assert (listed["payload"], listed["result"], listed["omitted"]) == (None, None, ["payload", "result"])
        batch = await api.post("/api/v1/tasks/batch", json={"tasks": [{"kind": "x", "payload": BIG}, {"kind": "x"}]})
        assert [item["omitted"] for item in batch.json()["items"]] == [["payload"], []]
        too_long = {"kind": "x", "payload": "x" * (LIMIT + 1)}
        assert (await api.post("/api/v1/tasks", json=too_long)).status_code == 413
        assert (await api.post("/api/v1/tasks", json={**too_long, "payload": BIG * 4})).status_code == 413
        for file in (tmp_path / "blobs").rglob("payload-*"):
            file.unlink()
        gone = (await api.get(path)).json()
        assert gone["payload"] is None
        assert same(gone["result"], BIG + "a")


@asynccontextmanager
async def _open(engine: Engine) -> AsyncIterator[Engine]:
    yield engine


async def test_pushed_to_a_service(database: str, clock: VirtualClock, tmp_path: Path) -> None:
    blobs = open_blobs(str(tmp_path / "blobs"))
    async with (
        open_still(database, clock, blobs=blobs, payload_max_bytes=LIMIT) as engine,
        open_world(engine, clock) as world,
    ):
        world.http.timeout = httpx.Timeout(60)
        await world.queue()
        attempt = await world.started(payload=json.dumps(BIG).encode())
        assert same(attempt.envelope["payload"], BIG)
        await _refused(world, attempt)
        for _ in range(2):
            answer = await attempt.completed(output={"text": BIG})
            assert (answer.status_code, answer.json()["finalState"]) == (200, "SUCCEEDED")
        assert (await attempt.completed(output={"text": "o" + BIG})).status_code == 409
        result = (await engine.wait(attempt.task_id, 0)).task.result
        assert same(json.loads(result or b""), {"text": BIG})
        while await engine.loops.effects_tick():
            pass
    assert objects(tmp_path) == 2


async def _refused(world: World, attempt: Any) -> None:
    before = await world.rows()
    assert (await attempt.completed(output=BIG, token=attempt.token[:-3])).status_code == 401
    assert (await attempt.completed(output="x" * (LIMIT + 3 * 1024 * 1024))).status_code == 413
    assert (await attempt.heartbeat(message="x" * (PAYLOAD_MAX_BYTES + 1))).status_code == 413
    assert await world.rows() == before


class Stub:
    """Every call of the service, as a client makes it that raised its limits."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def __getattr__(self, name: str) -> Any:
        method = pb.DESCRIPTOR.services_by_name["WorkflowService"].methods_by_name[name]
        asked, told = (getattr(pb, kind.name) for kind in (method.input_type, method.output_type))
        return self._channel.unary_unary(f"/kagzi.WorkflowService/{name}", asked.SerializeToString, told.FromString)


async def test_polled_over_grpc(engine: Engine, tmp_path: Path) -> None:
    options = [("grpc.max_receive_message_length", MESSAGE_MAX_BYTES)]
    async with (
        open_sessions(engine, grpc="127.0.0.1:0", api_key=KEY) as url,
        grpc.aio.insecure_channel(url.removeprefix("http://"), options=options) as channel,
    ):
        client = Client(Stub(channel), channel, KEY, {})
        run_id = await client.start(payload=BIG)
        polled = await client.poll(await client.register())
        assert polled.run_id == run_id
        assert same(json.loads(polled.workflow_input), BIG)
        begun = await client.BeginStep(run_id=run_id, step_id="load")
        assert begun.should_execute
        await client.CompleteStep(run_id=run_id, step_id="load", output=json.dumps("s" + BIG).encode())
        again = await client.BeginStep(run_id=run_id, step_id="load")
        assert same(json.loads(again.cached_result), "s" + BIG)
        for _ in range(2):
            await client.CompleteWorkflow(run_id=run_id, output=json.dumps("o" + BIG).encode())
        run = await client.run(run_id)
        assert same((json.loads(run.input), json.loads(run.output)), (BIG, "o" + BIG))
        [listed] = (await client.ListWorkflowRuns()).workflow_runs
        assert (listed.input, listed.output) == (b"", b"")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.StartWorkflow(workflow_type="greet", task_queue="q", input=b'"' + b"x" * LIMIT + b'"')
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert objects(tmp_path) == 3


async def test_held_under_a_lease(database: str, clock: VirtualClock, tmp_path: Path) -> None:
    blobs = open_blobs(str(tmp_path / "blobs"))
    async with (
        open_still(database, clock, blobs=blobs, payload_max_bytes=LIMIT) as engine,
        leases.open_world(engine, clock, leases.make_tls_files(tmp_path)) as world,
    ):
        await world.queue()
        holder = await world.held(payload=json.dumps({"text": BIG}).encode())
        assert same(holder.reply["task"]["config"], {"text": BIG})
        fetched = await world.http.get("/internal/task-fetch", params={"task_id": str(holder.task_id)})
        assert same(fetched.json()["config"], {"text": BIG})
        assert (await holder.complete(result="x" * (LIMIT + 3 * 1024 * 1024))).status_code == 413
        for _ in range(2):
            assert (await holder.complete(result=BIG)).json()["status"] == "Completed"
        result = (await engine.wait(holder.task_id, 0)).task.result
        assert same(json.loads(result or b""), BIG)
        task_id = await world.submit(payload=json.dumps({"text": BIG}).encode())
        for file in (tmp_path / "blobs").rglob("payload-*"):
            file.unlink()
        refused = await world.post("task-claim", {"task_id": str(task_id), "worker_id": "w"})
        assert (refused.status_code, (await world.task(task_id)).state) == (503, State.FAILED)


async def test_handed_to_a_program(engine: Engine, tmp_path: Path) -> None:
    handler = StdioHandler(script="task.outputs['text'] = text[::-1]")
    await engine.queues.put("programs", delivery=Stdio(handlers={"mirrored": handler}), limits=QueueConfig())
    async with open_pools(engine):
        payload = json.dumps({"text": "a" + BIG}).encode()
        task_id = await engine.submit(Submission(kind="mirrored", queue="programs", payload=payload))
        seen = await engine.wait(task_id, 60)
    assert seen.task.state is State.SUCCEEDED, seen.task.error
    assert same(json.loads(seen.task.result or b""), {"text": BIG + "a"})
    assert objects(tmp_path) == 2
