"""Invalidations on a real database: each job that reads the data gets one task, and says when it is done."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from tests.contracts.lease.world import Holder
from tests.datasets.world import World, output
from tests.kit.world import ok

from windlass.core.access import Principal, Role
from windlass.datasets.invalidations import Invalidations
from windlass.datasets.rules.invalidation import Bounds, InvalidPart, Reason, Scope
from windlass.datasets.tables.invalidations import InvalidationView
from windlass.errors import Conflict, Invalid, NotFound

pytestmark = pytest.mark.slow

FLOW = """\
name: flow
jobs:
  - name: follow
    activation: source
    runtime: ecs_platform
    operator: follower
    source: {kind: manual}
    outputs: 1
    update_strategy: append
    unique_key: [hash]
  - name: alert
    activation: reactive
    runtime: ecs_platform
    operator: alerter
    execution_strategy: PerUpdate
    inputs: [{from: {job: follow}}]
    outputs: 0
  - name: compact
    activation: reactive
    runtime: ecs_platform
    operator: compacter
    execution_strategy: PerPartition
    inputs: [{from: {job: follow}}]
    outputs: 0
  - name: ranges
    activation: reactive
    runtime: dispatcher
    operator: range_aggregator
    execution_strategy: PerUpdate
    inputs: [{from: {job: follow}}]
    config: {range_size: 10, start: 0}
    outputs: 1
    update_strategy: replace
  - name: peek
    activation: reactive
    runtime: ecs_platform
    operator: peeker
    execution_strategy: PerUpdate
    inputs: [{from: {job: ranges}}, {from: {job: follow}, trigger: false}]
    outputs: 0
publish:
  blocks:
    from: {job: follow}
    storage: postgres
    write_mode: direct
    schema: {columns: [{name: hash, type: text}, {name: height, type: bigint}]}
