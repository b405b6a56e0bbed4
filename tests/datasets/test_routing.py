"""Events make the tasks of the jobs that read them, each once, with the window or partition that they are owed."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import uuid4

import pytest
from tests.contracts.lease.world import WORKER, Holder
from tests.datasets.world import CHAIN, World, output
from tests.kit.world import ok

from windlass.contracts.lease.delivery import Wakeup
from windlass.core.queue import QueueConfig
from windlass.datasets.router import Router
from windlass.datasets.why import Reasons

pytestmark = pytest.mark.slow

FOREVER_S = 400 * 86400.0


async def test_a_file_without_data_becomes_active_at_once(world: World) -> None:
    deployment = await world.deploy()

    assert deployment.state == "active"
    view = await world.dags.get("chain")
    assert (view.active_version, view.jobs) == (deployment.id, 4)


async def test_a_cursor_makes_one_task_with_its_window(world: World) -> None:
    await world.deploy()
    await world.report(await world.emit(), cursor=250)

    holder = await world.hold("alert")

    task = holder.reply["task"]
    assert task["job"] == {"dag_name": "chain", "name": "alert"}
    assert (task["operator"], task["config"]) == ("alerter", {"limit": 7})
    [given] = task["inputs"]
    assert (given["mode"], given["cursor_from"], given["cursor_to"]) == ("cursor", None, 250)
    assert task["trigger"]["kind"] == "event"


async def test_windows_follow_each_other_one_at_a_time(world: World) -> None:
    await world.deploy()
    for cursor in (10, 20, 30):
        await world.report(await world.emit(), cursor=cursor)
    assert len(await world.tasks("alert", "blocked")) == 2

    windows = []
    for _ in range(3):
        holder = await world.hold("alert")
        [given] = holder.reply["task"]["inputs"]
        windows.append((given["cursor_from"], given["cursor_to"]))
        ok(await holder.complete())
        await world.settle()

    assert windows == [(None, 10), (10, 20), (20, 30)]


async def test_a_task_does_not_overtake_one_that_waits_for_its_turn(world: World) -> None:
    await world.deploy()
    for cursor in (10, 20):
        await world.report(await world.emit(), cursor=cursor)
    source = await world.emit()
    [output] = source.reply["task"]["outputs"]
    event = {"dataset_uuid": output["dataset_uuid"], "dataset_version": output["dataset_version"], "cursor": 30}
    ok(await (await world.hold("alert")).complete())
    ok(await source.complete(events=[event]))
    await world.engine.service(Router).route_tick()
    assert await world.tasks("alert", "queued") == []

    await world.settle()

    [given] = (await world.hold("alert")).reply["task"]["inputs"]
    assert (given["cursor_from"], given["cursor_to"]) == (10, 20)


async def test_a_claim_of_a_window_that_is_not_next_says_so(world: World) -> None:
    await world.deploy()
    for cursor in (10, 20):
        await world.report(await world.emit(), cursor=cursor)
    [later] = await world.tasks("alert", "blocked")

    assert await world.leases.claim(later) == {
        "status": "NotClaimed", "reason": "AlreadyRunning", "detail": "NotReady", "waits_for": "window",
    }  # fmt: skip


async def test_a_task_beyond_the_concurrency_of_its_job_waits_for_its_turn(world: World) -> None:
    await world.deploy(CHAIN.replace("operator: compacter", "operator: compacter\n    scaling: {max_concurrency: 1}"))
    await world.report(await world.emit(), cursor=250)
    [later] = await world.tasks("compact", "blocked")

    assert (await world.leases.claim(later))["waits_for"] == "concurrency_limit"


async def test_a_window_begins_where_the_last_one_ended_though_no_tick_has_processed_its_end(world: World) -> None:
    await world.deploy()
    await world.report(await world.emit(), cursor=10)
    second = await world.emit()
    await second.complete(events=[{**output(second), "cursor": 20}])
    ok(await (await world.hold("alert")).complete())

    await world.engine.service(Router).route_tick()

    [given] = (await world.hold("alert")).reply["task"]["inputs"]
    assert (given["cursor_from"], given["cursor_to"]) == (10, 20)


async def test_a_task_is_kept_until_its_job_has_moved_on(world: World) -> None:
    await world.deploy()
    await world.report(await world.emit(), cursor=10)
    ok(await (await world.hold("alert")).complete())
    await world.leases.clock.advance(FOREVER_S)

    while await world.engine.loops.retention_tick():
        pass

    await world.report(await world.emit(), cursor=20)
    [given] = (await world.hold("alert")).reply["task"]["inputs"]
    assert (given["cursor_from"], given["cursor_to"]) == (10, 20)
    while await world.engine.loops.retention_tick():
        pass
    assert await world.tasks("alert", "succeeded") == []


async def test_a_window_that_failed_is_covered_by_the_next(world: World) -> None:
    await world.deploy()
    for cursor in (10, 20):
        await world.report(await world.emit(), cursor=cursor)
    first = await world.hold("alert")
    ok(await first.complete("Failed", error_message="no", error={"category": "USER_CODE", "retryable": False}))
    await world.settle()

    second = await world.hold("alert")

    [given] = second.reply["task"]["inputs"]
    assert (given["cursor_from"], given["cursor_to"]) == (None, 20)


async def test_a_replay_of_a_window_waits_for_its_turn(world: World) -> None:
    await world.deploy()
    for cursor in (10, 20):
        await world.report(await world.emit(), cursor=cursor)
    first = await world.hold("alert")
    ok(await first.complete("Failed", error_message="no", error={"category": "USER_CODE", "retryable": False}))
    await world.settle()
    second = await world.hold("alert")

    replay = await world.engine.parts.repair.retry(first.task_id)
    await world.settle()
    assert await world.tasks("alert", "blocked") == [replay]
    ok(await second.complete())
    await world.settle()

    await world.leases.claim(replay)
    assert (await world.leases.task(replay)).result == b'{"noop":true}', "the other window has covered it"


async def test_a_replay_starts_at_once_if_nothing_else_of_its_job_runs(world: World) -> None:
    await world.deploy()
    await world.report(await world.emit(), cursor=10)
    first = await world.hold("alert")
    ok(await first.complete("Failed", error_message="no", error={"category": "USER_CODE", "retryable": False}))

    replay = await world.engine.parts.repair.retry(first.task_id)
    await world.settle()

    [given] = (await world.leases.hold(replay)).reply["task"]["inputs"]
    assert (given["cursor_from"], given["cursor_to"]) == (None, 10)


async def test_ranges_are_reported_once_they_are_complete_and_each_makes_a_task(world: World) -> None:
    await world.deploy()
    await world.report(await world.emit(), cursor=250)
    await world.report(await world.emit(), cursor=420)

    keys = []
    for task_id in await world.tasks("compact", "queued"):
        holder = await world.leases.hold(task_id)
        first, snapshot = holder.reply["task"]["inputs"]
        keys.append((first["partition_key"], first["start"], first["end"], first["revision"]))
        assert (snapshot["mode"], snapshot["cursor_to"]) == ("snapshot", 420)

    assert sorted(keys) == [
        ("0-99", 0, 99, 1),
        ("100-199", 100, 199, 1),
        ("200-299", 200, 299, 1),
        ("300-399", 300, 399, 1),
    ]


async def test_a_cursor_that_is_not_higher_wakes_no_job(world: World) -> None:
    await world.deploy()
    await world.report(await world.emit(), cursor=20)

    for cursor in (20, 10):
        await world.report(await world.emit(), cursor=cursor)

    assert len(await world.tasks("alert")) == 1
    async with world.engine.store.begin() as tx:
        rows = await tx.session.connection.fetch("select cursor, routing from windlass.event order by at")
    assert [tuple(row) for row in rows] == [(20, "routed"), (20, "duplicate"), (10, "duplicate")]


async def test_an_event_whose_effect_was_lost_is_routed_later(world: World) -> None:
    await world.deploy()
    holder = await world.emit()
    [output] = holder.reply["task"]["outputs"]
    event = {"dataset_uuid": output["dataset_uuid"], "dataset_version": output["dataset_version"], "cursor": 20}
    ok(await holder.complete(events=[event]))
    async with world.engine.store.begin() as tx:
        await tx.session.connection.execute("delete from windlass.outbox where kind = 'route'")
    await world.settle()
    assert await world.tasks("alert") == []

    await world.leases.clock.advance(31)
    await world.settle()

    assert len(await world.tasks("alert", "queued")) == 1


async def test_a_partition_that_is_committed_again_is_owed_again(world: World) -> None:
    await world.deploy()
    source = await world.emit()
    await world.report(source, cursor=150)
    [first] = await world.tasks("compact", "queued")
    version = (await world.leases.claim(first))["task"]["inputs"][0]["dataset_version"]
    async with world.engine.store.begin() as tx:
        connection = tx.session.connection
        await connection.execute("update windlass.partition set revision = 2 where dataset_version = $1", version)
        await connection.execute("update windlass.job set behind = true")

    await world.settle()

    assert len(await world.tasks("compact")) == 2


async def test_a_replayed_window_that_was_read_meanwhile_is_not_given_to_a_worker(world: World) -> None:
    await world.deploy()
    for cursor in (10, 20):
        await world.report(await world.emit(), cursor=cursor)
    first = await world.hold("alert")
    ok(await first.complete("Failed", error_message="no", error={"category": "USER_CODE", "retryable": False}))
    await world.settle()
    ok(await (await world.hold("alert")).complete())
    await world.settle()

    again = await world.engine.parts.repair.retry(first.task_id)
    await world.settle()

    assert (await world.leases.claim(again))["reason"] == "Completed"
    assert (await world.leases.task(again)).result == b'{"noop":true}'


# ------------------------------------------------------------------------------------------------- coalesce

COALESCE = CHAIN.replace("config: {limit: 7}", "config: {limit: 7}\n    coalesce: true")


def window(holder: Holder) -> tuple[int | None, int]:
    [given] = holder.reply["task"]["inputs"]
    return given["cursor_from"], given["cursor_to"]


async def test_a_job_that_coalesces_has_one_task_that_takes_all_that_waits(world: World) -> None:
    await world.deploy(COALESCE)
    for cursor in (10, 20, 30):
        await world.report(await world.emit(), cursor=cursor)
    assert len(await world.tasks("alert")) == 1

    first = await world.hold("alert")
    for cursor in (40, 50):
        await world.report(await world.emit(), cursor=cursor)

    assert window(first) == (None, 30)
    assert len(await world.tasks("alert")) == 2, "one runs, and one waits"
    ok(await first.complete())
    await world.settle()
    second = await world.hold("alert")
    assert window(second) == (30, 50)
    ok(await second.complete())
    await world.settle()
    assert await world.tasks("alert", "queued", "blocked", "running") == []
    assert len(await world.tasks("alert")) == 2


async def test_a_retry_of_a_job_that_coalesces_takes_what_came_meanwhile(world: World) -> None:
    await world.deploy(COALESCE)
    await world.report(await world.emit(), cursor=10)
    first = await world.hold("alert")
    ok(await first.complete("Failed", error_message="no", error={"category": "USER_CODE", "retryable": True}))
    await world.report(await world.emit(), cursor=20)

    [task_id] = await world.tasks("alert")
    await world.leases.clock.advance(600)
    again = await world.leases.hold(task_id)

    assert window(again) == (None, 20)
    ok(await again.complete())
    await world.settle()
    await world.report(await world.emit(), cursor=30)
    assert window(await world.hold("alert")) == (20, 30)


async def test_a_repeated_claim_of_a_job_that_coalesces_gets_the_same_window(world: World) -> None:
    await world.deploy(COALESCE)
    await world.report(await world.emit(), cursor=10)
    [task_id] = await world.tasks("alert", "queued")
    claim = {"task_id": str(task_id), "worker_id": WORKER, "claim_id": str(uuid4())}
    first = ok(await world.leases.post("task-claim", claim))
    await world.report(await world.emit(), cursor=20)

    again = ok(await world.leases.post("task-claim", claim))

    assert [reply["task"]["inputs"][0]["cursor_to"] for reply in (first, again)] == [10, 10]
    assert first["lease_token"] == again["lease_token"]


async def test_what_a_late_report_has_not_read_is_owed_though_its_task_was_to_read_it(world: World) -> None:
    await world.deploy(COALESCE)
    await world.report(await world.emit(), cursor=10)
    late = await world.hold("alert")
    await world.leases.expire()
    assert (await world.leases.task(late.task_id)).state == "queued"
    await world.report(await world.emit(), cursor=20)
    assert len(await world.tasks("alert")) == 1, "the task that waits will read it"

    ok(await late.complete())
    await world.settle()

    assert window(await world.hold("alert")) == (10, 20)


async def test_a_job_of_the_server_coalesces_too(world: World) -> None:
    ranges = "config: {range_size: 100, start: 0}"
    await world.deploy(CHAIN.replace(ranges, f"coalesce: true\n    {ranges}"))
    source = await world.emit()
    for cursor in (120, 250):
        ok(await source.events({**output(source), "cursor": cursor}))
    await world.settle()

    assert len(await world.tasks("compact", "queued")) == 2
    assert len(await world.tasks("ranges")) == 1
    await world.report(await world.emit(), cursor=300)
    assert len(await world.tasks("compact", "queued")) == 3


# ------------------------------------------------------------------------------------------------- when: all

JOIN = """\
name: join
jobs:
  - {name: left, activation: source, runtime: ecs_platform, operator: l, source: {kind: manual}, outputs: 1,
     update_strategy: replace}
  - {name: right, activation: source, runtime: ecs_platform, operator: r, source: {kind: manual}, outputs: 1,
     update_strategy: replace}
  - name: both
    activation: reactive
    runtime: ecs_platform
    operator: joiner
    execution_strategy: PerPartition
    when: all
    inputs: [{from: {job: left}}, {from: {job: right}}]
    outputs: 1
    update_strategy: replace
