"""The long poll: who may ask, what it gets, what waiting costs, and what becomes of a caller that hangs up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID, uuid4

import grpc
import pytest
from tests.contracts.registry.client import Client, Refused
from tests.contracts.registry.test_worker import waits_in_line
from tests.kit.work import soon
from tests.kit.world import KEY

from windlass import Engine
from windlass.contracts.callback.delivery import Push
from windlass.contracts.registry.wire import kagzi_pb2 as pb
from windlass.core.queue import QueueConfig
from windlass.core.states import State
from windlass.core.worker import Registration
from windlass.engine.liveness.workers import lease_of_worker
from windlass.serve import open_sessions
from windlass.store.pool import Session
from windlass.testing.clock import VirtualClock

pytestmark = pytest.mark.slow

TOKEN, ATTEMPT, CONTEXT = "x-windlass-lease-token", "x-windlass-attempt", "x-windlass-context-bin"


async def test_a_poll_that_waits_is_a_sign_of_life(live_engine: Engine, connect: Any) -> None:
    """No heartbeat is sent at all, and what the worker runs beside its poll is kept as well."""
    options = {"stale_s": 1.0, "gather_s": 0.0}
    async with open_sessions(live_engine, grpc="127.0.0.1:0", api_key=KEY, registry=options) as url:
        client = connect(url)
        held = await client.start()
        worker_id = await client.register()
        assert (await client.poll(worker_id)).run_id == held
        polls = [asyncio.ensure_future(client.poll(worker_id)) for _ in range(3)]
        registered_at = (await client.GetWorker(worker_id=worker_id)).worker.registered_at.ToDatetime()

        async def long_after() -> bool:
            worker = (await client.GetWorker(worker_id=worker_id)).worker
            return bool((worker.last_heartbeat_at.ToDatetime() - registered_at).total_seconds() > 3.0)

        await eventually(long_after)
        assert (await client.GetWorker(worker_id=worker_id)).worker.status == pb.WORKER_STATUS_ONLINE
        assert await client.status(held) == "RUNNING"
        started = await client.start()
        await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED)
        assert {poll.result().run_id for poll in polls if poll.done()} == {started}
        for poll in polls:
            poll.cancel()

        async def offline() -> bool:
            return bool((await client.GetWorker(worker_id=worker_id)).worker.status == pb.WORKER_STATUS_OFFLINE)

        await eventually(offline)  # nothing is heard of it any more


async def eventually(look: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a moment that only the server can tell."""
    async with asyncio.timeout(45):
        while not await look():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_a_poll_gets_the_oldest_run_with_its_input_and_what_goes_with_it(client: Client) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    first = (
        await client.StartWorkflow(
            workflow_type="greet", task_queue="q", input=b'{"name": "Ada"}', context=b'{"tenant": "acme"}',
            metadata=(("traceparent", trace),),
        )
    ).run_id  # fmt: skip
    await client.start()
    worker_id = await client.register()

    polling = client.PollActivity(worker_id=worker_id, task_queue="q", supported_workflow_types=["greet"])
    polled = await polling

    assert (polled.run_id, polled.workflow_type, json.loads(polled.workflow_input)) == (first, "greet", {"name": "Ada"})
    told = dict(await polling.trailing_metadata())
    assert told[ATTEMPT] == "1"
    assert told[TOKEN]
    assert told["x-windlass-worker-id"] == worker_id
    assert json.loads(told[CONTEXT]) == {"tenant": "acme"}
    assert told["traceparent"] == trace
    run = await client.run(first)
    assert (await client.status(first), run.worker_id, run.attempts) == ("RUNNING", worker_id, 1)
    assert run.HasField("started_at")


async def test_the_two_descriptions_of_the_request_are_both_understood(client: Client) -> None:
    worker_id = await client.register()
    first, second = await client.start(), await client.start()

    swapped = await client.PollActivity(worker_id="q", task_queue=worker_id, supported_workflow_types=["greet"])
    plain = await client.PollActivity(worker_id=worker_id, task_queue="q", supported_workflow_types=["greet"])

    assert (swapped.run_id, plain.run_id) == (first, second)


async def test_a_queue_may_be_named_like_an_id(client: Client) -> None:
    queue = str(uuid4())
    worker_id = await client.register(queue)
    run_id = await client.start(queue=queue)

    swapped = await client.PollActivity(worker_id=queue, task_queue=worker_id, supported_workflow_types=["greet"])

    assert swapped.run_id == run_id


async def test_who_may_not_poll_is_told_why(client: Client) -> None:
    worker_id = await client.register()
    refused = [
        ({"worker_id": str(uuid4())}, "RegisterWorker"),
        ({"queue": "other"}, "registered for the queue"),
        ({"namespace_id": "shop"}, "registered in the namespace"),
        ({"kinds": ("other",)}, "none of these"),
    ]
    for fields, says in refused:
        with Refused("FAILED_PRECONDITION", "PRECONDITION_FAILED", says):
            await client.poll(**{"worker_id": worker_id, **fields})
    with Refused("INVALID_ARGUMENT", "INVALID_ARGUMENT", "supported_workflow_types"):
        await client.poll(worker_id, kinds=())
    with Refused("INVALID_ARGUMENT", "INVALID_ARGUMENT", "worker_id"):
        await client.poll("nobody")


