"""The catalog: who sees which dataset, which partitions there are and why not, and what a revert makes again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest
from tests.datasets.world import World
from tests.kit.world import ok

from windlass import errors
from windlass.core.access import Principal, Role
from windlass.datasets import catalog as module
from windlass.datasets.catalog import Catalog
from windlass.datasets.rules.lineage import Direction
from windlass.datasets.rules.partition import Span
from windlass.datasets.rules.status import PartitionStatus, PartitionView
from windlass.datasets.tables.events import DatasetTable

pytestmark = pytest.mark.slow

BLOCKS = """\
name: blocks
jobs:
  - name: load
    activation: source
    runtime: ecs_platform
    operator: loader
    source: {kind: manual}
    outputs: 1
    update_strategy: replace
  - name: compact
    activation: reactive
    runtime: ecs_platform
    operator: compacter
    execution_strategy: PerPartition
    partitions: {kind: range, size: 100, start: 0}
    inputs: [{from: {job: load}}]
    outputs: 1
    update_strategy: replace
    max_attempts: 1
  - name: report
    activation: reactive
    runtime: ecs_platform
    operator: reporter
    execution_strategy: PerPartition
    inputs: [{from: {dataset: cold}, where: "height > 7"}]
    outputs: 1
    update_strategy: replace
publish:
  hot: {from: {job: load}, storage: postgres, write_mode: direct, read_roles: ["*"], freshness: {max_age: 1h}}
  cold: {from: {job: compact}, storage: postgres, write_mode: direct, read_roles: [analysts], description: all of it}
