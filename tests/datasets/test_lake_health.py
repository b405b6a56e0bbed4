"""What an operator sees of the lake: metrics, freshness, and findings of the doctor."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.datasets.lake_world import COLD, LakeWorld
from tests.datasets.test_clean_up import clean_up
from tests.kit.world import ok

from windlass.api.metrics import metrics_text
from windlass.core.access import Principal, Role
from windlass.datasets.catalog import Catalog
from windlass.datasets.doctor import examine_lake
from windlass.datasets.freshness import DataGaugeReader
from windlass.datasets.lake import LAKE_MARKER, LAKE_PROBE
from windlass.engine.payloads.blob_port import Blobs
from windlass.engine.read.doctor import Level
from windlass.engine.read.metrics import Tally
from windlass.errors import Unavailable
from windlass.serve import open_blobs

pytestmark = pytest.mark.slow

ADMIN = Principal("test", Role.ADMIN)


async def commit(world: LakeWorld) -> None:
    holder = await world.load()
    await world.write(holder)
    ok(await world.finish(holder))
    await world.settle()


async def test_metrics_have_commits_data_that_is_not_committed_and_how_old_data_is(lake_world: LakeWorld) -> None:
    lake_world.engine.count(Tally())
    await commit(lake_world)
    refused = await lake_world.load()
    assert (await lake_world.finish(refused)).status_code == 400
    await lake_world.write(refused, {"a.parquet": b"x" * 500})
    await clean_up(lake_world, after_s=90)
    sizes = await lake_world.select("select staging_bytes from windlass.lake")

    found = (await metrics_text(lake_world.engine)).decode().splitlines()

    assert "windlass_dataset_commit_seconds_count 1.0" in found
    assert 'windlass_dataset_commit_seconds_bucket{le="+Inf"} 1.0' in found
    assert f"windlass_dataset_staging_bytes {float(sizes[0][0])}" in found
    assert 'windlass_dataset_freshness_seconds{dataset="blocks"} 90.0' in found


async def test_a_lake_that_no_clean_up_has_seen_has_no_size_and_data_without_events_no_age(
    lake_world: LakeWorld,
) -> None:
    assert await DataGaugeReader(lake_world.engine).read() == ({}, None)


async def test_a_dataset_with_a_maximum_age_is_fresh_until_then(lake_world: LakeWorld) -> None:
    await lake_world.deploy(COLD.replace("storage: s3}", "storage: s3, freshness: {max_age: 2h}}"), "cold")
    catalog = lake_world.engine.service(Catalog)

    async def fresh() -> bool | None:
        [shown] = await catalog.page(ADMIN, "default")
        assert shown.fresh == (await catalog.get(ADMIN, "blocks", "default")).fresh
        return shown.fresh

    assert await fresh() is False
    await commit(lake_world)
    assert await fresh() is True
    await lake_world.leases.clock.advance(7200)
    assert await fresh() is True
    await lake_world.leases.clock.advance(1)
    assert await fresh() is False


# --------------------------------------------------------------------------------------------- doctor


async def test_the_doctor_knows_the_lake_and_that_it_can_be_written_to(lake_world: LakeWorld) -> None:
    def here() -> Blobs:
        return lake_world.blobs

    store = lake_world.engine.store
    before = await examine_lake(store, here, "here")
    missing = await examine_lake(store, None, "")
    assert (before.level, before.message) == (Level.OK, "no files are kept yet; they would be in here")
    assert missing.level is Level.WRONG
    assert await lake_world.blobs.size(LAKE_MARKER) is None
    await commit(lake_world)
    keys = await lake_world.keys()

    found = await examine_lake(store, here, "here")

    assert (found.level, found.message) == (Level.OK, "files are kept in here")
    assert await lake_world.keys() == keys
    unset = await examine_lake(store, None, "")
    assert (unset.level, "no lake is set here" in unset.message, bool(unset.advice)) == (Level.WRONG, True, True)


async def test_the_doctor_finds_a_lake_that_is_another_one_or_cannot_be_written_to(
    lake_world: LakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await commit(lake_world)
    store = lake_world.engine.store
    elsewhere = open_blobs(f"file://{tmp_path}/elsewhere")
    other = await examine_lake(store, elsewhere, "elsewhere")
    assert (other.level, other.message.endswith("and elsewhere is another")) == (Level.WRONG, True)

    async def refuses(key: str, _content: bytes) -> int:
        assert key == LAKE_PROBE
        raise Unavailable("access denied")

    with monkeypatch.context() as patch:
        patch.setattr(lake_world.blobs, "put", refuses)
        closed = await examine_lake(store, lambda: lake_world.blobs, "here")
    assert (closed.level, closed.message, bool(closed.advice)) == (Level.WRONG, "access denied", True)
    async with store.begin() as tx:
        await tx.session.connection.execute("delete from windlass.lake")
    foreign = await examine_lake(store, lambda: lake_world.blobs, "here")
    assert (foreign.level, foreign.message) == (Level.WRONG, "here is the lake of another database")
    assert list((tmp_path / "elsewhere").iterdir()) == []
