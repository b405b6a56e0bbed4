"""DAGs with servers that are killed: one task for each event, builds that go on, fires of a cron that are made once,
and exact counts after a storm of kills. The servers are `windlass serve`; the test holds the leases of tasks."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import asyncpg
import httpx
import pytest
from tests.cli.command import environment, windlass
from tests.contracts.lease.world import TlsFiles, client, make_tls_files, open_world
from tests.datasets.world import World, output
from tests.e2e.dag_storm import storm_of
from tests.kit.database import temporary_folder
from tests.kit.ports import free_port
from tests.kit.world import ok

from windlass import Engine
from windlass.cli.database import open_url
from windlass.serve import open_engine
from windlass.settings import Settings
from windlass.store.store import Store
from windlass.testing.clock import VirtualClock

pytestmark = pytest.mark.slow

DEADLINE_S = 90.0
CLI = [sys.executable, "-c", "from windlass.cli import main; main()"]
DAG = """\
name: chain
jobs:
  - {name: follow, activation: source, runtime: ecs_platform, operator: follow, source: {kind: manual}, outputs: 1,
     update_strategy: replace}
  - {name: compact, activation: reactive, runtime: ecs_platform, operator: compact, execution_strategy: PerPartition,
     inputs: [{from: {job: follow}}], outputs: 1, update_strategy: replace}
"""
CHANGED = DAG.replace("operator: compact,", "operator: compact, operator_version: two,")
PRODUCER = (
    DAG
    + """\
publish:
  cold:
    from: {job: compact}
    storage: postgres
    write_mode: direct
    read_roles: ["*"]
    schema: {columns: [{name: n, type: bigint}, {name: size, type: bigint}], unique: [n]}
"""
)
CONSUMER = """\
name: reports
jobs:
  - {name: daily, activation: reactive, runtime: ecs_platform, operator: report, execution_strategy: PerPartition,
     inputs: [{from: {dataset: cold}, where: "size > 0", on_upgrade: reprocess}], outputs: 0}
"""
CRON = """\
name: clock
jobs:
  - {name: tick, activation: source, runtime: dispatcher, operator: cron_source,
     source: {kind: cron, schedule: "* * * * * *"}, outputs: 1, update_strategy: replace}
"""
FIRES = """
select t.idempotency_key, k.dedupe_key from windlass.task t join windlass.job j on j.id = t.job_id
  left join windlass.job_task k on k.task_id = t.id where j.name = 'tick'"""


class Servers:
    """`windlass serve` in processes on one database. A killed one is not started again by itself."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self._dsn, self._folder = dsn, folder
        self.processes: list[subprocess.Popen[bytes]] = []

    async def start(self, *options: str, **variables: str) -> subprocess.Popen[bytes]:
        """Start one, and wait until its loops run: then it listens to the database."""
        number = len(self.processes)
        log = self._folder / f"server-{number}.log"
        with log.open("wb") as file:
            command = [*CLI, "serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--api-key", "wl_e2e",
                       *options]  # fmt: skip
            process = subprocess.Popen(  # noqa: ASYNC220
                command, cwd=self._folder, stdout=file, stderr=file,
                env=environment(DATABASE_URL=self._dsn, PYTHONPATH=os.pathsep.join(sys.path), **variables),
            )  # fmt: skip
        self.processes.append(process)

        async def serves() -> bool:
            text = log.read_text(errors="replace")
            assert process.poll() is None, text
            return "127.0.0.1:" in text

        await eventually(serves)
        return process

    def url(self) -> str:
        """Where the newest one answers."""
        text = (self._folder / f"server-{len(self.processes) - 1}.log").read_text()
        return next(word for word in text.split() if word.endswith("/api/v1")).removesuffix("/api/v1")

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                self.kill(process)


