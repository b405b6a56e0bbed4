"""`windlass demo --datasets`: shows that rows, partitions and events are exact when workers and sinks are killed.

Starts its own PostgreSQL, a server, two wrappers and a sink, deploys a DAG, kills a wrapper that runs tasks and the
sink between its two transactions, and counts. Exit code 0 if all counts are exact, 1 if not. Leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import asyncpg
from rich.console import Console

from windlass import Engine, open_engine
from windlass.cli.dag_plan import count
from windlass.cli.database import open_url
from windlass.cli.demo import CheckFailed, Story
from windlass.cli.demo_operators import litres
from windlass.cli.dev import on_this_machine
from windlass.cli.dev_wrapper import with_certificates, write_wrapper_file
from windlass.cli.serve import engine_options, servers
from windlass.cli.wrapper_file import wrapper_file
from windlass.contracts.lease.worker.command import main as run_wrapper
from windlass.contracts.lease.worker.data import Input
from windlass.core.delivery import decode_delivery
from windlass.core.queue import QueueConfig
from windlass.datasets.dags import Dags
from windlass.datasets.rules.table_sql import view_name
from windlass.datasets.sources import Sources
from windlass.serve import open_sink
from windlass.settings import Address, Settings

PARTITIONS, SIZE, LIMIT = 40, 100, 900
READINGS = PARTITIONS * SIZE
ALERTS = [number for number in range(READINGS) if litres(number) > LIMIT]
BATCHES = 30  # wait for the sink before it starts
LEASE_S = VISIBILITY_S = 3
DEADLINE_S = 120.0

DAG = f"""\
name: water
jobs:
  - name: meters
    activation: source
    runtime: dispatcher
    operator: manual_source
    source: {{kind: manual}}
    outputs: 1
    update_strategy: append
    unique_key: [reading]
  - name: blocks
    activation: reactive
    runtime: dispatcher
    operator: range_aggregator
    execution_strategy: PerUpdate
    inputs: [{{from: {{job: meters}}}}]
    config: {{range_size: {SIZE}}}
    outputs: 1
    update_strategy: replace
  - name: readings
    activation: reactive
    runtime: ecs_platform
    operator: read_meters
    execution_strategy: PerPartition
    partitions: {{kind: range, size: {SIZE}, start: 0}}
    inputs: [{{from: {{job: blocks}}}}]
    outputs: 1
    update_strategy: replace
  - name: alerts
    activation: reactive
    runtime: ecs_platform
    operator: find_alerts
    execution_strategy: PerPartition
    inputs: [{{from: {{job: readings}}, where: "litres > {LIMIT}"}}]
    outputs: 1
    update_strategy: append
    unique_key: [reading]
publish:
  readings: {{from: {{job: readings}}, storage: s3, read_roles: ["*"]}}
  alerts:
    from: {{job: alerts}}
    storage: postgres
    write_mode: buffered
    read_roles: ["*"]
    schema:
      columns: [{{name: reading, type: bigint, nullable: false}}, {{name: litres, type: bigint, nullable: false}}]
      unique: [reading]
