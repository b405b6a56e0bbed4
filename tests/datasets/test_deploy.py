"""Deploys: versions by fingerprint, built beside the active one, cut over all or nothing, and back by a pointer."""

from __future__ import annotations

import re
from uuid import UUID, uuid4

import pytest
from tests.datasets.world import CHAIN, World, output
from tests.kit.world import ok

from windlass import errors
from windlass.core.access import Principal, Role
from windlass.datasets.doctor import PROGRESS, examine_builds
from windlass.datasets.job_views import JobViews
from windlass.datasets.router import Router
from windlass.datasets.tables.dags import DagTable
from windlass.engine.read.doctor import Level

pytestmark = pytest.mark.slow

CHANGED = CHAIN.replace("operator: compacter", "operator: compacter\n    operator_version: '2'")
OTHER_RANGES = CHAIN.replace("range_size: 100", "range_size: 50")
OTHER_LIMIT = CHAIN.replace("limit: 7", "limit: 8")


async def pointers(world: World, deployment_id: object) -> dict[object, object]:
    async with world.engine.store.begin() as tx:
        return dict(await DagTable(tx.session).pointers(deployment_id))  # type: ignore[arg-type]


async def test_the_same_file_is_the_same_version_and_no_work(world: World) -> None:
    first = await world.deploy()
    again, made = await world.dags.deploy("chain", CHAIN)

    assert (again.id, made) == (first.id, False)
    assert [one.number for one in await world.dags.deployments("chain")] == [1]


async def test_a_changed_job_is_built_from_what_is_committed_and_then_activated(world: World) -> None:
    first = await world.deploy()
    await world.report(await world.emit(), cursor=250)
    for task_id in await world.tasks("compact", "queued"):
        await world.report(await world.leases.hold(task_id), partition_key=str(task_id))

    second = await world.deploy(CHANGED)

    assert second.state == "building"
    assert (await world.dags.get("chain")).active_version == first.id
    built = await world.tasks("compact", "queued")
    assert len(built) == 2, "one for each committed partition of its input"
    for task_id in built:
        holder = await world.leases.hold(task_id)
        assert holder.reply["task"]["trigger"] == {"kind": "build"}
        await world.report(holder, partition_key=str(task_id))
    assert (await world.dags.deployment("chain", second.id)).state == "active"
    assert (await world.dags.deployment("chain", first.id)).state == "superseded"


async def test_jobs_that_do_not_change_keep_their_versions_and_their_tasks(world: World) -> None:
    first = await world.deploy()
    await world.report(await world.emit(), cursor=50)
    [alert] = await world.tasks("alert")
    follow = next(iter(await world.tasks("follow")))

    second = await world.deploy(CHANGED)

    assert second.state == "active"
    old, new = await pointers(world, first.id), await pointers(world, second.id)
    assert len(old.keys() & new.keys()) == 3
    assert sum(old[id_] != new[id_] for id_ in old) == 1
    assert (await world.leases.task(alert)).state == "queued"
    assert (await world.leases.task(follow)).state == "succeeded"


async def test_data_of_both_versions_stays_fresh_while_one_is_built(world: World) -> None:
    await world.deploy()
    await world.report(await world.emit(), cursor=150)
    await world.deploy(CHANGED, auto_cutover=False)
    assert len(await world.tasks("compact")) == 2

    await world.report(await world.emit(), cursor=250)

    assert len(await world.tasks("compact")) == 4, "the new range is owed to the old and to the new version"


async def test_a_cutover_cancels_the_tasks_of_jobs_that_leave(world: World) -> None:
    await world.deploy()
    await world.report(await world.emit(), cursor=150)
    [left] = await world.tasks("compact", "queued")

    second = await world.deploy(CHANGED, auto_cutover=False)
    [built] = set(await world.tasks("compact", "queued")) - {left}
    await world.report(await world.leases.hold(built), partition_key="0-99", start=0, end=99)
    assert (await world.dags.deployment("chain", second.id)).state == "ready"
    await world.dags.activate("chain", second.number)
    await world.settle()

    assert (await world.leases.task(left)).state == "cancelled"
    assert (await world.leases.task(built)).state == "succeeded"


async def test_a_rollback_is_at_once_and_catches_up(world: World) -> None:
    first = await world.deploy()
    second = await world.deploy(CHANGED)
    await world.report(await world.emit(), cursor=150)

    view = await world.dags.rollback("chain", expect_active=second.id)

    assert (view.active_version, view.previous_version) == (first.id, second.id)
    assert (await world.dags.deployment("chain", second.id)).state == "rolled_back"
    await world.settle()
    [task_id] = await world.tasks("compact", "queued")
    holder = await world.leases.hold(task_id)
    assert holder.reply["task"]["inputs"][0]["partition_key"] == "0-99"