"""
OPERATOR = Principal("olga", Role.OPERATOR, "default")
ROWS = InvalidPart(Scope.ROW_RANGE, Reason.REORG, None, {"height": Bounds(gte=5, lte=9)})
PART = InvalidPart(Scope.PARTITION, Reason.CORRECTION, "0-99")


@pytest.fixture
def service(world: World) -> Invalidations:
    return world.engine.service(Invalidations)


async def deployed(world: World) -> None:
    """A DAG whose source has data up to cursor 10 and a partition, which all jobs have read."""
    await world.deploy(FLOW, "flow")
    await world.report(await world.emit("follow", "flow"), cursor=10)
    await world.report(await world.emit("follow", "flow"), partition_key="0-99", start=0, end=99)
    for job in ("alert", "compact"):
        ok(await (await world.hold(job)).complete())
    await world.settle()


async def invalidate(world: World, service: Invalidations, part: InvalidPart, **options: Any) -> InvalidationView:
    made = await service.invalidate(OPERATOR, "blocks", "default", part, **options)
    await world.settle()
    return made


async def newest(service: Invalidations) -> InvalidationView:
    return (await service.page(OPERATOR, "blocks", "default"))[0]


def given_to(holder: Holder, job: str) -> dict[str, Any]:
    task = holder.reply["task"]
    assert task["job"]["name"] == job
    given: dict[str, Any] = task["inputs"][0]
    return given


async def test_rows_that_were_wrong_are_reported_to_each_reader_by_one_task(
    world: World, service: Invalidations
) -> None:
    await deployed(world)

    made = await invalidate(world, service, ROWS)

    shown = {"id": str(made.invalidation.id), "scope": "row_range", "row_filter": {"height": {"gte": 5, "lte": 9}}}
    assert len(made.tasks) == 3, "alert, compact and ranges; peek reads it without being woken"
    holder = await world.hold("alert")
    given = given_to(holder, "alert")
    assert (given["invalidation"], given["mode"], given["cursor_to"]) == (shown, "snapshot", 10)
    assert holder.reply["task"]["trigger"] == {"kind": "invalidation", "invalidation_id": shown["id"]}
    assert given_to(await world.hold("compact"), "compact")["invalidation"] == shown


async def test_a_partition_that_was_wrong_is_given_with_its_revision(world: World, service: Invalidations) -> None:
    await deployed(world)

    await invalidate(world, service, PART)

    given = given_to(await world.hold("compact"), "compact")
    assert (given["mode"], given["partition_key"], given["start"], given["end"], given["revision"]) == (
        "partition", "0-99", 0, 99, 1,
    )  # fmt: skip
    assert given["invalidation"]["row_filter"] is None


async def test_it_is_processed_when_all_readers_are_done(world: World, service: Invalidations) -> None:
    await deployed(world)
    await invalidate(world, service, ROWS)
    assert (await newest(service)).processed_by == ["flow/ranges"], "the server's own is done"

    ok(await (await world.hold("alert")).complete())
    await world.settle()
    found = await newest(service)
    assert (found.processed_by, found.processed_at) == (["flow/alert", "flow/ranges"], None)
    ok(await (await world.hold("compact")).complete())
    await world.settle()

    found = await newest(service)
    assert found.processed_by == ["flow/alert", "flow/compact", "flow/ranges"]
    assert found.processed_at is not None


async def test_a_task_that_failed_counts_when_its_replay_succeeds(world: World, service: Invalidations) -> None:
    await deployed(world)
    await invalidate(world, service, ROWS)
    ok(await (await world.hold("compact")).complete())
    failed = await world.hold("alert")
    ok(await failed.complete("Failed", error_message="no", error={"category": "DATA_QUALITY"}))
    await world.settle()
    assert (await newest(service)).processed_at is None

    replay = await world.engine.parts.repair.retry(failed.task_id)
    await world.settle()
    ok(await (await world.leases.hold(replay)).complete())
    await world.settle()

    assert (await newest(service)).processed_at is not None


async def test_its_window_moves_no_cursor_and_no_other_is_read_meanwhile(world: World, service: Invalidations) -> None:
    await deployed(world)
    await invalidate(world, service, ROWS)
    repair = await world.hold("alert")

    await world.report(await world.emit("follow", "flow"), cursor=20)
    assert await world.tasks("alert", "queued") == [], "the window waits for the invalidation"
    ok(await repair.complete())
    await world.settle()

    given = given_to(await world.hold("alert"), "alert")
    assert (given["mode"], given["cursor_from"], given["cursor_to"]) == ("cursor", 10, 20)


async def test_it_does_not_wait_behind_all_windows(world: World, service: Invalidations) -> None:
    await deployed(world)
    for cursor in (20, 30, 40):
        await world.report(await world.emit("follow", "flow"), cursor=cursor)
    running = await world.hold("alert")
    made = await invalidate(world, service, ROWS)

    ok(await running.complete())
    await world.settle()

    assert (await world.hold("alert")).task_id in made.tasks


async def test_a_paused_dag_gets_its_tasks_when_it_is_resumed(world: World, service: Invalidations) -> None:
    await deployed(world)
    await world.dags.pause("flow")
    made = await invalidate(world, service, ROWS)
    assert (made.tasks, (await newest(service)).processed_at) == ([], None)

    await world.dags.pause("flow", paused=False)
    await world.settle()

    assert len((await newest(service)).tasks) == 3
    assert given_to(await world.hold("alert"), "alert")["invalidation"]["scope"] == "row_range"


async def test_a_job_that_leaves_has_nothing_to_process(world: World, service: Invalidations) -> None:
    await deployed(world)
    await invalidate(world, service, ROWS)
    ok(await (await world.hold("compact")).complete())

    await world.deploy(FLOW[: FLOW.index("  - name: alert")] + FLOW[FLOW.index("  - name: compact") :], "flow")

    found = await newest(service)
    assert found.processed_by == ["flow/compact", "flow/ranges"]
    assert found.processed_at is not None


async def test_data_that_nobody_reads_is_processed_at_once(world: World, service: Invalidations) -> None:
    reads = FLOW.index("  - name: alert"), FLOW.index("publish:")
    await world.deploy(FLOW[: reads[0]] + FLOW[reads[1] :], "flow")

    await invalidate(world, service, ROWS)

    assert (await newest(service)).processed_at is not None


async def test_the_same_key_is_the_same_invalidation(world: World, service: Invalidations) -> None:
    await deployed(world)

    made = await invalidate(world, service, ROWS, key="k")
    again = await invalidate(world, service, ROWS, key="k")

    assert made.invalidation.id == again.invalidation.id
    assert len(await world.tasks("alert", "queued")) == 1
    with pytest.raises(Conflict):
        await service.invalidate(OPERATOR, "blocks", "default", PART, key="k")


async def test_many_servers_make_each_task_once(world: World, service: Invalidations) -> None:
    await deployed(world)
    await world.dags.pause("flow")
    await invalidate(world, service, ROWS)
    await world.dags.pause("flow", paused=False)

    await asyncio.gather(*(Invalidations(world.engine).tick() for _ in range(5)))

    assert len(await world.tasks("alert", "queued")) == 1


@pytest.mark.parametrize(
    ("part", "error"),
    [
        (InvalidPart(Scope.PARTITION, Reason.MANUAL, "100-199"), NotFound),
        (InvalidPart(Scope.PARTITION, Reason.MANUAL), Invalid),
        (InvalidPart(Scope.ROW_RANGE, Reason.MANUAL, None, {"nobody": Bounds(gte=1)}), Invalid),
        (InvalidPart(Scope.ROW_RANGE, Reason.MANUAL, None, {"height": Bounds(gte="x")}), Invalid),
    ],
)
async def test_what_is_not_there_cannot_be_wrong(
    world: World, service: Invalidations, part: InvalidPart, error: type[Exception]
) -> None:
    await deployed(world)

    with pytest.raises(error):
        await service.invalidate(OPERATOR, "blocks", "default", part)

    assert await service.page(OPERATOR, "blocks", "default") == []


@pytest.mark.parametrize("caller", [Principal("v", Role.VIEWER, "default"), Principal("o", Role.OPERATOR, "other")])
async def test_a_dataset_that_the_caller_may_not_read_does_not_exist(
    world: World, service: Invalidations, caller: Principal
) -> None:
    await deployed(world)

    with pytest.raises(NotFound):
        await service.invalidate(caller, "blocks", caller.namespace, ROWS)
    with pytest.raises(NotFound):
        await service.page(caller, "blocks", caller.namespace)


# --------------------------------------------------------------------------------------------- by a task


async def report(holder: Holder, **changes: Any) -> Any:
    body = {
        **output(holder), "scope": "row_range", "row_filter": {"height": {"gte": 5, "lte": 9}}, "reason": "reorg",
        **changes,
    }  # fmt: skip
    return await holder.say("invalidations", **body)


async def test_a_task_reports_what_was_wrong_in_its_own_output(world: World, service: Invalidations) -> None:
    await deployed(world)
    follower = await world.emit("follow", "flow")

    answer = ok(await report(follower))
    again = ok(await report(follower))
    await world.settle()

    assert answer == again
    found = await newest(service)
    assert (str(found.invalidation.id), len(found.tasks)) == (answer["invalidation_id"], 3)
    assert str(follower.task_id) in found.invalidation.source
    assert given_to(await world.hold("alert"), "alert")["invalidation"]["id"] == answer["invalidation_id"]
    assert len(await service.page(OPERATOR, "blocks", "default")) == 1


@pytest.mark.parametrize(
    ("changes", "status", "field"),
    [
        ({"dataset_uuid": str(uuid4())}, 403, "dataset_uuid"),
        ({"dataset_version": str(uuid4())}, 403, "dataset_version"),
        ({"lease_token": str(uuid4())}, 409, None),
        ({"attempt": 7}, 409, None),
        ({"scope": "all"}, 400, "scope"),
        ({"reason": "because"}, 400, "reason"),
        ({"row_filter": {}}, 400, "row_filter"),
        ({"row_filter": {"nobody": {"gte": 1}}}, 400, "row_filter"),
        ({"row_filter": {"height": {"gte": "x"}}}, 400, "row_filter.height.gte"),
        ({"row_filter": ..., "scope": "partition"}, 400, "partition_key"),
        ({"row_filter": ..., "scope": "partition", "partition_key": "7-8"}, 400, "partition_key"),
        ({"row_filter": ..., "scope": "partition", "partition_key": "a\x00"}, 400, "partition_key"),
    ],
)
async def test_what_a_task_may_not_report_is_refused_and_nothing_is_written(
    world: World, service: Invalidations, changes: dict[str, Any], status: int, field: str | None
) -> None:
    await deployed(world)
    follower = await world.emit("follow", "flow")

    answer = await report(follower, **changes)

    assert (answer.status_code, answer.json().get("field")) == (status, field), answer.text
    await world.settle()
    assert await service.page(OPERATOR, "blocks", "default") == []


async def test_a_task_that_reads_a_dataset_may_not_invalidate_it(world: World, service: Invalidations) -> None:
    await deployed(world)
    follower = await world.emit("follow", "flow")
    await world.report(await world.emit("follow", "flow"), cursor=20)
    reader = await world.hold("alert")

    answer = await reader.say("invalidations", **output(follower), scope="row_range", reason="reorg",
                              row_filter={"height": {"gte": 1}})  # fmt: skip

    assert answer.status_code == 403
    assert await service.page(OPERATOR, "blocks", "default") == []
