"""Why a job has, or has not, processed a partition or its updates."""

from __future__ import annotations

from typing import Any

import pytest
from tests.datasets.world import CHAIN, World
from tests.kit.world import ok

from windlass.datasets.rules.why import Why
from windlass.datasets.why import Reasons
from windlass.errors import Invalid, NotFound

pytestmark = pytest.mark.slow

FATAL = {"error_message": "disk full", "error": {"category": "USER_CODE", "retryable": False}}
OTHER = CHAIN.replace("operator: compacter", "operator: compacter\n    operator_version: '2'")


async def why(world: World, job: str, key: str | None = None, **more: Any) -> Why:
    return await world.engine.service(Reasons).why("chain", job, partition_key=key, **more)


async def because(world: World, job: str, key: str | None = None) -> tuple[str, str]:
    found = await why(world, job, key)
    return str(found.because), str(found.state)


async def test_a_partition_waits_for_its_input_then_for_its_task_and_is_committed(world: World) -> None:
    await world.deploy()
    found = await why(world, "compact", "0-99")
    assert (found.because, found.state) == ("waiting_for_input", "missing")
    assert [(one.name, one.partition_key) for one in found.missing] == [("ranges", "0-99")]

    await world.report(await world.emit(), cursor=150)
    found = await why(world, "compact", "0-99")
    [task] = await world.tasks("compact")
    assert (found.because, found.state, found.task_id) == ("queued", "running", task)

    holder = await world.hold("compact")
    assert await because(world, "compact", "0-99") == ("running", "running")

    await world.report(holder, partition_key="0-99", start=0, end=99)
    assert await because(world, "compact", "0-99") == ("committed", "committed")


async def test_a_partition_of_a_job_with_a_buffered_output_is_committed_when_its_task_has_succeeded(
    world: World,
) -> None:
    schema = "schema: {columns: [{name: k, type: text, nullable: false}], unique: [k]}"
    buffered = f"publish:\n  log: {{from: {{job: compact}}, storage: postgres, write_mode: buffered, {schema}}}\n"
    await world.deploy(CHAIN + buffered)
    await world.report(await world.emit(), cursor=150)
    assert await because(world, "compact", "0-99") == ("queued", "running")

    ok(await (await world.hold("compact")).complete())

    assert await because(world, "compact", "0-99") == ("committed", "committed")


async def test_a_task_that_failed_is_named_with_its_reason(world: World) -> None:
    await world.deploy()
    await world.report(await world.emit(), cursor=150)
    holder = await world.hold("compact")
    ok(await holder.complete("Failed", **FATAL))
    await world.settle()

    found = await why(world, "compact", "0-99")

    assert (found.because, found.state, found.task_id) == ("failed", "failed", holder.task_id)
    assert "disk full" in found.detail


async def test_a_newer_revision_of_an_input_makes_a_result_stale_and_its_task_is_the_reason(world: World) -> None:
    await world.deploy()
    await world.report(await world.emit(), cursor=150)
    await world.report(await world.hold("compact"), partition_key="0-99", start=0, end=99)
    async with world.engine.store.begin() as tx:
        await tx.session.connection.execute(
            """update windlass.partition p set revision = 2 from windlass.dataset_version v, windlass.dataset s
                where v.id = p.dataset_version and s.id = v.dataset_uuid and s.job = 'ranges'"""
        )
        await tx.session.connection.execute("update windlass.job set behind = true")
    assert (await why(world, "compact", "0-99")).detail == "partition 0-99 of compact is owed; its task will be made"

    await world.leases.clock.advance(1)
    await world.settle()

    found = await why(world, "compact", "0-99")
    assert (found.because, found.task_id) == ("queued", (await world.tasks("compact", "queued"))[0])


async def test_a_paused_dag_is_the_reason(world: World) -> None:
    await world.deploy()
    await world.dags.pause("chain")

    assert await because(world, "compact", "0-99") == ("paused", "missing")
    assert await because(world, "alert") == ("paused", "missing")


async def test_a_missing_input_is_explained_by_the_task_that_should_make_it(world: World) -> None:
    await world.deploy()
    holder = await world.emit()
    ok(await holder.complete("Failed", **FATAL))

    found = await why(world, "alert")

    assert found.because == "waiting_for_input"
    assert found.detail == f"follow has no data yet (task {holder.task_id} failed 1 of 3: disk full)"


async def test_a_job_that_reads_updates_is_explained_without_a_partition(world: World) -> None:
    await world.deploy()
    assert await because(world, "alert") == ("waiting_for_input", "missing")
    await world.report(await world.emit(), cursor=10)
    assert await because(world, "alert") == ("queued", "running")
    holder = await world.hold("alert")
    assert await because(world, "alert") == ("running", "running")
    ok(await holder.complete())
    await world.settle()

    assert await because(world, "alert") == ("committed", "committed")


async def test_a_source_is_explained_by_its_newest_task(world: World) -> None:
    await world.deploy()
    assert await because(world, "follow") == ("not_owed", "missing")
    holder = await world.emit()
    assert await because(world, "follow") == ("running", "running")
    await world.report(holder, cursor=10)

    assert await because(world, "follow") == ("committed", "committed")


async def test_a_job_of_a_retired_dag_is_not_live(world: World) -> None:
    await world.deploy()
    await world.dags.retire("chain")

    assert (await why(world, "compact", "0-99")).because == "not_live"


async def test_the_job_of_the_active_version_is_explained(world: World) -> None:
    await world.deploy()
    await world.report(await world.emit(), cursor=150)
    await world.report(await world.hold("compact"), partition_key="0-99", start=0, end=99)

    await world.deploy(OTHER)
    assert await because(world, "compact", "0-99") == ("committed", "committed"), "the old version is still active"
    await world.report(await world.hold("compact"), partition_key="0-99", start=0, end=99)

    assert await because(world, "compact", "0-99") == ("committed", "committed")


@pytest.mark.parametrize(
    ("job", "key", "error"),
    [("compact", None, Invalid), ("alert", "0-99", Invalid), ("nobody", None, NotFound)],
)
async def test_what_has_no_answer_is_refused(world: World, job: str, key: str | None, error: type[Exception]) -> None:
    await world.deploy()

    with pytest.raises(error):
        await why(world, job, key)
    with pytest.raises(NotFound):
        await why(world, "compact", "0-99", namespace="other")
