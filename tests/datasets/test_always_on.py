"""Jobs that always run: one task, whose attempts follow each other until its DAG is paused or its job leaves."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest
from tests.contracts.lease.world import Holder
from tests.datasets.world import CHAIN, World, output
from tests.kit.world import ok

from windlass.datasets.always_on import AlwaysOn
from windlass.datasets.job_views import JobViews
from windlass.datasets.rules.always_on import RESTART_S
from windlass.errors import InvalidState

pytestmark = pytest.mark.slow

ALWAYS = CHAIN.replace("source: {kind: manual}", "source: {kind: always_on}").replace(
    "    unique_key: [hash]\n", "    unique_key: [hash]\n    timeout_seconds: 30\n    max_attempts: 1\n", 1
)
CHANGED = ALWAYS.replace("operator: block_follower", "operator: block_follower\n    operator_version: '2'")
MINUTE_S = 61.0


async def shown(world: World) -> str | None:
    views = await world.engine.service(JobViews).jobs("chain")
    return next(view.condition for view in views if view.name == "follow")


async def only(world: World, *states: str) -> UUID:
    [task_id] = await world.tasks("follow", *states)
    return task_id


async def fail(holder: Holder, **error: object) -> None:
    ok(await holder.complete("Failed", error_message="no", error={"category": "CONFIGURATION", **error}))


async def test_it_is_started_when_its_deployment_is_active_and_not_before(world: World) -> None:
    await world.dags.deploy("chain", ALWAYS, auto_cutover=False)
    await world.settle()
    assert await world.tasks("follow") == []

    await world.dags.activate("chain", 1)
    assert await shown(world) == "Pending"
    await world.settle()

    holder = await world.hold("follow")
    assert await shown(world) == "Running"
    assert holder.reply["task"]["trigger"] == {"kind": "source", "source": "always_on"}


async def test_events_that_it_reports_while_it_runs_feed_the_jobs_below(world: World) -> None:
    await world.deploy(ALWAYS)
    follower = await world.hold("follow")

    ok(await follower.events({**output(follower), "cursor": 10}))
    await world.settle()

    [given] = (await world.hold("alert")).reply["task"]["inputs"]
    assert given["cursor_to"] == 10


async def test_a_failure_never_ends_it_and_a_restart_is_its_next_attempt(world: World) -> None:
    await world.deploy(ALWAYS)
    task_id = await only(world)

    for attempt in range(1, 9):
        holder = await world.hold("follow")
        assert holder.reply["attempt"] == attempt
        await fail(holder, retryable=False)
        await world.settle()
        assert await shown(world) == "Dead"
        await world.leases.clock.advance(MINUTE_S)

    assert await world.tasks("follow") == [task_id]


async def test_a_lost_lease_restarts_it_however_often(world: World) -> None:
    await world.deploy(ALWAYS)
    task_id = await only(world)

    for _ in range(6):
        await world.hold("follow")
        await world.leases.expire()
        await world.leases.clock.advance(MINUTE_S)
        await world.settle()

    assert await world.tasks("follow", "queued") == [task_id]


async def test_the_timeout_of_its_job_does_not_apply(world: World) -> None:
    await world.deploy(ALWAYS)
    holder = await world.hold("follow")

    for _ in range(4):
        await world.leases.clock.advance(25.0)
        ok(await holder.heartbeat())
        await world.engine.loops.timer_tick()

    assert await world.tasks("follow", "running") == [holder.task_id]


async def test_a_pause_drains_it_and_resume_brings_it_back(world: World) -> None:
    await world.deploy(ALWAYS)
    holder = await world.hold("follow")

    await world.dags.pause("chain")
    await world.settle()
    assert await shown(world) == "Draining"
    assert ok(await holder.heartbeat())["status"] == "Canceled"
    ok(await holder.complete("Canceled"))
    await world.settle()
    assert await shown(world) == "Pending"
    assert await world.tasks("follow", "queued", "running") == []

    await world.dags.pause("chain", paused=False)
    await world.settle()
    again = await world.hold("follow")
    assert again.task_id != holder.task_id
    assert await shown(world) == "Running"


async def test_a_resume_during_the_drain_waits_until_it_is_over(world: World) -> None:
    await world.deploy(ALWAYS)
    holder = await world.hold("follow")
    await world.dags.pause("chain")
    await world.settle()

    await world.dags.pause("chain", paused=False)
    await world.settle()
    assert await world.tasks("follow") == [holder.task_id]
    ok(await holder.complete("Canceled"))
    await world.settle()

    assert len(await world.tasks("follow", "queued")) == 1


async def test_a_cutover_that_does_not_change_it_leaves_it_alone(world: World) -> None:
    await world.deploy(ALWAYS)
    holder = await world.hold("follow")

    await world.deploy(ALWAYS.replace("limit: 7", "limit: 8"))

    assert await world.tasks("follow") == [holder.task_id]
    assert ok(await holder.heartbeat())["status"] == "Running"


async def test_the_next_definition_begins_only_when_the_lease_of_the_old_one_is_over(world: World) -> None:
    await world.deploy(ALWAYS)
    old = await world.hold("follow")

    changed = await world.deploy(CHANGED)
    assert changed.state == "active"
    assert await world.tasks("follow") == [old.task_id], "the old one still runs"
    assert await shown(world) == "Pending"
    assert ok(await old.heartbeat())["status"] == "Canceled"
    ok(await old.complete("Canceled"))
    await world.settle()

    assert (await world.hold("follow")).task_id != old.task_id


async def test_one_that_only_a_build_still_has_is_drained_for_the_definition_that_is_active(world: World) -> None:
    await world.deploy(ALWAYS)
    old = await world.hold("follow")
    await world.deploy(ALWAYS.replace("limit: 7", "limit: 8"), auto_cutover=False)
    await world.deploy(CHANGED)
    await world.settle()

    assert (await old.heartbeat()).json()["status"] == "Canceled"
    ok(await old.complete("Canceled"))
    await world.settle()

    await world.hold("follow")
    assert await shown(world) == "Running"


async def test_one_that_does_not_stop_is_replaced_when_its_grace_is_over(world: World) -> None:
    await world.deploy(ALWAYS)
    old = await world.hold("follow")
    await world.deploy(CHANGED)
    ok(await old.heartbeat())

    await world.leases.clock.advance(31.0)
    await world.engine.loops.timer_tick()
    await world.settle()

    assert (await world.hold("follow")).task_id != old.task_id
    assert (await old.events({**output(old), "cursor": 99})).status_code == 409


async def test_a_rollback_brings_the_old_definition_back_as_another_task(world: World) -> None:
    await world.deploy(ALWAYS)
    first = await world.hold("follow")
    await world.deploy(CHANGED)
    ok(await first.complete("Canceled"))
    await world.settle()
    second = await world.hold("follow")

    await world.dags.rollback("chain")
    await world.settle()
    assert await world.tasks("follow", "queued") == []
    ok(await second.complete("Canceled"))
    await world.settle()

    third = await world.hold("follow")
    assert third.task_id not in (first.task_id, second.task_id)
    assert output(third) == output(first)


async def test_one_that_was_drained_too_slowly_does_not_fail_the_deploy_that_brings_it_back(world: World) -> None:
    await world.deploy(ALWAYS)
    old = await world.hold("follow")
    await world.deploy(CHANGED)
    ok(await old.heartbeat())
    await world.leases.clock.advance(31.0)
    await world.engine.loops.timer_tick()
    await world.settle()
    assert await world.tasks("follow", "failed") == [old.task_id]

    again = await world.deploy(ALWAYS)

    assert again.state == "active"


@pytest.mark.parametrize(("reset", "same"), [("true", False), ("false", True)])
async def test_each_deployment_begins_with_empty_outputs_if_it_resets_them(
    world: World, reset: str, same: bool
) -> None:
    file = ALWAYS.replace(
        "source: {kind: always_on}", f"source: {{kind: always_on}}\n    bootstrap: {{reset_outputs: {reset}}}"
    )
    await world.deploy(file)
    first = await world.hold("follow")
    await world.deploy(file.replace("limit: 7", "limit: 8"))
    if not same:
        ok(await first.complete("Canceled"))
        await world.settle()

    running = first if same else await world.hold("follow")

    assert (output(running) == output(first)) is same
    await fail(running)
    await world.leases.clock.advance(MINUTE_S)
    assert output(await world.hold("follow")) == output(running), "a restart resets nothing"


async def test_one_that_ends_by_itself_is_started_again_a_minute_later(world: World) -> None:
    await world.deploy(ALWAYS)
    ok(await (await world.hold("follow")).complete())
    await world.settle()
    assert await shown(world) == "Pending"
    next_id = await only(world, "queued")
    assert (await world.leases.claim(next_id)).get("waits_for") == "scheduled"

    await world.leases.clock.advance(RESTART_S)

    assert (await world.hold("follow")).task_id == next_id


async def test_a_dag_that_is_retired_ends_it_for_good(world: World) -> None:
    await world.deploy(ALWAYS)
    holder = await world.hold("follow")

    await world.dags.retire("chain")
    await world.settle()
    ok(await holder.complete("Canceled"))
    await world.settle()

    assert await world.tasks("follow") == [holder.task_id]


async def test_many_servers_start_it_once(world: World) -> None:
    await world.dags.deploy("chain", ALWAYS, auto_cutover=False)
    await world.settle()
    await world.dags.activate("chain", 1)

    await asyncio.gather(*(AlwaysOn(world.engine).tick() for _ in range(5)))

    assert len(await world.tasks("follow")) == 1


async def test_nobody_can_emit_from_it(world: World) -> None:
    await world.deploy(ALWAYS)

    with pytest.raises(InvalidState, match="always"):
        await world.sources.emit("chain", "follow")
