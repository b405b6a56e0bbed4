"""Commits of files in the lake: what is visible, who may commit, and what a worker cannot name."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from tests.contracts.lease.world import Holder
from tests.datasets.lake_world import COLD, KEY, LakeWorld, manifest_of, output_of, retried
from tests.datasets.world import World
from tests.kit.s3 import KEY as S3_KEY
from tests.kit.s3 import SECRET
from tests.kit.world import ok

from windlass.blobs.object_store import open_store
from windlass.datasets.rules.manifest import MANIFEST, MANIFEST_MAX_BYTES, MARKER, digest
from windlass.serve import use_lake

pytestmark = pytest.mark.slow


async def test_files_are_committed_with_the_completion_and_given_to_its_reader(lake_world: LakeWorld) -> None:
    holder = await lake_world.load()
    location = await lake_world.write(holder, {"a.parquet": b"one", "day=1/b.parquet": b"three"})
    assert await lake_world.revisions() == []

    ok(await lake_world.finish(holder, row_count=20))
    await lake_world.settle()

    assert await lake_world.revisions() == [(KEY, 1, 1, location, 20, 8)]
    reader = await lake_world.hold("report")
    [given] = reader.reply["task"]["inputs"]
    assert (given["location"], given["revision"], given["partition_key"]) == (location, 1, KEY)


async def test_an_empty_partition_is_committed_without_files(lake_world: LakeWorld) -> None:
    holder = await lake_world.load()
    await lake_world.write(holder, {})

    ok(await lake_world.finish(holder, row_count=0))

    assert [(row[0], row[4], row[5]) for row in await lake_world.revisions()] == [(KEY, 0, 0)]


async def test_a_repeated_completion_has_the_same_answer_one_revision_and_one_task(lake_world: LakeWorld) -> None:
    holder = await lake_world.load()
    await lake_world.write(holder)

    first = await lake_world.finish(holder)
    await lake_world.settle()
    await lake_world.blobs.delete(await lake_world.keys())  # a repeat does not read the files again
    again = await lake_world.finish(holder)
    await lake_world.settle()

    assert ok(again) == ok(first)
    assert len(await lake_world.revisions()) == 1
    assert len(await lake_world.tasks("report")) == 1
    assert len(await lake_world.select("select id from windlass.event")) == 1


async def test_another_task_that_writes_the_partition_is_the_next_revision(lake_world: LakeWorld) -> None:
    for _ in range(2):
        holder = await lake_world.load()
        await lake_world.write(holder)
        ok(await lake_world.finish(holder))

    assert [row[:2] for row in await lake_world.revisions()] == [(KEY, 1), (KEY, 2)]
    [current] = await lake_world.select("select revision from windlass.partition")
    assert current == (2,)


async def test_an_event_alone_commits_nothing_in_the_lake(lake_world: LakeWorld) -> None:
    holder = await lake_world.load()
    event = {name: value for name, value in output_of(holder).items() if name not in ("location", "output_index")}
    ok(await holder.events(event))
    await lake_world.settle()

    assert await lake_world.revisions() == []
    assert await lake_world.select("select routing from windlass.event") == [("uncommitted",)]
    assert await lake_world.tasks("report") == []
    await lake_world.write(holder)
    ok(await lake_world.finish(holder))
    await lake_world.settle()
    assert len(await lake_world.tasks("report")) == 1


# --------------------------------------------------------------------------------------------- attempts


async def test_an_old_attempt_that_reports_last_is_refused_and_its_files_are_never_visible(
    lake_world: LakeWorld,
) -> None:
    old = await lake_world.load()
    await lake_world.write(old, {"old.parquet": b"old"})
    new = await retried(lake_world, old)
    location = await lake_world.write(new, {"new.parquet": b"new"})
    ok(await lake_world.finish(new))

    late = await lake_world.finish(old)

    assert late.status_code == 409, late.text
    assert [(row[1], row[2], row[3]) for row in await lake_world.revisions()] == [(1, 2, location)]


async def test_an_old_attempt_cannot_commit_while_the_next_one_runs(lake_world: LakeWorld) -> None:
    old = await lake_world.load()
    await lake_world.write(old)
    new = await retried(lake_world, old)

    assert (await lake_world.finish(old)).status_code == 409
    assert await lake_world.revisions() == []
    taken = await lake_world.finish(new, location=output_of(old)["location"])
    assert (taken.status_code, taken.json()["field"]) == (400, "outputs[0].location")
    assert await lake_world.revisions() == []


# --------------------------------------------------------------------------------------------- wrong outputs


async def refused(world: LakeWorld, holder: Holder, field: str, **changed: Any) -> None:
    """A completion is refused with the field that is wrong; nothing has changed, and the lease lives on."""
    keys, answer = await world.keys(), await world.finish(holder, **changed)

    assert answer.status_code == 400, answer.text
    assert (answer.json()["error"], answer.json()["field"]) == ("output_invalid", field)
    assert await world.revisions() == []
    assert await world.select("select id from windlass.event") == []
    assert await world.keys() == keys
    ok(await holder.heartbeat())


async def test_an_output_can_be_mended_while_the_lease_lasts(lake_world: LakeWorld) -> None:
    holder = await lake_world.load()
    await refused(lake_world, holder, f"outputs[0].{MARKER}")
    await lake_world.write(holder, rows=11)
    await refused(lake_world, holder, "outputs[0].manifest.rows")
    await lake_world.write(holder)

    ok(await lake_world.finish(holder))

    assert len(await lake_world.revisions()) == 1


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"task_id": str(uuid4())}, "manifest.task_id"),
        ({"attempt": 2}, "manifest.attempt"),
        ({"dataset_uuid": str(uuid4())}, "manifest.dataset_uuid"),
        ({"dataset_version": str(uuid4())}, "manifest.dataset_version"),
        ({"partition_key": "100-199"}, "manifest.partition_key"),
        ({"version": 2}, "manifest.version"),
        ({"owner": "me"}, "manifest"),
        ({"files": [{"path": "../1/part.parquet", "bytes": 4, "rows": 10}]}, "manifest.files[0].path"),
        ({"files": [{"path": "/part.parquet", "bytes": 4, "rows": 10}]}, "manifest.files[0].path"),
        ({"files": [{"path": "a//part.parquet", "bytes": 4, "rows": 10}]}, "manifest.files[0].path"),
        ({"files": [{"path": "part.parquet", "bytes": 4, "rows": 5}] * 2}, "manifest.files[1].path"),
        ({"files": [{"path": "part.exe", "bytes": 4, "rows": 10}]}, "manifest.files[0].path"),
        ({"files": [{"path": "gone.parquet", "bytes": 4, "rows": 10}]}, "manifest.files[0].path"),
        ({"files": [{"path": "part.parquet", "bytes": 5, "rows": 10}]}, "manifest.files[0].bytes"),
        ({"rows": -1}, "manifest.rows"),
    ],
)
async def test_a_manifest_that_is_wrong_is_refused(lake_world: LakeWorld, changed: dict[str, Any], field: str) -> None:
    holder = await lake_world.load()
    await lake_world.write(holder, **changed)

    await refused(lake_world, holder, f"outputs[0].{field}")


async def test_marker_and_manifest_must_be_there_fit_and_be_small(lake_world: LakeWorld) -> None:
    holder = await lake_world.load()
    folder = lake_world.key(await lake_world.write(holder))
    await lake_world.blobs.put(folder + MARKER, b"0" * 64)
    await refused(lake_world, holder, f"outputs[0].{MARKER}")
    long = msgspec.json.encode(manifest_of(holder, {})) + b" " * MANIFEST_MAX_BYTES
    await lake_world.blobs.put(folder + MANIFEST, long)
    await lake_world.blobs.put(folder + MARKER, digest(long).encode())
    await refused(lake_world, holder, f"outputs[0].{MANIFEST}")
    await lake_world.blobs.delete([folder + MANIFEST])
    await refused(lake_world, holder, f"outputs[0].{MANIFEST}")
    await lake_world.write(holder)
    await refused(lake_world, holder, "outputs[0].row_count", row_count=11)


async def test_a_location_outside_of_the_attempts_own_folder_is_refused(lake_world: LakeWorld) -> None:
    other, holder = await lake_world.load(), await lake_world.load()
    await lake_world.write(other)
    await lake_world.write(holder)
    own, root = output_of(holder)["location"], lake_world.root
    dataset = output_of(holder)["dataset_uuid"]
    outside = [
        output_of(other)["location"], own.replace(str(dataset), str(uuid4())), f"{own}../0/", f"{own}../../2/0/",
        f"{own[:-1]}-evil/", f"{own[:-2]}1/", f"{own[:-1]}0/", f"{own}./", f"{own}a/../b/", f"{own}a//b/",
        f"{own}%2e%2e/", f"{own}*/", f"{own}a\\b/", f"{root}/",
        root, "", "/", "..", "file:///etc/", "s3://other/x/", f"{root}-evil/x/",
        own.replace("/default/", "/other/"), own.replace("://", ":///"), f"{own}?x=1", f"{own}#x", f"x{own}",
    ]  # fmt: skip

    for location in outside:
        await refused(lake_world, holder, "outputs[0].location", location=location)
    await refused(lake_world, holder, "outputs[0].output_index", output_index=1)
    ok(await lake_world.finish(holder))


async def test_a_task_may_commit_several_partitions_below_its_folder(lake_world: LakeWorld) -> None:
    holder = await lake_world.load()
    one = await lake_world.write(holder, below="a/")
    two = await lake_world.write(holder, below="b/", partition_key="100-199")
    second = {"partition_key": "100-199", "start": 100, "end": 199, "location": two}

    ok(await holder.complete(outputs=[output_of(holder) | {"location": one}, output_of(holder) | second]))

    assert [row[3] for row in sorted(await lake_world.revisions())] == [one, two]


async def test_a_dataset_that_the_task_does_not_write_commits_nothing(lake_world: LakeWorld) -> None:
    holder = await lake_world.load()
    await lake_world.write(holder)

    ok(await lake_world.finish(holder, dataset_uuid=str(uuid4())))

    assert await lake_world.revisions() == []


async def test_a_partition_that_overlaps_another_is_refused(lake_world: LakeWorld) -> None:
    first = await lake_world.load()
    await lake_world.write(first)
    ok(await lake_world.finish(first))
    second = await lake_world.load()
    await lake_world.write(second, partition_key="50-149")

    answer = await lake_world.finish(second, partition_key="50-149", start=50, end=149)

    assert (answer.status_code, answer.json()["error"]) == (400, "partition_overlap")
    assert len(await lake_world.revisions()) == 1
    assert (await second.task()).state == "running"


async def test_the_folder_that_a_worker_is_given_has_no_credentials(lake_world: LakeWorld) -> None:
    holder = await lake_world.load()
    await lake_world.write(holder)
    wrong = await lake_world.finish(holder, location="s3://other/")
    ok(await lake_world.finish(holder))
    history = await lake_world.select("select h::text from windlass.history h")
    rows = await lake_world.select("select r::text from windlass.partition_revision r")

    for text in (str(holder.reply), wrong.text, str(history), str(rows)):
        for secret in (S3_KEY, SECRET, "127.0.0.1", "secret_access_key"):
            assert secret not in text


# --------------------------------------------------------------------------------------------- the store


async def test_a_store_that_does_not_answer_is_not_the_workers_mistake(lake_world: LakeWorld) -> None:
    holder = await lake_world.load()
    await lake_world.write(holder)
    root, there = lake_world.root, lake_world.blobs
    lake_world.lake.use("memory://other", lambda: there)
    lake_world.lake.use(root, lambda: open_store("file:///proc/nowhere"))

    unavailable = await lake_world.finish(holder)

    assert unavailable.status_code == 503, unavailable.text
    lake_world.lake.use("memory://other", lambda: there)
    lake_world.lake.use(root, lambda: there)
    ok(await lake_world.finish(holder))


async def test_two_databases_cannot_share_a_lake(world: World, tmp_path: Path) -> None:
    blobs = open_store(f"file://{tmp_path}/lake")
    await blobs.put("windlass-lake.txt", str(uuid4()).encode())
    use_lake(world.engine, f"file://{tmp_path}/lake")
    assert (await world.deploy(COLD, "cold")).state == "active"
    found = LakeWorld(world.engine, world.leases, blobs, f"file://{tmp_path}/lake")
    holder = await found.load()
    await found.write(holder)

    answer = await found.finish(holder)

    assert answer.status_code == 503
    assert "another database" in answer.text


async def test_without_a_lake_a_task_has_no_folder_and_cannot_commit(world: World) -> None:
    assert (await world.deploy(COLD, "cold")).state == "active"
    holder = await world.emit("load", "cold")
    assert holder.reply["task"]["outputs"][0]["staging_uri"] is None

    answer = await holder.complete(outputs=[output_of(holder)])

    assert answer.status_code == 503
    assert "WINDLASS_LAKE" in answer.text
    assert (await holder.task()).state == "running"


async def test_two_outputs_cannot_name_the_same_folder(lake_world: LakeWorld) -> None:
    holder = await lake_world.load()
    await lake_world.write(holder, partition_key=None)
    place = {"partition_key": None, "start": None, "end": None}
    outputs = [output_of(holder) | place | {"cursor": cursor} for cursor in (1, 2)]

    answer = await holder.complete(outputs=outputs)

    assert (answer.status_code, answer.json()["field"]) == (400, "outputs[1].location")
    assert await lake_world.select("select cursor from windlass.cursor_commit") == []
    ok(await holder.complete(outputs=outputs[:1]))