async def eventually(holds: Callable[[], Awaitable[object]]) -> Any:
    """What a question is answered with, once that is true."""
    async with asyncio.timeout(DEADLINE_S):
        while not (answer := await holds()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return answer


@pytest.fixture(scope="module")
def tls_files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return make_tls_files(tmp_path_factory.mktemp("certs"))


@pytest.fixture
def servers(database: str, tmp_path: Path) -> Iterator[Servers]:
    started = Servers(database, tmp_path)
    yield started
    started.close()


@pytest.fixture
async def world(database: str, tls_files: TlsFiles) -> AsyncIterator[World]:
    """Leases of tasks, in the process of the test: its engine runs no loops and moves no clock."""
    engine = Engine(Store(database))
    async with open_world(engine, cast("VirtualClock", None), tls_files) as leases:
        yield World(engine, leases)
    await engine.close()


async def deployed(world: World, file: str = DAG, dag: str = "chain") -> UUID:
    """Deploy, and wait until a server has activated it."""
    made, _ = await world.dags.deploy(dag, file)

    async def active() -> bool:
        return (await world.dags.get(dag)).active_version == made.id

    await eventually(active)
    return made.id


async def reported(world: World, *numbers: int) -> None:
    """The source commits partitions. Nothing is waited for."""
    holder = await world.emit()
    events = [partition(output(holder), number) for number in numbers]
    ok(await holder.complete(events=events))


def partition(dataset: dict[str, str], number: int) -> dict[str, Any]:
    start, end = number * 10, number * 10 + 9
    return {**dataset, "partition_key": f"{start}-{end}", "start": start, "end": end}


async def wait_for_tasks(world: World, job: str, count: int, *states: str) -> list[UUID]:
    async def there() -> list[UUID]:
        found = await world.tasks(job, *states)
        return found if len(found) >= count else []

    found: list[UUID] = await eventually(there)
    assert len(found) == count
    return found


async def finish(world: World, task_id: UUID) -> None:
    holder = await world.leases.hold(task_id)
    [given] = holder.reply["task"]["inputs"]
    ok(await holder.complete(events=[partition(output(holder), given["start"] // 10)]))


@asynccontextmanager
async def locked_job(connection: asyncpg.Connection, name: str) -> AsyncIterator[None]:
    """Who wants to make a task of this job has to wait, in the middle of its transaction."""
    async with connection.transaction():
        await connection.execute("select from windlass.job where name = $1 for update", name)
        yield


async def blocked_server(connection: asyncpg.Connection) -> bool:
    """Whether somebody waits for that lock."""
    return bool(
        await connection.fetchval(
            "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        )
    )


# --------------------------------------------------------------------------------------------- events


async def test_a_server_that_is_killed_while_it_routes_leaves_one_task_to_the_other(
    world: World, servers: Servers, other_connection: asyncpg.Connection
) -> None:
    first = await servers.start()
    await deployed(world)
    async with locked_job(other_connection, "compact"):
        await reported(world, 1)
        await eventually(lambda: blocked_server(other_connection))
        servers.kill(first)
        await servers.start()

    await wait_for_tasks(world, "compact", 1)

    await eventually(lambda: routed(other_connection))
    assert len(await world.tasks("compact")) == 1
    assert await other_connection.fetchval("select count(*) from windlass.consumption") == 1


async def test_two_servers_route_the_same_events_to_one_task_each(
    world: World, servers: Servers, other_connection: asyncpg.Connection
) -> None:
    await asyncio.gather(servers.start(), servers.start())
    await deployed(world)

    for block in range(5):
        await reported(world, *range(block * 20, block * 20 + 20))
    await wait_for_tasks(world, "compact", 100)

    await eventually(lambda: routed(other_connection))
    assert len(await world.tasks("compact")) == 100


async def routed(connection: asyncpg.Connection) -> bool:
    """Whether no event and no effect is left."""
    return not await connection.fetchval(
        """select count(*) + (select count(*) from windlass.outbox where kind = 'route') from windlass.event
            where routed_at is null and declared"""
    )


async def test_an_event_whose_effect_is_lost_or_dead_makes_its_task_all_the_same(
    world: World, servers: Servers, other_connection: asyncpg.Connection, database: str
) -> None:
    first = await servers.start()
    await deployed(world)
    servers.kill(first)
    await reported(world, 1)
    assert await other_connection.fetchval("select count(*) from windlass.outbox where kind = 'route'")
    await other_connection.execute("delete from windlass.outbox where kind = 'route'")
    await reported(world, 2)
    await other_connection.execute("update windlass.outbox set dead_at = windlass.now() where kind = 'route'")

    findings = await asyncio.to_thread(windlass, "doctor", "--json", "--database-url", database)
    await servers.start()

    assert "dead_effects" in {each["name"] for each in json.loads(findings.stdout)}
    await wait_for_tasks(world, "compact", 2)


# --------------------------------------------------------------------------------------------- completions


MARKER = """
create sequence committing;
create function mark() returns trigger language plpgsql as
  $$ begin perform setval('committing', pg_backend_pid()); return null; end $$;
create constraint trigger mark after insert on windlass.event deferrable initially deferred
  for each row execute function mark()"""


async def test_a_completion_whose_server_is_killed_after_the_commit_is_answered_by_the_next(
    tls_files: TlsFiles,
) -> None:
    """A replica that does not exist has to confirm each commit: the server waits after it and before its answer."""
    files = tls_files.server
    variables = {"WINDLASS_INTERNAL_CERTIFICATE": str(files.certificate), "WINDLASS_INTERNAL_KEY": str(files.key),
                 "WINDLASS_INTERNAL_CA": str(tls_files.authority)}  # fmt: skip
    ports = [free_port(), free_port()]
    with temporary_folder() as folder:
        async with own_world(folder, tls_files) as (world, connection, servers):
            first = await servers.start("--internal", f"127.0.0.1:{ports[0]}", **variables)
            await deployed(world)
            holder = await world.emit()
            report = {"status": "Completed", "events": [partition(output(holder), 1)]}
            await connection.execute(MARKER)
            http = client(f"https://127.0.0.1:{ports[0]}", tls_files, tls_files.client)
            async with http, unconfirmed_commits(connection):
                answer = asyncio.create_task(holder.say("task-complete", http, **report))
                await eventually(lambda: is_after_commit(connection))
                servers.kill(first)
                with pytest.raises(httpx.TransportError):
                    await answer

            await servers.start("--internal", f"127.0.0.1:{ports[1]}", **variables)
            async with client(f"https://127.0.0.1:{ports[1]}", tls_files, tls_files.client) as http:
                repeats = [ok(await holder.say("task-complete", http, **report)) for _ in range(2)]
            await wait_for_tasks(world, "compact", 1)
            await eventually(lambda: routed(connection))

            assert repeats[0] == repeats[1]
            counts = "select (select count(*) from windlass.event), (select max(revision) from windlass.partition)"
            assert tuple(await connection.fetchrow(counts)) == (1, 1)
            assert len(await world.tasks("compact")) == 1


@asynccontextmanager
async def own_world(folder: Path, tls_files: TlsFiles) -> AsyncIterator[tuple[World, asyncpg.Connection, Servers]]:
    """A database server of its own, whose settings the test may change."""
    async with open_url(Settings(data_dir=folder / "data")) as url, open_engine(url) as engine:
        connection, servers = await asyncpg.connect(url), Servers(url, folder)
        async with open_world(engine, cast("VirtualClock", None), tls_files) as leases:
            try:
                yield World(engine, leases), connection, servers
            finally:
                servers.close()
                await connection.close()


@asynccontextmanager
async def unconfirmed_commits(connection: asyncpg.Connection) -> AsyncIterator[None]:
    """Each commit is durable at once, and its client waits for an answer."""
    await connection.execute("alter system set synchronous_standby_names = 'nobody'")
    await connection.execute("select pg_reload_conf()")
    try:
        yield
    finally:
        await connection.execute("alter system reset synchronous_standby_names")
        await connection.execute("select pg_reload_conf()")


async def is_after_commit(connection: asyncpg.Connection) -> bool:
    """Whether the process that inserted an event has committed, and waits."""
    waits = "select wait_event = 'SyncRep' from pg_stat_activity where pid = (select last_value from committing)"
    return bool(await connection.fetchval(waits))


# --------------------------------------------------------------------------------------------- builds


async def test_a_build_goes_on_by_any_server_and_nothing_is_half_active(
    world: World, servers: Servers, other_connection: asyncpg.Connection
) -> None:
    started = await servers.start()
    first = await deployed(world)
    await reported(world, 1, 2, 3)
    old = await wait_for_tasks(world, "compact", 3, "queued")
    for task_id in old:
        await finish(world, task_id)
    second, _ = await world.dags.deploy("chain", CHANGED)
    new = [id_ for id_ in await wait_for_tasks(world, "compact", 6) if id_ not in old]
    await finish(world, new[0])

    servers.kill(started)

    assert (await world.dags.get("chain")).active_version == first
    assert (await world.dags.deployment("chain", second.id)).state == "building"
    await servers.start()
    for task_id in new[1:]:
        assert (await world.dags.get("chain")).active_version == first
        await finish(world, task_id)

    async def active() -> bool:
        return (await world.dags.get("chain")).active_version == second.id

    await eventually(active)
    rows = await other_connection.fetch("select number, state from windlass.deployment order by number")
    assert [tuple(row) for row in rows] == [(1, "superseded"), (2, "active")]


async def test_readers_in_another_dag_follow_a_cutover_though_a_server_is_killed_in_it(
    world: World, servers: Servers, other_connection: asyncpg.Connection
) -> None:
    first = await servers.start()
    await deployed(world, PRODUCER)
    await deployed(world, CONSUMER, "reports")
    await reported(world, 1, 2)
    for task_id in await wait_for_tasks(world, "compact", 2):
        await finish(world, task_id)
    old = await wait_for_tasks(world, "daily", 2)
    changed = PRODUCER.replace("operator: compact,", "operator: compact, operator_version: two,")
    [consumer] = (await world.dags.plan("chain", changed)).consumers
    assert (consumer.dag, consumer.job, consumer.owed) == ("reports", "daily", 2)

    second, _ = await world.dags.deploy("chain", changed)
    tasks = await wait_for_tasks(world, "compact", 2, "queued")
    async with locked_job(other_connection, "daily"):
        for task_id in tasks:
            await finish(world, task_id)
        await eventually(lambda: blocked_server(other_connection))
        servers.kill(first)
        await servers.start()

    await wait_for_tasks(world, "daily", 4)
    await eventually(lambda: routed(other_connection))
    found = await world.tasks("daily")
    assert len(found) == 4
    assert set(old) < set(found)
    assert (await world.dags.get("chain")).active_version == second.id


async def test_a_plan_names_the_readers_of_a_column_that_goes(world: World, servers: Servers, tmp_path: Path) -> None:
    await servers.start()
    await deployed(world, PRODUCER)
    await deployed(world, CONSUMER, "reports")
    file = tmp_path / "chain.yaml"
    file.write_text(PRODUCER.replace(", {name: size, type: bigint}", ""))

    planned = await asyncio.to_thread(
        windlass, "dags", "plan", str(file), "--json", WINDLASS_URL=servers.url(), WINDLASS_API_KEY="wl_e2e"
    )

    [consumer] = json.loads(planned.stdout)["consumers"]
    assert (consumer["dag"], consumer["job"]) == ("reports", "daily")
    assert [problem["code"] for problem in consumer["breaks"]] == ["where_unknown_column"]


# --------------------------------------------------------------------------------------------- cron


async def test_a_cron_source_fires_once_for_each_second_though_its_servers_are_killed(
    world: World, servers: Servers, other_connection: asyncpg.Connection
) -> None:
    running = [await servers.start(), await servers.start()]
    await deployed(world, CRON, "clock")

    for round_ in range(4):
        seen = len(await other_connection.fetch(FIRES))
        await eventually(lambda seen=seen: more_fires(other_connection, seen + 1))  # type: ignore[misc]
        servers.kill(running[round_ % 2])
        running[round_ % 2] = await servers.start()
    await world.dags.pause("clock")

    fires = await fire_times(other_connection)
    assert len(fires) == len(set(fires)) >= 4
    assert {later - earlier for earlier, later in pairwise(fires)} == {timedelta(seconds=1)}


async def more_fires(connection: asyncpg.Connection, count: int) -> bool:
    return len(await connection.fetch(FIRES)) >= count


async def fire_times(connection: asyncpg.Connection) -> list[datetime]:
    """The times for which tasks were made, in order: they are in the keys."""
    keys = [row[0] or row[1] for row in await connection.fetch(FIRES)]
    return sorted(datetime.fromisoformat(key[key.index("20") :]) for key in keys)


# --------------------------------------------------------------------------------------------- everything


@pytest.mark.timeout(600)
async def test_after_a_storm_of_kills_the_numbers_of_partitions_events_and_tasks_are_exact() -> None:
    with temporary_folder() as folder:
        seen = await storm_of(
            folder, partitions=500, kills=7, seed=int(os.environ.get("WINDLASS_KILL_SEED", "3"))
        ).run()

    assert (seen["partitions"], seen["tasks"]) == (500, 1010)
    assert sum(seen["killed"].values()) == 7