"""
ADMIN = Principal("root", Role.ADMIN)
FAILED = {"error_message": "no", "error": {"category": "USER_CODE", "retryable": False}}


def catalog(world: World) -> Catalog:
    return world.engine.service(Catalog)


async def deploy(world: World, yaml: str = BLOCKS, **options: Any) -> None:
    assert (await world.deploy(yaml, "blocks", **options)).state == "active"


async def load(world: World, *starts: int) -> None:
    """Commit partitions of 100 numbers of `hot`."""
    for start in starts:
        key = f"{start}-{start + 99}"
        await world.report(await world.emit("load", "blocks"), partition_key=key, start=start, end=start + 99)


async def compact(world: World, key: str, *, job: str = "compact", fails: bool = False) -> UUID:
    """Complete the task of a partition, or let it fail. Returns the task."""
    for task_id in await world.tasks(job, "queued"):
        view = await world.engine.tasks.get(task_id)
        [given] = msgspec.json.decode(view.wire or b"")["inputs"]
        if given["partition_key"] != key:
            continue
        holder = await world.leases.hold(task_id)
        if fails:
            ok(await holder.complete("Failed", **FAILED))
            await world.settle()
        else:
            await world.report(holder, partition_key=key, start=given["start"], end=given["end"])
        return task_id
    raise AssertionError(f"no task of {job} waits for {key}")


async def statuses(world: World, *status: PartitionStatus, **options: Any) -> dict[str, str]:
    page, end = await catalog(world).partitions(ADMIN, "cold", "default", status=status, **options)
    assert end is None
    return {partition.key: partition.status for partition in page}


# --------------------------------------------------------------------------------------------- who reads what


@pytest.mark.parametrize(
    ("caller", "seen"),
    [
        (Principal("a", Role.ADMIN), ["cold", "hot", None]),
        (Principal("o", Role.OPERATOR), ["hot", None]),
        (Principal("o", Role.OPERATOR, groups=("analysts",)), ["cold", "hot", None]),
        (Principal("s", Role.SUBMITTER), ["hot"]),
        (Principal("v", Role.VIEWER), ["hot"]),
        (Principal("v", Role.VIEWER, groups=("writers", "analysts")), ["cold", "hot"]),
        (Principal("v", Role.VIEWER, groups=("*",)), ["hot"]),
    ],
    ids=lambda value: f"{value.role} {value.groups}" if isinstance(value, Principal) else None,
)
async def test_a_caller_sees_what_its_role_and_groups_may_read(
    world: World, caller: Principal, seen: list[str | None]
) -> None:
    await deploy(world)

    assert [dataset.name for dataset in await catalog(world).page(caller, "default")] == seen
    for name in ("cold", "hot"):
        id_ = (await catalog(world).get(ADMIN, name, "default")).id
        for which in (name, id_):
            if name in seen:
                assert (await catalog(world).get(caller, which, "default")).id == id_
            else:
                with pytest.raises(errors.NotFound):
                    await catalog(world).get(caller, which, "default")


async def test_nothing_is_seen_from_another_namespace(world: World) -> None:
    await deploy(world)
    id_ = (await catalog(world).get(ADMIN, "hot", "default")).id

    assert await catalog(world).page(ADMIN, "elsewhere") == []
    for which in ("hot", id_):
        with pytest.raises(errors.NotFound):
            await catalog(world).get(ADMIN, which, "elsewhere")
    assert (await catalog(world).get(ADMIN, id_, None)).name == "hot"


async def test_an_unreadable_dataset_and_an_unknown_one_have_the_same_answer_everywhere(world: World) -> None:
    await deploy(world)
    await load(world, 0)
    viewer, all_of = Principal("v", Role.OPERATOR), catalog(world)
    calls: dict[str, Callable[[str], Any]] = {
        "get": lambda name: all_of.get(viewer, name, "default"),
        "partitions": lambda name: all_of.partitions(viewer, name, "default"),
        "partition": lambda name: all_of.partition(viewer, name, "default", "0-99"),
        "coverage": lambda name: all_of.coverage(viewer, name, "default"),
        "events": lambda name: all_of.events(viewer, name, "default", after=None, limit=5),
        "revert": lambda name: all_of.revert(viewer, name, "default", "0-99", 1),
        "lineage": lambda name: all_of.lineage(viewer, name, "default", Direction.BOTH, 9),
    }
    for what, call in calls.items():
        reported = []
        for name in ("cold", "nowhere"):
            with pytest.raises(errors.NotFound) as refused:
                await call(name)
            reported.append(refused.value.message.replace(name, "NAME"))
        assert reported[0] == reported[1], what


async def test_datasets_are_listed_in_pages_that_lose_and_repeat_nothing(world: World) -> None:
    await deploy(world)
    names, after = [], None
    while page := await catalog(world).page(ADMIN, "default", after=after, limit=1):
        names.append(page[0].name or f"{page[0].job}/{page[0].output_index}")
        after = page[0].label

    assert names == ["cold", "hot", "report/0"]


# --------------------------------------------------------------------------------------------- one dataset


async def test_a_dataset_without_data_is_empty(world: World) -> None:
    await deploy(world)

    view = await catalog(world).get(ADMIN, "cold", "default")

    assert (view.dag, view.job, view.output_index, view.storage) == ("blocks", "compact", 0, "postgres")
    assert (view.write_mode, view.read_roles, view.description) == ("direct", ["analysts"], "all of it")
    assert (view.cursor, view.fresh, view.retired) == (None, None, False)
    [version] = view.versions
    assert (version.dataset_version, version.state, version.rows) == (view.current_version, "current", None)
    assert await catalog(world).partitions(ADMIN, "cold", "default") == ([], None)
    found = (await catalog(world).coverage(ADMIN, "cold", "default")).coverage
    assert (found.committed, found.missing, found.failed) == ([], [], [])
    assert await catalog(world).events(ADMIN, "cold", "default", after=None, limit=5) == []
    with pytest.raises(errors.NotFound):
        await catalog(world).partition(ADMIN, "cold", "default", "0-99")


async def test_a_dataset_is_fresh_until_its_maximum_age(world: World) -> None:
    await deploy(world)
    assert (await catalog(world).get(ADMIN, "hot", "default")).fresh is False

    await load(world, 0)
    assert (await catalog(world).get(ADMIN, "hot", "default")).fresh is True

    await world.leases.clock.advance(3601)
    assert (await catalog(world).get(ADMIN, "hot", "default")).fresh is False


async def test_versions_are_current_live_or_old(world: World) -> None:
    await deploy(world)
    await load(world, 0)
    before = (await catalog(world).get(ADMIN, "cold", "default")).current_version
    changed = BLOCKS.replace("operator: compacter", "operator: compacter\n    operator_version: '2'")
    assert (await world.deploy(changed, "blocks")).state == "building"

    building = await catalog(world).get(ADMIN, "cold", "default")
    assert building.current_version == before
    assert [version.state for version in building.versions] == ["current", "live"]
    [_, new] = [version.dataset_version for version in building.versions]
    assert await statuses(world, version=new) == {"0-99": "running"}

    [old, new_task] = await world.tasks("compact", "queued")
    for task_id in (old, new_task):
        holder = await world.leases.hold(task_id)
        await world.report(holder, partition_key="0-99", start=0, end=99)
    await compact_reports(world)
    switched = await catalog(world).get(ADMIN, "cold", "default")
    assert switched.current_version == new
    assert [version.state for version in switched.versions] == ["current", "old"]
    assert await statuses(world, version=before) == {"0-99": "committed"}
    with pytest.raises(errors.NotFound, match="has no version"):
        await statuses(world, version=uuid4())


async def compact_reports(world: World) -> None:
    for task_id in await world.tasks("report", "queued"):
        await world.report(await world.leases.hold(task_id), partition_key="0-99", start=0, end=99)


# --------------------------------------------------------------------------------------------- partitions


async def test_a_partition_is_running_then_committed_then_stale_then_failed(world: World) -> None:
    await deploy(world)
    await load(world, 0)
    assert await statuses(world) == {"0-99": "running"}

    await compact(world, "0-99")
    assert await statuses(world) == {"0-99": "committed"}

    await load(world, 0)
    assert await statuses(world) == {"0-99": "running"}, "it is made again from the new revision"

    [again] = await world.tasks("compact", "queued")
    await world.engine.cancel(again)
    await world.settle()
    assert await statuses(world) == {"0-99": "stale"}

    await load(world, 0)
    await compact(world, "0-99", fails=True)
    assert await statuses(world) == {"0-99": "failed"}


async def test_a_failed_partition_that_is_replayed_runs_again(world: World) -> None:
    await deploy(world)
    await load(world, 0)
    failed = await compact(world, "0-99", fails=True)
    assert await statuses(world) == {"0-99": "failed"}
    [shown], _ = await catalog(world).partitions(ADMIN, "cold", "default")
    assert (shown.task_id, shown.revision, shown.committed_at) == (failed, None, None)

    await world.engine.parts.repair.retry(failed)
    await world.settle()
    assert await statuses(world) == {"0-99": "running"}

    await compact(world, "0-99")
    assert await statuses(world) == {"0-99": "committed"}


async def test_what_the_scheme_of_a_job_has_and_no_task_makes_is_missing(world: World) -> None:
    await deploy(world)
    holder = await world.emit("load", "blocks")
    await world.dags.pause("blocks")
    scopes = [
        {"partition_key": "0-99", "start": 0, "end": 99},
        {"partition_key": "100-149", "start": 100, "end": 149},
        {"partition_key": "odd"},
    ]
    [output] = holder.reply["task"]["outputs"]
    ids = {name: output[name] for name in ("dataset_uuid", "dataset_version")}
    ok(await holder.complete(events=[{**ids, **scope} for scope in scopes]))
    await world.settle()

    assert await statuses(world) == {"0-99": "missing"}
    found = (await catalog(world).coverage(ADMIN, "cold", "default")).coverage
    assert (found.committed, found.missing, found.failed) == ([], [Span(0, 99)], [])


async def test_pages_are_in_order_of_the_first_number_then_of_the_key(world: World) -> None:
    await deploy(world, BLOCKS.replace("{kind: range, size: 100, start: 0}", "{kind: key}"))
    await load(world, 1000, 0, 200, 100)
    await world.report(await world.emit("load", "blocks"), partition_key="b")
    await world.report(await world.emit("load", "blocks"), partition_key="Ä/%")
    for key in ("200-299", "0-99", "b"):
        await compact(world, key)
    expected = ["0-99", "100-199", "200-299", "1000-1099", "b", "Ä/%"]

    for limit in (1, 2, 3, 4, 50):
        keys, after = [], None
        while True:
            page, after = await catalog(world).partitions(ADMIN, "cold", "default", after=after, limit=limit)
            assert len(page) <= limit
            keys += [partition.key for partition in page]
            if after is None:
                break
        assert keys == expected, limit
    assert await statuses(world, PartitionStatus.COMMITTED) == dict.fromkeys(["0-99", "200-299", "b"], "committed")
    running = {key: "running" for key in expected if key not in ("0-99", "200-299", "b")}
    assert await statuses(world, PartitionStatus.RUNNING, PartitionStatus.FAILED) == running


async def test_a_filter_reads_a_limited_number_and_goes_on_in_the_next_page(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SCAN_MAX", 2)
    monkeypatch.setattr(module, "LOAD_MAX", 2)
    await deploy(world)
    await load(world, *range(0, 700, 100))
    for start in range(0, 600, 100):
        await compact(world, f"{start}-{start + 99}")

    pages: list[list[PartitionView]] = []
    after = None
    while True:
        page, after = await catalog(world).partitions(
            ADMIN, "cold", "default", status=[PartitionStatus.RUNNING], after=after, limit=1
        )
        pages.append(page)
        if after is None:
            break

    assert [partition.key for page in pages for partition in page] == ["600-699"]
    assert len(pages) > 2


async def test_a_partition_has_its_revisions_and_what_they_were_made_from(world: World) -> None:
    await deploy(world)
    for _ in range(2):
        await load(world, 0)
        task_id = await compact(world, "0-99")
    source = await catalog(world).get(ADMIN, "hot", "default")

    found = await catalog(world).partition(ADMIN, "cold", "default", "0-99")

    assert (found.partition.revision, found.partition.task_id, found.partition.status) == (2, task_id, "committed")
    assert [revision.revision for revision in found.revisions] == [2, 1]
    assert f'"dataset_version": "{source.current_version}"' in found.partition.inputs
    assert '"revision": 2' in found.revisions[0].inputs
    assert '"revision": 1' in found.revisions[1].inputs


async def test_coverage_merges_what_touches(world: World) -> None:
    await deploy(world)
    await load(world, 0, 100, 200, 500, 600)
    for key in ("0-99", "100-199", "500-599"):
        await compact(world, key)
    await compact(world, "200-299", fails=True)

    found = (await catalog(world).coverage(ADMIN, "cold", "default")).coverage

    assert found.committed == [Span(0, 199), Span(500, 599)]
    assert found.failed == [Span(200, 299)]
    assert found.missing == [Span(600, 699)], "its task waits"
    hot = (await catalog(world).coverage(ADMIN, "hot", "default")).coverage
    assert hot.committed == [Span(0, 299), Span(500, 699)]


async def test_coverage_of_the_largest_and_smallest_numbers(world: World) -> None:
    await deploy(world)
    low, high = -(2**63), 2**63 - 1
    for start, end in ((low, low), (low + 1, -1), (0, 5), (high, high), (7, high - 1)):
        await world.report(
            await world.emit("load", "blocks"), partition_key=f"{start}-{end}", start=start, end=end
        )  # fmt: skip

    found = (await catalog(world).coverage(ADMIN, "hot", "default")).coverage

    assert found.committed == [Span(low, 5), Span(7, high)]
    page, _ = await catalog(world).partitions(ADMIN, "hot", "default")
    assert [partition.first for partition in page] == [low, low + 1, 0, 7, high]


# --------------------------------------------------------------------------------------------- events


async def test_events_have_their_routing_and_the_tasks_that_they_made_newest_first(world: World) -> None:
    await deploy(world)
    await load(world, 0, 100)
    [first, second] = await world.tasks("compact")
    await compact(world, "0-99")

    events = await catalog(world).events(ADMIN, "hot", "default", after=None, limit=5)

    by_key = {event.partition_key: event for event in events}
    tasks = {(await world.leases.hold(id_)).reply["task"]["inputs"][0]["partition_key"]: id_ for id_ in [second]}
    [key] = tasks
    assert list(by_key[key].tasks) == [second]
    assert {task for event in events for task in event.tasks} == {first, second}
    assert {event.routing for event in events} == {"routed"}
    assert [event.at for event in events] == sorted((event.at for event in events), reverse=True)
    [made] = await catalog(world).events(ADMIN, "cold", "default", after=None, limit=5)
    assert (made.partition_key, made.revision, list(made.tasks)) == ("0-99", 1, await world.tasks("report"))


async def test_an_event_that_a_task_of_another_namespace_reported_is_not_shown(world: World) -> None:
    await deploy(world)
    await load(world, 0)
    async with world.engine.store.begin() as tx:
        await tx.session.connection.execute(
            "insert into windlass.event select gen_random_uuid(), 'elsewhere', e.task_id, e.attempt, e.dataset_uuid, "
            "e.dataset_version, 7, null, null, null, false, e.caller, e.at, null, null, 'undeclared', e.at "
            "from windlass.event e"
        )

    [event] = await catalog(world).events(ADMIN, "hot", "default", after=None, limit=5)

    assert event.partition_key == "0-99"


# --------------------------------------------------------------------------------------------- revert


async def test_a_revert_is_a_new_revision_with_the_old_content_and_makes_dependents_again(world: World) -> None:
    await deploy(world)
    made = []
    for _ in range(2):
        await load(world, 0)
        made.append(await compact(world, "0-99"))
        await compact(world, "0-99", job="report")
    assert await world.tasks("report", "queued") == []

    found = await catalog(world).revert(ADMIN, "cold", "default", "0-99", 1)
    await world.settle()

    assert (found.partition.revision, found.partition.task_id) == (3, made[0])
    assert [revision.task_id for revision in found.revisions] == [made[0], made[1], made[0]]
    assert found.revisions[0].inputs == found.revisions[2].inputs
    assert found.partition.status == "stale", "its input has a newer revision"
    [owed] = await world.tasks("report", "queued")
    [given] = (await world.leases.hold(owed)).reply["task"]["inputs"]
    assert (given["partition_key"], given["revision"]) == ("0-99", 3)
    assert await world.tasks("compact", "queued") == [], "the job itself is owed nothing"


async def test_a_repeated_revert_changes_nothing(world: World) -> None:
    await deploy(world)
    for _ in range(2):
        await load(world, 0)
        await compact(world, "0-99")

    first = await catalog(world).revert(ADMIN, "cold", "default", "0-99", 1)
    again = await catalog(world).revert(ADMIN, "cold", "default", "0-99", 1)
    same = await catalog(world).revert(ADMIN, "cold", "default", "0-99", 3)

    assert first == again == same
    assert first.partition.revision == 3
    back = await catalog(world).revert(ADMIN, "cold", "default", "0-99", 2)
    assert (back.partition.revision, back.partition.status) == (4, "committed")


async def test_a_revert_to_what_does_not_exist_changes_nothing(world: World) -> None:
    await deploy(world)
    await load(world, 0)
    await compact(world, "0-99")

    for key, revision, message in (("0-99", 2, "has no revision 2"), ("100-199", 1, "has no partition 100-199")):
        with pytest.raises(errors.NotFound, match=message):
            await catalog(world).revert(ADMIN, "cold", "default", key, revision)

    assert len((await catalog(world).partition(ADMIN, "cold", "default", "0-99")).revisions) == 1


async def test_a_revert_waits_for_a_commit_of_the_same_version(world: World) -> None:
    await deploy(world)
    for _ in range(2):
        await load(world, 0)
        await compact(world, "0-99")
    version = (await catalog(world).get(ADMIN, "cold", "default")).current_version
    assert version is not None

    async with world.engine.store.begin() as tx:
        await DatasetTable(tx.session).lock_versions([version])
        with pytest.raises(errors.Unavailable):
            await catalog(world).revert(ADMIN, "cold", "default", "0-99", 1)

    assert (await catalog(world).revert(ADMIN, "cold", "default", "0-99", 1)).partition.revision == 3


# --------------------------------------------------------------------------------------------- lineage


async def test_lineage_goes_up_down_or_both_ways_to_the_given_depth(world: World) -> None:
    await deploy(world)

    async def names(which: str, direction: Direction, depth: int = 9, caller: Principal = ADMIN) -> set[str]:
        found = await catalog(world).lineage(caller, which, "default", direction, depth)
        return {dataset.name or f"{dataset.job}/0" for dataset in found.datasets} | {job.name for job in found.jobs}

    assert await names("cold", Direction.UP) == {"cold", "compact", "hot", "load"}
    assert await names("cold", Direction.UP, 1) == {"cold", "compact", "hot"}
    assert await names("cold", Direction.DOWN) == {"cold", "report", "report/0"}
    assert await names("cold", Direction.BOTH) == {"cold", "compact", "hot", "load", "report", "report/0"}
    assert await names("hot", Direction.DOWN, 1) == {"hot", "compact", "cold"}
    found = await catalog(world).lineage(ADMIN, "cold", "default", Direction.DOWN, 1)
    assert [link.where for link in found.links] == ["height > 7", None]


async def test_lineage_links_jobs_where_a_dataset_between_them_is_not_readable(world: World) -> None:
    await deploy(world)
    viewer = Principal("v", Role.VIEWER)

    found = await catalog(world).lineage(viewer, "hot", "default", Direction.DOWN, 9)

    assert [dataset.name for dataset in found.datasets] == ["hot"]
    links = {(str(getattr(link.source, "name", "hot")), link.target.name, link.where) for link in found.links}  # type: ignore[union-attr]
    assert links == {("hot", "compact", None), ("compact", "report", "height > 7")}
