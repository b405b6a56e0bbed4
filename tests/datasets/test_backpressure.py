"""A job of which too many tasks wait gets no more, and all that it is owed once they are gone."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from tests.datasets.world import CHAIN, World, output
from tests.kit.world import ok

from windlass.api.metrics import metrics_text
from windlass.datasets.rules.why import Because
from windlass.datasets.why import Reasons
from windlass.engine.read.metrics import Tally
from windlass.errors import InvalidState, Overloaded

pytestmark = pytest.mark.slow

BOUND = 3
SMALL = CHAIN.replace("operator: compacter", f"operator: compacter\n    max_queue_depth: {BOUND}")
SLOW_ALERT = CHAIN.replace("operator: alerter", f"operator: alerter\n    max_queue_depth: {BOUND}")
AGED = CHAIN.replace("operator: compacter", "operator: compacter\n    max_queue_age: 5m")
LINE = """\
name: chain
jobs:
  - {name: tick, activation: source, runtime: ecs_platform, operator: op, outputs: 1, update_strategy: replace,
     source: {kind: cron, schedule: "* * * * *"}}
  - {name: hand, activation: source, runtime: ecs_platform, operator: op, outputs: 1, update_strategy: replace,
     source: {kind: manual}}
  - {name: merge, activation: reactive, runtime: ecs_platform, operator: op, outputs: 1, update_strategy: replace,
     execution_strategy: PerUpdate, inputs: [{from: {job: tick}}, {from: {job: hand}}]}
  - {name: last, activation: reactive, runtime: ecs_platform, operator: op, outputs: 0,
     execution_strategy: PerPartition, inputs: [{from: {job: merge}}], max_queue_depth: 2}
