"""The lake with real processes that are killed: workers between the marker and the report, servers between the commit
and the answer. The servers are `windlass serve`, the wrappers `windlass wrapper`; the lake is a folder."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import msgspec
import pytest
from tests.cli.command import environment
from tests.contracts.lease.world import Holder, TlsFiles, client
from tests.datasets.lake_world import COLD, manifest_of, output_of
from tests.datasets.world import World
from tests.e2e.test_dags import (
    CLI,
    MARKER,
    Servers,
    deployed,
    eventually,
    is_after_commit,
    own_world,
    routed,
    servers,
    tls_files,
    unconfirmed_commits,
    wait_for_tasks,
    world,
)
from tests.kit.database import temporary_folder
from tests.kit.ports import free_port
from tests.kit.world import ok

from windlass.contracts.lease.delivery import Wakeup
from windlass.contracts.lease.worker.folder import open_folder
from windlass.core.queue import QueueConfig
from windlass.datasets.rules import manifest as files

__all__ = ["servers", "tls_files", "world"]  # fixtures

pytestmark = pytest.mark.slow

QUEUE, LEASE_MS = "quick", 3000
DAG = COLD.replace("    source: {kind: manual}\n", f"    source: {{kind: manual}}\n    queue: {QUEUE}\n").replace(
    "max_attempts: 5", "max_attempts: 100"
)


class Lake:
    """A folder that a test looks into."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, f"file://{folder}"

    def attempts(self, task_id: UUID) -> dict[int, list[str]]:
        """The names of the files that attempts of a task have written."""
        found: dict[int, list[str]] = {}
        for file in self.folder.glob(f"default/*/*/{task_id}/*/0/*"):
            found.setdefault(int(file.parts[-3]), []).append(file.name)
        return {attempt: sorted(names) for attempt, names in found.items()}

    def write(self, holder: Holder) -> dict[str, Any]:
        """Write an output as a worker does. Returns what its report says of it."""
        output, content = output_of(holder), {"part.parquet": b"rows"}
        folder, text = open_folder(output["location"]), msgspec.json.encode(manifest_of(holder, content))
        for path, rows in content.items():
            folder.write(path, rows)
        folder.write(files.MANIFEST, text)
        folder.write(files.MARKER, files.digest(text).encode())
        return output


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def settings_of(tls_files: TlsFiles, lake: Lake) -> dict[str, str]:
    """The settings of servers with an internal port and a lake. What attempts leave is deleted after a second."""
    pair = tls_files.server
    return {
        "WINDLASS_INTERNAL_CERTIFICATE": str(pair.certificate), "WINDLASS_INTERNAL_KEY": str(pair.key),
        "WINDLASS_INTERNAL_CA": str(tls_files.authority), "WINDLASS_LAKE": lake.root, "WINDLASS_STAGING_KEEP_S": "1",
    }  # fmt: skip


async def make_queue(world: World) -> None:
    delivery = Wakeup(lease_ms=LEASE_MS, resend_ms=1000, visibility_ms=2000, max_deliveries=1000)
    await world.engine.queues.put(QUEUE, delivery=delivery, limits=QueueConfig())


@asynccontextmanager
async def port_of(
    started: Servers, tls_files: TlsFiles, lake: Lake
) -> AsyncIterator[tuple[subprocess.Popen[bytes], httpx.AsyncClient, str]]:
    """A new server, and a client of its internal port."""
    address = f"127.0.0.1:{free_port()}"
    process = await started.start("--internal", address, **settings_of(tls_files, lake))
    async with client(f"https://{address}", tls_files, tls_files.client) as http:
        yield process, http, address


async def claimed(world: World, task_id: UUID, http: httpx.AsyncClient) -> Holder:
    """A lease that a server in another process has given, as soon as the task can be claimed."""

    async def claim() -> Any:
        reply = await world.leases.claim(task_id, http)
        return reply if reply["status"] == "Claimed" else None

    return Holder(world.leases, await eventually(claim))


async def revisions(connection: asyncpg.Connection) -> list[tuple[Any, ...]]:
    rows = await connection.fetch("select revision, task_id, attempt, location from windlass.partition_revision")
    return [tuple(row) for row in rows]


# --------------------------------------------------------------------------------------------- workers


