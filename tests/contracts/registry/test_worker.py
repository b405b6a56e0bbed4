"""The registry of workers over the wire."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID, uuid4

import pytest
from tests.contracts.registry.client import Client, Refused
from tests.kit.work import soon
from tests.kit.world import KEY

from windlass import Engine
from windlass.contracts.registry.wire import kagzi_pb2 as pb
from windlass.core.access import Role
from windlass.serve import open_sessions
from windlass.store.pool import Session
from windlass.testing.clock import VirtualClock

pytestmark = pytest.mark.slow


async def worker_of(client: Client, worker_id: str) -> Any:
    return (await client.GetWorker(worker_id=worker_id)).worker


async def status_of(client: Client, worker_id: str) -> str:
    return str(pb.WorkerStatus.Name((await worker_of(client, worker_id)).status)).removeprefix("WORKER_STATUS_")


async def test_a_worker_registers_and_is_told_with_all_that_it_said(client: Client) -> None:
    registered = await client.RegisterWorker(
        namespace_id="shop", task_queue="q", workflow_types=["a", "b", "a"], hostname="pod-7", pid=1, version="1.2.3",
        max_concurrent=50, labels={"region": "us-east-1", "gpu": ""}, queue_concurrency_limit=20_000,
        workflow_type_concurrency=[
            pb.WorkflowTypeConcurrency(workflow_type="a", max_concurrent=3),
            pb.WorkflowTypeConcurrency(workflow_type="b", max_concurrent=0),
        ],
    )  # fmt: skip
    assert registered.heartbeat_interval_secs == 10

    worker = await worker_of(client, registered.worker_id)

    assert (worker.namespace_id, worker.task_queue, worker.hostname, worker.pid) == ("shop", "q", "pod-7", 1)
    assert (worker.version, worker.max_concurrent, list(worker.workflow_types)) == ("1.2.3", 50, ["a", "b"])
    assert dict(worker.labels) == {"region": "us-east-1", "gpu": ""}
    assert worker.status == pb.WORKER_STATUS_ONLINE
    assert (worker.active_count, worker.total_completed, worker.total_failed) == (0, 0, 0)
    assert worker.queue_concurrency_limit == 10_000
    assert [(one.workflow_type, one.max_concurrent) for one in worker.workflow_type_concurrency] == [("a", 3)]
    assert worker.registered_at.ToDatetime() <= worker.last_heartbeat_at.ToDatetime()


async def test_what_a_worker_leaves_out_has_its_default(client: Client) -> None:
    worker = await worker_of(client, await client.register(max_concurrent=-5))

    assert (worker.namespace_id, worker.hostname, worker.pid, worker.version) == ("default", "", 0, "")
    assert worker.max_concurrent == 1


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"task_queue": "q"}, "workflow_types"),
        ({"task_queue": "q", "workflow_types": [""]}, "workflow_types"),
        ({"task_queue": "", "workflow_types": ["a"]}, "task_queue"),
        ({"task_queue": "q", "workflow_types": ["a"], "labels": {"": "x"}}, "labels"),
        ({"task_queue": "q", "workflow_types": ["a"], "hostname": "a\x00b"}, "hostname"),
    ],
)
async def test_a_registration_that_makes_no_sense_is_refused(client: Client, fields: Any, field: str) -> None:
    with Refused("INVALID_ARGUMENT", "INVALID_ARGUMENT", field):
        await client.RegisterWorker(**fields)

    assert (await client.ListWorkers()).total_count == 0


async def test_the_same_host_process_queue_and_namespace_is_the_same_worker(client: Client) -> None:
    first = await client.register(hostname="h", pid=7, version="1")

    again = await client.register(hostname="h", pid=7, version="2", kinds=("greet", "part"))

    assert again == first
    worker = await worker_of(client, first)
    assert (worker.version, list(worker.workflow_types)) == ("2", ["greet", "part"])
    assert await client.register(hostname="h", pid=8) != first
    assert await client.register("other", hostname="h", pid=7) != first
    assert await client.register(hostname="h", pid=7, namespace_id="shop") != first
    assert await client.register() != await client.register()
    assert (await client.ListWorkers()).total_count == 5


async def test_many_who_register_as_one_are_one(client: Client) -> None:
    ids = await asyncio.gather(*(client.register(hostname="h", pid=7) for _ in range(20)))

    assert len(set(ids)) == 1
    assert await status_of(client, ids[0]) == "ONLINE"


async def test_a_new_incarnation_leaves_the_runs_of_the_former_to_their_lease(
    still_client: Client, engine: Engine, clock: VirtualClock
) -> None:
    """Who still heartbeats for it keeps it: its token names it."""
    first = still_client.RegisterWorker(task_queue="q", workflow_types=["greet"], hostname="h", pid=1)
    worker_id = (await first).worker_id
    token = dict(await first.trailing_metadata())["x-windlass-lease-token"]
    run_id = await still_client.start()
    assert (await still_client.poll(worker_id)).run_id == run_id
    assert await still_client.register(hostname="h", pid=1) == worker_id
    for _ in range(4):
        await clock.advance(15)
        await still_client.WorkerHeartbeat(worker_id=worker_id)
        await still_client.WorkerHeartbeat(worker_id=worker_id, metadata=(("x-windlass-lease-token", token),))
        await engine.loops.expire_tick()
    assert await still_client.status(run_id) == "RUNNING"

    for _ in range(3):  # the former falls silent, the new one does not
        await clock.advance(15)
        await still_client.WorkerHeartbeat(worker_id=worker_id)
        await engine.loops.expire_tick()

    assert await still_client.status(run_id) == "PENDING"
    assert await status_of(still_client, worker_id) == "ONLINE"


async def test_a_heartbeat_counts_and_extends_all_that_the_worker_runs(
    still_client: Client, engine: Engine, clock: VirtualClock
) -> None:
    worker_id = await still_client.register()
    await clock.advance(1)
    runs = [await still_client.start() for _ in range(3)]
    assert {(await still_client.poll(worker_id)).run_id for _ in runs} == set(runs)
    assert (await worker_of(still_client, worker_id)).active_count == 3

    for beat in range(6):
        await clock.advance(20)
        answer = await still_client.WorkerHeartbeat(
            worker_id=worker_id, active_count=2, completed_delta=beat, failed_delta=-1
        )
        assert (answer.accepted, answer.should_drain) == (True, False)
        await engine.loops.expire_tick()

    worker = await worker_of(still_client, worker_id)
    assert (worker.active_count, worker.total_completed, worker.total_failed) == (2, 15, 0)
    assert worker.last_heartbeat_at.ToDatetime() > worker.registered_at.ToDatetime()
    assert {await still_client.status(run_id) for run_id in runs} == {"RUNNING"}


async def test_heartbeats_of_many_workers_come_together(
    live_engine: Engine, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    fetch = Session.fetch

    async def counted(self: Session, name: str, *arguments: Any) -> Any:
        asked.append(name)
        return await fetch(self, name, *arguments)

    async with open_sessions(live_engine, grpc="127.0.0.1:0", api_key=KEY) as url:
        client = connect(url)
        ids = [await client.register(pid=n + 1, hostname="h") for n in range(20)]
        monkeypatch.setattr(Session, "fetch", counted)

        beats = [client.WorkerHeartbeat(worker_id=worker_id, completed_delta=1) for worker_id in ids for _ in range(2)]
        answers = await asyncio.gather(*beats)

        assert all(answer.accepted for answer in answers)
        assert (
            asked.count("record_worker_heartbeats") <= 6
        )  # one for the first beat of each, one for the second, in a few groups
        assert {(await worker_of(client, worker_id)).total_completed for worker_id in ids} == {2}


async def test_an_unknown_or_gone_worker_is_not_found(client: Client) -> None:
    gone = await client.register()
    await client.DeregisterWorker(worker_id=gone)

    for worker_id in (str(uuid4()), gone):
        with Refused("NOT_FOUND", "NOT_FOUND") as refused:
            await client.WorkerHeartbeat(worker_id=worker_id)
        assert (refused.detail.subject, refused.detail.subject_id) == ("worker", worker_id)
    for method in ("GetWorker", "DeregisterWorker"):
        with Refused("NOT_FOUND", "NOT_FOUND"):
            await getattr(client, method)(worker_id=str(uuid4()))
        with Refused("INVALID_ARGUMENT", "INVALID_ARGUMENT", "worker_id"):
            await getattr(client, method)(worker_id="nobody")
    with Refused("INVALID_ARGUMENT", "INVALID_ARGUMENT", "worker_id"):
        await client.WorkerHeartbeat(worker_id="nobody")


async def test_a_worker_of_another_namespace_is_not_there(live_engine: Engine, server: str, connect: Any) -> None:
    _, key = await live_engine.keys.create_key(name="shop", role=Role.SUBMITTER, namespace="shop")
    theirs = await connect(server).register()
    shop = connect(server, key=key)

    for method in ("GetWorker", "WorkerHeartbeat", "DeregisterWorker"):
        with Refused("NOT_FOUND", "NOT_FOUND"):
            await getattr(shop, method)(worker_id=theirs)
    with Refused("FAILED_PRECONDITION", "PRECONDITION_FAILED"):
        await shop.poll(theirs, namespace_id="shop")
    assert (await shop.ListWorkers(namespace_id="shop")).total_count == 0


async def test_a_silent_worker_is_offline_and_its_runs_are_recovered(
    still_client: Client, engine: Engine, clock: VirtualClock
) -> None:
    worker_id = await still_client.register()
    run_id = await still_client.start()
    await still_client.poll(worker_id)

    await clock.advance(29)
    assert await status_of(still_client, worker_id) == "ONLINE"
    await clock.advance(2)
    assert await status_of(still_client, worker_id) == "OFFLINE"
    await engine.loops.expire_tick()

    run = await still_client.run(run_id)
    assert (await still_client.status(run_id), run.attempts) == ("PENDING", 1)
    assert run.wake_up_at.ToDatetime() > run.started_at.ToDatetime()
    with Refused("NOT_FOUND", "NOT_FOUND"):
        await still_client.WorkerHeartbeat(worker_id=worker_id)


async def test_how_soon_a_dead_worker_is_noticed_is_a_setting(
    engine: Engine, clock: VirtualClock, connect: Any
) -> None:
    options = {"heartbeat_s": 3.0, "stale_s": 10.0}
    async with open_sessions(engine, grpc="127.0.0.1:0", api_key=KEY, registry=options) as url:
        client = connect(url)
        registered = await client.RegisterWorker(task_queue="q", workflow_types=["greet"])
        assert registered.heartbeat_interval_secs == 3
        run_id = await client.start()
        await client.poll(registered.worker_id)
        await clock.advance(10.001)
        await engine.loops.expire_tick()

        assert await status_of(client, registered.worker_id) == "OFFLINE"
        assert await client.status(run_id) == "PENDING"


async def test_deregistering_recovers_what_it_ran_at_once_and_may_be_repeated(client: Client) -> None:
    worker_id = await client.register()
    run_id = await client.start()
    await client.poll(worker_id)

    await client.DeregisterWorker(worker_id=worker_id)
    await client.DeregisterWorker(worker_id=worker_id)

    assert await status_of(client, worker_id) == "OFFLINE"
    run = await client.run(run_id)
    assert (await client.status(run_id), run.attempts) == ("PENDING", 1)
    assert (await worker_of(client, worker_id)).active_count == 0


async def test_a_draining_worker_finishes_what_it_has_and_gets_nothing_new(
    still_client: Client, engine: Engine, clock: VirtualClock
) -> None:
    """Busy for longer than its lease: heartbeats go on during the drain."""
    worker_id = await still_client.register()
    run_id, _ = await still_client.start(), await still_client.start()
    run_id = (await still_client.poll(worker_id)).run_id

    await still_client.DeregisterWorker(worker_id=worker_id, drain=True)

    assert await status_of(still_client, worker_id) == "DRAINING"
    for _ in range(8):
        await clock.advance(20)
        assert (await still_client.WorkerHeartbeat(worker_id=worker_id, active_count=1)).should_drain
        await engine.loops.expire_tick()
        with Refused("FAILED_PRECONDITION", "PRECONDITION_FAILED", "draining"):
            await still_client.poll(worker_id)
    await still_client.CompleteWorkflow(run_id=run_id, output=b'"done"')
    assert await still_client.status(run_id) == "COMPLETED"
    await still_client.DeregisterWorker(worker_id=worker_id)
    assert await status_of(still_client, worker_id) == "OFFLINE"


async def test_a_drain_has_an_end(still_client: Client, engine: Engine, clock: VirtualClock) -> None:
    worker_id = await still_client.register()
    run_id = await still_client.start()
    await still_client.poll(worker_id)
    await still_client.DeregisterWorker(worker_id=worker_id, drain=True)
    for _ in range(14):
        await clock.advance(20)
        await still_client.WorkerHeartbeat(worker_id=worker_id)
        await engine.loops.expire_tick()
    assert await still_client.status(run_id) == "RUNNING"

    await clock.advance(21)
    with Refused("NOT_FOUND", "NOT_FOUND"):
        await still_client.WorkerHeartbeat(worker_id=worker_id)
    await engine.loops.expire_tick()

    assert await status_of(still_client, worker_id) == "OFFLINE"
    assert await still_client.status(run_id) == "PENDING"


async def test_a_drain_ends_a_poll_that_waits(client: Client, live_engine: Engine) -> None:
    worker_id = await client.register()
    polling = asyncio.ensure_future(client.poll(worker_id))
    await waits_in_line(live_engine, 1)

    await client.DeregisterWorker(worker_id=worker_id, drain=True)

    with Refused("FAILED_PRECONDITION", "PRECONDITION_FAILED", "draining"):
        await soon(polling)


async def test_the_end_of_a_worker_ends_a_poll_that_waits(client: Client, live_engine: Engine) -> None:
    worker_id = await client.register()
    polling = asyncio.ensure_future(client.poll(worker_id))
    await waits_in_line(live_engine, 1)

    await client.DeregisterWorker(worker_id=worker_id)

    with Refused("FAILED_PRECONDITION", "PRECONDITION_FAILED", "RegisterWorker"):
        await soon(polling)


async def test_a_draining_worker_does_not_swallow_a_wake_up_that_is_for_another(
    client: Client, live_engine: Engine
) -> None:
    draining, other = await client.register(pid=1, hostname="h"), await client.register(pid=2, hostname="h")
    first = asyncio.ensure_future(client.poll(draining))
    await waits_in_line(live_engine, 1)
    second = asyncio.ensure_future(client.poll(other))
    await waits_in_line(live_engine, 2)
    await live_engine.workers.drain(UUID(draining))

    run_id = await client.start()

    assert (await soon(second)).run_id == run_id
    with Refused("FAILED_PRECONDITION", "PRECONDITION_FAILED", "draining"):
        await soon(first)


async def test_workers_are_listed_by_queue_and_status_with_their_number(client: Client) -> None:
    online, draining, offline = [await client.register() for _ in range(3)]
    elsewhere = await client.register("other")
    await client.DeregisterWorker(worker_id=draining, drain=True)
    await client.DeregisterWorker(worker_id=offline)

    async def listed(**filters: str) -> tuple[list[str], int]:
        found = await client.ListWorkers(**filters)
        return [worker.worker_id for worker in found.workers], found.total_count

    assert await listed() == ([elsewhere, offline, draining, online], 4)
    assert await listed(task_queue="q") == ([offline, draining, online], 3)
    assert await listed(filter_status="ONLINE") == ([elsewhere, online], 2)
    assert await listed(task_queue="q", filter_status="DRAINING") == ([draining], 1)
    assert await listed(filter_status="OFFLINE") == ([offline], 1)
    assert await listed(namespace_id="shop") == ([], 0)
    for wrong in ("online", "GONE"):
        with Refused("INVALID_ARGUMENT", "INVALID_ARGUMENT", "filter_status"):
            await client.ListWorkers(filter_status=wrong)
    with Refused("INVALID_ARGUMENT", "INVALID_ARGUMENT", "page_token"):
        await client.ListWorkers(page_token="nope")
    for wrong in ("a\0b", "x" * 201):
        for listing in (client.ListWorkers, client.ListSchedules):
            with Refused("INVALID_ARGUMENT", "INVALID_ARGUMENT", "task_queue"):
                await listing(task_queue=wrong)


async def test_paging_neither_loses_nor_repeats_a_worker(client: Client) -> None:
    ids = [await client.register() for _ in range(25)]
    seen: list[str] = []
    token = ""
    while True:
        page = await client.ListWorkers(page_size=4, page_token=token)
        seen += [worker.worker_id for worker in page.workers]
        assert page.total_count == 25
        token = page.next_page_token
        if not token:
            break

    assert seen == ids[::-1]
    assert len((await client.ListWorkers()).workers) == 20  # a page size of 0 is the default


async def test_workers_that_went_are_forgotten_after_seven_days(
    still_client: Client, engine: Engine, clock: VirtualClock
) -> None:
    worker_id = await still_client.register()
    await still_client.DeregisterWorker(worker_id=worker_id)
    await engine.loops.expire_tick()
    await clock.advance(6.9 * 86400)
    await engine.loops.retention_tick()
    assert await status_of(still_client, worker_id) == "OFFLINE"

    await clock.advance(0.2 * 86400)
    await engine.loops.retention_tick()

    with Refused("NOT_FOUND", "NOT_FOUND"):
        await still_client.GetWorker(worker_id=worker_id)


async def test_workers_of_our_sdk_are_in_the_same_registry(client: Client, live_engine: Engine) -> None:
    lease = await live_engine.open_lease(
        "ours", ["q"], kinds=["greet"], labels=["gpu", "region=eu"], host="h", pid=3, version="9", concurrency=5
    )

    [worker] = (await client.ListWorkers()).workers

    assert (worker.task_queue, worker.hostname, worker.pid) == ("q", "h", 3)
    assert worker.worker_id != str(lease.id)  # which is the token of all that it runs
    assert dict(worker.labels) == {"gpu": "", "region": "eu"}
    assert worker.max_concurrent == 5
    await live_engine.end_lease(lease)
    assert await status_of(client, worker.worker_id) == "OFFLINE"


async def test_the_log_says_who_is_stale_what_is_recovered_and_what_is_given_up(
    still_client: Client, engine: Engine, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    worker_id = await still_client.register(hostname="web-1", pid=7)
    kept = await still_client.start()
    lost = await still_client.start(retry_policy=pb.RetryPolicy(maximum_attempts=1))
    for _ in range(2):
        await still_client.poll(worker_id)
    await clock.advance(31)
    await engine.loops.expire_tick()
    await engine.loops.expire_tick()

    lines = [record.message for record in caplog.records if record.name == "windlass.watchdog"]
    assert lines == [
        f"worker {worker_id} (web-1:7) is stale: its heartbeats stopped",
        f"recovered 1 runs of worker {worker_id}: {kept}",
        f"gave up run {lost} (greet): its worker was lost 1 times",
    ]


async def test_a_worker_that_says_goodbye_is_not_called_stale(
    client: Client, live_engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    await live_engine.end_lease(await live_engine.open_lease("ours", ["q"]))
    await client.DeregisterWorker(worker_id=await client.register())
    await live_engine.loops.expire_tick()

    assert "stale" not in caplog.text


async def test_what_a_worker_no_longer_names_is_taken_from_it(
    still_client: Client, engine: Engine, clock: VirtualClock
) -> None:
    """A claim whose answer was lost would otherwise run for as long as its worker lives."""
    worker_id = await still_client.register()
    kept, lost = await still_client.start(), await still_client.start()
    await still_client.poll(worker_id)
    await still_client.poll(worker_id)
    for _ in range(3):
        await clock.advance(20)
        await still_client.WorkerHeartbeat(worker_id=worker_id, metadata=(("x-windlass-active-runs", kept),))

    assert await still_client.status(kept) == "RUNNING"
    assert await still_client.status(lost) == "PENDING"
    with Refused("INVALID_ARGUMENT", "INVALID_ARGUMENT", "x-windlass-active-runs"):
        await still_client.WorkerHeartbeat(worker_id=worker_id, metadata=(("x-windlass-active-runs", "nope"),))


@pytest.mark.parametrize("count", [0, 1, 7])
async def test_without_a_list_a_heartbeat_extends_all_whatever_it_counts(
    still_client: Client, engine: Engine, clock: VirtualClock, count: int
) -> None:
    worker_id = await still_client.register()
    runs = [await still_client.start() for _ in range(2)]
    for _ in runs:
        await still_client.poll(worker_id)
    await still_client.BeginStep(run_id=runs[0], step_id="s")
    await still_client.WorkerHeartbeat(worker_id=worker_id, active_count=2)
    for _ in range(5):
        await clock.advance(14)
        await still_client.WorkerHeartbeat(worker_id=worker_id, active_count=count)
        await engine.loops.expire_tick()

    assert [await still_client.status(run_id) for run_id in runs] == ["RUNNING"] * 2


async def test_a_run_that_is_kept_alive_by_itself_keeps_its_worker(still_client: Client, clock: VirtualClock) -> None:
    worker_id = await still_client.register()
    await clock.advance(1)
    run_id = await still_client.start()
    await still_client.poll(worker_id)
    for _ in range(4):
        await clock.advance(14)
        await still_client.RecordHeartbeat(run_id=run_id, worker_id=worker_id)
    assert await still_client.status(run_id) == "RUNNING"
    assert (await worker_of(still_client, worker_id)).active_count == 1


async def waits_in_line(engine: Engine, count: int) -> None:
    """Until so many polls have looked, found nothing, and wait."""
    async with asyncio.timeout(60):
        while len(list(engine.parts.notifications.idle("default", "q"))) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
