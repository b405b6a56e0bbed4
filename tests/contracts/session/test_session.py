"""Remote workers and apps over a real socket: what an engine in the same process can do, they can; and what a network
does to them costs no task."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tests.contracts.session.conftest import Wire
from tests.contracts.session.work import ended, until_state, working
from tests.kit.work import job, jobs, soon, task, until
from tests.kit.world import KEY

from windlass import App, Context, Engine, NotFound, Policy, State, TaskFailed, WorkflowContext
from windlass.contracts.callback.delivery import Push
from windlass.contracts.session.client.remote import Remote, connect
from windlass.contracts.session.wire import session_pb2 as pb
from windlass.contracts.session.wire.methods import SESSION
from windlass.core.access import Role
from windlass.core.queue import QueueConfig
from windlass.errors import Forbidden, Invalid, Unauthenticated, Unavailable

pytestmark = pytest.mark.slow


async def double(number: int) -> int:
    return number * 2


async def test_a_remote_worker_runs_tasks_and_reports_their_results(live_engine: Engine, remote: Remote) -> None:
    ids = await live_engine.submit_many(jobs(1200))
    async with working(remote, double, concurrency=50):
        assert set(await ended(live_engine, *ids)) == {State.SUCCEEDED}
    assert [(await task(live_engine, id_)).result for id_ in ids[:3]] == [b"0", b"2", b"4"]
    assert (await task(live_engine, ids[0])).worker == "far"


async def test_an_app_far_from_the_database_submits_runs_waits_and_cancels(server: str) -> None:
    app = App("shop", server=server, api_key=KEY)
    begun = asyncio.Event()

    @app.task
    async def greet(name: str, ctx: Context) -> str:
        ctx.progress(1, 2, "half way")
        await ctx.checkpoint({"name": name})
        if ctx.attempt == 1:
            raise RuntimeError("once more")
        return f"Hello, {ctx.last_checkpoint()['name']}!"

    @app.task
    async def never() -> None:
        begun.set()
        await asyncio.Event().wait()

    async with app:
        running = asyncio.create_task((worker := app.worker(heartbeat_process=False)).run())
        handle = await greet.options().submit("Ada")  # type: ignore[call-arg]
        assert await handle.result(timeout=60) == "Hello, Ada!"
        endless = await never.submit()
        await soon(begun.wait())
        await endless.cancel("enough")
        with pytest.raises(TaskFailed, match="enough"):
            await endless.result(timeout=60)
        await worker.shutdown()
        await running


async def test_a_workflow_runs_far_from_the_database(server: str) -> None:
    app = App("shop", server=server, api_key=KEY)
    charged: list[str] = []

    async def charge(order: str) -> str:
        charged.append(order)
        if len(charged) == 1:
            raise RuntimeError("the card reader is slow")
        return f"receipt of {order}"

    @app.workflow(retry_delay="1ms")
    async def checkout(order: str, ctx: WorkflowContext) -> str:
        receipt = await ctx.options(retry_delay="1ms").step(charge, order)
        await ctx.sleep("10ms")
        answer = await ctx.wait_signal("approval", timeout="1h")
        return f"{receipt}: {answer}"

    async with app:
        worker = app.worker(heartbeat_process=False)
        running = asyncio.create_task(worker.run())
        handle = await checkout.submit("order 17")  # type: ignore[call-arg]
        await handle.signal("approval", "yes")
        assert await handle.result(timeout=60) == "receipt of order 17: yes"
        await worker.shutdown()
        await running
    assert charged == ["order 17"] * 2


async def test_a_failure_is_told_with_its_traceback(live_engine: Engine, remote: Remote) -> None:
    async def fails(_: Any) -> None:
        raise ValueError("no good")

    id_ = await live_engine.submit(job(policy=Policy(max_attempts=1)))
    async with working(remote, fails):
        assert await ended(live_engine, id_) == [State.FAILED]
    error = (await task(live_engine, id_)).error
    assert error is not None
    assert (error.message, error.reason) == ("no good", "ValueError")
    assert 'raise ValueError("no good")' in error.trace


async def test_large_payloads_and_results_travel_in_parts(live_engine: Engine, remote: Remote) -> None:
    async def echo(payload: str) -> str:
        return payload

    text = b'"%s"' % (b"x" * 900_000)
    ids = await live_engine.submit_many([job(payload=text) for _ in range(12)])
    async with working(remote, echo, concurrency=12):
        assert set(await ended(live_engine, *ids)) == {State.SUCCEEDED}
    assert (await task(live_engine, ids[-1])).result == text


async def test_a_cancel_is_told_at_once(live_engine: Engine, remote: Remote) -> None:
    began = asyncio.Event()

    async def never(_: Any) -> None:
        began.set()
        await asyncio.Event().wait()

    id_ = await live_engine.submit(job())
    async with working(remote, never, lease_ttl_s=600.0):  # a heartbeat would come in 200 s
        await soon(began.wait())
        await live_engine.cancel(id_, "enough")
        assert await ended(live_engine, id_) == [State.CANCELLED]


async def test_the_heartbeats_of_many_idle_workers_share_a_transaction(
    remote: Remote, other_connection: asyncpg.Connection
) -> None:
    leases = [await remote.open_lease(f"far-{n}", ["default"]) for n in range(50)]
    await asyncio.gather(*(remote.extend_lease(lease) for lease in leases))
    moments = await other_connection.fetchval("select count(distinct expires_at) from windlass.lease")
    assert moments <= 10, "the first goes ahead, and all that come meanwhile together"


async def test_no_more_is_pushed_than_there_is_credit_for(live_engine: Engine, remote: Remote) -> None:
    go_on, running = asyncio.Event(), 0

    async def wait(_: Any) -> None:
        nonlocal running
        running += 1
        await go_on.wait()

    await live_engine.submit_many(jobs(10))
    async with working(remote, wait, concurrency=3):
        await until(lambda: running == 3)
        assert (await live_engine.tasks.counts())["default"] == {State.QUEUED: 7, State.RUNNING: 3}
        go_on.set()
        await until(lambda: running == 10)


async def test_a_worker_that_stops_gives_back_what_was_on_its_way(
    live_engine: Engine, wire: Wire, remote: Remote
) -> None:
    lease = await remote.open_lease("far", ["default"], ttl_s=600.0)
    claiming = asyncio.create_task(remote.claim(lease, 5, wait_s=60))
    await until(lambda: remote._sessions[lease.id]._credit == 5)
    wire.hold()
    id_ = await live_engine.submit(job())
    await until_state(live_engine, id_, State.RUNNING)
    claiming.cancel()
    await asyncio.gather(claiming, return_exceptions=True)
    wire.let_go()
    await until_state(live_engine, id_, State.QUEUED)
    assert (await task(live_engine, id_)).losses == 0
    await remote.end_lease(lease)


async def test_a_wrong_key_and_no_key_open_nothing(server: str) -> None:
    async with connect(server, "wrong") as remote:
        with pytest.raises(Unauthenticated):
            await remote.open_lease("far", ["default"])
        with pytest.raises(Unauthenticated):
            await remote.submit(job())
    async with grpc.aio.insecure_channel(server.removeprefix("http://")) as channel:
        stream = channel.stream_stream(SESSION, pb.FromWorker.SerializeToString, pb.ToWorker.FromString)()
        with pytest.raises(grpc.aio.AioRpcError) as caught:  # the server ends the call before it reads anything
            await stream.read()
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize(("races", "error"), [(1, Unauthenticated), (2, Unavailable)])
async def test_a_session_that_ends_during_the_write_of_its_hello_is_opened_once_more(
    server: str, monkeypatch: pytest.MonkeyPatch, races: int, error: type[Exception]
) -> None:
    """grpcio then raises an error of its own in place of the status of the server."""
    write, writes = grpc.aio._call.StreamStreamCall.write, list[Any]()

    async def racing_write(call: Any, message: Any) -> None:
        writes.append(message)
        if len(writes) > races:
            await write(call, message)
        else:
            call._cython_call.set_internal_error("the call has ended")
            await call._raise_for_status()

    monkeypatch.setattr(grpc.aio._call.StreamStreamCall, "write", racing_write)
    async with connect(server, "wrong") as remote:
        with pytest.raises(error):
            await soon(remote.open_lease("far", ["default"]))
    assert len(writes) == 2


async def test_a_key_opens_its_own_namespace_only_and_a_viewer_does_not_work(live_engine: Engine, server: str) -> None:
    _, acme = await live_engine.keys.create_key(name="acme", role=Role.SUBMITTER, namespace="acme")
    _, viewer = await live_engine.keys.create_key(name="see", role=Role.VIEWER, namespace="acme")
    elsewhere = await live_engine.submit(job())
    async with connect(server, acme) as remote:
        with pytest.raises(Forbidden):
            await remote.open_lease("far", ["default"], namespace="default")
        with pytest.raises(Forbidden):
            await remote.submit(job())
        for call in (remote.wait(elsewhere, 0), remote.cancel(elsewhere), remote.checkpoint(elsewhere)):
            with pytest.raises(NotFound):
                await call
        assert await remote.results([elsewhere]) == {}
        own = await remote.submit(job(namespace="acme"))
        assert (await remote.wait(own, 0)).task.namespace == "acme"
        lease = await remote.open_lease("far", ["default"], namespace="acme")
        assert [one.task.id for one in await soon(remote.claim(lease, 1, wait_s=20))] == [own]
    async with connect(server, viewer) as remote:
        with pytest.raises(Forbidden):
            await remote.open_lease("far", ["default"], namespace="acme")


async def test_a_queue_that_pushes_gives_nothing_to_a_session_that_names_it(
    live_engine: Engine, remote: Remote
) -> None:
    await live_engine.queues.put("far", delivery=Push(url="http://worker.example/"), limits=QueueConfig())
    with pytest.raises(Invalid, match=r"no tasks can be claimed from far \(push\)"):
        await remote.open_lease("ada", ["far"])

    theirs = await live_engine.submit(job(queue="far"))
    ours = await live_engine.submit(job(queue="near"))
    lease = await remote.open_lease("ada", ["far", "near"])
    assert [one.task.id for one in await soon(remote.claim(lease, 2, wait_s=20))] == [ours]
    assert (await task(live_engine, theirs)).state is State.QUEUED


async def test_health_and_reflection_are_served(server: str) -> None:
    async with grpc.aio.insecure_channel(server.removeprefix("http://")) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(service="windlass.v1.Worker"))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        async for reply in stub.ServerReflectionInfo(iter([asked]), metadata=[("authorization", f"Bearer {KEY}")]):
            names = {service.name for service in reply.list_services_response.service}
    assert {"windlass.v1.Worker", "windlass.v1.Client", "grpc.health.v1.Health"} <= names