async def test_files_of_a_worker_that_is_killed_before_its_report_are_never_visible_and_are_cleaned_up(
    world: World,
    servers: Servers,
    tls_files: TlsFiles,
    lake: Lake,
    other_connection: asyncpg.Connection,
    tmp_path: Path,
) -> None:
    gate = tmp_path / "gate"
    async with port_of(servers, tls_files, lake) as (_, _, address):
        await make_queue(world)
        await deployed(world, DAG, "cold")
        task_id = await world.sources.emit("cold", "load")
        with Wrapper(tmp_path, address, tls_files, gate) as first:
            await eventually(lambda: written(lake, task_id, 1))
            first.kill()
        assert await revisions(other_connection) == []
        gate.touch()

        with Wrapper(tmp_path, address, tls_files, gate):
            [reader] = await wait_for_tasks(world, "report", 1)
            await eventually(lambda: cleaned(lake, task_id, 1))

        [(revision, task, attempt, location)] = await revisions(other_connection)
        assert (revision, task) == (1, task_id)
        assert attempt > 1
        assert f"/{task_id}/{attempt}/0/" in location
        wire = await other_connection.fetchval(
            "select convert_from(wire, 'UTF8') from windlass.task where id = $1", reader
        )
        assert msgspec.json.decode(wire)["inputs"][0]["revision"] == 1
        *marks, file = lake.attempts(task_id)[attempt]
        assert (marks, file.endswith(".parquet")) == (["_SUCCESS", "_manifest.json"], True)


class Wrapper:
    """`windlass wrapper` in a process, killed at the end."""

    def __init__(self, folder: Path, address: str, tls_files: TlsFiles, gate: Path) -> None:
        own = tls_files.client
        command = [*CLI, "wrapper", "--server", f"https://{address}", "-q", QUEUE, "--certificate",
                   str(own.certificate), "--key", str(own.key), "--ca", str(tls_files.authority), "--function",
                   "loader=tests.e2e.lake_operator:load", "--state-dir", str(folder / "state")]  # fmt: skip
        with (folder / "wrapper.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=Path(__file__).parents[2], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=environment(PYTHONPATH=os.pathsep.join(sys.path), LAKE_GATE=str(gate)),
            )  # fmt: skip

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Wrapper:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


async def written(lake: Lake, task_id: UUID, attempt: int) -> bool:
    return files.MARKER in lake.attempts(task_id).get(attempt, [])


async def cleaned(lake: Lake, task_id: UUID, attempt: int) -> bool:
    return attempt not in lake.attempts(task_id)


async def test_an_attempt_that_reports_after_the_next_one_is_refused_also_by_a_new_server(
    world: World, servers: Servers, tls_files: TlsFiles, lake: Lake, other_connection: asyncpg.Connection
) -> None:
    async with port_of(servers, tls_files, lake) as (process, http, _):
        await make_queue(world)
        await deployed(world, DAG, "cold")
        task_id = await world.sources.emit("cold", "load")
        old = await claimed(world, task_id, http)
        late = lake.write(old)
        new = await claimed(world, task_id, http)  # when the lease of the old one is over
        assert (old.reply["attempt"], new.reply["attempt"]) == (1, 2)
        ok(await new.say("task-complete", http, status="Completed", outputs=[lake.write(new)]))
        assert (await old.say("task-complete", http, status="Completed", outputs=[late])).status_code == 409
        servers.kill(process)

    async with port_of(servers, tls_files, lake) as (_, http, _):
        refused = await old.say("task-complete", http, status="Completed", outputs=[late])
        await wait_for_tasks(world, "report", 1)
        await eventually(lambda: cleaned(lake, task_id, 1))

    assert refused.status_code == 409
    assert [row[:3] for row in await revisions(other_connection)] == [(1, task_id, 2)]
    assert list(lake.attempts(task_id)) == [2]


# --------------------------------------------------------------------------------------------- servers


async def test_a_commit_of_files_whose_server_is_killed_before_its_answer_is_made_once(tls_files: TlsFiles) -> None:
    """A replica that does not exist has to confirm each commit: the server waits after it and before its answer."""
    with temporary_folder() as folder:
        lake = Lake(folder / "lake")
        async with own_world(folder, tls_files) as (world, connection, servers):
            async with port_of(servers, tls_files, lake) as (process, http, _):
                await make_queue(world)
                await deployed(world, DAG, "cold")
                holder = await claimed(world, await world.sources.emit("cold", "load"), http)
                report = {"status": "Completed", "outputs": [lake.write(holder)]}
                await connection.execute(MARKER)
                async with unconfirmed_commits(connection):
                    answer = asyncio.create_task(holder.say("task-complete", http, **report))
                    await eventually(lambda: is_after_commit(connection))
                    servers.kill(process)
                    with pytest.raises(httpx.TransportError):
                        await answer

            async with port_of(servers, tls_files, lake) as (_, http, _):
                repeats = [ok(await holder.say("task-complete", http, **report)) for _ in range(2)]
                await wait_for_tasks(world, "report", 1)
                await eventually(lambda: routed(connection))

            assert repeats[0] == repeats[1]
            assert [row[:3] for row in await revisions(connection)] == [(1, holder.task_id, 1)]
            assert await connection.fetchval("select count(*) from windlass.event") == 1
            assert len(await world.tasks("report")) == 1
            assert lake.attempts(holder.task_id) == {1: ["_SUCCESS", "_manifest.json", "part.parquet"]}