"""


async def part(world: World, job: str, key: str) -> None:
    await world.report(await world.emit(job, "join"), partition_key=key)


async def given(world: World) -> list[list[tuple[str, int]]]:
    """What the tasks of the job were given: key and revision of each input."""
    found = []
    for task_id in await world.tasks("both", "queued"):
        holder = await world.leases.hold(task_id)
        found.append([(each["partition_key"], each["revision"]) for each in holder.reply["task"]["inputs"]])
        await world.report(holder, partition_key=found[-1][0][0])
    return sorted(found)


async def test_a_job_that_waits_for_all_inputs_gets_one_task_for_a_partition_that_all_have(world: World) -> None:
    await world.deploy(JOIN, "join")
    await part(world, "left", "a")
    assert await world.tasks("both") == []
    found = await world.engine.service(Reasons).why("join", "both", partition_key="a")
    assert (found.because, [each.name for each in found.missing]) == ("waiting_for_input", ["right"])

    await part(world, "right", "b")
    await part(world, "right", "a")

    assert await given(world) == [[("a", 1), ("a", 1)]]
    await part(world, "left", "a")
    assert await given(world) == [[("a", 2), ("a", 1)]]
    await part(world, "left", "b")
    assert await given(world) == [[("b", 1), ("b", 1)]]


async def test_a_new_job_that_waits_for_all_inputs_is_built_from_what_all_have(world: World) -> None:
    await world.deploy(JOIN, "join")
    for key in ("a", "b", "c"):
        await part(world, "left", key)
    for key in ("b", "c", "d"):
        await part(world, "right", key)
    assert await given(world) == [[("b", 1), ("b", 1)], [("c", 1), ("c", 1)]]

    second = await world.deploy(JOIN.replace("operator: joiner", "operator: other"), "join")

    assert second.state == "building"
    assert await given(world) == [[("b", 1), ("b", 1)], [("c", 1), ("c", 1)]]
    assert (await world.dags.deployment("join", second.id)).state == "active"


async def test_events_of_both_inputs_that_are_routed_together_make_one_task(world: World) -> None:
    await world.deploy(JOIN, "join")
    left, right = await world.emit("left", "join"), await world.emit("right", "join")
    for holder in (left, right):
        ok(await holder.complete(events=[{**output(holder), "partition_key": "a"}]))

    await world.settle()

    assert len(await world.tasks("both")) == 1


# ------------------------------------------------------------------------------------------------- limits of a job

instant = datetime.fromisoformat
LIMITS = CHAIN.replace(
    "    operator: alerter\n",
    "    operator: alerter\n    heartbeat_timeout_seconds: 7\n    idle_timeout: 90s\n    secrets: [B_KEY]\n",
)


@pytest.mark.parametrize("limited", [False, True])
async def test_a_job_has_the_lease_the_secrets_and_the_idle_timeout_of_its_file(world: World, limited: bool) -> None:
    delivery = Wakeup(secrets=("A_KEY", "B_KEY"))
    await world.engine.queues.put(
        "platform", delivery=delivery, limits=QueueConfig(max_running=10 if limited else None)
    )
    await world.deploy(LIMITS)
    await world.report(await world.emit(), cursor=10)

    holder = await world.hold("alert")

    task, reply = holder.reply["task"], holder.reply
    assert (task["secrets"], task["idle_timeout_s"]) == (["B_KEY"], 90)
    assert instant(reply["lease_expires_at"]) - instant(reply["server_time"]) == timedelta(seconds=7)
    kept = ok(await holder.heartbeat())
    assert instant(kept["lease_expires_at"]) - instant(kept["server_time"]) == timedelta(seconds=7)
    await world.leases.expire(6)
    assert (await world.leases.task(holder.task_id)).state == "running"
    await world.leases.expire(2)
    assert (await world.leases.task(holder.task_id)).state == "queued"
    async with world.engine.store.begin() as tx:
        assert await tx.heartbeats.shortest_lease_ms() == 7000


async def test_a_job_that_names_no_secrets_gets_none_and_a_task_by_hand_those_of_its_queue(world: World) -> None:
    await world.deploy()
    await world.report(await world.emit(), cursor=10)
    by_hand = await world.leases.submit(queue="platform", wire={"secrets": ["A_KEY"], "idle_timeout_s": 1})

    assert (await world.hold("alert")).reply["task"]["secrets"] == []
    assert (await world.leases.hold(by_hand)).reply["task"].keys().isdisjoint({"secrets", "idle_timeout_s"})