async def test_what_a_worker_cannot_do_stays_for_others_and_does_not_stand_in_the_way(client: Client) -> None:
    worker_id = await client.register(kinds=("greet", "part"))
    other = [await client.start("other") for _ in range(3)]
    part, greet = await client.start("part"), await client.start("greet")

    assert (await client.poll(worker_id, kinds=("greet", "other"))).run_id == greet
    assert (await client.poll(worker_id, kinds=("part", "greet"))).run_id == part
    assert {await client.status(run_id) for run_id in other} == {"PENDING"}


async def test_a_queue_that_pushes_takes_no_registration_and_answers_no_poll(live_engine: Engine, connect: Any) -> None:
    options = {"poll_timeout_s": 0.05}
    async with open_sessions(live_engine, grpc="127.0.0.1:0", api_key=KEY, registry=options) as url:
        client = connect(url)
        worker_id = await client.register()
        push = Push(url="http://worker.example/")
        await live_engine.queues.put("q", delivery=push, limits=QueueConfig())
        run_id = await client.start()

        assert await client.poll(worker_id) == pb.PollActivityResponse()
        with Refused("INVALID_ARGUMENT", "INVALID_ARGUMENT", "no tasks can be claimed from q (push)"):
            await client.register(hostname="another", pid=7)
        assert await client.status(run_id) == "PENDING"


async def test_a_poll_that_nothing_comes_for_ends_empty(live_engine: Engine, connect: Any) -> None:
    options = {"poll_timeout_s": 0.05}
    async with open_sessions(live_engine, grpc="127.0.0.1:0", api_key=KEY, registry=options) as url:
        client = connect(url)
        worker_id = await client.register()

        polled = await client.poll(worker_id)

    assert polled == pb.PollActivityResponse()


async def test_a_poll_ends_empty_before_the_callers_own_deadline(client: Client, pace: float) -> None:
    worker_id = await client.register()

    polled = await client.poll(worker_id, timeout=0.8 * pace)

    assert polled == pb.PollActivityResponse()


async def test_a_poll_that_waits_is_answered_when_a_run_is_started(client: Client, live_engine: Engine) -> None:
    worker_id = await client.register()
    polling = asyncio.ensure_future(client.poll(worker_id))
    await waits_in_line(live_engine, 1)

    run_id = await client.start()

    assert (await soon(polling)).run_id == run_id


async def test_a_poll_is_answered_when_a_sleep_ends(still_client: Client, engine: Engine, clock: VirtualClock) -> None:
    worker_id = await still_client.register()
    run_id = await still_client.start()
    await still_client.poll(worker_id)
    await still_client.ScheduleSleep(run_id=run_id, duration_seconds=10)
    polling = asyncio.ensure_future(still_client.poll(worker_id))
    await waits_in_line(engine, 1)

    await clock.advance(10)
    await engine.loops.timer_tick()

    assert (await soon(polling)).run_id == run_id