async def test_what_was_cancelled_with_a_version_is_owed_again_when_it_comes_back(world: World) -> None:
    first = await world.deploy()
    await world.report(await world.emit(), cursor=150)
    [waiting] = await world.tasks("compact", "queued")
    await world.deploy(CHANGED, auto_cutover=False)
    [built] = set(await world.tasks("compact", "queued")) - {waiting}
    await world.report(await world.leases.hold(built), partition_key="0-99", start=0, end=99)
    for _ in range(2):
        await world.dags.activate("chain", 2)
        await world.settle()
        assert await world.tasks("compact", "queued") == []

        await world.dags.activate("chain", first.number)
        await world.settle()

        [again] = await world.tasks("compact", "queued")
        assert again != waiting
    holder = await world.leases.hold(again)
    assert holder.reply["task"]["inputs"][0]["partition_key"] == "0-99"
    await world.report(holder, partition_key="0-99", start=0, end=99)
    assert await world.tasks("compact", "queued") == []


async def test_a_replay_that_was_cancelled_with_a_version_is_owed_again_when_it_comes_back(world: World) -> None:
    first = await world.deploy()
    await world.deploy(CHANGED)
    await world.dags.rollback("chain")
    await world.report(await world.emit(), cursor=150)
    holder = await world.hold("compact")
    ok(await holder.complete("Failed", error_message="no", error={"category": "USER_CODE", "retryable": False}))
    replay = await world.engine.parts.repair.retry(holder.task_id)
    await world.settle()
    await world.dags.activate("chain", 2)
    await world.settle()
    assert (await world.leases.task(replay)).state == "cancelled"
    others = await world.tasks("compact", "queued")

    await world.dags.activate("chain", first.number)
    await world.settle()

    assert len(set(await world.tasks("compact", "queued")) - set(others)) == 1


async def test_a_rollback_catches_up_though_a_third_version_keeps_the_job_that_is_replaced(world: World) -> None:
    first = await world.deploy()
    await world.deploy(CHANGED)
    await world.deploy(CHANGED.replace("limit: 7", "limit: 8"), auto_cutover=False)
    await world.report(await world.emit(), cursor=150)
    [built] = await world.tasks("compact", "queued")

    await world.dags.activate("chain", first.number)
    await world.settle()

    assert set(await world.tasks("compact", "queued")) > {built}


async def test_a_new_version_builds_what_a_job_missed_that_an_earlier_version_had(world: World) -> None:
    await world.deploy()
    await world.deploy(CHANGED)
    await world.report(await world.emit(), cursor=150)
    [task_id] = await world.tasks("compact", "queued")
    await world.report(await world.leases.hold(task_id), partition_key="0-99", start=0, end=99)

    third = await world.deploy(OTHER_LIMIT)

    assert third.state == "building"
    assert len(await world.tasks("compact", "queued")) == 1


async def test_a_rollback_that_expects_another_version_changes_nothing(world: World) -> None:
    await world.deploy()
    second = await world.deploy(CHANGED)

    with pytest.raises(errors.Conflict):
        await world.dags.rollback("chain", expect_active=uuid4())

    assert (await world.dags.get("chain")).active_version == second.id


async def test_the_first_version_cannot_be_rolled_back(world: World) -> None:
    await world.deploy()

    with pytest.raises(errors.InvalidState):
        await world.dags.rollback("chain")


async def test_a_build_task_that_fails_for_good_fails_the_deployment_and_leaves_the_active_one(world: World) -> None:
    first = await world.deploy()
    await world.report(await world.emit(), cursor=150)
    [old] = await world.tasks("compact", "queued")
    second = await world.deploy(CHANGED)
    [built] = set(await world.tasks("compact", "queued")) - {old}

    holder = await world.leases.hold(built)
    ok(await holder.complete("Failed", error_message="no", error={"category": "USER_CODE", "retryable": False}))
    await world.settle()

    failed = await world.dags.deployment("chain", second.id)
    assert (failed.state, failed.reason) == ("failed", f"a task of compact: {built} failed")
    assert (await world.dags.get("chain")).active_version == first.id
    [finding] = await examine_builds(world.engine.store)
    assert (finding.level, finding.message.partition(";")[0]) == (
        Level.NOTE, "version 2 of the DAG chain (namespace default) failed to build",
    )  # fmt: skip

    retried = await world.engine.parts.repair.retry(built)
    await world.settle()
    assert (await world.dags.deployment("chain", second.id)).state == "building"
    await world.report(await world.leases.hold(retried), partition_key="0-99", start=0, end=99)
    assert (await world.dags.deployment("chain", second.id)).state == "active"


