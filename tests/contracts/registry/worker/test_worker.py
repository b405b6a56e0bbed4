"""A worker of the registry contract that uses nothing else of Windlass, against a real server."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.contracts.registry.worker.conftest import Running
from tests.kit.work import soon, until
from tests.kit.world import KEY

from windlass import Engine
from windlass.errors import Conflict, Invalid, InvalidState, NotFound, Unauthenticated
from windlass.registry import Client, Retry, RunFailed, Worker, WorkflowContext, WorkflowError

pytestmark = pytest.mark.slow


async def eventually(look: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(45):
        while not await look():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_workflow_of_steps_and_a_sleep_runs_to_its_end(client: Client, running: Running) -> None:
    calls: list[str] = []

    def charge(order: int) -> dict[str, int]:
        calls.append(f"charge {order}")
        return {"receipt": order}

    async def ship(receipt: dict[str, int]) -> str:
        calls.append("ship")
        return f"shipped {receipt['receipt']}"

    async def order(context: WorkflowContext, number: int) -> Any:
        calls.append("begin")
        receipt = await context.step("charge", charge, number)
        await context.sleep(0.5)
        first = await context.step("ship", ship, receipt)
        return [first, await context.step("ship", ship, {"receipt": 0}), context.context, context.workflow_type]

    async with running(workflows={"order": order}):
        run_id = await client.start("order", 7, queue="orders", context={"tenant": "acme"}, workflow_id="o-7")
        result = await client.result(run_id, 60)

    assert result == ["shipped 7", "shipped 0", {"tenant": "acme"}, "order"]
    assert calls == ["begin", "charge 7", "begin", "ship", "ship"]
    run = await client.get(run_id)
    assert (run.status, run.attempts, run.workflow_id, run.input) == ("COMPLETED", 1, "o-7", 7)
    assert run.ended
    assert run.finished_at is not None


async def test_a_worker_says_who_it_is_and_goes(client: Client, running: Running) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow(_: WorkflowContext, __: Any) -> str:
        begun.set()
        await go.wait()
        return "done"

    options = {"max_concurrent": 3, "hostname": "web-1", "version": "1.2.3", "labels": {"region": "us-east-1"}}
    async with running(workflows={"slow": slow}, **options) as worker:
        worker_id = worker.worker_id
        assert worker_id is not None
        assert (worker.is_registered, worker.active_count) == (True, 0)
        info = await client.worker(worker_id)
        assert (info.status, info.max_concurrent, info.hostname) == ("ONLINE", 3, "web-1")
        assert (info.version, info.labels, info.workflow_types) == ("1.2.3", {"region": "us-east-1"}, ("slow",))
        run_ids = [await client.start("slow", queue="orders") for _ in range(4)]
        await soon(begun.wait())
        await until(lambda: worker.active_count == 3)  # and no more than that
        go.set()
        assert [await client.result(run_id, 60) for run_id in run_ids] == ["done"] * 4

    assert not worker.is_registered
    assert [seen.worker_id async for seen in client.workers(queue="orders", status="OFFLINE")] == [worker_id]
    info = await client.worker(worker_id)
    assert (info.total_completed, info.total_failed, info.active_count) == (4, 0, 0)


async def test_a_shutdown_finishes_what_runs_and_heartbeats_go_on(
    client: Client, running: Running, live_engine: Engine
) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow(_: WorkflowContext, __: Any) -> str:
        begun.set()
        await go.wait()
        return "done"

    async with running(workflows={"slow": slow}) as worker:
        worker_id = worker.worker_id or ""
        run_id = await client.start("slow", queue="orders")
        await soon(begun.wait())
        worker.shutdown()
        before = (await client.worker(worker_id)).last_heartbeat_at
        assert before is not None

        async def heard() -> bool:
            return (await client.worker(worker_id)).last_heartbeat_at > before  # type: ignore[operator]

        await eventually(heard)
        second = await client.start("slow", queue="orders")
        assert (await client.get(run_id)).status == "RUNNING"
        go.set()
        assert await client.result(run_id, 60) == "done"

    assert (await client.get(second)).status == "PENDING"


async def test_a_second_shutdown_gives_back_what_runs(client: Client, running: Running) -> None:
    begun = asyncio.Event()

    async def forever(_: WorkflowContext, __: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with running(workflows={"forever": forever}) as worker:
        run_id = await client.start("forever", queue="orders")
        await soon(begun.wait())
        worker.shutdown()
    # The fixture asks again.
    assert (await client.get(run_id)).status == "PENDING"


async def test_a_drain_has_an_end_if_it_is_given_one(client: Client, running: Running) -> None:
    begun = asyncio.Event()

    async def forever(_: WorkflowContext, __: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with running(workflows={"forever": forever}, drain_timeout_s=0.2):
        run_id = await client.start("forever", queue="orders")
        await soon(begun.wait())

    assert (await client.get(run_id)).status == "PENDING"


async def test_an_operator_drains_it(client: Client, running: Running, live_engine: Engine) -> None:
    async def quick(_: WorkflowContext, __: Any) -> None: ...

    async with running(workflows={"quick": quick}) as worker:
        [known] = (await live_engine.workers.page()).workers
        await live_engine.workers.drain(known.id)
        await until(lambda: not worker.is_registered)

    assert (await client.worker(str(known.id))).status == "OFFLINE"


async def test_a_worker_that_was_thought_dead_registers_again(
    client: Client, running: Running, live_engine: Engine
) -> None:
    async def quick(_: WorkflowContext, __: Any) -> str:
        return "done"

    async with running(workflows={"quick": quick}):
        [known] = (await live_engine.workers.page()).workers
        await live_engine.workers.take_offline(known.id)
        run_id = await client.start("quick", queue="orders")
        assert await client.result(run_id, 60) == "done"
        [again] = (await live_engine.workers.page()).workers

    assert (again.id, again.incarnation) == (known.id, 2)


async def test_a_failing_step_is_tried_again_and_the_others_are_not(client: Client, running: Running) -> None:
    tries: list[str] = []

    def first() -> None:
        tries.append("first")

    def flaky() -> str:
        tries.append("flaky")
        if tries.count("flaky") < 3:
            raise ConnectionError("away")
        return "there"

    async def job(context: WorkflowContext, _: Any) -> Any:
        await context.step("first", first)
        return await context.step("flaky", flaky, retry=Retry(attempts=5, first_delay_s=0.01))

    async with running(workflows={"job": job}):
        run_id = await client.start("job", queue="orders")
        assert await client.result(run_id, 60) == "there"

    assert tries == ["first", "flaky", "flaky", "flaky"]


async def test_a_step_that_failed_for_good_can_be_caught(client: Client, running: Running) -> None:
    def broken() -> None:
        raise WorkflowError("no such order", retryable=False, code="INVALID_ARGUMENT")

    async def job(context: WorkflowContext, _: Any) -> str:
        try:
            await context.step("broken", broken)
        except WorkflowError as error:
            return f"did without: {error}"
        raise AssertionError

    async with running(workflows={"job": job}):
        run_id = await client.start("job", queue="orders")
        assert await client.result(run_id, 60) == "did without: no such order"


class _Wordless(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def _raises(error: BaseException) -> Any:
    async def workflow(_: WorkflowContext, __: Any) -> None:
        raise error

    return workflow


def _returns(value: Any) -> Any:
    async def workflow(_: WorkflowContext, __: Any) -> Any:
        return value

    return workflow


@pytest.mark.parametrize(
    ("workflow", "says"),
    [
        (_raises(ValueError("boom")), "ValueError: boom"),
        (_raises(ValueError("caf\udce9")), "caf"),
        (_raises(_Wordless()), "_Wordless"),
        (_raises(SystemExit(3)), "SystemExit"),
        (_returns(math.nan), "JSON"),
        (_returns(object()), "JSON"),
        (_returns("caf\udce9"), "JSON"),
    ],
)
async def test_whatever_a_workflow_does_its_failure_is_told_and_the_worker_goes_on(
    client: Client, running: Running, workflow: Any, says: str
) -> None:
    async with running(workflows={"bad": workflow, "good": _returns("fine")}):
        bad = await client.start("bad", queue="orders", retry=Retry(attempts=1))
        with pytest.raises(RunFailed, match=says):
            await client.result(bad, 60)
        assert await client.result(await client.start("good", queue="orders"), 60) == "fine"


async def test_a_cancelled_run_is_left_alone(client: Client, running: Running) -> None:
    begun, go = asyncio.Event(), asyncio.Event()
    after: list[str] = []

    async def job(context: WorkflowContext, _: Any) -> None:
        begun.set()
        await go.wait()
        await context.step("after", lambda: after.append("after"))

    async with running(workflows={"job": job}) as worker:
        run_id = await client.start("job", queue="orders")
        await soon(begun.wait())
        await client.cancel(run_id)
        go.set()
        await until(lambda: worker.active_count == 0)

    assert (after, (await client.get(run_id)).status) == ([], "CANCELLED")
    with pytest.raises(InvalidState):
        await client.cancel(run_id)


async def test_a_client_finds_what_it_started(client: Client, server: str) -> None:
    first = await client.start("job", {"n": 1}, queue="q", idempotency_key="k")
    assert await client.start("job", {"n": 2}, queue="q", idempotency_key="k") == first
    second = await client.start("job", queue="q", version="9")
    assert [run.run_id async for run in client.list(status="PENDING", page_size=1)] == [second, first]
    assert [run async for run in client.list(status="FAILED")] == []
    with pytest.raises(TimeoutError):
        await client.wait(first, 0.05)
    with pytest.raises(NotFound):
        await client.get("01890a5d-ac96-774b-bcce-b302099a8057")
    async with Client(server, namespace="shop", api_key=KEY) as elsewhere:
        with pytest.raises(NotFound):
            await elsewhere.get(first)


async def test_a_wrong_key_is_told_and_nothing_is_run(server: str) -> None:
    worker = Worker(server, "q", api_key="wl_wrong")
    worker.register("job", _returns(None))
    with pytest.raises(Unauthenticated):
        await soon(worker.run(handle_signals=False))
    async with Client(server, api_key="wl_wrong") as client:
        with pytest.raises(Unauthenticated):
            await client.start("job", queue="q")


async def test_what_cannot_be_is_refused(server: str) -> None:
    worker = Worker(server, "q")
    with pytest.raises(InvalidState, match="register"):
        await worker.run()
    with pytest.raises(Invalid, match="async"):
        worker.register("job", lambda *_: None)  # type: ignore[arg-type, return-value]
    worker.register("job")(_returns(None))
    with pytest.raises(Conflict):
        worker.register("job", _returns(None))
    for wrong in ({"max_concurrent": 0}, {"namespace": ""}, {"labels": {"": "x"}}, {"drain_timeout_s": -1.0}):
        with pytest.raises(Invalid):
            Worker(server, "q", **wrong)  # type: ignore[arg-type]
    with pytest.raises(Invalid):
        Worker("ftp://here", "q")
    assert sys.modules["windlass.registry"].__all__ == sorted(sys.modules["windlass.registry"].__all__)
