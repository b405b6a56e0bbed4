"""Events make the tasks of the jobs that read them, each once, with the window or partition that they are owed."""

from __future__ import annotations

import pytest
from tests.datasets.world import World, output
from tests.kit.world import ok

from windlass.datasets.router import Router

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
