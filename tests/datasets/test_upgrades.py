"""Upgrades: what a job is owed when the version of an input changes, and it continues instead of starting again."""

from __future__ import annotations

import pytest
from tests.datasets.world import World
from tests.kit.world import ok

from windlass.core.access import Principal, Role
from windlass.datasets.catalog import Catalog
from windlass.datasets.purge import Purge
from windlass.errors import InvalidState

pytestmark = pytest.mark.slow

PRODUCER = """\
name: chain
jobs:
  - name: follow
    activation: source
    runtime: ecs_platform
    operator: follower
    config: {limit: 1}
    source: {kind: manual}
    outputs: 1
    update_strategy: replace
publish:
  blocks: {from: {job: follow}, storage: postgres, write_mode: direct}
"""
SECOND, THIRD = (PRODUCER.replace("limit: 1", f"limit: {limit}") for limit in (2, 3))
READER = """\
name: reader
jobs:
  - name: report
    activation: reactive
    runtime: ecs_platform
    operator: reporter
    execution_strategy: PerPartition
    inputs: [{from: {dataset: blocks}, on_upgrade: continue}]
    outputs: 1
    update_strategy: replace
"""
UPDATES = READER.replace("PerPartition", "PerUpdate")


async def publish(world: World, *keys: str) -> None:
    """Let the source commit partitions."""
    for key in keys:
        first, _, last = key.partition("-")
        await world.report(await world.emit(), partition_key=key, start=int(first), end=int(last))


async def read(world: World, job: str = "report") -> list[str]:
    """Complete the tasks of a job that wait. Returns the partitions that they were given."""
    found = []
    while waiting := await world.tasks(job, "queued"):
        holder = await world.leases.hold(waiting[0])
        found.append(holder.reply["task"]["inputs"][0]["partition_key"])
        ok(await holder.complete())
        await world.settle()
    return sorted(found)


async def build(world: World, yaml: str, *keys: str) -> None:
    """Deploy a version whose source commits partitions before and after it becomes active."""
    before = await world.deploy(yaml, auto_cutover=False)
    assert before.state == "ready"
    await world.dags.activate("chain", before.number)
    await publish(world, *keys)


async def test_partitions_that_were_built_before_the_cutover_are_carried_over(world: World) -> None:
    await world.deploy(PRODUCER)
    await world.deploy(READER, "reader")
    await publish(world, "0-9", "10-19")
    await read(world)
    second = await world.deploy(SECOND, auto_cutover=False)
    await world.dags.activate("chain", second.number)
    await world.settle()
    await publish(world, "0-9", "10-19", "20-29")  # committed after the cutover: new to everybody
    assert await read(world) == ["0-9", "10-19", "20-29"]

    await world.dags.rollback("chain")
    await world.settle()
    assert await read(world) == [], "all of the old version was given, and 20-29 is not in it"
    await world.dags.activate("chain", second.number)
    await world.settle()
    assert await read(world) == []


@pytest.mark.parametrize(("on_upgrade", "owed"), [("reprocess", ["0-9", "10-19", "20-29"]), ("continue", ["20-29"])])
async def test_a_job_is_owed_all_of_a_new_version_or_what_it_was_not_given_of_the_old_one(
    world: World, on_upgrade: str, owed: list[str]
) -> None:
    await world.deploy(PRODUCER)
    await world.deploy(READER.replace("continue", on_upgrade), "reader")
    await publish(world, "0-9", "10-19")
    assert await read(world) == ["0-9", "10-19"]
    await world.dags.pause("reader")
    second = await world.deploy(SECOND, auto_cutover=False)
    await world.dags.activate("chain", second.number)
    await publish(world, "0-9", "10-19", "20-29")
    await world.dags.rollback("chain")
    await world.dags.pause("reader", paused=False)
    await world.settle()
    assert await read(world) == []

    await world.dags.activate("chain", second.number)
    await world.settle()

    assert await read(world) == owed


async def test_an_upgrade_that_waits_keeps_its_first_version_through_further_cutovers(world: World) -> None:
    await world.deploy(PRODUCER)
    await world.deploy(READER, "reader")
    await publish(world, "0-9", "10-19")
    await read(world)
    await world.dags.pause("reader")
    second = await world.deploy(SECOND, auto_cutover=False)
    third = await world.deploy(THIRD, auto_cutover=False)
    await world.dags.activate("chain", third.number)
    await publish(world, "0-9", "10-19", "20-29")
    await world.dags.activate("chain", second.number)
    await world.settle()
    await world.dags.activate("chain", third.number)
    await world.settle()

    await world.dags.pause("reader", paused=False)
    await world.settle()

    assert await read(world) == ["20-29"], "the other two were committed before the third version became current again"


async def test_a_partition_that_is_committed_again_after_the_cutover_is_owed(world: World) -> None:
    await world.deploy(PRODUCER)
    await world.deploy(READER, "reader")
    await publish(world, "0-9")
    await read(world)
    await world.dags.pause("reader")
    second = await world.deploy(SECOND, auto_cutover=False)
    await world.dags.activate("chain", second.number)
    await world.leases.clock.advance(1)
    await publish(world, "0-9")

    await world.dags.pause("reader", paused=False)
    await world.settle()

    assert await read(world) == ["0-9"]


