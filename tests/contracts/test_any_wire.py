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
from typing import Any, get_args

import grpc
import msgspec
import pytest
from tests.contracts import any_wire

from windlass import App, Engine, Policy, State, Submission
from windlass.app import open_pools, open_server, open_sessions
from windlass.core.delivery import Delivery, Push, PushOptions, Stdio, StdioHandler
from windlass.core.queue import QueueConfig
from windlass.http.server import listening
from windlass.store.view import TaskView
from windlass.wire.protos import kagzi_pb2 as pb

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
KEY = "wl_a-key-for-tests"
KINDS = {"label": any_wire.label, "refuse": any_wire.refuse}
PENDING = {"wakeup", "invoke", "machine"}  # deliveries of contracts that have no row yet


@dataclass
class Site:
    """An engine with everything that serves its contracts."""

    engine: Engine
    api: str
    grpc: str

    async def set_up(self, queue: str, delivery: Delivery) -> Any:
        return (await self.engine.queues.put(queue, delivery=delivery, limits=QueueConfig())).settings

    async def ran(self, kind: str, payload: object, queue: str) -> TaskView:
        body = msgspec.json.encode(payload)
        once = Policy(max_attempts=1)
        task_id = await self.engine.submit(Submission(kind=kind, payload=body, queue=queue, policy=once))
        return await self.engine.wait(task_id, 60)


@pytest.fixture
def mode() -> str:
    return "direct"


@pytest.fixture
async def site(live_engine: Engine) -> AsyncIterator[Site]:
    async with (
        open_server(live_engine, http="127.0.0.1:0", api_key=KEY, push=PushOptions(loopback=True)) as api,
        open_sessions(live_engine, grpc="127.0.0.1:0", api_key=KEY) as server,
    ):
        yield Site(live_engine, api, server)


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

    class Door:
        state = inside.state

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await inside.worker(scope, receive, send)

    async with listening(Door(), "127.0.0.1", 0) as url:
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


Way = Callable[[Site, str], AbstractAsyncContextManager[None]]
WAYS: dict[str, tuple[str, Way]] = {  # by the name of its queue: the delivery that it shows, and who works there
    "direct": ("pull", pull),
    "session": ("pull", session),
    "registry": ("pull", registry),
    "push": ("push", push),
    "stdio": ("stdio", stdio),
}


def test_every_delivery_has_a_row_or_is_known_not_to() -> None:
    deliveries = {str(one.__struct_config__.tag) for one in get_args(Delivery)}
    shown = {delivery for delivery, _ in WAYS.values()}
    assert shown | PENDING == deliveries
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
    return msgspec.json.decode((await site.engine.results([view.task.id]))[view.task.id])
