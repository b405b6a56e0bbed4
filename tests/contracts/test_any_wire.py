"""One task, any wire: the same kind with the same payload runs through every delivery, by changing its queue only.

A row of WAYS sets a queue up and has somebody work on it, in that delivery's own way. A new delivery joins with a row.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import httpx
import msgspec
import pytest
from tests.contracts import any_wire
from tests.contracts.lease import function as functions
from tests.contracts.lease.world import TlsFiles, client, make_tls_files
from tests.kit.world import KEY

from windlass import App, Engine, Policy, State, Submission
from windlass.contracts.callback.delivery import Push
from windlass.contracts.callback.server.options import PushOptions
from windlass.contracts.lease.delivery import Invoke, Wakeup
from windlass.contracts.lease.wakeups.carriers.drivers import make_consumer
from windlass.contracts.lease.wakeups.carriers.internal import fetch_route
from windlass.contracts.lease.wire.wakeup import task_of
from windlass.contracts.machine.delivery import Machine
from windlass.contracts.machine.launchers.options import MachineOptions
from windlass.contracts.machine.launchers.process import ProcessLauncher
from windlass.contracts.registry.wire import kagzi_pb2 as pb
from windlass.contracts.stdio.delivery import Stdio, StdioHandler
from windlass.core.delivery import DELIVERIES, Delivery
from windlass.core.queue import QueueConfig
from windlass.net.server.server import listening
from windlass.serve import open_blobs, open_carriers, open_internal, open_pools, open_server, open_sessions
from windlass.store.store import Store
from windlass.store.tables.view import TaskView

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
KINDS = {"label": any_wire.label, "refuse": any_wire.refuse}
PENDING: set[str] = set()  # deliveries of contracts that have no row yet


@dataclass
class Site:
    """An engine with everything that serves its contracts."""

    engine: Engine
    api: str
    grpc: str
    internal: str
    tls_files: TlsFiles

    def certified(self) -> httpx.AsyncClient:
        return client(self.internal, self.tls_files, self.tls_files.client)

    async def set_up(self, queue: str, delivery: Delivery) -> Any:
        return (await self.engine.queues.put(queue, delivery=delivery, limits=QueueConfig())).settings

    async def ran(self, kind: str, payload: object, queue: str) -> TaskView:
        body = msgspec.json.encode(payload)
        once = Policy(max_attempts=1)
        task_id = await self.engine.submit(Submission(kind=kind, payload=body, queue=queue, policy=once))
        return await self.engine.wait(task_id, 60)


@pytest.fixture
async def site(database: str, tmp_path: Path) -> AsyncIterator[Site]:
    tls_files = make_tls_files(tmp_path)
    files = {"certificate": tls_files.server.certificate, "key": tls_files.server.key, "authority": tls_files.authority}
    push, machines = PushOptions(loopback=True), MachineOptions(launchers=(ProcessLauncher(tmp_path / "machines"),))
    async with (
        Engine(Store(database), blobs=open_blobs(str(tmp_path / "blobs"))) as engine,
        open_server(engine, http="127.0.0.1:0", api_key=KEY, push=push, machines=machines) as api,
        open_sessions(engine, grpc="127.0.0.1:0", api_key=KEY) as server,
        open_internal(engine, internal="127.0.0.1:0", **files) as internal,
        open_carriers(engine, loopback=True),
    ):
        yield Site(engine, api, server, internal, tls_files)


def shop(**where: Any) -> App:
    app = App("shop", **where)
    for kind, function in KINDS.items():
        app.task(kind=kind)(function)
    return app


# ------------------------------------------------------------------------------------------------- the ways


@asynccontextmanager
async def working(app: App, queue: str) -> AsyncIterator[None]:
    async with app:
        worker = app.worker(queues=[queue], heartbeat_process=False)
        running = asyncio.create_task(worker.run())
        try:
            yield
        finally:
            await worker.shutdown()
            await running


def pull(site: Site, queue: str) -> AbstractAsyncContextManager[None]:
    """An SDK worker beside the database."""
    app = shop()
    app.connect_by(lambda: nullcontext(site.engine))
    return working(app, queue)


def session(site: Site, queue: str) -> AbstractAsyncContextManager[None]:
    """The same worker far from it, over its gRPC session."""
    return working(shop(server=site.grpc, api_key=KEY), queue)


@asynccontextmanager
async def registry(site: Site, queue: str) -> AsyncIterator[None]:
    """A worker that registers and polls, with plain gRPC."""
    async with grpc.aio.insecure_channel(site.grpc.removeprefix("http://")) as channel:

        async def call(name: str, **fields: Any) -> Any:
            method = pb.DESCRIPTOR.services_by_name["WorkflowService"].methods_by_name[name]
            asked, answered = (getattr(pb, kind.name) for kind in (method.input_type, method.output_type))
            way = channel.unary_unary(f"/kagzi.WorkflowService/{name}", asked.SerializeToString, answered.FromString)
            return await way(asked(**fields), metadata=(("authorization", f"Bearer {KEY}"),))

        async def work() -> None:
            worker = await call("RegisterWorker", task_queue=queue, workflow_types=list(KINDS))
            while True:
                run = await call(
                    "PollActivity", worker_id=worker.worker_id, task_queue=queue, supported_workflow_types=list(KINDS)
                )
                if not run.run_id:
                    continue
                try:
                    output = KINDS[run.workflow_type](**msgspec.json.decode(run.workflow_input))  # type: ignore[operator]
                except LookupError as error:
                    failure = pb.ErrorDetail(message=str(error), non_retryable=True)
                    await call("FailWorkflow", run_id=run.run_id, error=failure)
                else:
                    await call("CompleteWorkflow", run_id=run.run_id, output=msgspec.json.encode(output))

        running = asyncio.create_task(work())
        try:
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


@asynccontextmanager
async def push(site: Site, queue: str) -> AsyncIterator[None]:
    """An HTTP service that is pushed to, and calls back."""
    inside = SimpleNamespace(worker=None, state=SimpleNamespace(closing=asyncio.Event()))

    class PushedTasks:
        state = inside.state

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await inside.worker(scope, receive, send)

    async with listening(PushedTasks(), "127.0.0.1", 0) as url:
        secret = (await site.set_up(queue, Push(url=f"{url}/"))).signing_secret
        async with shop().callback_worker(secret=secret) as inside.worker:
            yield


@asynccontextmanager
async def stdio(site: Site, queue: str) -> AsyncIterator[None]:
    """Child processes of the server that speak JSON lines."""
    handlers = {kind: StdioHandler(function=f"{f.__module__}:{f.__name__}") for kind, f in KINDS.items()}
    path = os.pathsep.join([str(ROOT), *sys.path])
    await site.set_up(queue, Stdio(handlers=handlers, env={"PYTHONPATH": path}))
    async with open_pools(site.engine):
        yield


async def report(http: httpx.AsyncClient, task: dict[str, Any], attempt: int, lease_token: str) -> None:
    """Run what was handed over, and say over the internal port how that went."""
    fence = {"task_id": task["task_id"], "attempt": attempt, "lease_token": lease_token}
    try:
        said = {"status": "Completed", "result": KINDS[task["operator"]](**task["config"])}  # type: ignore[operator]
    except LookupError as error:
        said = {"status": "Failed", "error_message": str(error), "error": {"retryable": False}}
    (await http.post("/internal/task-complete", json={**fence, **said})).raise_for_status()


@asynccontextmanager
async def wakeup(site: Site, queue: str) -> AsyncIterator[None]:
    """A worker that is woken by messages, and has a certificate and no database."""
    await site.set_up(queue, Wakeup())
    async with site.certified() as http:

        async def call(path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
            answer = await http.post(path, content=body, timeout=timeout_s)
            return answer.status_code, answer.content

        async def work() -> None:
            consumer = make_consumer(await fetch_route(call, queue), call)
            while True:
                for message in await consumer.receive(1, 20.0):
                    said = {"task_id": str(task_of(message.body)), "worker_id": "w"}
                    told = (await http.post("/internal/task-claim", json=said)).json()
                    if told["status"] == "Claimed":
                        await report(http, told["task"], told["attempt"], told["lease_token"])
                    await consumer.ack(message)

        running = asyncio.create_task(work())
        try:
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


@asynccontextmanager
async def invoke(site: Site, queue: str) -> AsyncIterator[None]:
    """A function at a URL, which answers and reports later."""
    running: set[asyncio.Task[None]] = set()
    async with functions.function() as called, site.certified() as http:

        def run(call: dict[str, Any]) -> None:
            running.add(asyncio.create_task(report(http, call, call["attempt"], call["lease_token"])))

        called.on_call = run
        await site.set_up(queue, Invoke(url=called.url))
        try:
            yield
        finally:
            await asyncio.gather(*running)


@asynccontextmanager
async def machine(site: Site, queue: str) -> AsyncIterator[None]:
    """A process for each task, which leaves a file and calls back."""
    path = os.pathsep.join([str(ROOT), *sys.path])
    command = [sys.executable, "-m", "tests.contracts.any_wire_machine"]
    await site.set_up(queue, Machine(launcher="process", command=command, env={"PYTHONPATH": path}))
    yield


Way = Callable[[Site, str], AbstractAsyncContextManager[None]]
WAYS: dict[str, tuple[str, Way]] = {  # by the name of its queue: the delivery that it shows, and who works there
    "direct": ("pull", pull),
    "session": ("pull", session),
    "registry": ("pull", registry),
    "push": ("push", push),
    "stdio": ("stdio", stdio),
    "wakeup": ("wakeup", wakeup),
    "invoke": ("invoke", invoke),
    "machine": ("machine", machine),
}


def test_every_delivery_has_a_row_or_is_known_not_to() -> None:
    shown = {delivery for delivery, _ in WAYS.values()}
    assert shown | PENDING == DELIVERIES.keys()
    assert not shown & PENDING


async def test_the_same_kind_runs_through_every_delivery_by_changing_its_queue_only(site: Site) -> None:
    payload = {"order": 17, "lines": ["ink", "päper"]}
    async with AsyncExitStack() as stack:
        for queue, (_, way) in WAYS.items():
            await stack.enter_async_context(way(site, queue))
        ended = {queue: await site.ran("label", payload, queue) for queue in WAYS}
        failed = {queue: await site.ran("refuse", {"reason": "nothing like it"}, queue) for queue in WAYS}

        for queue, view in ended.items():
            assert (queue, view.task.state) == (queue, State.SUCCEEDED), view.task.error
            assert (view.task.attempt, view.task.failures, view.task.losses) == (1, 0, 0)
        results = {queue: await _result(site, view) for queue, view in ended.items()}
        assert results == {queue: {"order": 17, "text": "ink, päper", "count": 2} for queue in WAYS}

        for queue, view in failed.items():
            assert (queue, view.task.state, view.task.attempt) == (queue, State.FAILED, 1)
            assert view.task.error is not None
            assert "nothing like it" in view.task.error.message, (queue, view.task.error)


async def _result(site: Site, view: TaskView) -> Any:
    """What a task returned; what a machine made is a file, which its result names."""
    result = msgspec.json.decode((await site.engine.results([view.task.id]))[view.task.id])
    if "object_key" not in result:
        return result
    blobs = await site.engine.parts.objects.blobs()
    return msgspec.json.decode(await (await blobs.get(result["object_key"])).read())