async def test_a_build_task_that_a_person_cancels_fails_the_deployment_until_it_is_retried(world: World) -> None:
    first = await world.deploy()
    await world.report(await world.emit(), cursor=150)
    [old] = await world.tasks("compact", "queued")
    second = await world.deploy(CHANGED)
    [built] = set(await world.tasks("compact", "queued")) - {old}

    await world.engine.cancel(built, "not now")
    await world.settle()

    failed = await world.dags.deployment("chain", second.id)
    assert (failed.state, failed.reason) == ("failed", f"a task of compact: {built} was cancelled")
    assert (await world.dags.get("chain")).active_version == first.id
    retried = await world.engine.parts.repair.retry(built)
    await world.settle()
    assert (await world.dags.deployment("chain", second.id)).state == "building"
    await world.engine.cancel(retried, "again")
    await world.settle()
    assert (await world.dags.deployment("chain", second.id)).reason == f"a task of compact: {retried} was cancelled"
    last = await world.engine.parts.repair.retry(retried)
    await world.settle()
    await world.report(await world.leases.hold(last), partition_key="0-99", start=0, end=99)
    assert (await world.dags.deployment("chain", second.id)).state == "active"


async def test_the_doctor_finds_a_build_without_progress(world: World) -> None:
    await world.deploy()
    await world.report(await world.emit(), cursor=150)
    await world.deploy(CHANGED)
    assert await examine_builds(world.engine.store) == []

    await world.leases.clock.advance(PROGRESS.total_seconds() + 1)

    [finding] = await examine_builds(world.engine.store)
    assert (finding.name, finding.level) == ("builds", Level.WRONG)
    assert finding.message.startswith("version 2 of the DAG chain (namespace default) builds")


async def test_a_build_that_had_failed_catches_up_with_what_came_meanwhile(world: World) -> None:
    await world.deploy()
    await world.report(await world.emit(), cursor=150)
    [old] = await world.tasks("compact", "queued")
    await world.deploy(CHANGED)
    [built] = set(await world.tasks("compact", "queued")) - {old}
    holder = await world.leases.hold(built)
    ok(await holder.complete("Failed", error_message="no", error={"category": "USER_CODE", "retryable": False}))
    await world.settle()
    await world.report(await world.emit(), cursor=250)
    assert len(await world.tasks("compact")) == 3

    await world.engine.parts.repair.retry(built)
    await world.settle()

    assert len(await world.tasks("compact", "queued")) == 4, "two of each version"


async def test_a_build_is_not_complete_while_an_event_that_it_reads_is_not_routed(world: World) -> None:
    await world.deploy()
    source = await world.emit()
    second, _ = await world.dags.deploy("chain", OTHER_RANGES)
    await world.engine.service(Router).reconcile_tick()
    assert await behind(world, second.id) == set()

    ok(await source.complete(events=[{"cursor": 150, **output(source)}]))

    assert await behind(world, second.id) == {"ranges"}
    await world.settle()
    assert await behind(world, second.id) == set()


async def behind(world: World, deployment_id: UUID) -> set[str]:
    """The jobs of a deployment to which something is owed or may be owed."""
    async with world.engine.store.begin() as tx:
        dags = DagTable(tx.session)
        names = {job.job_id: job.name for job in await dags.jobs(deployment_id) if job.name in ("ranges", "compact")}
        return {names[id_] for id_, one in (await dags.progress(names)).items() if one.behind}


async def test_a_file_with_problems_writes_nothing(world: World) -> None:
    with pytest.raises(errors.DagInvalid) as refused:
        await world.dags.deploy("chain", CHAIN.replace("activation: source", "activation: sauce"))

    assert refused.value.details["problems"]
    with pytest.raises(errors.NotFound):
        await world.dags.get("chain")


async def test_a_paused_dag_makes_no_tasks_and_owes_them_until_it_is_resumed(world: World) -> None:
    await world.deploy()
    source = await world.emit()
    await world.dags.pause("chain")
    await world.report(source, cursor=150)
    assert await world.tasks("alert") == await world.tasks("compact") == []

    await world.dags.pause("chain", paused=False)
    await world.settle()

    assert len(await world.tasks("alert", "queued")) == 1
    assert len(await world.tasks("compact", "queued")) == 1