"""


async def held(world: World) -> dict[str, str]:
    async with world.engine.store.begin() as tx:
        rows = await tx.session.connection.fetch("select name, held_by from windlass.job where held order by name")
    return {row[0]: row[1] for row in rows}


async def routings(world: World) -> list[str]:
    async with world.engine.store.begin() as tx:
        rows = await tx.session.connection.fetch("select routing from windlass.event order by at, id")
    return [row[0] for row in rows]


async def finish(world: World, job: str, **scope: Any) -> None:
    """Complete the queued tasks of a job, as many as there are now."""
    for task_id in await world.tasks(job, "queued"):
        ok(await (await world.leases.hold(task_id)).complete(**scope))
    await world.settle()


async def test_a_job_gets_no_more_tasks_than_may_wait_and_all_of_them_in_the_end(world: World) -> None:
    await world.deploy(SMALL)
    await world.report(await world.emit(), cursor=1000)  # ten partitions

    assert len(await world.tasks("compact")) == BOUND
    assert (await held(world))["compact"] == "chain/compact"
    for _ in range(10):
        assert len(await world.tasks("compact", "queued")) <= BOUND
        await finish(world, "compact")

    assert len(await world.tasks("compact", "succeeded")) == 10
    assert await held(world) == {}


async def test_an_event_for_a_held_job_is_held_and_nothing_is_lost(world: World) -> None:
    await world.deploy(SLOW_ALERT)
    for cursor in range(10, 60, 10):
        holder = await world.emit()
        ok(await holder.complete(events=[{**output(holder), "cursor": cursor}]))
    await world.settle()
    assert (await routings(world)).count("held") == 2
    assert len(await world.tasks("alert")) == BOUND

    windows: list[tuple[Any, Any]] = []
    while queued := await world.tasks("alert", "queued"):
        one = await world.leases.hold(queued[0])
        [given] = one.reply["task"]["inputs"]
        windows.append((given["cursor_from"], given["cursor_to"]))
        ok(await one.complete())
        await world.settle()

    assert (windows[0][0], windows[-1][1]) == (None, 50)
    assert all(before[1] == after[0] for before, after in pairwise(windows))


async def test_a_held_job_is_released_at_four_fifths_and_not_before(world: World) -> None:
    await world.deploy(SMALL.replace(f"max_queue_depth: {BOUND}", "max_queue_depth: 5"))
    await world.report(await world.emit(), cursor=1000)
    assert len(await world.tasks("compact")) == 5
    first = await world.tasks("compact", "queued")

    await world.leases.hold(first[0])  # a task that runs does not wait
    await world.settle()

    assert len(await world.tasks("compact")) == 6, "four wait, so one more was made"
    assert "compact" in await held(world)


async def test_a_task_that_waits_too_long_holds_its_job(world: World) -> None:
    await world.deploy(AGED)
    await world.report(await world.emit(), cursor=150)
    source = await world.emit()
    assert await held(world) == {}

    await world.leases.clock.advance(301)
    await world.settle()
    assert (await held(world))["compact"] == "chain/compact"
    ok(await source.complete(events=[{**output(source), "cursor": 250}]))
    await world.settle()
    assert len(await world.tasks("compact")) == 1

    await finish(world, "compact")

    assert len(await world.tasks("compact")) == 2
    assert await held(world) == {}


async def test_jobs_upstream_wait_with_a_slow_one_and_sources_stand_still(world: World) -> None:
    await world.deploy(LINE)
    running = await world.emit("hand")
    hand = await world.emit("hand")
    ok(await hand.complete(events=[{**output(hand), "cursor": 5}]))
    await world.settle()
    merge = await world.hold("merge")
    parts = [{**output(merge), "partition_key": f"{n}-{n}", "start": n, "end": n} for n in range(4)]
    ok(await merge.complete(events=parts))
    await world.settle()

    assert await held(world) == dict.fromkeys(["hand", "last", "merge", "tick"], "chain/last")
    assert len(await world.tasks("last")) == 2
    assert ok(await running.heartbeat())["backpressure"] is True
    with pytest.raises(Overloaded, match="too many tasks wait"):
        await world.sources.emit("chain", "hand")
    assert await paused_schedules(world) == [True]
    await world.dags.pause("chain")
    await world.dags.pause("chain", paused=False)
    assert await paused_schedules(world) == [True], "a resume of the DAG does not start a source that is held"

    await finish(world, "last")
    await finish(world, "last")

    assert await held(world) == {}
    assert len(await world.tasks("last", "succeeded")) == 4
    assert await paused_schedules(world) == [False]
    await world.sources.emit("chain", "hand")


async def paused_schedules(world: World) -> list[bool]:
    async with world.engine.store.begin() as tx:
        rows = await tx.session.connection.fetch("select paused from windlass.schedule")
    return [row[0] for row in rows]


async def test_a_job_upstream_that_feeds_another_is_not_held(world: World) -> None:
    await world.deploy(SMALL)
    source = await world.emit()
    await world.report(await world.emit(), cursor=1000)

    assert set(await held(world)) == {"compact", "ranges"}, "follow also feeds alert"
    assert "backpressure" not in ok(await source.heartbeat())
    assert await world.sources.emit("chain", "follow")


async def test_why_names_the_job_that_is_too_slow(world: World) -> None:
    await world.deploy(SMALL)
    await world.report(await world.emit(), cursor=1000)

    found = await world.engine.service(Reasons).why("chain", "compact", partition_key="900-999")

    assert found.because is Because.HELD
    assert found.detail == "compact gets no tasks: chain/compact has too many that wait"


async def test_a_job_that_leaves_is_not_held_any_more(world: World) -> None:
    await world.deploy(SMALL)
    await world.report(await world.emit(), cursor=1000)
    await world.dags.retire("chain")
    await world.settle()

    assert await held(world) == {}
    with pytest.raises(InvalidState):
        await world.sources.emit("chain", "follow")


async def test_metrics_have_what_is_held_owed_and_routed(world: World) -> None:
    world.engine.count(Tally())
    await world.deploy(SMALL)
    await world.report(await world.emit(), cursor=1000)

    found = set((await metrics_text(world.engine)).decode().splitlines())

    assert 'windlass_dataset_held{dag="chain",job="compact"} 1.0' in found
    assert 'windlass_dataset_owed{dag="chain",job="compact"} 7.0' in found
    async with world.engine.store.begin() as tx:
        rows = await tx.session.connection.fetch("select routing, count(*) from windlass.event group by routing")
    for routing, count in rows:
        assert f'windlass_dataset_events_total{{routing="{routing}"}} {float(count)}' in found
    made = len(await world.tasks("compact")) + len(await world.tasks("alert")) + len(await world.tasks("ranges"))
    assert f"windlass_dataset_routed_tasks_total {float(made)}" in found
