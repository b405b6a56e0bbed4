"""The clean-up of the lake: what attempts leave behind goes, and nothing else."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest
from tests.contracts.lease.world import Holder
from tests.datasets.lake_world import LakeWorld, output_of, retried
from tests.kit.world import ok

from windlass import Engine
from windlass.datasets import clean_up as module
from windlass.datasets.clean_up import CleanUp
from windlass.datasets.lake import LAKE_MARKER
from windlass.datasets.rules.staging import Recorded, Staging, Verdict, judge
from windlass.engine.payloads.blob_port import Found
from windlass.errors import Unavailable
from windlass.serve import use_lake
from windlass.store.store import Store

pytestmark = pytest.mark.slow

DAY_S = 24 * 3600.0


async def clean_up(world: LakeWorld, *, after_s: float = DAY_S + 3600) -> None:
    """One walk through the lake, when all that was written until now is old enough."""
    await world.leases.clock.advance(after_s)
    while await world.engine.service(CleanUp).tick():
        pass


async def over(world: LakeWorld) -> Holder:
    """An attempt that wrote all files, and whose worker died before its report. The next attempt runs."""
    holder = await world.load()
    await world.write(holder)
    await retried(world, holder)
    return holder


def keys_of(world: LakeWorld, location: str, keys: Sequence[str]) -> list[str]:
    return [key for key in keys if key.startswith(world.key(location))]


async def test_files_of_an_attempt_that_is_over_are_deleted_after_a_day(lake_world: LakeWorld) -> None:
    holder = await over(lake_world)

    await clean_up(lake_world, after_s=DAY_S - 2 * 3600)
    assert len(await lake_world.keys()) == 3
    await clean_up(lake_world, after_s=4 * 3600)

    assert await lake_world.keys() == []
    assert (await lake_world.blobs.size(LAKE_MARKER)) is not None
    assert (await lake_world.finish(holder)).status_code == 409


async def test_committed_files_are_never_deleted(lake_world: LakeWorld) -> None:
    for _ in range(2):
        holder = await lake_world.load()
        await lake_world.write(holder)
        ok(await lake_world.finish(holder))
    below = await lake_world.load()
    await lake_world.write(below, below="day=1/")
    ok(await lake_world.finish(below, location=f"{output_of(below)['location']}day=1/"))
    keys = await lake_world.keys()
    async with lake_world.engine.store.begin() as tx:  # as the retention of tasks does
        await tx.session.connection.execute("delete from windlass.task where state = 'succeeded'")

    await clean_up(lake_world, after_s=100 * DAY_S)

    assert await lake_world.keys() == keys
    assert len(keys) == 9


async def test_files_that_have_a_cursor_are_committed_too(lake_world: LakeWorld) -> None:
    holder = await lake_world.load()
    await lake_world.write(holder, partition_key=None)
    ok(await lake_world.finish(holder, partition_key=None, start=None, end=None, cursor=7))

    await clean_up(lake_world)

    assert len(await lake_world.keys()) == 3


async def test_a_running_attempt_and_a_lost_one_that_may_still_report_keep_their_files(lake_world: LakeWorld) -> None:
    running, lost = await lake_world.load(), await lake_world.load()
    await lake_world.write(running)
    await lake_world.write(lost)
    await lake_world.leases.expire()  # both leases; neither task is started again
    await clean_up(lake_world)

    assert len(await lake_world.keys()) == 6
    ok(await lake_world.finish(lost))
    await clean_up(lake_world)
    assert len(await lake_world.revisions()) == 1
    assert len(await lake_world.keys()) == 6


async def test_files_of_a_task_that_failed_or_was_deleted_by_the_retention_go(lake_world: LakeWorld) -> None:
    failed, deleted = await lake_world.load(), await lake_world.load()
    for holder in (failed, deleted):
        await lake_world.write(holder)
        ok(await holder.complete("Failed", error={"reason": "no", "retryable": False}))
    async with lake_world.engine.store.begin() as tx:
        await tx.session.connection.execute("delete from windlass.task where id = $1", deleted.task_id)

    await clean_up(lake_world)

    assert await lake_world.keys() == []


async def test_what_is_not_named_like_a_staging_folder_of_this_database_stays(lake_world: LakeWorld) -> None:
    holder = await over(lake_world)
    own = lake_world.key(output_of(holder)["location"])
    namespace, dataset, version, task, attempt, index = own.rstrip("/").split("/")
    foreign = [
        "notes.txt",
        "default/notes.txt",
        f"other/{dataset}/{version}/{task}/{attempt}/{index}/part.parquet",
        f"{namespace}/{uuid4()}/{version}/{task}/{attempt}/{index}/part.parquet",
        f"{namespace}/{dataset}/{uuid4()}/{task}/{attempt}/{index}/part.parquet",
        f"{namespace}/{dataset}/{version}/{task}/{attempt}x/{index}/part.parquet",
        f"{namespace}/{dataset}/{version}/{task}/{attempt}/{index}-evil/part.parquet",
        f"below/{own}part.parquet",
    ]
    for key in foreign:
        await lake_world.blobs.put(key, b"not yours")

    await clean_up(lake_world)

    assert await lake_world.keys() == sorted(foreign)


async def test_a_walk_goes_on_from_page_to_page_and_deletes_long_folders_as_a_whole(
    lake_world: LakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGE", 4)
    monkeypatch.setattr(module, "DELETE_MAX", 3)
    kept = await lake_world.load()
    await lake_world.write(kept, {f"{n:03}.parquet": b"rows" for n in range(11)})
    ok(await lake_world.finish(kept))
    gone = await lake_world.load()
    await lake_world.write(gone, {f"{n:03}.parquet": b"rows" for n in range(10)})
    await retried(lake_world, gone)

    await clean_up(lake_world)

    assert await lake_world.keys() == keys_of(lake_world, output_of(kept)["location"], await lake_world.keys())
    assert len(await lake_world.keys()) == 13
    assert await lake_world.select("select place, staging_bytes from windlass.lake") == [("", 0)]


async def test_a_walk_counts_what_is_not_committed(lake_world: LakeWorld) -> None:
    committed, running = await lake_world.load(), await lake_world.load()
    await lake_world.write(committed, {"a.parquet": b"x" * 1000})
    ok(await lake_world.finish(committed))
    await lake_world.write(running, {"a.parquet": b"x" * 500})
    files = keys_of(lake_world, output_of(running)["location"], await lake_world.keys())
    sizes = [await lake_world.blobs.size(key) or 0 for key in files]

    await clean_up(lake_world, after_s=7200)

    assert await lake_world.select("select staging_bytes from windlass.lake") == [(sum(sizes),)]
    assert sum(sizes) > 500


async def test_one_server_walks_at_a_time_and_another_goes_on_where_it_died(
    lake_world: LakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGE", 2)
    for _ in range(2):
        await over(lake_world)
    await lake_world.lake.blobs()
    await lake_world.leases.clock.advance(2 * DAY_S)
    first, second = lake_world.engine.service(CleanUp), CleanUp(lake_world.engine)
    pages: list[str] = []

    async def dies(_page: Sequence[Found]) -> tuple[str | None, int]:
        pages.append("died")
        raise Unavailable("killed")

    monkeypatch.setattr(first, "_clean", lambda _blobs, page: dies(page))
    with pytest.raises(Unavailable):
        await first.tick()
    assert await second.tick() == 0  # not its turn
    assert len(await lake_world.keys()) == 6

    await lake_world.leases.clock.advance(module.TURN_S)
    while await second.tick():
        pass

    assert pages == ["died"]
    assert await lake_world.keys() == []


async def test_a_store_that_does_not_answer_changes_nothing_and_is_tried_again_later(
    lake_world: LakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await over(lake_world)
    blobs = await lake_world.lake.blobs()

    async def unavailable(*_: Any) -> None:
        raise Unavailable("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(blobs, "delete", unavailable)
        with pytest.raises(Unavailable):
            await clean_up(lake_world)
        assert await lake_world.engine.service(CleanUp).tick() == 0
    await clean_up(lake_world)

    assert await lake_world.keys() == []


async def test_a_server_without_a_lake_or_with_another_one_deletes_nothing(
    lake_world: LakeWorld, tmp_path: Any
) -> None:
    await over(lake_world)
    await lake_world.lake.blobs()
    await lake_world.leases.clock.advance(2 * DAY_S)
    other = Engine(Store(lake_world.engine.store.dsn), listen=False)
    try:
        assert await other.service(CleanUp).tick() == 0
        (tmp_path / "elsewhere").mkdir()
        use_lake(other, f"file://{tmp_path}/elsewhere")
        with pytest.raises(Unavailable, match="the lake of this database is"):
            await other.service(CleanUp).tick()
    finally:
        await other.close()
    assert len(await lake_world.keys()) == 3


async def test_a_task_that_is_locked_is_left_for_the_next_walk(
    lake_world: LakeWorld, other_connection: asyncpg.Connection
) -> None:
    holder = await over(lake_world)
    async with other_connection.transaction():
        await other_connection.execute("select from windlass.task where id = $1 for update", holder.task_id)
        await clean_up(lake_world)
        assert len(await lake_world.keys()) == 3
    await clean_up(lake_world)

    assert await lake_world.keys() == []


async def test_a_task_that_was_deleted_cannot_be_made_again_while_its_folder_is_deleted(
    lake_world: LakeWorld, other_connection: asyncpg.Connection
) -> None:
    holder = await lake_world.load()
    await lake_world.write(holder)
    async with lake_world.engine.store.begin() as tx:
        await tx.session.connection.execute("delete from windlass.task where id = $1", holder.task_id)
    async with other_connection.transaction():  # as the router does that makes the tasks of the job
        await other_connection.execute("select from windlass.job where name = 'load' for update")
        await clean_up(lake_world)
        assert len(await lake_world.keys()) == 3
    await clean_up(lake_world)

    assert await lake_world.keys() == []


@pytest.mark.parametrize("lake_world", ["folder"], indirect=True)
async def test_a_link_in_a_staging_folder_leads_to_no_file_of_another_attempt(
    lake_world: LakeWorld, tmp_path: Path
) -> None:
    kept = await lake_world.load()
    await lake_world.write(kept)
    ok(await lake_world.finish(kept))
    gone = await over(lake_world)
    folders = [tmp_path / "lake" / lake_world.key(output_of(one)["location"]) for one in (kept, gone)]
    (folders[1] / "evil").symlink_to(folders[0])
    (folders[1] / "half.parquet#1").write_bytes(b"of a worker that was killed")

    await clean_up(lake_world)

    assert len(await lake_world.keys()) == 3
    assert folders[0].is_dir()
    assert not folders[1].exists()


# --------------------------------------------------------------------------------------------- commits that land


async def storm(world: LakeWorld, seed: int) -> None:
    """Attempts write, report, report late, or die, while clean-ups look at the lake without any grace."""
    choose = random.Random(seed)
    world.engine.service(CleanUp).keep_s = -3600.0  # nothing is too young: only the commit record protects
    started, working = 0, True

    async def work() -> None:
        nonlocal started
        while started < 24:
            started += 1
            holder = await world.load()
            await world.write(holder, {f"{n}.parquet": b"rows" for n in range(choose.randrange(4))})
            match choose.randrange(4):
                case 0:
                    ok(await holder.complete("Failed", error={"reason": "no", "retryable": True}))
                case 1:
                    pass  # it dies: its lease stays
                case _:
                    ok(await world.finish(holder))

    async def walk() -> None:
        while working:
            async with world.engine.store.begin() as tx:
                await tx.session.connection.execute("update windlass.lake set next_at = windlass.now()")
            await CleanUp.tick(world.engine.service(CleanUp))
            await asyncio.sleep(0)

    walking = [asyncio.create_task(walk()) for _ in range(2)]
    try:
        await asyncio.gather(*(work() for _ in range(4)))
    finally:
        working = False
        await asyncio.gather(*walking)


async def committed_files_missing(world: LakeWorld) -> list[str]:
    keys = set(await world.keys())
    locations = [row[3] for row in await world.revisions()]
    assert len(locations) >= 5
    return [location for location in locations if f"{world.key(location)}_SUCCESS" not in keys]


async def test_a_storm_of_commits_and_clean_ups_deletes_no_committed_file(lake_world: LakeWorld) -> None:
    await storm(lake_world, 7)

    assert await committed_files_missing(lake_world) == []
    for row in await lake_world.revisions():
        assert len(keys_of(lake_world, row[3], await lake_world.keys())) == 2 + (row[4] or 0) // 10


async def test_the_storm_finds_a_clean_up_that_does_not_ask_the_commit_record(
    lake_world: LakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def blind(_staging: Staging, recorded: Recorded, *_: object) -> Verdict:
        return Verdict.DELETE if recorded.ended else Verdict.OPEN

    monkeypatch.setattr(module, "judge", blind)
    await storm(lake_world, 7)

    assert await committed_files_missing(lake_world) != []


async def test_a_commit_that_lands_during_a_clean_up_is_seen(
    lake_world: LakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page is read and judged before the commit, the folder is deleted after it."""
    holder = await lake_world.load()
    await lake_world.write(holder)
    cleaner = lake_world.engine.service(CleanUp)
    delete, landed = cleaner._delete, list[UUID]()

    async def first_commit(blobs: Any, folder: Any) -> Verdict:
        ok(await lake_world.finish(holder))
        landed.append(folder.staging.task_id)
        return await delete(blobs, folder)

    monkeypatch.setattr(cleaner, "_delete", first_commit)
    judged = list[Verdict]()

    def too_early(staging: Staging, recorded: Recorded, *rest: Any) -> Verdict:
        """The first answer is wrong, as if the attempt had been over when the page was read."""
        judged.append(judge(staging, recorded, *rest))
        return Verdict.DELETE if len(judged) == 1 else judged[-1]

    monkeypatch.setattr(module, "judge", too_early)
    await clean_up(lake_world)

    assert landed == [holder.task_id]
    assert judged == [Verdict.OPEN, Verdict.COMMITTED]
    assert len(await lake_world.keys()) == 3
