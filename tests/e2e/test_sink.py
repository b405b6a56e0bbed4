"""Sinks that are killed, and a data database that is away: all rows once, one event for each batch, no gap. The servers
and sinks are real processes; the test holds the leases of tasks."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import asyncpg
import pytest
from tests.cli.command import environment
from tests.contracts.lease import world as leases_world
from tests.contracts.lease.world import Holder, TlsFiles, make_tls_files, open_world
from tests.datasets.sink_world import ALERTS
from tests.datasets.world import World, output
from tests.e2e.test_dags import CLI, Servers, eventually, wait_for_tasks
from tests.kit.database import temporary_folder
from tests.kit.world import ok

from windlass import Engine
from windlass.datasets.data.database import DataDatabase
from windlass.datasets.data.tables import DataTables
from windlass.datasets.rules.table_sql import table_of, view_of
from windlass.serve import migrate_data_database
from windlass.store.embedded.server import EmbeddedServer
from windlass.store.store import Store
from windlass.testing.clock import VirtualClock

pytestmark = pytest.mark.slow

ROWS = 400
CHANGED = ALERTS.replace("{name: severity, type: text}", "{name: severity, type: text}, {name: note, type: text}")
NEXT = ALERTS.replace("operator: pager", "operator: pager, operator_version: two")


class Data:
    """A PostgreSQL server of its own for the data database. Its commits are durable, since it is killed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.server = EmbeddedServer.open(folder)
        self.dsn = self.server.dsn

    def stop(self) -> None:
        self.server.stop("immediate")

    def start(self) -> None:
        again = EmbeddedServer.open(self._folder)
        self.server.close()
        self.server = again


