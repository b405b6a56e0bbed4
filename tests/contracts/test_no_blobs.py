"""A database and no blob store: what is too long for a row is refused where it arises, whoever runs the task, and the
setting to give is named. No handler runs twice for it, no other task notices, and nobody writes to a folder of its own.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import grpc
import httpx
import pytest
from tests.contracts import any_wire, test_any_wire
from tests.contracts.lease.world import make_tls_files
from tests.contracts.test_any_wire import KEY, Site, pull, push, session, shop, stdio, working

from windlass import App, Engine, State, Submission, TaskFailed, WorkflowContext
from windlass.contracts.callback.server.options import PushOptions
from windlass.contracts.lease.delivery import Wakeup
from windlass.contracts.lease.worker.attempt import Attempt
from windlass.contracts.lease.worker.dispatcher import Claimed, Dispatcher, tls_context
from windlass.contracts.lease.worker.operator import Answer
from windlass.contracts.machine.delivery import Machine
from windlass.contracts.machine.launchers.options import MachineOptions
from windlass.contracts.machine.launchers.process import ProcessLauncher
from windlass.contracts.registry.wire import kagzi_pb2 as pb
from windlass.core.validation import PAYLOAD_MAX_BYTES
from windlass.doctor import examine
from windlass.engine.read.doctor import Level
from windlass.errors import TooLarge
from windlass.serve import open_carriers, open_engine, open_internal, open_server, open_sessions
from windlass.store.tables.view import TaskView

pytestmark = pytest.mark.slow
SETTING = "WINDLASS_BLOBS"
SIZES = [PAYLOAD_MAX_BYTES, 10 * 1024 * 1024]  # in a message of gRPC, and longer than any


@pytest.fixture(autouse=True)
def away_from_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(test_any_wire.KINDS, "flood", any_wire.flood)
    (tmp_path / "somewhere").mkdir()
    monkeypatch.chdir(tmp_path / "somewhere")


@pytest.fixture
async def site(database: str, tmp_path: Path) -> AsyncIterator[Site]:
    tls_files = make_tls_files(tmp_path)
    files = {"certificate": tls_files.server.certificate, "key": tls_files.server.key, "authority": tls_files.authority}
    push_options = PushOptions(loopback=True)
    machines = MachineOptions(launchers=(ProcessLauncher(tmp_path / "machines"),))
    async with (
        open_engine(database) as engine,
        open_server(engine, http="127.0.0.1:0", api_key=KEY, push=push_options, machines=machines) as api,
        open_sessions(engine, grpc="127.0.0.1:0", api_key=KEY) as server,
        open_internal(engine, internal="127.0.0.1:0", **files) as internal,
        open_carriers(engine, loopback=True),
    ):
        yield Site(engine, api, server, internal, tls_files)
    assert list(Path.cwd().iterdir()) == []


def failed_once(view: TaskView) -> None:
    assert view.task.error is not None, view.task
    assert (view.task.state, view.task.attempt, view.task.losses) == (State.FAILED, 1, 0), view.task.error.message
    assert SETTING in view.task.error.message
    assert view.task.error.retryable is False


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("way", [pull, session, push, stdio])
async def test_a_result_fails_its_task_once_and_no_other(site: Site, way: Any, size: int) -> None:
    async with way(site, "any"):
        first = await site.engine.submit(Submission(kind="flood", payload=b'{"size": %d}' % size, queue="any"))
        label = Submission(kind="label", payload=b'{"order": 1, "lines": []}', queue="any")
        others = await site.engine.submit_many([label] * 5)
        failed_once(await site.engine.wait(first, 60))
        for other in others:
            assert (await site.engine.wait(other, 60)).task.state is State.SUCCEEDED


@pytest.mark.parametrize("size", SIZES)
async def test_the_report_of_a_wrapper_becomes_a_failure(site: Site, size: int) -> None:
    await site.set_up("any", Wakeup())
    task_id = await site.engine.submit(Submission(kind="flood", queue="any"))
    context = tls_context(site.tls_files.client.certificate, site.tls_files.client.key, site.tls_files.authority)
    dispatcher = Dispatcher(site.internal, context)

    async def operate(*_: Any) -> Answer:
        return Answer(result="x" * size)

    claimed = await dispatcher.claim(task_id, "w", uuid4())
    assert isinstance(claimed, Claimed)
    assert await Attempt(dispatcher, claimed, operate).run() == "Failed"
    failed_once(await site.engine.wait(task_id, 60))
    dispatcher.close()


async def test_workers_of_others_are_told_what_to_set(site: Site) -> None:
    """They know what to do about it; ours report a failure."""
    big = b'"' + b"x" * PAYLOAD_MAX_BYTES + b'"'
    task_id = await site.engine.submit(Submission(kind="flood", queue="any"))
    async with grpc.aio.insecure_channel(site.grpc.removeprefix("http://")) as channel:

        async def call(name: str, **fields: Any) -> Any:
            method = pb.DESCRIPTOR.services_by_name["WorkflowService"].methods_by_name[name]
            asked, answered = (getattr(pb, kind.name) for kind in (method.input_type, method.output_type))
            way = channel.unary_unary(f"/kagzi.WorkflowService/{name}", asked.SerializeToString, answered.FromString)
            return await way(asked(**fields), metadata=(("authorization", f"Bearer {KEY}"),))

        worker = await call("RegisterWorker", task_queue="any", workflow_types=["flood"])
        asked = {"worker_id": worker.worker_id, "task_queue": "any", "supported_workflow_types": ["flood"]}
        run = await call("PollActivity", **asked)
        assert UUID(run.run_id) == task_id
        for name, fields in (
            ("StartWorkflow", {"workflow_type": "flood", "task_queue": "any", "input": big}),
            ("CompleteWorkflow", {"run_id": run.run_id, "output": big}),
        ):
            with pytest.raises(grpc.aio.AioRpcError, match=SETTING) as refused:
                await call(name, **fields)
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("size", SIZES)
async def test_a_payload_is_refused_by_whoever_takes_it(site: Site, size: int) -> None:
    near, far = shop(), shop(server=site.grpc, api_key=KEY)
    near.connect_by(lambda: nullcontext(site.engine))
    for app in (near, far):
        async with app:
            with pytest.raises(TooLarge, match=SETTING):
                await app.handlers["label"].submit(1, ["x" * size])
            with pytest.raises(TooLarge, match=SETTING):
                await app.handlers["label"].submit_many([(1, []), (1, ["x" * size])])
    headers = {"Authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(base_url=site.api, headers=headers, timeout=60) as api:
        said = {"kind": "label", "payload": "x" * size}
        for path, body in (("/api/v1/tasks", said), ("/api/v1/tasks/batch", {"tasks": [said]})):
            refused = await api.post(path, json=body)
            assert refused.status_code == 413
            assert SETTING in refused.json()["detail"]
    assert (await site.engine.tasks.page(limit=1)).tasks == []


@pytest.mark.parametrize("far", [False, True], ids=["near", "far"])
async def test_what_a_workflow_would_keep_is_not_tried_again(site: Site, far: bool) -> None:
    app = shop(server=site.grpc, api_key=KEY) if far else shop()
    if not far:
        app.connect_by(lambda: nullcontext(site.engine))
    runs: list[str] = []

    @app.step
    async def load(size: int) -> str:
        runs.append("step")
        return "x" * size

    @app.workflow
    async def report(ctx: WorkflowContext, size: int) -> int:
        runs.append("workflow")
        return len(await ctx.step(load, size))

    @app.workflow
    async def share(ctx: WorkflowContext, size: int) -> None:
        runs.append("share")
        await ctx.submit(app.handlers["label"], 1, ["x" * size])

    @app.task
    async def hand_on(size: int) -> None:
        runs.append("hand on")
        await app.handlers["label"].submit(1, ["x" * size])

    async with working(app, "default"):
        for handler in (report, share, hand_on):
            for size in SIZES:
                with pytest.raises(TaskFailed, match=SETTING):
                    await (await handler.submit(size)).result(timeout=60)
    assert runs == ["workflow", "step"] * 2 + ["share"] * 2 + ["hand on"] * 2


async def test_a_machine_is_not_launched(site: Site) -> None:
    await site.set_up("any", Machine(launcher="process", command=["/bin/true"]))
    task_id = await site.engine.submit(Submission(kind="export", queue="any"))
    view = await site.engine.wait(task_id, 60)
    assert view.task.error is not None
    assert (view.task.state, view.task.attempt) == (State.FAILED, 1)
    assert SETTING in view.task.error.message


async def test_a_process_beside_a_database_that_has_a_store_is_told_which(database: str, tmp_path: Path) -> None:
    """Also the worker, which would otherwise have thrown the result away and run the handler again."""
    blobs = tmp_path / "blobs"
    async with open_engine(database, blobs=str(blobs)) as server:
        kept = await server.submit(Submission(kind="flood", payload=b'"' + b"x" * PAYLOAD_MAX_BYTES + b'"'))
    async with open_engine(database) as none, open_engine(database, blobs=str(tmp_path / "other")) as other:
        for engine in (none, other):
            with pytest.raises(TooLarge, match=f"kept in .*{blobs.name}.*{SETTING}"):
                await engine.submit(Submission(kind="flood", payload=b'"' + b"x" * PAYLOAD_MAX_BYTES + b'"'))
            site = _only(engine)
            async with pull(site, "any"):
                view = await site.ran("flood", {"size": PAYLOAD_MAX_BYTES}, "any")
            failed_once(view)
    findings = await examine(database, local_s=time.time())
    [found] = [finding for finding in findings if finding.name == "blobs"]
    assert (found.level, SETTING in found.advice) == (Level.WRONG, True)
    assert kept


async def test_doctor_says_that_large_things_are_refused(database: str) -> None:
    [found] = [f for f in await examine(database, local_s=time.time()) if f.name == "blobs"]
    assert (found.level, "2 MiB are refused" in found.message) == (Level.OK, True)


def _only(engine: Engine) -> Site:
    return Site(engine, "", "", "", None)  # type: ignore[arg-type]


async def test_an_app_of_its_own_keeps_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is set: one machine, one folder, and everybody in it finds what is kept there."""
    monkeypatch.delenv("DATABASE_URL", raising=False)
    app = App("shop", data_dir=tmp_path / "data")
    app.task(kind="flood")(any_wire.flood)
    async with working(app, "default"):
        result = await (await app.handlers["flood"].submit(PAYLOAD_MAX_BYTES)).result(timeout=60)
    assert len(result) == PAYLOAD_MAX_BYTES
    assert list((tmp_path / "data/blobs").rglob("result-*")) != []