"""

RUNNING = "select id from windlass.task where state = 'running' and worker like $1"
BEGUN = f"""
select count(*) from ({RUNNING} and kind = 'read_meters' and started_at > windlass.now() - interval '0.2 s') as begun"""  # noqa: S608
ENDED = "select count(*) = 0 from windlass.task where id = any($1) and state = 'running' and worker like $2"
LOST = "select id from windlass.task where id = any($1) and not (state = 'succeeded' and worker like $2)"
SUCCEEDED = """
select count(*) from windlass.task where state = 'succeeded' and kind in ('read_meters', 'find_alerts')"""
REVISIONS = """
select r.revision, r.rows, r.location from windlass.partition_revision r
  join windlass.dataset_version v on v.id = r.dataset_version join windlass.dataset s on s.id = v.dataset_uuid
 where s.name = 'readings'"""
EVENTS = """
select count(*) from windlass.event e join windlass.dataset s on s.id = e.dataset_uuid where s.name = $1"""
IN_TABLE_ONLY = """
select count(*) from windlass_data.sink_commit c join windlass.publish p on p.id = c.publish_id
 where p.sunk_at is null"""
LAST = "select max(cursor) from windlass_data.sink_commit"
OTHERS = "select count(*) from windlass.task where id = any($1) and state = 'succeeded' and worker like $2"
BLOCKED = f"""
select ({IN_TABLE_ONLY}) > 0 and exists (select from pg_stat_activity where $1 = any(pg_blocking_pids(pid)))"""  # noqa: S608


# ----------------------------------------------------------------------------------------------- the processes


def work(name: str, folder: Path) -> None:
    """Runs a wrapper or a sink until standard input ends, which also happens when the demo itself is killed."""
    threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0)), daemon=True).start()
    if name.startswith("sink"):
        asyncio.run(sink(folder))
        return
    run_wrapper([
        str(wrapper_file(Settings(data_dir=folder))), "--queue", "platform", "--name", name, "--concurrency", "4",
        "--state-dir", str(folder / name), "--operators", "windlass.cli.demo_operators", "--log-level", "warning",
    ])  # fmt: skip


async def sink(folder: Path) -> None:
    settings = on_this_machine(Settings(data_dir=folder))
    async with (
        open_engine(os.environ["DATABASE_URL"]) as engine,
        open_sink(engine, scratch_uri=settings.scratch_uri, visibility_s=VISIBILITY_S),
    ):
        print("ready", flush=True)
        await asyncio.Event().wait()


@dataclass
class Processes:
    """Wrappers and sinks, each in its own session, so that Ctrl-C reaches only the demo, which then stops them. They
    log to a file, to keep the screen clear."""

    url: str
    folder: Path
    log: Path
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    async def start(self, *names: str) -> None:
        """Starts processes, and waits until they are ready."""
        with self.log.open("ab") as logged:
            for name in names:
                self.running[name] = subprocess.Popen(  # noqa: ASYNC220
                    [sys.executable, "-m", "windlass.cli.demo_datasets", name, str(self.folder)],
                    env={**os.environ, "DATABASE_URL": self.url, "TMPDIR": str(self.log.parent)},
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=logged, start_new_session=True,
                )  # fmt: skip
        for name in names:
            output = self.running[name].stdout
            assert output is not None
            if b"ready" not in await asyncio.to_thread(output.readline):
                raise CheckFailed(f"{name} did not start")

    def kill(self, name: str) -> int:
        """Ends a process at once. Returns its id."""
        process = self.running.pop(name)
        process.kill()
        self._close(process)
        return process.pid

    def stop(self) -> None:
        while self.running:
            self.kill(next(iter(self.running)))

    @staticmethod
    def _close(process: subprocess.Popen[bytes]) -> None:
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()


@contextmanager
def open_processes(url: str, folder: Path, log: Path) -> Iterator[Processes]:
    processes = Processes(url, folder, log)
    try:
        yield processes
    finally:
        processes.stop()


# ----------------------------------------------------------------------------------------------- the demo


class DatasetDemo(Story):
    """Deploys the DAG, kills a wrapper and a sink, and counts."""

    def __init__(self, console: Console, engine: Engine, database: asyncpg.Connection, began: float) -> None:
        super().__init__(console, began, DEADLINE_S)
        self.engine, self.database = engine, database
        self.lost: list[UUID] = []  # the tasks of the wrapper that is killed

    async def deploy(self) -> None:
        made, _ = await self.engine.service(Dags).deploy("water", DAG)

        async def active() -> bool:
            return (await self.engine.service(Dags).get("water")).active_version == made.id

        await self.wait_for("the DAG is active", active)
        self.say("Deployed the DAG [cyan]water[/cyan]: meters, blocks, readings, alerts.")
        await self.engine.service(Sources).emit("water", "meters", cursor=READINGS - 1)
        self.say(f"Meters have {READINGS:,} new readings: {PARTITIONS} partitions to make.")

    async def kill_wrapper(self, processes: Processes, name: str) -> None:
        """Kills a wrapper in the middle of its tasks, and waits until the tasks are queued again."""
        worker = f"wrapper:{name}/%"
        await self.wait_for("the first partitions are made", lambda: self._at_least(SUCCEEDED, PARTITIONS // 4))
        await self.wait_for(f"{name} has begun a task", lambda: self._at_least(BEGUN, 1, worker))
        pid = processes.kill(name)
        held = [row["id"] for row in await self.database.fetch(RUNNING, worker)]
        self.say(f"[red]kill -9[/red] {name} (pid {pid}), in the middle of its tasks.")
        await self.wait_for(f"the lease of {name} expires", lambda: self.database.fetchval(ENDED, held, worker))
        # The server may have received the report of a task just before the kill: then it is done.
        self.lost = [row["id"] for row in await self.database.fetch(LOST, held, worker)]
        self.say(f"The lease of {name} expired ({LEASE_S} s): {count(len(self.lost), 'task')} queued again.")
        if not self.lost:
            raise CheckFailed(f"{name} was killed between two tasks")

    async def start_sink(self, processes: Processes, name: str) -> None:
        """Starts the first sink when many batches wait for it."""
        query = "select count(*) from windlass.publish"
        await self.wait_for("batches are published", lambda: self._at_least(query, BATCHES))
        waiting = await self.database.fetchval(query)
        self.say(f"{waiting} batches of alerts wait for a sink: starting sink-1.")
        await processes.start(name)

    async def kill_sink(self, processes: Processes, name: str) -> None:
        """Kills a sink that has written batches to their table and has not recorded it. The rows of the record are
        locked, so that the kill hits this point and no other."""
        other = await asyncpg.connect(processes.url)

        async def blocked() -> bool:
            await other.execute("select from windlass.publish where sunk_at is null for update skip locked")
            return bool(await self.database.fetchval(BLOCKED, other.get_server_pid()))

        try:
            async with other.transaction():
                await self.wait_for("the sink has written batches", blocked)
                pid = processes.kill(name)
                written: int = await self.database.fetchval(IN_TABLE_ONLY)
        finally:
            await other.close()
        self.say(f"[red]kill -9[/red] {name} (pid {pid}): [bold]{written}[/bold] batches were in the table,")
        self.console.print("         and it had not reported them.", highlight=False)

    async def _at_least(self, query: str, number: int, *arguments: object) -> bool:
        return bool(await self.database.fetchval(query, *arguments) >= number)

    async def finish(self) -> None:
        """Waits until every task has ended, and every batch is in the table and recorded."""
        await self.wait_for("all tasks end", lambda: self._at_least(SUCCEEDED, 2 * PARTITIONS))
        await self.wait_for(
            "all batches are in the table",
            lambda: self.database.fetchval("select bool_and(sunk_at is not null) from windlass.publish"),
        )
        self.say(f"All {2 * PARTITIONS} tasks have ended, and all batches are in the table.")

    async def check(self) -> None:
        fetch = self.database.fetchval
        revisions = await self.database.fetch(REVISIONS)
        dataset = await fetch("select id from windlass.dataset where name = 'alerts'")
        rows = await self.database.fetch(f"select litres from {view_name(dataset)}")  # noqa: S608
        alerts = [row["litres"] for row in rows]
        batches = await fetch("select count(*) from windlass.publish")
        others = await fetch(OTHERS, self.lost, "wrapper:wrapper-2/%")
        found = [value for row in revisions for value in read_litres(row["location"])]
        checks = [
            ("tasks of wrapper-1 finished by wrapper-2", others, len(self.lost)),
            ("partitions of readings, each committed once", len(revisions), PARTITIONS),
            ("events of readings", await fetch(EVENTS, "readings"), PARTITIONS),
            ("rows are in their Parquet files", len(found), READINGS),
            ("litres are in these rows", sum(found), sum(map(litres, range(READINGS)))),
            ("rows are in the table of alerts", len(alerts), len(ALERTS)),
            ("litres are in these rows", sum(alerts), sum(map(litres, ALERTS))),
            ("batches are in it", await fetch("select count(*) from windlass_data.sink_commit"), batches),
            ("events of alerts, one for each batch", await fetch(EVENTS, "alerts"), batches),
            ("is their last cursor: there is no gap", await fetch(LAST), batches),
            ("tasks are still running", await fetch("select count(*) from windlass.task where state = 'running'"), 0),
        ]
        self.console.print("[bold]Is everything there, once?[/bold]", highlight=False)
        if broken := self.show_checks(checks):
            raise CheckFailed("failed checks: " + "; ".join(broken))


def read_litres(location: str) -> list[int]:
    """The litres in the Parquet files of a partition."""
    return [row["litres"] for row in Input({"location": location}, 0).rows()]


@asynccontextmanager
async def open_server(folder: Path) -> AsyncIterator[tuple[str, Engine]]:
    """A server with everything but a sink and workers, on its own PostgreSQL."""
    nowhere = Address("127.0.0.1", 0)
    settings = on_this_machine(
        Settings(data_dir=folder, http=nowhere, grpc=nowhere, internal=nowhere, api_key="demo", metrics=False)
    )
    async with open_url(settings) as url, open_engine(url, **engine_options(settings)) as engine:
        settings = with_certificates(settings)
        delivery = decode_delivery(json.dumps({"type": "wakeup", "lease_ms": LEASE_S * 1000}))
        await engine.queues.put("platform", delivery=delivery, limits=QueueConfig())
        async with servers(engine, settings) as addresses:
            write_wrapper_file(settings, addresses["internal"])
            yield url, engine


async def run(console: Console, folder: Path, log: Path) -> None:
    """Runs the demo on a database of its own, whatever the settings say."""
    console.print("[bold]Windlass[/bold]: kill workers and sinks, count every row.", highlight=False)
    began = time.monotonic()
    async with open_server(folder) as (url, engine):
        database = await asyncpg.connect(url)
        demo = DatasetDemo(console, engine, database, began)
        demo.say("PostgreSQL and a server are running.")
        with open_processes(url, folder, log) as processes:
            await processes.start("wrapper-1", "wrapper-2")
            demo.say("2 wrappers are running, each with 4 slots.")
            await demo.deploy()
            await demo.kill_wrapper(processes, "wrapper-1")
            await demo.start_sink(processes, "sink-1")
            await demo.kill_sink(processes, "sink-1")
            await processes.start("sink-2")
            demo.say("sink-2 is running instead.")
            await demo.finish()
        await demo.check()
        await database.close()
    console.print(f"[green]Everything is there, once.[/green] {time.monotonic() - began:.0f} s.", highlight=False)


if __name__ == "__main__":
    work(sys.argv[1], Path(sys.argv[2]))