async def test_a_retired_dag_starts_nothing_and_keeps_its_data(world: World) -> None:
    await world.deploy()
    await world.report(await world.emit(), cursor=150)

    view = await world.dags.retire("chain")
    await world.settle()

    assert view.retired_at is not None
    assert await world.tasks("compact", "queued", "running") == await world.tasks("alert", "queued", "running") == []
    with pytest.raises(errors.InvalidState):
        await world.sources.emit("chain", "follow")


# ------------------------------------------------------------------------------------------------- plans


async def test_a_plan_says_what_changes_and_what_has_to_be_built(world: World) -> None:
    first = await world.deploy()
    await world.report(await world.emit(), cursor=250)

    plan = await world.dags.plan("chain", CHANGED)

    assert (plan.from_version, plan.noop) == (first.id, False)
    changes = {job.job: (job.change, job.fields, job.owed.partitions) for job in plan.jobs}
    assert changes == {
        "follow": ("unchanged", (), 0), "alert": ("unchanged", (), 0), "ranges": ("unchanged", (), 0),
        "compact": ("changed", ("operator_version",), 2),
    }  # fmt: skip
    assert (await world.dags.plan("chain", CHAIN)).noop


async def test_a_deploy_applies_the_plan_that_was_reviewed_or_nothing(world: World) -> None:
    await world.deploy()
    plan = await world.dags.plan("chain", CHANGED)
    await world.deploy(OTHER_LIMIT)

    with pytest.raises(errors.PlanChanged):
        await world.dags.deploy("chain", CHANGED, plan_hash=plan.plan_hash)

    again = await world.dags.plan("chain", CHANGED)
    made, _ = await world.dags.deploy("chain", CHANGED, plan_hash=again.plan_hash)
    assert made.plan_hash == again.plan_hash


async def test_another_plan_brings_no_earlier_version_back(world: World) -> None:
    await world.deploy()
    second = await world.deploy(CHANGED)

    with pytest.raises(errors.PlanChanged):
        await world.dags.deploy("chain", CHAIN, plan_hash="0" * 64)

    assert (await world.dags.get("chain")).active_version == second.id


async def test_a_rebuilt_job_gets_a_new_version_and_keeps_it(world: World) -> None:
    first = await world.deploy()

    second = await world.deploy(rebuild=["compact"])
    third = await world.deploy(CHAIN + "# a comment\n")

    old, new, newest = [await pointers(world, each.id) for each in (first, second, third)]
    assert sum(old[id_] != new[id_] for id_ in old) == 1
    assert newest == new


# ------------------------------------------------------------------------------------------------- other DAGs

PRODUCER = (
    CHAIN
    + """\
publish:
  ranges: {from: {job: ranges}, storage: postgres, write_mode: direct}
"""
)
READER = """\
name: reader
jobs:
  - name: report
    activation: reactive
    runtime: ecs_platform
    operator: reporter
    execution_strategy: PerPartition
    inputs: [{from: {dataset: ranges}, on_upgrade: reprocess}]
    outputs: 0
"""


async def test_a_job_reads_a_dataset_of_another_dag_and_follows_its_versions(world: World) -> None:
    await world.deploy(PRODUCER)
    await world.report(await world.emit(), cursor=250)
    await world.deploy(READER, "reader")
    assert len(await world.tasks("report", "queued")) == 2

    await world.report(await world.emit(), cursor=350)
    assert len(await world.tasks("report", "queued")) == 3

    old = await world.tasks("compact", "queued")
    second = await world.deploy(PRODUCER.replace("range_size: 100", "range_size: 50"))
    assert len(await world.tasks("report", "queued")) == 3, "the new version is not current yet"
    for task_id in set(await world.tasks("compact", "queued")) - set(old):
        await world.report(await world.leases.hold(task_id), partition_key=str(task_id))
    assert (await world.dags.deployment("chain", second.id)).state == "active"
    assert len(await world.tasks("report", "queued")) == 3 + 7, "all partitions of the new version are owed"


async def test_a_dataset_that_is_not_there_is_a_problem_of_the_file(world: World) -> None:
    with pytest.raises(errors.DagInvalid) as refused:
        await world.dags.deploy("reader", READER)

    [problem] = refused.value.details["problems"]
    assert (problem["code"], problem["line"]) == ("unknown_dataset", 8)


KEYED = PRODUCER.replace(
    "ranges: {from: {job: ranges}, storage: postgres, write_mode: direct}",
    "ranges: {from: {job: ranges}, storage: postgres, write_mode: direct, read_roles: [analysts],\n"
    "           schema: {columns: [{name: size, type: integer}, {name: kind, type: text}]}}",
)


