"""One workflow, any worker: what this wire and our SDK do is the same thing underneath."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.contracts.registry.client import Client
from tests.contracts.registry.test_poll import eventually
from tests.kit.work import SOON_S, soon
from tests.kit.world import KEY

from windlass import App, Engine, WorkflowContext
from windlass.contracts.registry.wire import kagzi_pb2 as pb
from windlass.core.worker import WorkerState
from windlass.sdk import Worker

pytestmark = pytest.mark.slow

KIND = "shop.checkout"
charged: list[str] = []


async def charge(order: str) -> str:
    charged.append(order)
    return f"receipt of {order}"


async def ship(receipt: str) -> str:
    return f"shipped with {receipt}"


def shop(**where: Any) -> tuple[App, Any]:
    app = App("shop", **where)
    charged.clear()

    @app.workflow
    async def checkout(order: str, ctx: WorkflowContext) -> str:
        receipt = await ctx.step(charge, order)
        await ctx.sleep("10ms")
        return str(await ctx.step(ship, receipt))

    return app, checkout


@asynccontextmanager
async def working(app: App) -> AsyncIterator[Worker]:
    async with app:
        worker = app.worker(heartbeat_process=False)
        running = asyncio.create_task(worker.run())
        yield worker
        worker.stop()
        await soon(running)


async def executed(client: Client, worker_id: str, run_id: str) -> str:
    """As a client of the wire runs the same workflow: from the beginning each time, until it has ended."""
    while True:
        polled = await client.poll(worker_id, "default", (KIND,))
        assert polled.run_id == run_id
        order = json.loads(polled.workflow_input)["order"]
        receipt = await stepped(client, run_id, "charge", f"receipt of {order}")
        if (await client.BeginStep(run_id=run_id, step_id="sleep")).should_execute:
            await client.ScheduleSleep(run_id=run_id, duration_seconds=1)
            await client.CompleteStep(run_id=run_id, step_id="sleep", output=b"null")
            continue
        shipped = await stepped(client, run_id, "ship", f"shipped with {receipt}")
        await client.CompleteWorkflow(run_id=run_id, output=json.dumps(shipped).encode())
        return shipped


async def stepped(client: Client, run_id: str, step_id: str, result: str) -> str:
    begun = await client.BeginStep(run_id=run_id, step_id=step_id)
    if not begun.should_execute:
        return str(json.loads(begun.cached_result))
    await client.CompleteStep(run_id=run_id, step_id=step_id, output=json.dumps(result).encode())
    return result


@pytest.mark.parametrize("far", [False, True])
async def test_a_run_started_over_the_wire_is_executed_by_a_worker_of_our_sdk(
    client: Client, server: str, database: str, far: bool
) -> None:
    app, _ = shop(**({"server": server, "api_key": KEY} if far else {"database_url": database}))
    run_id = await client.start(KIND, "default", {"order": "17"}, workflow_id="order-17")
    async with working(app):
        await until_status(client, run_id, "COMPLETED")

    run = await client.run(run_id)
    assert json.loads(run.output) == "shipped with receipt of 17"
    assert run.business_id == "order-17"
    steps = (await client.ListStepAttempts(workflow_run_id=run_id)).step_attempts
    assert [(step.step_id, step.kind) for step in steps] == [
        ("charge", pb.STEP_KIND_FUNCTION), ("sleep", pb.STEP_KIND_SLEEP), ("ship", pb.STEP_KIND_FUNCTION),
    ]  # fmt: skip
    assert json.loads(steps[0].output) == "receipt of 17"
    for step in steps:
        assert (await client.GetStepAttempt(step_attempt_id=step.step_attempt_id)).step_attempt == step


async def test_a_run_submitted_by_our_sdk_is_executed_by_a_worker_of_the_wire(client: Client, database: str) -> None:
    app, checkout = shop(database_url=database)
    async with app:
        handle = await checkout.submit("18")
        worker_id = await client.register("default", (KIND,))

        shipped = await soon(executed(client, worker_id, str(handle.id)))

        assert await handle.result(timeout=60) == shipped == "shipped with receipt of 18"
    assert charged == []


async def test_a_run_that_a_worker_of_the_wire_left_is_finished_by_one_of_our_sdk(
    client: Client, database: str
) -> None:
    """What was recorded is not done again, whoever recorded it."""
    app, _ = shop(database_url=database)
    run_id = await client.start(KIND, "default", {"order": "19"})
    worker_id = await client.register("default", (KIND,))
    assert (await client.poll(worker_id, "default", (KIND,))).run_id == run_id
    assert await stepped(client, run_id, "charge", "receipt by wire") == "receipt by wire"
    await client.DeregisterWorker(worker_id=worker_id)

    async with working(app):
        await until_status(client, run_id, "COMPLETED")

    assert json.loads((await client.run(run_id)).output) == "shipped with receipt by wire"
    assert charged == []


@pytest.mark.parametrize("far", [False, True])
async def test_a_worker_of_our_sdk_is_shown_with_all_that_it_is_and_does(
    client: Client, live_engine: Engine, server: str, database: str, far: bool
) -> None:
    app = App("shop", **({"server": server, "api_key": KEY} if far else {"database_url": database}))
    begun, go = asyncio.Event(), asyncio.Event()

    @app.task(max_attempts=1)
    async def job(wanted: str) -> None:
        if wanted == "fail":
            raise ValueError(wanted)
        if wanted == "wait":
            begun.set()
            await go.wait()

    async def shown() -> pb.Worker:
        [worker] = (await client.ListWorkers()).workers
        return worker

    async with app:
        labels = ["gpu", "region=us-east-1", "note=a=b"]
        worker = app.worker(heartbeat_process=False, concurrency=7, labels=labels, lease_ttl_s=2.0, version="1.2")
        running = asyncio.create_task(worker.run())
        for wanted in ("fine", "fine", "fail", "wait"):
            await job.submit(wanted)
        await soon(begun.wait())
        first = await shown()
        assert (first.max_concurrent, first.version, first.status) == (7, "1.2", pb.WORKER_STATUS_ONLINE)
        assert dict(first.labels) == {"gpu": "", "region": "us-east-1", "note": "a=b"}

        async def counted() -> bool:
            worker = await shown()
            return (worker.total_completed, worker.total_failed) == (2, 1)

        await eventually(counted)

        worker.stop()  # as SIGTERM does

        async def draining() -> bool:
            return (await shown()).status == pb.WORKER_STATUS_DRAINING

        await eventually(draining)
        assert not running.done()
        go.set()
        await soon(running)
    last = await shown()
    assert (last.status, last.total_completed, last.total_failed) == (pb.WORKER_STATUS_OFFLINE, 3, 1)


@pytest.mark.parametrize("far", [False, True])
async def test_an_operator_drains_a_worker_of_our_sdk(
    client: Client, live_engine: Engine, server: str, database: str, far: bool
) -> None:
    """It is told at once, finishes what runs, and goes."""
    app = App("shop", **({"server": server, "api_key": KEY} if far else {"database_url": database}))
    begun, go = asyncio.Event(), asyncio.Event()

    @app.task
    async def slow() -> str:
        begun.set()
        await go.wait()
        return "done"

    async with app:
        worker = app.worker(heartbeat_process=False)
        running = asyncio.create_task(worker.run())
        first, second = await slow.submit(), None
        await soon(begun.wait())
        [entry] = (await live_engine.workers.page()).workers

        await live_engine.workers.drain(entry.id)
        second = await slow.submit()
        await until_stopping(worker)
        go.set()
        await soon(running)

        assert await first.result(timeout=60) == "done"
        assert (await live_engine.tasks.get(second.id)).task.attempt == 0
    assert (await live_engine.workers.get(entry.id)).state is WorkerState.OFFLINE


async def until_status(client: Client, run_id: str, status: str) -> None:
    async with asyncio.timeout(SOON_S):
        while await client.status(run_id) != status:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def until_stopping(worker: Worker) -> None:
    async with asyncio.timeout(SOON_S):
        while not worker._stopping.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