async def test_a_version_is_not_purged_before_its_readers_are_carried_over(world: World) -> None:
    await world.deploy(PRODUCER)
    await world.deploy(READER, "reader")
    await publish(world, "0-9")
    await read(world)
    caller = Principal("ana", Role.ADMIN)
    [old] = (await world.engine.service(Catalog).get(caller, "blocks", "default")).versions
    await world.dags.pause("reader")
    for yaml in (SECOND, THIRD):
        await build(world, yaml)

    purge = world.engine.service(Purge)
    with pytest.raises(InvalidState, match="reader/report"):
        await purge.order(caller, "blocks", "default", old.dataset_version)
    await world.dags.pause("reader", paused=False)
    await world.settle()

    assert (await purge.order(caller, "blocks", "default", old.dataset_version)).state == "purged"


async def test_windows_go_on_in_the_new_version_where_the_old_one_ended(world: World) -> None:
    await world.deploy(PRODUCER)
    await world.deploy(UPDATES, "reader")
    await world.report(await world.emit(), cursor=10)
    ok(await (await world.hold("report")).complete())
    await world.settle()
    await world.report(await world.emit(), cursor=20)
    open_ = await world.hold("report")

    await build(world, SECOND)
    await world.report(await world.emit(), cursor=35)
    assert await world.tasks("report", "queued", "blocked") == [], "a window of the old version is open"
    ok(await open_.complete())
    await world.settle()

    [given] = (await world.hold("report")).reply["task"]["inputs"]
    assert (given["cursor_from"], given["cursor_to"]) == (20, 35)
    assert given["dataset_version"] != open_.reply["task"]["inputs"][0]["dataset_version"]


async def test_a_window_that_failed_in_the_old_version_is_read_in_the_new_one(world: World) -> None:
    await world.deploy(PRODUCER)
    await world.deploy(UPDATES, "reader")
    await world.report(await world.emit(), cursor=10)
    open_ = await world.hold("report")
    await build(world, SECOND)
    ok(await open_.complete("Failed", error_message="no", error={"category": "USER_CODE", "retryable": False}))
    await world.settle()

    await world.report(await world.emit(), cursor=20)

    [given] = (await world.hold("report")).reply["task"]["inputs"]
    assert (given["cursor_from"], given["cursor_to"]) == (None, 20)


FORWARD = """\
name: chain
jobs:
  - name: follow
    activation: source
    runtime: ecs_platform
    operator: follower
    config: {limit: 1}
    source: {kind: manual}
    outputs: 1
    update_strategy: replace
  - name: page
    activation: reactive
    runtime: ecs_platform
    operator: pager
    execution_strategy: PerPartition
    inputs: [{from: {job: follow}}]
    outputs: 0
"""


async def test_a_job_that_goes_forward_continues_with_new_versions_of_its_inputs(world: World) -> None:
    await world.deploy(FORWARD)
    await publish(world, "0-9", "10-19")
    assert await read(world, "page") == ["0-9", "10-19"]

    second = await world.deploy(FORWARD.replace("limit: 1", "limit: 2"))
    assert second.state == "active"
    await publish(world, "20-29")
    assert await read(world, "page") == ["20-29"]

    await world.dags.rollback("chain")
    await world.settle()
    assert await read(world, "page") == []
    await publish(world, "30-39")
    assert await read(world, "page") == ["30-39"]


async def test_a_job_that_goes_forward_reads_a_version_that_was_built_beside_it(world: World) -> None:
    middle = """\
  - name: double
    activation: reactive
    runtime: ecs_platform
    operator: doubler
    operator_version: "1"
    execution_strategy: PerPartition
    inputs: [{from: {job: follow}}]
    outputs: 1
    update_strategy: replace
"""
    file = FORWARD.replace("  - name: page", middle + "  - name: page").replace(
        "operator: pager\n    execution_strategy: PerPartition\n    inputs: [{from: {job: follow}}]",
        "operator: pager\n    execution_strategy: PerPartition\n    inputs: [{from: {job: double}}]",
    )
    await world.deploy(file)

    async def double(*keys: str) -> None:
        for task_id in await world.tasks("double", "queued"):
            holder = await world.leases.hold(task_id)
            given = holder.reply["task"]["inputs"][0]
            await world.report(holder, partition_key=given["partition_key"], start=given["start"], end=given["end"])

    await publish(world, "0-9", "10-19")
    await double()
    assert await read(world, "page") == ["0-9", "10-19"]

    second = await world.deploy(file.replace('operator_version: "1"', 'operator_version: "2"'))
    assert second.state == "building"
    await publish(world, "20-29")
    await double()
    await world.settle()

    assert (await world.dags.deployment("chain", second.id)).state == "active"
    assert await read(world, "page") == ["20-29"], "nobody is paged again for what was built once more"