class Sinks:
    """`windlass sink` in processes."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self._folder, self._variables = folder, variables
        self.processes: list[subprocess.Popen[bytes]] = []

    async def start(self) -> subprocess.Popen[bytes]:
        log = self._folder / f"sink-{len(self.processes)}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(  # noqa: ASYNC220
                [*CLI, "sink"], cwd=self._folder, stdout=file, stderr=file,
                env=environment(PYTHONPATH=os.pathsep.join(sys.path), **self._variables),
            )  # fmt: skip
        self.processes.append(process)

        async def runs() -> bool:
            text = log.read_text(errors="replace")
            assert process.poll() is None, text
            return "the sink is running" in text

        await eventually(runs)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                self.kill(process)


@pytest.fixture(scope="module")
def tls_files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return make_tls_files(tmp_path_factory.mktemp("certs"))


@pytest.fixture
async def data() -> AsyncIterator[Data]:
    with temporary_folder() as folder:
        found = await asyncio.to_thread(Data, folder / "data")
        await migrate_data_database(found.dsn)
        yield found
        found.server.close()


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    uri = f"file://{tmp_path}/scratch"
    monkeypatch.setattr(leases_world, "SCRATCH", uri)
    return uri


@pytest.fixture
def servers(database: str, tmp_path: Path) -> Iterator[Servers]:
    started = Servers(database, tmp_path)
    yield started
    started.close()


@pytest.fixture
def sinks(database: str, tmp_path: Path, scratch: str, data: Data) -> Iterator[Sinks]:
    started = Sinks(tmp_path, DATABASE_URL=database, WINDLASS_SCRATCH_URI=scratch, WINDLASS_DATA_DATABASE_URL=data.dsn)
    yield started
    started.close()


@pytest.fixture
async def world(database: str, tls_files: TlsFiles, scratch: str, data: Data) -> AsyncIterator[World]:
    """Leases of tasks, in the process of the test: its engine runs no loops and moves no clock."""
    engine = Engine(Store(database))
    engine.service(DataDatabase).use(data.dsn)
    async with open_world(engine, cast("VirtualClock", None), tls_files) as leases:
        yield World(engine, leases)
    await engine.close()


async def ask(dsn: str, sql: str, *args: Any) -> list[tuple[Any, ...]]:
    connection = await asyncpg.connect(dsn)
    try:
        return [tuple(row) for row in await connection.fetch(sql, *args)]
    finally:
        await connection.close()


def write(file: Path, number: int, rows: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps({"dedupe_key": f"{number}-{row}", "payload": {"n": row}}) for row in range(rows))
    file.write_text("\n".join(lines))


async def publish(world: World, holder: Holder, number: int, rows: int = ROWS) -> UUID:
    """Write a batch and publish it. Its rows have keys of their own."""
    ids = output(holder)
    folder = f"{leases_world.SCRATCH}/buffers/{ids['dataset_uuid']}/{holder.task_id}/{holder.reply['attempt']}"
    uri = f"{folder}/{number}.jsonl"
    write(Path(uri.removeprefix("file://")), number, rows)
    answer = ok(await holder.publish(**ids, batch_uri=uri, record_count=rows))
    return UUID(answer["publish_id"])


async def deployed(world: World, file: str) -> UUID:
    made, _ = await world.dags.deploy("alerts", file)

    async def active() -> bool:
        return (await world.dags.get("alerts")).active_version == made.id

    await eventually(active)
    return made.id


async def sunk(database: str, count: int) -> None:
    """Wait until so many batches are in their table. The time for which a dead sink hides its messages is over."""

    async def all_sunk() -> bool:
        await ask(database, "update windlass.message set visible_at = now() where visible_at > now() + interval '30 s'")
        [(found,)] = await ask(database, "select count(*) from windlass.publish where sunk_at is not null")
        return bool(found >= count)

    await eventually(all_sunk)


async def exact(database: str, data: Data, version: UUID, batches: int) -> None:
    found = await ask(
        data.dsn,
        f"""select seq, count(*), count(distinct dedupe_key) from windlass_data.{table_of(version)}
             group by 1 order by 1""",
    )
    assert found == [(cursor, ROWS, ROWS) for cursor in range(1, batches + 1)]
    events = await ask(database, "select cursor from windlass.event where caller = 'windlass.sink' order by cursor")
    assert events == [(cursor,) for cursor in range(1, batches + 1)]
    assert await ask(
        database, "select count(*) from windlass.publish where sunk_at is null or problem is not null"
    ) == [(0,)]
    tasks = await ask(database, "select state, count(*) from windlass.task where kind = 'windlass.sink' group by 1")
    assert tasks == [("succeeded", batches)]
    assert await ask(database, "select count(*) from windlass.message where queue like 'buffer.%'") == [(0,)]


async def test_sinks_that_are_killed_at_random_write_all_rows_once(
    database: str, data: Data, world: World, servers: Servers, sinks: Sinks
) -> None:
    seed = int(os.environ.get("WINDLASS_KILL_SEED", random.SystemRandom().randrange(2**32)))
    print(f"WINDLASS_KILL_SEED={seed}")
    randomness = random.Random(seed)
    await servers.start(WINDLASS_DATA_DATABASE_URL=data.dsn)
    await deployed(world, ALERTS)
    holder = await world.emit("evaluate", "alerts")
    number = 0
    survivor = await sinks.start()
    for _ in range(4):
        victim, survivor = survivor, await sinks.start()
        for _ in range(8):
            await publish(world, holder, number)
            number += 1
        await asyncio.sleep(randomness.random() * 0.4)  # somewhere in the middle of its work
        sinks.kill(victim)
        await ask(database, "update windlass.message set visible_at = now() where queue like 'buffer.%'")
    await sunk(database, number)
    await exact(database, data, UUID(output(holder)["dataset_version"]), number)


async def test_while_the_data_database_is_unavailable_all_else_goes_on_and_sinks_catch_up(
    database: str, data: Data, world: World, servers: Servers, sinks: Sinks
) -> None:
    await servers.start("--sink", WINDLASS_DATA_DATABASE_URL=data.dsn, WINDLASS_SCRATCH_URI=leases_world.SCRATCH)
    first = await deployed(world, ALERTS)
    holder = await world.emit("evaluate", "alerts")
    await publish(world, holder, 0)
    await sunk(database, 1)
    await asyncio.to_thread(data.stop)

    late = await sinks.start()  # it starts while the data database is away
    page = await world.leases.hold((await wait_for_tasks(world, "page", 1, "queued"))[0])
    ok(await page.complete())
    for number in (1, 2, 3):
        await publish(world, holder, number)
    ok(await holder.complete())
    second = await deployed(world, NEXT)
    assert (await world.dags.rollback("alerts")).active_version == first
    assert (await world.dags.activate("alerts", second)).active_version == second
    building, _ = await world.dags.deploy("alerts", CHANGED)
    await asyncio.sleep(3)  # stands for ten minutes: sinks have tried again and again
    assert (await world.dags.deployment("alerts", building.id)).state == "building"
    messages = await ask(database, "select deliveries from windlass.message where queue like 'buffer.%'")
    assert messages == [(0,)] * 3 or all(count <= 1 for (count,) in messages)
    assert late.poll() is None

    await asyncio.to_thread(data.start)
    await sunk(database, 4)
    await exact(database, data, UUID(output(holder)["dataset_version"]), 4)

    async def active() -> bool:
        return (await world.dags.get("alerts")).active_version == building.id

    await eventually(active)
    view = view_of(UUID(output(holder)["dataset_uuid"]))

    async def shown() -> bool:
        columns = await ask(data.dsn, "select column_name from information_schema.columns where table_name = $1", view)
        return ("note",) in columns

    await eventually(shown)


async def test_a_query_that_runs_during_a_cutover_sees_its_version_to_the_end(
    database: str, data: Data, world: World, servers: Servers
) -> None:
    await servers.start("--sink", WINDLASS_DATA_DATABASE_URL=data.dsn, WINDLASS_SCRATCH_URI=leases_world.SCRATCH)
    await deployed(world, ALERTS)
    holder = await world.emit("evaluate", "alerts")
    await publish(world, holder, 0)
    await sunk(database, 1)
    view = f'windlass_data."{view_of(UUID(output(holder)["dataset_uuid"]))}"'
    count = f"select count(*) from {view}"
    reader = await asyncpg.connect(data.dsn)
    try:
        async with reader.transaction():
            assert await reader.fetchval(count) == ROWS
            await deployed(world, CHANGED)  # the new version has no rows
            await asyncio.wait_for(world.engine.service(DataTables).tick(), 30)
            [(other,)] = await asyncio.wait_for(ask(data.dsn, count), 30)  # other readers do not wait for this one
            assert other == ROWS
            assert await reader.fetchval(count) == ROWS

        async def empty() -> bool:
            return await ask(data.dsn, count) == [(0,)]

        await eventually(empty)
    finally:
        await reader.close()
