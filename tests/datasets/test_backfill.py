"""Backfills on a real database: what is made again, each once, whatever happens in between."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID, uuid4

import pytest
from tests.contracts.lease.world import Holder
from tests.datasets.world import World
from tests.kit.world import ok

from windlass.datasets import backfills
from windlass.datasets.backfills import Backfills, BackfillView
from windlass.datasets.rules.backfill import Selection
from windlass.datasets.rules.status import PartitionStatus
from windlass.datasets.tables.backfills import BackfillTable, JobProgress
from windlass.errors import Conflict, Invalid, InvalidState, NotFound

pytestmark = pytest.mark.slow

FLOW = """\
name: flow
jobs:
  - name: arrive
    activation: source
    runtime: ecs_platform
    operator: arriver
    source: {kind: manual}
    outputs: 1
    update_strategy: replace
  - name: compact
    activation: reactive
    runtime: ecs_platform
    operator: compacter
    execution_strategy: PerPartition
    partitions: {kind: range, size: 100, start: 0}
    inputs: [{from: {job: arrive}}]
    outputs: 1
    update_strategy: replace
  - name: rollup
    activation: reactive
    runtime: ecs_platform
    operator: roller
    execution_strategy: PerPartition
    inputs: [{from: {job: compact}}]
    outputs: 1
    update_strategy: replace
  - name: count
    activation: reactive
    runtime: ecs_platform
    operator: counter
    execution_strategy: PerPartition
    inputs: [{from: {job: rollup}}]
    outputs: 0
  - name: watch
    activation: reactive
    runtime: ecs_platform
    operator: watcher
    execution_strategy: PerUpdate
    inputs: [{from: {job: arrive}}]
    outputs: 0
