"""The testing checklist of the contract (section 9), one test for each line, in its order: through real HTTP, with the
real exporter as a real process, and a real S3 server."""

from __future__ import annotations

import asyncio
import re
import resource
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from lxml import etree
from msgspec.structs import replace
from tests.contracts.machine.export.archive import Archive, open_archive
from tests.contracts.machine.world import World, eventually, json_of, open_world
from tests.kit.processes import files_in
from tests.kit.s3 import KEY, SECRET, S3Server, open_s3

from windlass import State
from windlass.blobs.address import read_address
from windlass.contracts.machine.server.storage import storage_variables
from windlass.contracts.machine.sweeper import Machines
from windlass.testing.clock import VirtualClock

pytestmark = pytest.mark.slow

ROOT_PI = "01KAAAAAAAAAAAAAAAAAAAAAAA"
LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with open_s3(*(f"arke-exports-{line:02}" for line in range(1, 20))) as server:
        yield server


@dataclass(frozen=True)
class Bucket:
    url: str  # as WINDLASS_BLOBS
    folder: Path

    @property
    def objects(self) -> dict[str, bytes]:
        files = files_in(self.folder)
        return {path.relative_to(self.folder).as_posix(): path.read_bytes() for path in files}


@pytest.fixture
def s3(server: S3Server, request: pytest.FixtureRequest) -> Bucket:
    """A bucket for this test alone: a database wants one to itself."""
    name = f"arke-exports-{request.node.name[5:7]}"
    return Bucket(server.url(bucket=name), server.folder / name)


@pytest.fixture
def archive() -> Iterator[Archive]:
    with open_archive() as archive:
        yield archive


@pytest.fixture
async def exports(
    database: str, clock: VirtualClock, tmp_path: Path, archive: Archive, s3: Bucket
) -> AsyncIterator[World]:
    """A server with nothing set up: its objects are in S3, and the exporter knows where entities are."""
    blobs = s3.url
    told = {
        "WINDLASS_MODS_API_URL": archive.url, "WINDLASS_MODS_GATEWAY_URL": archive.url, "CALLBACK_PATIENCE_MS": "1000",
    }  # fmt: skip
    storage = storage_variables(read_address(blobs), {})
    async with open_world(database, clock, tmp_path, blobs=blobs, storage=storage, common_env=told) as world:
        yield world


def entity(archive: Archive, pi: str = ROOT_PI, **more: Any) -> None:
    pinax = {"id": pi, "title": f"Title of {pi}", "type": "Text", "creator": "A", "institution": "B", "created": "1900"}
    archive.entity(pi, pinax={**pinax, "access_url": "PLACEHOLDER"}, description="A pier.", **more)


def pi_of(number: int) -> str:
    digits = "".join(LETTERS[number >> shift & 31] for shift in (15, 10, 5, 0))
    return f"01KAAAAAAAAAAAAAAAAAAA{digits}"


async def ask(world: World, **options: Any) -> str:
    answer = await world.post([], "mods", pi=ROOT_PI, options=options)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["task_id"])


async def done(world: World, **options: Any) -> str:
    name = await ask(world, **options)
    await world.exited(name)
    return name


def key_of(name: str, file: str = f"{ROOT_PI}.xml") -> str:
    return f"exports/{name}/{file}"


def ours(s3: Bucket, name: str) -> list[str]:
    return [key for key in s3.objects if name in key]


# --------------------------------------------------------------------------------------------- the list


async def test_01_orchestrator_generates_unique_task_ids(exports: World, archive: Archive) -> None:
    entity(archive)
    names = [await ask(exports) for _ in range(3)]

    assert len(set(names)) == 3
    assert all(re.fullmatch(r"export_mods_\d{13}_[0-9a-f]{8}", name) for name in names)


async def test_02_orchestrator_spawns_machines_with_correct_env_vars(
    exports: World, archive: Archive, s3: Bucket
) -> None:
    entity(archive)
    name = await done(exports, recursive=True, maxDepth=10)
    [order] = exports.launcher.orders

    env = order.env
    assert (env["TASK_ID"], env["PI"], env["EXPORT_FORMAT"], env["BATCH_ID"]) == (name, ROOT_PI, "mods", "single")
    assert json_of(env["EXPORT_OPTIONS"].encode()) == {"recursive": True, "maxDepth": 10}
    assert (env["R2_ACCESS_KEY_ID"], env["R2_SECRET_ACCESS_KEY"], env["R2_BUCKET"]) == (KEY, SECRET, s3.folder.name)
    assert env["R2_ACCOUNT_ID"]
    assert f"/callback/{name}" in env["CALLBACK_URL"]


