"""Purges of versions: what is refused, what is deleted, and that a deploy builds a purged version again."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from tests.contracts.lease.world import Holder
from tests.datasets.lake_world import COLD, KEY, LakeWorld
from tests.datasets.world import CHAIN, World
from tests.kit.world import ok

from windlass import Engine
from windlass.core.access import Principal, Role
from windlass.datasets import purge as module
from windlass.datasets.catalog import Catalog
from windlass.datasets.clean_up import CleanUp
from windlass.datasets.lake import delete_some
from windlass.datasets.purge import Purge
from windlass.datasets.tables.catalog import DatasetView
from windlass.errors import InvalidState, NotFound, Unavailable
from windlass.store.store import Store

pytestmark = pytest.mark.slow

ADMIN = Principal("test", Role.ADMIN)


def changed(yaml: str, number: int) -> str:
    """The same file with other code in its first job, so that all versions are new."""
    source = "    source: {kind: manual}\n"
    return yaml.replace(source, f"{source}    operator_version: v{number}\n")


async def dataset(world: World, name: str = "blocks") -> DatasetView:
    return await world.engine.service(Catalog).get(ADMIN, name, "default")


async def states(world: World, name: str = "blocks") -> dict[UUID, str]:
    return {one.dataset_version: one.state for one in (await dataset(world, name)).versions}


async def purge(world: World, version: UUID, name: str = "blocks") -> None:
    """Order a purge, and carry it out."""
    found = await world.engine.service(Purge).order(ADMIN, name, "default", version)
    assert found.state == "purged"
    await world.engine.service(Purge).tick()


async def committed(world: LakeWorld) -> Holder:
    holder = await world.load()
    await world.write(holder)
    ok(await world.finish(holder))
    await world.settle()
    return holder


async def old_version(world: LakeWorld) -> UUID:
    """A version with data that neither the active nor the previous deployment has."""
    await committed(world)
    version = (await dataset(world)).current_version
    assert version is not None
    for number in (2, 3):
        await world.deploy(changed(COLD, number), "cold")
        await committed(world)
    assert (await states(world))[version] == "old"
    return version


# --------------------------------------------------------------------------------------------- refused


async def test_a_version_that_a_live_or_the_previous_deployment_has_is_not_purged(lake_world: LakeWorld) -> None:
    purges = lake_world.engine.service(Purge)
    await committed(lake_world)
    first = (await dataset(lake_world)).current_version
    assert first is not None
    with pytest.raises(InvalidState, match="version 1 of DAG cold needs this data: it is active"):
        await purges.order(ADMIN, "blocks", "default", first)

    await lake_world.deploy(changed(COLD, 2), "cold")
    with pytest.raises(InvalidState, match="it is the previous one, for a rollback"):
        await purges.order(ADMIN, "blocks", "default", first)
    ready = await lake_world.deploy(changed(COLD, 3), "cold", auto_cutover=False)
    [built] = {version for version, state in (await states(lake_world)).items() if state == "live"}
    assert ready.state == "ready"
    with pytest.raises(InvalidState, match="version 3 of DAG cold needs this data: it is ready"):
        await purges.order(ADMIN, "blocks", "default", built)

    await lake_world.dags.rollback("cold")
    assert (await dataset(lake_world)).current_version == first
    assert len(await lake_world.keys()) == 3


async def test_a_version_of_another_dataset_or_none_is_not_found(lake_world: LakeWorld) -> None:
    version = await old_version(lake_world)
    purges = lake_world.engine.service(Purge)
    for which, one in (("blocks", uuid4()), (uuid4(), version), ("other", version)):
        with pytest.raises(NotFound):
            await purges.order(ADMIN, which, "default", one)
    with pytest.raises(NotFound):
        await purges.order(ADMIN, "blocks", "another", version)
    with pytest.raises(NotFound):
        await purges.order(ADMIN, (await dataset(lake_world)).id, "another", version)
    assert (await states(lake_world))[version] == "old"


# --------------------------------------------------------------------------------------------- what goes


async def test_a_purge_deletes_the_objects_and_rows_of_its_version_and_no_others(lake_world: LakeWorld) -> None:
    version = await old_version(lake_world)
    kept = [key for key in await lake_world.keys() if f"/{version}/" not in key]
    assert len(kept) == 6

    await purge(lake_world, version)
    await purge(lake_world, version)

    assert await lake_world.keys() == kept
    assert (await states(lake_world))[version] == "purged"
    assert {row[0] for row in await lake_world.select("select dataset_version from windlass.partition")} == (
        set(await states(lake_world)) - {version}
    )
    with pytest.raises(InvalidState, match="was purged"):
        await lake_world.engine.service(Catalog).partitions(ADMIN, "blocks", "default", version=version)
    with pytest.raises(InvalidState, match="was purged: deploy its file again"):
        await lake_world.dags.activate("cold", 1)


async def test_a_purge_goes_on_after_a_server_died_in_the_middle(
    lake_world: LakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "OBJECTS", 1)
    monkeypatch.setattr(module, "ROWS", 1)
    version = await old_version(lake_world)
    await lake_world.engine.service(Purge).order(ADMIN, "blocks", "default", version)
    steps = 0

    async def dies(*args: Any) -> bool:
        nonlocal steps
        steps += 1
        if steps == 2:
            raise Unavailable("killed")
        return await delete_some(*args)

    monkeypatch.setattr(module, "delete_some", dies)
    assert await lake_world.engine.service(Purge).tick() == 0
    left = [key for key in await lake_world.keys() if f"/{version}/" in key]
    assert len(left) == 2
    assert (await states(lake_world))[version] == "purged"
    with pytest.raises(InvalidState, match="is being deleted"):
        await lake_world.dags.deploy("cold", COLD)

    other = Purge(lake_world.engine)
    assert await other.tick() == 1
    assert not [key for key in await lake_world.keys() if f"/{version}/" in key]
    assert await lake_world.select("select purging from windlass.dataset_version where purged_at is not null") == [
        (False,)
    ]
    assert await other.tick() == 0


async def test_a_server_without_a_lake_leaves_a_purge_to_the_others(lake_world: LakeWorld) -> None:
    version = await old_version(lake_world)
    other = Engine(Store(lake_world.engine.store.dsn), listen=False)
    try:
        await other.service(Purge).order(ADMIN, "blocks", "default", version)
        assert await other.service(Purge).tick() == 0
    finally:
        await other.close()
    assert len(await lake_world.keys()) == 9
    assert await lake_world.engine.service(Purge).tick() == 1
    assert len(await lake_world.keys()) == 6


async def test_a_late_attempt_commits_nothing_to_a_purged_version(lake_world: LakeWorld) -> None:
    late = await lake_world.load()
    for number in (2, 3):
        await lake_world.dags.deploy("cold", changed(COLD, number))
        async with lake_world.engine.store.begin() as tx:  # the task does not know yet that its version is gone
            await tx.session.connection.execute("delete from windlass.outbox where kind = 'leave_jobs'")
        await lake_world.settle()
        async with lake_world.engine.store.begin() as tx:
            await tx.session.connection.execute("update windlass.task set cancel = null")
    version = UUID(late.reply["task"]["outputs"][0]["dataset_version"])
    await purge(lake_world, version)
    await lake_world.write(late)

    ok(await lake_world.finish(late))

    assert await lake_world.revisions() == []
    assert await lake_world.select("select routing from windlass.event") == [("old_version",)]
    await lake_world.leases.clock.advance(48 * 3600)
    while await lake_world.engine.service(CleanUp).tick():
        pass
    assert await lake_world.keys() == []


# --------------------------------------------------------------------------------------------- built again

MADE = COLD.replace("    outputs: 0\n", "    outputs: 1\n    update_strategy: replace\n").replace(
    "publish:\n", "publish:\n  reports: {from: {job: report}, storage: s3}\n"
)


async def reported(world: LakeWorld) -> Holder:
    """Complete the one task of `report` that is queued, with files."""
    holder = await world.hold("report")
    await world.write(holder)
    ok(await world.finish(holder))
    await world.settle()
    return holder


async def test_a_deploy_of_a_file_whose_version_was_purged_builds_it_again(lake_world: LakeWorld) -> None:
    first = await lake_world.deploy(MADE, "cold")
    await committed(lake_world)
    await reported(lake_world)
    version = (await dataset(lake_world, "reports")).current_version
    assert version is not None
    for number in (2, 3):
        file = MADE.replace("operator: reporter", f"operator: reporter\n    operator_version: v{number}")
        await lake_world.deploy(file, "cold")
        await reported(lake_world)
    assert [job.outputs[0].data for job in (await lake_world.dags.plan("cold", MADE)).jobs] == ["reused", "reused"]

    await purge(lake_world, version, "reports")

    planned = {job.job: job for job in (await lake_world.dags.plan("cold", MADE)).jobs}
    assert planned["report"].outputs[0].data == "built"
    assert planned["load"].outputs[0].data == "reused"
    again = await lake_world.deploy(MADE, "cold")
    assert (again.id, again.state) == (first.id, "building")
    assert (await states(lake_world, "reports"))[version] == "live"
    holder = await reported(lake_world)

    assert (await lake_world.dags.get("cold")).active_version == first.id
    found = await lake_world.engine.service(Catalog).partition(ADMIN, "reports", "default", KEY)
    assert (found.partition.revision, found.partition.task_id) == (1, holder.task_id)
    assert (await dataset(lake_world, "reports")).current_version == version


async def test_readers_of_a_version_that_is_built_again_are_given_all_of_it(lake_world: LakeWorld) -> None:
    version = await old_version(lake_world)
    await purge(lake_world, version)
    before = await lake_world.tasks("report")

    await lake_world.deploy(COLD, "cold")
    assert (await dataset(lake_world)).current_version == version
    await committed(lake_world)

    assert len(await lake_world.tasks("report")) == len(before) + 1


async def test_a_retired_dag_keeps_nothing_and_its_file_can_be_deployed_again(lake_world: LakeWorld) -> None:
    await committed(lake_world)
    version = (await dataset(lake_world)).current_version
    assert version is not None
    await lake_world.dags.retire("cold")

    await purge(lake_world, version)

    assert await lake_world.keys() == []
    assert (await states(lake_world))[version] == "purged"
    await lake_world.deploy(COLD, "cold")
    await committed(lake_world)
    assert [row[:2] for row in await lake_world.revisions()] == [(KEY, 1)]
    assert (await states(lake_world))[version] == "current"


# --------------------------------------------------------------------------------------------- tables

TABLE = """\
publish:
  blocks: {from: {job: follow}, storage: postgres, write_mode: direct, schema: {columns: [{name: hash, type: text}]}}
"""


async def test_a_purge_drops_the_table_of_its_version_and_a_deploy_makes_it_again(world: World) -> None:
    def file(number: int) -> str:
        return changed(CHAIN, number) + TABLE

    for number in (1, 2, 3):
        await world.deploy(file(number))
        await world.leases.clock.advance(60)
    oldest = min((await dataset(world)).versions, key=lambda one: one.created_at).dataset_version

    await purge(world, oldest)

    assert await tables(world) == {table_of(id_) for id_ in await states(world)} - {table_of(oldest)}
    assert (await states(world))[oldest] == "purged"
    await world.deploy(file(1))
    assert table_of(oldest) in await tables(world)
    assert (await states(world))[oldest] == "current"


def table_of(version: UUID) -> str:
    return f"v_{version.hex}"


async def tables(world: World) -> set[str]:
    async with world.engine.store.begin() as tx:
        rows = await tx.session.connection.fetch(
            "select tablename from pg_tables where schemaname = 'windlass_data' and tablename like 'v\\_%'"
        )
    return {row[0] for row in rows}