async def test_idle_polls_ask_the_database_nothing(
    still_client: Client, engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = [await still_client.register() for _ in range(20)]
    polling = [asyncio.ensure_future(still_client.poll(worker_id)) for worker_id in workers]
    await waits_in_line(engine, 20)
    asked: list[str] = []
    fetch = Session.fetch

    async def counted(self: Session, name: str, *arguments: Any) -> Any:
        asked.append(name)
        return await fetch(self, name, *arguments)

    monkeypatch.setattr(Session, "fetch", counted)
    await clock.advance(25)  # a good part of the time for which they wait

    assert asked == []
    assert not any(poll.done() for poll in polling)
    for poll in polling:
        poll.cancel()
    await asyncio.gather(*polling, return_exceptions=True)


async def test_a_poll_that_begins_again_asks_the_database_nothing(
    live_engine: Engine, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until something is heard; then the worker is asked for anew before anything is given to it."""
    asked: list[str] = []
    fetch = Session.fetch

    async def counted(self: Session, name: str, *arguments: Any) -> Any:
        asked.append(name)
        return await fetch(self, name, *arguments)

    options = {"poll_timeout_s": 0.05}
    async with open_sessions(live_engine, grpc="127.0.0.1:0", api_key=KEY, registry=options) as url:
        client = connect(url)
        workers = [await client.register(pid=n + 1, hostname="h") for n in range(3)]
        for worker_id in workers:
            assert not (await client.poll(worker_id)).run_id
        monkeypatch.setattr(Session, "fetch", counted)
        for worker_id in workers * 3:
            assert not (await client.poll(worker_id)).run_id
        assert {"get_worker", "worker_loads", "start_due", "open_claim", "check_claim", "next_due"}.isdisjoint(asked)

        run_id = await client.start()

        assert (await client.poll(workers[0])).run_id == run_id
    assert "get_worker" in asked


async def test_a_poll_under_a_lease_that_is_not_the_workers_any_more_gives_back_and_goes_on(
    client: Client, live_engine: Engine, server: str, pace: float
) -> None:
    """The worker registered again at another server, which ours has not heard of."""
    worker_id = await client.register(pid=1, hostname="h")
    assert not (await client.poll(worker_id, timeout=0.6 * pace)).run_id
    said = Registration(namespace="default", queue="q", kinds=("greet",), host="h", pid=1)
    again, lease = await live_engine.workers.register(said)
    assert str(again) == worker_id

    run_id = await client.start()

    assert (await client.poll(worker_id)).run_id == run_id
    task = (await live_engine.tasks.get(UUID(run_id))).task
    assert (task.lease_id, task.losses, task.failures) == (lease.id, 0, 0)


async def test_a_caller_that_hangs_up_has_claimed_nothing(client: Client, live_engine: Engine) -> None:
    gone, there = await client.register(pid=1, hostname="h"), await client.register(pid=2, hostname="h")
    polling = client.PollActivity(worker_id=gone, task_queue="q", supported_workflow_types=["greet"])
    task = asyncio.ensure_future(hears(polling))
    await waits_in_line(live_engine, 1)

    polling.cancel()
    await task
    await nobody_waits(live_engine)
    run_id = await client.start()

    assert (await client.poll(there)).run_id == run_id
    assert (await client.run(run_id)).attempts == 1


async def test_callers_that_hang_up_at_any_moment_strand_nothing(
    client: Client, live_engine: Engine, pace: float
) -> None:
    """Submits and hang-ups at the same time. What was claimed and could not be sent is given back; what was sent is
    named by nobody, and so is taken back with the next heartbeat that says what runs."""
    worker_id = await client.register()
    started: list[str] = []
    heard: list[str] = []
    for n in range(60):
        polling = client.PollActivity(worker_id=worker_id, task_queue="q", supported_workflow_types=["greet"])
        task = asyncio.ensure_future(hears(polling))
        while n % 3 and not task.done() and not list(live_engine.parts.notifications.idle("default", "q")):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        submit = asyncio.ensure_future(client.start(payload=n))
        for _ in range(n % 12):
            await asyncio.sleep(0)
        polling.cancel()
        heard += [found.run_id for found in [await task] if found is not None and found.run_id]
        started.append(await submit)
    await nobody_waits(live_engine)
    other = await client.register(pid=2, hostname="h")
    while (polled := await client.poll(other, timeout=1.5 * pace)).run_id:
        heard.append(polled.run_id)
    lost = set(started) - set(heard)
    await live_engine.parts.leases.lose(
        await live_engine.parts.leases.get((await live_engine.workers.get(UUID(worker_id))).lease_id)
    )

    assert len(heard) == len(set(heard))
    assert {(await live_engine.tasks.get(UUID(run_id))).task.state for run_id in lost} <= {State.QUEUED}


async def hears(polling: Any) -> Any:
    try:
        return await polling
    except asyncio.CancelledError:
        return None
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.CANCELLED:
            raise
        return None


async def nobody_waits(engine: Engine) -> None:
    async with asyncio.timeout(60):
        while list(engine.parts.notifications.idle("default", "q")):  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_limits_are_exact_under_100_polls_at_a_time(client: Client, live_engine: Engine, pace: float) -> None:
    limits = [pb.WorkflowTypeConcurrency(workflow_type="part", max_concurrent=3)]
    workers = [
        await client.register(
            kinds=("greet", "part"),
            pid=n + 1,
            hostname="h",
            queue_concurrency_limit=10,
            workflow_type_concurrency=limits,
        )
        for n in range(100)
    ]
    for _ in range(20):
        await client.start("part")
        await client.start("greet")

    polls = [asyncio.ensure_future(client.poll(one, kinds=("greet", "part"), timeout=4 * pace)) for one in workers]
    answers = await asyncio.gather(*polls)

    taken = [answer for answer in answers if answer.run_id]
    running = (await client.ListWorkflowRuns(filter_status="RUNNING", page_size=100)).workflow_runs
    assert len(taken) == len(running) == 10
    assert sum(run.workflow_type == "part" for run in running) <= 3
    await client.CompleteWorkflow(run_id=taken[0].run_id, output=b"1")
    assert (await client.poll(workers[0], kinds=("greet", "part"))).run_id
    assert len((await client.ListWorkflowRuns(filter_status="RUNNING", page_size=100)).workflow_runs) == 10


async def test_a_server_that_dies_between_claim_and_answer_strands_nothing(
    still_client: Client, engine: Engine, clock: VirtualClock, new_engine: Any
) -> None:
    """The claim is committed, its answer never sent: the worker that says what it runs does not name it."""
    worker_id = await still_client.register()
    run_id = await still_client.start()
    dying = await new_engine()
    [claimed] = await dying.claim(lease_of_worker(await dying.workers.get(UUID(worker_id))))
    assert str(claimed.task.id) == run_id
    for _ in range(3):
        await clock.advance(20)
        await still_client.WorkerHeartbeat(worker_id=worker_id, metadata=(("x-windlass-active-runs", ""),))
    await clock.advance(5)

    assert (await still_client.poll(worker_id)).run_id == run_id