"""
BOTH = FLOW.replace(
    "inputs: [{from: {job: arrive}}]\n    outputs: 1",
    "inputs: [{from: {job: arrive}}, {from: {job: more}}]\n    when: all\n    outputs: 1",
    1,
).replace(
    "  - name: compact\n",
    "  - {name: more, activation: source, runtime: ecs_platform, operator: o, source: {kind: manual}, outputs: 1, "
    "update_strategy: replace}\n  - name: compact\n",
)
KEYS = ["0-99", "100-199", "200-299"]
MISSING, FAILED, STALE = PartitionStatus.MISSING, PartitionStatus.FAILED, PartitionStatus.STALE


def part(first: int, size: int = 100) -> dict[str, Any]:
    return {"partition_key": f"{first}-{first + size - 1}", "start": first, "end": first + size - 1}


@pytest.fixture
def service(world: World) -> Backfills:
    return world.engine.service(Backfills)


async def deployed(world: World, file: str = FLOW) -> None:
    await world.deploy(file, "flow")


async def arrive(world: World, *firsts: int, job: str = "arrive") -> None:
    for first in firsts:
        await world.report(await world.emit(job, "flow"), **part(first))


async def run(world: World, job: str, status: str = "Completed") -> list[str]:
    """Run all tasks of a job that are queued. Returns their partitions."""
    keys = []
    for task_id in await world.tasks(job, "queued"):
        holder = await world.leases.hold(task_id)
        keys.append(key_of(holder))
        if status == "Completed":
            given = holder.reply["task"]["inputs"][0]
            scope = {name: given[name] for name in ("partition_key", "start", "end")}
            await world.report(holder, **scope)
        else:
            ok(await holder.complete(status, error_message="no", error={"category": "DATA_QUALITY"}))
            await world.settle()
    return keys


async def run_all(world: World) -> None:
    while any([await run(world, job) for job in ("compact", "rollup", "count")]):
        pass


def key_of(holder: Holder) -> str:
    key: str = holder.reply["task"]["inputs"][0]["partition_key"]
    return key


def progress(view: BackfillView) -> dict[str, JobProgress]:
    return {job.job: job for job in view.jobs}


async def start(world: World, service: Backfills, selection: Selection, job: str = "compact", **options: Any) -> UUID:
    view = await service.start("flow", job, selection, **options)
    await world.settle()
    return view.row.id


async def state(service: Backfills, id_: UUID) -> str:
    return (await service.get(id_)).row.state


async def insert_partitions(world: World, job: str, count: int, size: int = 100) -> None:
    """Commit many partitions of the output of a job at once."""
    async with world.engine.store.begin() as tx:
        await tx.session.connection.execute(
            """insert into windlass.partition (dataset_version, key, first, last, revision, committed_at)
               select p.dataset_version, n * $2 || '-' || (n + 1) * $2 - 1, n * $2, (n + 1) * $2 - 1, 1, now()
                 from windlass.dataset s join windlass.deployment_pointer p on p.dataset_uuid = s.id
                cross join generate_series(0::bigint, $3::bigint - 1) as n
                where s.job = $1""",
            job, size, count,
        )  # fmt: skip


# --------------------------------------------------------------------------------------------- what is selected


async def test_keys_are_made_again_each_by_one_task(world: World, service: Backfills) -> None:
    await deployed(world)
    await arrive(world, 0, 100, 200)
    await run_all(world)

    id_ = await start(world, service, Selection(keys=("0-99", "200-299")))

    assert progress(await service.get(id_))["compact"] == JobProgress("compact", 2, 2, unfinished=2)
    [first, _] = await world.tasks("compact", "queued")
    holder = await world.leases.hold(first)
    task = holder.reply["task"]
    assert task["trigger"] == {"kind": "backfill", "backfill_id": str(id_)}
    [given] = task["inputs"]
    assert (given["mode"], given["revision"]) == ("partition", 1)
    assert (await world.leases.task(first)).priority < 0
    await world.report(holder, **{name: given[name] for name in ("partition_key", "start", "end")})
    await run(world, "compact")
    view = await service.get(id_)
    assert (view.row.state, view.row.ended_at is not None) == ("succeeded", True)
    assert progress(view)["compact"] == JobProgress("compact", 2, 2, succeeded=2)


async def test_bounds_select_whole_partitions_of_the_scheme(world: World, service: Backfills) -> None:
    await deployed(world)
    await arrive(world, 0, 100, 200, 300)
    await run_all(world)

    await start(world, service, Selection(start=50, end=350))

    assert sorted(await run(world, "compact")) == ["100-199", "200-299"]


async def test_bounds_of_a_job_without_a_scheme_select_partitions_of_its_inputs(
    world: World, service: Backfills
) -> None:
    await deployed(world)
    await arrive(world, 0, 100, 200, 300)
    await run_all(world)

    planned = await service.start("flow", "rollup", Selection(start=50, end=350), dry_run=True)
    await start(world, service, Selection(start=50, end=350), "rollup")

    assert progress(planned)["rollup"].partitions == 2
    assert sorted(await run(world, "rollup")) == ["100-199", "200-299"]


async def test_a_status_selects_what_has_it_and_no_good_partition(world: World, service: Backfills) -> None:
    await deployed(world)
    await arrive(world, 0, 100)
    await run(world, "compact")
    await arrive(world, 200)
    assert await run(world, "compact", "Failed") == ["200-299"]
    await arrive(world, 300)
    [waiting] = await world.tasks("compact", "queued")
    await world.engine.cancel(waiting)
    await world.settle()

    for status, keys in ((FAILED, ["200-299"]), (MISSING, ["300-399"]), (STALE, [])):
        planned = await service.start("flow", "compact", Selection(status=(status,)), dry_run=True)
        assert progress(planned)["compact"].partitions == len(keys), status
        id_ = await start(world, service, Selection(status=(status,)))
        assert await run(world, "compact") == keys
        assert await state(service, id_) == "succeeded"


async def test_stale_partitions_are_those_whose_newest_task_was_cancelled(world: World, service: Backfills) -> None:
    await deployed(world)
    await arrive(world, 0, 100)
    await run(world, "compact")
    await arrive(world, 0)
    [waiting] = await world.tasks("compact", "queued")
    await world.engine.cancel(waiting)
    await world.settle()

    await start(world, service, Selection(status=(STALE,)))
    [task_id] = await world.tasks("compact", "queued")
    holder = await world.leases.hold(task_id)

    assert key_of(holder) == "0-99"
    assert holder.reply["task"]["inputs"][0]["revision"] == 2
    await world.report(holder, **part(0))
    planned = await service.start("flow", "compact", Selection(status=(STALE,)), dry_run=True)
    assert progress(planned)["compact"].partitions == 0


async def test_what_a_backfill_makes_is_not_missing_any_more(world: World, service: Backfills) -> None:
    await deployed(world)
    await arrive(world, 0, 100)
    for task_id in await world.tasks("compact", "queued"):
        await world.engine.cancel(task_id)
    await world.settle()

    await start(world, service, Selection(status=(MISSING,)))
    again = await service.start("flow", "compact", Selection(status=(MISSING,)), dry_run=True)

    assert progress(again)["compact"].partitions == 0


async def test_a_dry_run_counts_and_writes_nothing(world: World, service: Backfills) -> None:
    await deployed(world)

    planned = await service.start("flow", "compact", Selection(start=0, end=10**12 - 1), dry_run=True)

    assert (planned.row.state, progress(planned)["compact"].partitions) == ("planned", 10**10)
    assert await service.page() == []
    assert await world.tasks("compact") == []


# --------------------------------------------------------------------------------------------- missing inputs


async def test_a_task_waits_for_the_input_that_is_not_there_and_is_the_only_one_then(
    world: World, service: Backfills
) -> None:
    await deployed(world)
    id_ = await start(world, service, Selection(keys=("0-99",)))
    [task_id] = await world.tasks("compact")
    assert progress(await service.get(id_))["compact"].waiting == 1
    assert (await world.leases.claim(task_id))["status"] == "NotClaimed"

    await arrive(world, 0)

    assert await world.tasks("compact") == [task_id], "routing makes no second task"
    holder = await world.leases.hold(task_id)
    [given] = holder.reply["task"]["inputs"]
    assert (given["partition_key"], given["start"], given["end"], given["revision"]) == ("0-99", 0, 99, 1)
    await world.report(holder, **part(0))
    assert await state(service, id_) == "succeeded"
    await arrive(world, 0)
    assert len(await world.tasks("compact")) == 2, "the next revision is owed as any other"


async def test_a_task_that_waits_keeps_no_other_from_its_turn(world: World, service: Backfills) -> None:
    await deployed(world, FLOW.replace("partitions: {", "scaling: {max_concurrency: 1}\n    partitions: {"))
    await start(world, service, Selection(keys=("0-99",)))
    await arrive(world, 100, 200)

    assert await run(world, "compact") == ["100-199"]
    assert await run(world, "compact") == ["200-299"]
    await arrive(world, 0, 300)
    assert await run(world, "compact") == ["0-99"]
    assert await run(world, "compact") == ["300-399"]


async def test_two_backfills_that_wait_for_one_partition_both_get_it(world: World, service: Backfills) -> None:
    await deployed(world)
    ids = [await start(world, service, Selection(keys=("0-99",))) for _ in range(2)]

    await arrive(world, 0)
    assert await run(world, "compact") == ["0-99", "0-99"]

    assert [await state(service, id_) for id_ in ids] == ["succeeded", "succeeded"]


async def test_a_partition_is_made_by_routing_if_the_task_that_waited_was_cancelled(
    world: World, service: Backfills
) -> None:
    await deployed(world)
    id_ = await start(world, service, Selection(keys=("0-99",)))
    [waiting] = await world.tasks("compact")
    await world.engine.cancel(waiting)

    await arrive(world, 0)

    assert await run(world, "compact") == ["0-99"]
    assert progress(await service.get(id_))["compact"].cancelled == 1


# --------------------------------------------------------------------------------------------- downstream


async def test_downstream_follows_the_tasks_of_routing_and_makes_none(world: World, service: Backfills) -> None:
    await deployed(world)
    await arrive(world, 0, 100)
    await run_all(world)
    await arrive(world, 200)
    assert await run(world, "compact") == ["200-299"]  # its rollup was never made
    for task_id in await world.tasks("rollup", "queued"):
        await world.engine.cancel(task_id)
    before = len(await world.tasks("rollup")), len(await world.tasks("count"))

    planned = await service.start("flow", "compact", Selection(keys=("0-99", "100-199")), downstream=True, dry_run=True)
    id_ = await start(world, service, Selection(keys=("0-99", "100-199")), downstream=True)

    assert {name: job.partitions for name, job in progress(planned).items()} == {"compact": 2, "rollup": 2, "count": 2}
    assert len(await run(world, "compact")) == 2
    assert await state(service, id_) == "running"
    assert len(await run(world, "rollup")) == 2
    assert await state(service, id_) == "running"
    assert len(await run(world, "count")) == 2
    view = await service.get(id_)
    assert view.row.state == "succeeded"
    assert list(progress(view)) == ["compact", "rollup", "count"]
    assert {name: (job.partitions, job.tasks, job.succeeded) for name, job in progress(view).items()} == {
        "compact": (2, 2, 2), "rollup": (2, 2, 2), "count": (2, 2, 2)
    }  # fmt: skip
    assert (len(await world.tasks("rollup")), len(await world.tasks("count"))) == (before[0] + 2, before[1] + 2)


async def test_downstream_waits_for_a_dag_that_is_paused(world: World, service: Backfills) -> None:
    await deployed(world)
    await arrive(world, 0)
    await run_all(world)
    id_ = await start(world, service, Selection(keys=("0-99",)), downstream=True)
    [task_id] = await world.tasks("compact", "queued")
    holder = await world.leases.hold(task_id)
    await world.dags.pause("flow")

    await world.report(holder, **part(0))
    assert await state(service, id_) == "running"
    await world.dags.pause("flow", paused=False)
    await world.settle()
    await run_all(world)

    view = await service.get(id_)
    assert (view.row.state, progress(view)["rollup"].succeeded, progress(view)["count"].succeeded) == (
        "succeeded",
        1,
        1,
    )


async def test_a_failure_below_fails_the_backfill(world: World, service: Backfills) -> None:
    await deployed(world)
    await arrive(world, 0)
    await run_all(world)
    id_ = await start(world, service, Selection(keys=("0-99",)), downstream=True)

    await run(world, "compact")
    await run(world, "rollup", "Failed")

    view = await service.get(id_)
    assert (view.row.state, progress(view)["rollup"].failed) == ("failed", 1)


# --------------------------------------------------------------------------------------------- the end


async def test_a_task_that_fails_for_good_fails_the_backfill(world: World, service: Backfills) -> None:
    await deployed(world)
    await arrive(world, 0, 100)
    await run_all(world)
    id_ = await start(world, service, Selection(keys=("0-99", "100-199")))

    await run(world, "compact", "Failed")

    view = await service.get(id_)
    assert (view.row.state, progress(view)["compact"].failed) == ("failed", 2)


async def test_nothing_selected_is_done_at_once(world: World, service: Backfills) -> None:
    await deployed(world)

    for selection in (Selection(status=(MISSING,)), Selection(start=10, end=50)):
        id_ = await start(world, service, selection)
        assert await state(service, id_) == "succeeded"


async def test_a_cancel_ends_what_waits_and_asks_what_runs(world: World, service: Backfills) -> None:
    await deployed(world)
    await arrive(world, 0, 100)
    await run_all(world)
    id_ = await start(world, service, Selection(keys=("0-99", "100-199", "900-999")))
    [first, _] = await world.tasks("compact", "queued")
    holder = await world.leases.hold(first)

    assert (await service.cancel(id_)).row.state == "cancelling"
    await world.settle()
    assert await state(service, id_) == "cancelling"
    assert await world.tasks("compact", "queued", "blocked") == []
    assert ok(await holder.heartbeat())["status"] == "Canceled"
    ok(await holder.complete("Canceled"))
    await world.settle()

    view = await service.get(id_)
    assert (view.row.state, progress(view)["compact"].cancelled) == ("cancelled", 3)
    assert (await service.cancel(id_)).row.state == "cancelled", "again is the same"


async def test_what_has_ended_is_not_cancelled(world: World, service: Backfills) -> None:
    await deployed(world)
    id_ = await start(world, service, Selection(status=(MISSING,)))

    with pytest.raises(InvalidState):
        await service.cancel(id_)
    with pytest.raises(NotFound):
        await service.cancel(uuid4())


async def test_a_cutover_that_changes_the_job_ends_the_backfill_and_another_one_does_not(
    world: World, service: Backfills
) -> None:
    await deployed(world)
    await arrive(world, 0)
    await run_all(world)
    id_ = await start(world, service, Selection(keys=("0-99", "900-999")))

    await deployed(world, FLOW.replace("operator: watcher", "operator: watcher2"))
    assert await state(service, id_) == "running"
    await deployed(world, FLOW.replace("operator: compacter", "operator: compacter2"))
    await run_all(world)
    await world.settle()

    view = await service.get(id_)
    assert view.row.state == "cancelled"
    assert "no longer part" in (view.row.reason or "")


async def test_a_paused_dag_gets_no_tasks_until_it_is_resumed(world: World, service: Backfills) -> None:
    await deployed(world)
    await arrive(world, 0)
    await run_all(world)
    await world.dags.pause("flow")

    id_ = await start(world, service, Selection(keys=("0-99",)))
    assert await world.tasks("compact", "queued") == []
    await world.dags.pause("flow", paused=False)
    await world.settle()

    assert await run(world, "compact") == ["0-99"]
    assert await state(service, id_) == "succeeded"


# --------------------------------------------------------------------------------------------- repeats and faults


async def test_the_same_key_is_the_same_backfill(world: World, service: Backfills) -> None:
    await deployed(world)
    await arrive(world, 0)
    await run_all(world)

    first = await start(world, service, Selection(keys=("0-99",)), key="k")
    again = await start(world, service, Selection(keys=("0-99",)), key="k")

    assert (first, len(await world.tasks("compact"))) == (again, 2)
    for changed in (Selection(keys=("100-199",)), Selection(status=(MISSING,))):
        with pytest.raises(Conflict):
            await service.start("flow", "compact", changed, key="k")
    with pytest.raises(Conflict):
        await service.start("flow", "compact", Selection(keys=("0-99",)), key="k", downstream=True)


@pytest.mark.parametrize(
    ("dag", "job", "error"),
    [
        ("flow", "nobody", NotFound),
        ("nobody", "compact", NotFound),
        ("flow", "watch", Invalid),
        ("flow", "arrive", Invalid),
    ],
)
async def test_what_cannot_be_backfilled_is_refused(
    world: World, service: Backfills, dag: str, job: str, error: type[Exception]
) -> None:
    await deployed(world)

    with pytest.raises(error):
        await service.start(dag, job, Selection(keys=("0-99",)))
    with pytest.raises(NotFound):
        await service.start("flow", "compact", Selection(keys=("0-99",)), namespace="elsewhere")


async def test_a_dag_that_is_not_active_is_refused(world: World, service: Backfills) -> None:
    await world.dags.deploy("flow", FLOW, auto_cutover=False)

    with pytest.raises(InvalidState):
        await service.start("flow", "compact", Selection(keys=("0-99",)))


class Killed(Exception):
    """The server dies."""


class Fragile(BackfillTable):
    """Dies at the nth statement that writes, in the middle of a transaction."""

    left = 0

    async def _die(self) -> None:
        Fragile.left -= 1
        if Fragile.left == 0:
            raise Killed

    async def insert_tasks(self, *given: Any) -> None:
        await self._die()
        await super().insert_tasks(*given)
        await self._die()

    async def update(self, *given: Any) -> None:
        await self._die()
        await super().update(*given)
        await self._die()

    async def count_ended(self, *given: Any) -> list[UUID]:
        await self._die()
        ended = await super().count_ended(*given)
        await self._die()
        return ended


async def test_a_server_that_dies_at_any_statement_loses_and_doubles_nothing(
    world: World, service: Backfills, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfills, "PAGE", 3)
    monkeypatch.setattr(backfills, "COUNT_BATCH", 4)
    await deployed(world)
    await insert_partitions(world, "arrive", 10)
    await world.dags.deploy("flow", FLOW)
    monkeypatch.setattr(backfills, "BackfillTable", Fragile)
    id_ = (await service.start("flow", "compact", Selection(start=0, end=999))).row.id
    deaths = 0

    async def settle(dies: int) -> None:
        """Run the loop of backfills until nothing is left to do; it dies at every `dies`th statement."""
        nonlocal deaths
        while True:
            Fragile.left = dies
            try:
                if not await Backfills(world.engine).tick():
                    return
            except Killed:
                deaths += 1
                dies += 1  # so that each place comes once, and the loop ends

    await settle(1)
    tasks = await world.tasks("compact")
    assert len(tasks) == 10
    for task_id in tasks:
        ok(await (await world.leases.hold(task_id)).complete())
    await settle(1)

    view = await service.get(id_)
    assert deaths >= 8
    assert (view.row.state, progress(view)["compact"]) == ("succeeded", JobProgress("compact", 10, 10, succeeded=10))


async def test_many_servers_make_each_task_once(
    world: World, service: Backfills, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfills, "PAGE", 3)
    await deployed(world)
    await insert_partitions(world, "arrive", 20)
    id_ = (await service.start("flow", "compact", Selection(start=0, end=1999))).row.id

    for _ in range(10):
        await asyncio.gather(*(Backfills(world.engine).tick() for _ in range(4)))

    assert len(await world.tasks("compact")) == 20
    assert progress(await service.get(id_))["compact"].tasks == 20


async def test_no_more_than_so_many_tasks_of_a_backfill_are_open(
    world: World, service: Backfills, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfills, "PAGE", 2)
    monkeypatch.setattr(backfills, "OPEN_MAX", 5)
    await deployed(world)
    await insert_partitions(world, "arrive", 12)

    id_ = await start(world, service, Selection(start=0, end=1199))
    opened = []
    while tasks := await world.tasks("compact", "queued"):
        opened.append(len(tasks))
        await run(world, "compact")

    assert max(opened) == 5
    assert progress(await service.get(id_))["compact"] == JobProgress("compact", 12, 12, succeeded=12)


async def test_a_backfill_of_a_million_partitions_costs_a_page_at_a_time(world: World, service: Backfills) -> None:
    await deployed(world)
    await insert_partitions(world, "arrive", 1_000_000)
    async with world.engine.store.begin() as tx:
        await tx.session.connection.execute("analyze windlass.partition")

    planned = await service.start("flow", "compact", Selection(status=(MISSING,)), dry_run=True)
    id_ = (await service.start("flow", "compact", Selection(start=0, end=10**8 - 1))).row.id
    for _ in range(3):
        await service.tick()

    assert (planned.row.truncated, progress(planned)["compact"].partitions) == (True, backfills.COUNT_MAX)
    view = progress(await service.get(id_))["compact"]
    assert (view.partitions, view.tasks) == (1_000_000, 3 * backfills.PAGE)
    await service.cancel(id_)
    while await service.tick():
        pass
    assert await state(service, id_) == "cancelled"


async def test_backfills_are_listed_newest_first_in_pages(world: World, service: Backfills) -> None:
    await deployed(world)
    ids = [await start(world, service, Selection(status=(MISSING,))) for _ in range(5)]

    found: list[UUID] = []
    after: Any = None
    while page := await service.page(after=after, limit=2):
        found += [view.row.id for view in page]
        after = (page[-1].row.created_at, page[-1].row.id)

    assert sorted(found) == sorted(ids)
    assert await service.page(namespace="elsewhere") == []
    assert await service.page(dag="other") == []


async def test_a_job_that_needs_all_inputs_waits_for_the_last(world: World, service: Backfills) -> None:
    await deployed(world, BOTH)
    id_ = await start(world, service, Selection(keys=("0-99",)))
    assert progress(await service.get(id_))["compact"].waiting == 1