async def test_a_plan_names_the_readers_in_other_dags_and_what_breaks(world: World) -> None:
    await world.deploy(KEYED)
    reader = READER.replace("dataset: ranges}", "dataset: ranges}, where: kind = 'x'")
    await world.deploy(reader, "reader")
    await world.deploy(READER.replace("reader", "other").replace("reprocess", "continue"), "other")

    plan = await world.dags.plan("chain", KEYED.replace(", {name: kind, type: text}", ""))

    other, broken = plan.consumers
    assert (other.dag, other.job, other.on_upgrade, other.breaks) == ("other", "report", "continue", ())
    assert (broken.dag, broken.on_upgrade) == ("reader", "reprocess")
    [found] = broken.breaks
    assert (found.code, found.message) == (
        "where_unknown_column", "its where names kind, which ranges no longer has",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("role", "groups", "reads"),
    [
        (Role.OPERATOR, (), False),
        (Role.OPERATOR, ("sales",), False),
        (Role.OPERATOR, ("sales", "analysts"), True),
        (Role.VIEWER, ("analysts",), True),
        (Role.ADMIN, (), True),
    ],
)
async def test_a_dataset_that_the_deployer_may_not_read_is_unknown(
    world: World, role: Role, groups: tuple[str, ...], reads: bool
) -> None:
    await world.deploy(KEYED)
    caller = Principal("ana", role, None, groups)

    found = await world.dags.validate(READER, caller=caller)

    assert [problem.code for problem in found.report.problems] == ([] if reads else ["unknown_dataset"])
    if not reads:
        for call in (world.dags.plan, world.dags.deploy):
            with pytest.raises(errors.DagInvalid):
                await call("reader", READER, caller=caller)  # type: ignore[operator]
        taken = "publish:\n  ranges: {from: {job: report}, storage: s3}\n"
        own = READER.replace("{dataset: ranges}, on_upgrade: reprocess", "{dataset: mine}").replace(
            "outputs: 0", "outputs: 1"
        )
        problems = (await world.dags.validate(own + taken, caller=caller)).report.problems
        assert "dataset_taken" in [problem.code for problem in problems], "its name is taken all the same"


async def test_partitions_of_another_dag_that_do_not_fit_are_a_problem_of_the_file(world: World) -> None:
    await world.deploy(PRODUCER)

    with pytest.raises(errors.DagInvalid) as refused:
        await world.dags.deploy("reader", READER + "    partitions: {kind: range, size: 1000}\n")

    [problem] = refused.value.details["problems"]
    assert problem["code"] == "partition_mismatch"
    assert "(range 100)" in problem["message"]
    assert "(range 1000)" in problem["message"]


# ------------------------------------------------------------------------------------------------- sources

CRON = CHAIN.replace("source: {kind: manual}", 'source: {kind: cron, schedule: "0 * * * *"}')
HOOK = CHAIN.replace("source: {kind: manual}", "source: {kind: webhook, path: blocks/new}")


async def test_a_cron_source_fires_once_and_moves_with_the_active_version(world: World) -> None:
    await world.deploy(CRON)
    clock = world.leases.clock

    await clock.advance(3600)
    await world.engine.loops.schedule_tick()
    await world.engine.loops.schedule_tick()

    holder = await world.hold("follow")
    assert holder.reply["task"]["trigger"] == {"kind": "source", "source": "cron"}
    [task] = await world.engine.service(JobViews).tasks("chain", "follow")
    assert re.fullmatch(r"fire:\d{4}-\d\d-\d\dT\d\d:00:00Z", task.dedupe_key or "")
    await world.report(holder, cursor=10)
    assert len(await world.tasks("alert", "queued")) == 1

    await world.deploy(CHANGED)
    await clock.advance(3600)
    await world.engine.loops.schedule_tick()
    assert await world.tasks("follow", "queued") == [], "the new version has no schedule"


async def test_the_same_webhook_is_the_same_task(world: World) -> None:
    await world.deploy(HOOK)
    sent = {"headers": {"x-kind": "block"}, "body": "{}"}

    first = await world.sources.receive_webhook("default", "blocks/new", id_="m1", **sent)
    again = await world.sources.receive_webhook("default", "blocks/new", id_="m1", **sent)
    other = await world.sources.receive_webhook("default", "blocks/new", id_="m2", **sent)

    assert first == again != other
    holder = await world.leases.hold(first)
    assert holder.reply["task"]["trigger"]["webhook"] == {"id": "m1", **sent}
    with pytest.raises(errors.NotFound):
        await world.sources.receive_webhook("other", "blocks/new", id_="m1", **sent)