async def test_03_orchestrator_stores_task_state_in_kv(exports: World, archive: Archive) -> None:
    gate = asyncio.Event()
    entity(archive)
    exports.launcher.before = gate.wait  # type: ignore[assignment]
    asking = asyncio.create_task(exports.http.post("/export/mods", json={"pi": ROOT_PI, "options": {"maxDepth": 3}}))
    ticking = asyncio.create_task(exports.post([], "mods", pi=ROOT_PI))

    async def ordered() -> bool:
        return bool(exports.launcher.orders)

    await eventually(ordered)
    name = exports.launcher.orders[0].env["TASK_ID"]
    told = await exports.status(name)  # before its machine is there
    gate.set()
    await asyncio.gather(asking, ticking)

    assert (told["status"], told["pi"]) == ("processing", ROOT_PI)
    assert isinstance(told["createdAt"], int)
    assert "machineId" not in told
    assert "machineId" in await exports.status(name)


async def test_04_worker_reads_all_env_vars_correctly(exports: World, archive: Archive) -> None:
    entity(
        archive,
        refs={"a.ref.json": {"url": "u", "ipfs_cid": "c", "type": "t", "size": 1, "filename": "a", "ocr": "SEEN"}},
    )
    with_text, without = await done(exports), await done(exports, includeOcr=False)

    texts = [(await exports.http.get(f"/download/{name}")).text for name in (with_text, without)]
    assert ["SEEN" in text for text in texts] == [True, False]
    wrong = await exports.http.post("/export/mods", json={"pi": ROOT_PI, "options": {"cheimarrosMode": "all"}})
    assert wrong.status_code == 400


async def test_05_worker_exports_mods_to_temp_file(exports: World, archive: Archive) -> None:
    entity(archive, children=[pi_of(1)])
    entity(archive, pi_of(1))
    archive.answers[f"/entities/{pi_of(1)}"].gate = gate = threading.Event()
    name = await ask(exports, recursive=True)
    await asyncio.to_thread(archive.until_asked, f"/entities/{pi_of(1)}")
    during = [path for path in exports.machines() if f"{name}-" in path]
    gate.set()
    await exports.exited(name)

    assert len(during) == 1
    assert re.search(rf"/tmp/{name}-\d+-{ROOT_PI}-collection\.xml$", during[0])
    root = etree.fromstring((await exports.http.get(f"/download/{name}")).content)
    assert len(root) == 2


async def test_06_worker_uploads_to_r2_with_correct_path(exports: World, archive: Archive, s3: Bucket) -> None:
    entity(archive)
    single, tree = await done(exports), await done(exports, recursive=True)

    assert ours(s3, single) == [key_of(single)]
    assert ours(s3, tree) == [key_of(tree, f"{ROOT_PI}-collection.xml")]


async def test_07_worker_sends_success_callback(exports: World, archive: Archive) -> None:
    entity(archive)
    name = await done(exports)

    report = (await exports.details(name))["reported"]
    assert (report["batch_id"], report["outcome"]) == ("single", "succeeded")
    told = await exports.status(name)
    assert told["metrics"]["entities_exported"] == 1
    assert {"total_time_ms", "entities_failed", "peak_memory_mb"} <= told["metrics"].keys()


async def test_08_worker_sends_error_callback_on_failure(exports: World, archive: Archive) -> None:
    name = await done(exports)

    report = (await exports.details(name))["reported"]
    assert report["outcome"] == "failed"
    assert (await exports.status(name))["error"] == report["error"]


async def test_09_worker_exits_with_correct_code(exports: World, archive: Archive) -> None:
    failed = await done(exports)
    entity(archive)
    good = await done(exports)
    await exports.clock.advance(11)
    codes = {name: (await exports.looked(name)).exit_code for name in (good, failed)}  # type: ignore[union-attr]

    assert codes == {good: 0, failed: 1}


async def test_10_worker_cleans_up_temp_files(exports: World, archive: Archive) -> None:
    entity(archive)
    good = await done(exports)
    del archive.answers[f"/entities/{ROOT_PI}"]
    bad = await done(exports)

    assert [path for path in exports.machines() if good in path or bad in path] == []
    await exports.sweep()
    assert exports.machines() == []


async def test_11_orchestrator_callback_handler_updates_kv(exports: World, archive: Archive) -> None:
    entity(archive)
    name = await done(exports)
    told = await exports.status(name)

    assert told["status"] == "success"
    assert told["completedAt"] >= told["createdAt"]
    assert (told["output_r2_key"], told["output_file_name"]) == (key_of(name), f"{ROOT_PI}.xml")


async def test_12_orchestrator_status_endpoint_returns_correct_data(exports: World, archive: Archive) -> None:
    entity(archive)
    name = await done(exports, maxDepth=2)
    told = await exports.status(name)

    assert (told["task_id"], told["pi"], told["options"]) == (name, ROOT_PI, {"maxDepth": 2})
    assert (await exports.http.get("/status/export_mods_1_00000000")).json() == {"error": "Task not found"}


async def test_13_orchestrator_download_endpoint_streams_from_r2(exports: World, archive: Archive, s3: Bucket) -> None:
    entity(archive)
    name = await done(exports)
    stored = s3.objects[key_of(name)]
    answer = await exports.http.get(f"/download/{name}")

    assert answer.content == stored
    assert answer.headers["content-type"] == "application/xml"
    assert answer.headers["content-disposition"] == f'attachment; filename="{ROOT_PI}.xml"'
    assert int(answer.headers["content-length"]) == len(stored) == (await exports.status(name))["output_file_size"]


async def test_14_r2_files_are_cleaned_up_after_download(exports: World, archive: Archive, s3: Bucket) -> None:
    entity(archive)
    name, unread = await done(exports), await done(exports)
    await exports.http.get(f"/download/{name}")
    await exports.unread()
    await exports.sweep()
    await exports.clock.advance(11)
    await exports.sweep()
    await exports.engine.service(Machines).object_tick()
    assert (len(ours(s3, name)), len(ours(s3, unread))) == (0, 1)

    await exports.clock.advance(86_400)
    await exports.engine.service(Machines).object_tick()
    assert ours(s3, unread) == []


async def test_15_timeout_handling_works_correctly(exports: World, archive: Archive) -> None:
    entity(archive)
    archive.answers[f"/entities/{ROOT_PI}"].gate = gate = threading.Event()
    name = await ask(exports)
    await exports.clock.advance(601)
    await exports.sweep()
    gate.set()

    assert (await exports.status(name))["error"] == "no callback within 600 s"
    assert exports.machines() == []


async def test_16_error_messages_are_descriptive(exports: World, archive: Archive) -> None:
    missing = await done(exports)
    await exports.queue("mods", command=["/no/such/exporter"])
    spawn = await exports.post([], "mods", pi=ROOT_PI, options={})

    assert "404" in (await exports.status(missing))["error"]
    assert spawn.json() == {"error": "machine spawn failed: /no/such/exporter: No such file or directory"}
    assert (await exports.http.post("/export/mods", json={})).json() == {"error": "Missing required field: pi"}
    assert (await exports.http.get(f"/download/{missing}")).text == "Export not ready or failed. Status: error"


async def test_17_callback_failures_dont_fail_export(exports: World, archive: Archive) -> None:
    entity(archive)
    dead = "http://127.0.0.1:9"
    order = exports.launcher.start

    async def misled(given: Any) -> Any:
        env = {
            **given.env,
            "CALLBACK_URL": given.env["CALLBACK_URL"].replace(str(exports.http.base_url).rstrip("/"), dead),
        }
        return await order(replace(given, env=env))

    exports.launcher.start = misled  # type: ignore[method-assign]
    name = await done(exports)
    assert (await exports.looked(name)).exit_code == 0  # type: ignore[union-attr]
    assert (await exports.status(name))["status"] == "processing"
    await exports.sweep()

    assert (await exports.status(name))["status"] == "success"
    assert (await exports.http.get(f"/download/{name}")).status_code == 200


def tree(archive: Archive, count: int) -> None:
    """Entities in a tree, each with up to five children."""
    for number in range(count):
        children = [pi_of(child) for child in range(number * 5 + 1, min(number * 5 + 6, count))]
        entity(archive, ROOT_PI if number == 0 else pi_of(number), children=children)


async def test_18_large_exports_of_500_and_more_entities_complete_successfully(
    exports: World, archive: Archive
) -> None:
    tree(archive, 520)
    name = await done(exports, recursive=True, maxDepth=10, parallelBatchSize=20)
    told = await exports.status(name)

    assert (told["status"], told["metrics"]["entities_exported"]) == ("success", 520)
    content = (await exports.http.get(f"/download/{name}")).content
    assert len(etree.fromstring(content, etree.XMLParser(huge_tree=True))) == 520


async def test_19_memory_stays_under_the_1_gb_limit(exports: World, archive: Archive) -> None:
    tree(archive, 200)
    ocr = {"url": "u", "ipfs_cid": "c", "type": "t", "size": 1, "filename": "a", "ocr": "word " * 1_000_000}
    entity(archive, pi_of(7), refs={"a.ref.json": ocr})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    name = await done(exports, recursive=True, maxDepth=10)
    told = await exports.status(name)

    assert told["status"] == "success", told
    assert told["metrics"]["peak_memory_mb"] < 150
    assert len((await exports.http.get(f"/download/{name}")).content) == told["output_file_size"] > 5_000_000
    assert (await exports.task(name)).state is State.SUCCEEDED
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024  # this test holds the file itself
