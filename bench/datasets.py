"""Rows D1, D2, D3, D4 and D6: routing, what is owed, sinks, plans and cutovers, each in a process of its own.

    python -m bench.datasets chain URL          tasks of a chain of jobs, beside plain tasks, through one server process
    python -m bench.datasets fan_out URL        one event to a thousand jobs, beside `submit` in batches
    python -m bench.datasets partitions URL     what takes how long with many partitions
    python -m bench.datasets sink URL           rows of batches that a sink writes, beside COPY into the same table
    python -m bench.datasets plan URL           the plan of a long file

Each prints one line of JSON, after it has counted the rows in the database.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import asyncpg
import uvloop

from bench.leases import QUEUE, call, submit
from bench.sender import Sender, senders, serve_forever, serving
from windlass import Engine
from windlass.core.access import Principal, Role
from windlass.core.submission import Submission
from windlass.datasets.catalog import Catalog
from windlass.datasets.dags import Dags
from windlass.datasets.deployments import Deployments
from windlass.datasets.router import Router
from windlass.datasets.rules.table_sql import table_of
from windlass.datasets.scratch import Scratch
from windlass.datasets.sink import Sink
from windlass.datasets.sources import Sources
from windlass.serve import open_blobs
from windlass.store.store import Store

if TYPE_CHECKING:
    from bench.harness import Contestant, Figures, Stage

FAN_OUT, EVENTS = 1000, 10
EDGES, PLANNED, TRIES = 10, 500, 7
ROUNDS = 1000  # in which a deployment must be active
FEED = """
select t.id::text from windlass.task t
 where t.queue = any($1) and t.state = 'queued' and t.id <> all($2::uuid[]) limit 5000"""
DONE = "select count(*) from windlass.task where state = 'succeeded'"
PARTITIONS = """
with given as (select i, i * 10 || '-' || i * 10 + 9 as key from generate_series($2::bigint, $3::bigint - 1) i),
     revisions as (insert into windlass.partition_revision (dataset_version, key, revision, task_id, attempt, inputs,
                                                            committed_at)
                   select $1, key, 1, gen_random_uuid(), 1, '[]', now() from given)
insert into windlass.partition (dataset_version, key, first, last, revision, committed_at)
select $1, key, i * 10, i * 10 + 9, 1, now() from given"""
SINK_TURNS = 3
SUNK = """\
name: sunk
jobs:
  - {name: write, activation: source, runtime: ecs_platform, operator: write, source: {kind: manual}, outputs: 1,
     update_strategy: append, unique_key: [dedupe_key]}
publish:
  sunk:
    from: {job: write}
    storage: postgres
    write_mode: buffered
    schema:
      columns: [{name: dedupe_key, type: text, nullable: false}, {name: severity, type: text},
                {name: amount, type: bigint}, {name: event_time, type: timestamptz, nullable: false},
                {name: payload, type: jsonb, nullable: false}]
      unique: [dedupe_key]
"""
PUBLISHED = """
with made as (insert into windlass.publish (id, namespace, task_id, attempt, dataset_uuid, dataset_version, batch_uri,
                                            record_count, caller, at, buffered)
              values ($1, 'default', gen_random_uuid(), 1, $2, $3, $4, $5, 'bench', now(), true))
insert into windlass.message (id, namespace, queue, body, visible_at, created_at)
values ($1, 'default', 'buffer.' || $2::uuid, '', now(), now())"""
CONSUMPTIONS = """
insert into windlass.consumption (job_id, input_index, dataset_version, key, revision, task_id)
select j.id, 0, $1, i * 10 || '-' || i * 10 + 9, 1, gen_random_uuid()
  from generate_series($2::bigint, $3::bigint - 1) i, windlass.job j where j.name like 'reader%'"""


def dag_file(name: str, *jobs: str) -> str:
    return f"name: {name}\njobs:\n{''.join(jobs)}"


def job(name: str, reads: str = "", more: str = "") -> str:
    """A source, or a job that reads the partitions of another."""
    how = (
        f"execution_strategy: PerPartition, inputs: [{{from: {{job: {reads}}}}}]" if reads else "source: {kind: manual}"
    )
    return (
        f"  - {{name: {name}, activation: {'reactive' if reads else 'source'}, runtime: ecs_platform, operator: noop, "
        f"outputs: 1, update_strategy: replace, {how}{more}}}\n"
    )


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Engine]:
    engine = Engine(Store(url), listen=False)
    try:
        yield engine
    finally:
        await engine.close()


async def deployed(engine: Engine, file: str, name: str) -> None:
    """Deploy a file, and run the loops by hand until it is active."""
    made, _ = await engine.service(Dags).deploy(name, file)
    for _ in range(ROUNDS):
        await engine.service(Router).reconcile_tick()
        await engine.service(Deployments).tick()
        if (await engine.service(Dags).get(name)).active_version == made.id:
            return
    raise RuntimeError(f"{name} is not active")


async def version_of(connection: asyncpg.Connection[Any], dag: str, name: str) -> tuple[UUID, UUID]:
    """The dataset that a job writes, and its current version."""
    found = await connection.fetchrow(
        """select s.id, p.dataset_version from windlass.dataset s join windlass.dag g on g.name = s.dag
             join windlass.deployment_pointer p on p.deployment_id = g.active_version and p.dataset_uuid = s.id
            where s.dag = $1 and $2 in (s.job, s.name)""",
        dag, name,
    )  # fmt: skip
    assert found is not None, name
    return found[0], found[1]


# --------------------------------------------------------------------------------------------- D1


async def chain(url: str, tasks: int) -> dict[str, float]:
    """A source reports partitions. Each makes a task of one job, whose event makes one of the next. All tasks are
    claimed and completed over the lease contract, as the plain ones are."""
    async with opened(url) as engine:
        await deployed(
            engine, dag_file("chain", job("source"), job("first", "source"), job("second", "first")), "chain"
        )
        source = await engine.service(Sources).emit("chain", "source")
    async with served(url) as (crew, connection):
        claim = await call(crew[0], "task-claim", task_id=str(source), worker_id="bench")
        began_s = time.perf_counter()
        await complete(crew[0], claim, [f"{n * 10}-{n * 10 + 9}" for n in range(tasks // 2)])
        await drain(crew, connection, "platform", tasks)
        chain_s = time.perf_counter() - began_s
    await submit(url, tasks)
    async with served(url) as (crew, connection):
        began_s = time.perf_counter()
        await drain(crew, connection, QUEUE, tasks)
        plain_s = time.perf_counter() - began_s
    connection = await asyncpg.connect(url)
    done = await connection.fetchval(DONE)
    await connection.close()
    if done != 2 * tasks + 1:
        raise RuntimeError(f"{done} tasks are done, and not {2 * tasks + 1}")
    return {"rate": tasks / chain_s, "plain_rate": tasks / plain_s}


@asynccontextmanager
async def served(url: str) -> AsyncIterator[tuple[list[Sender], asyncpg.Connection[Any]]]:
    async with serving("bench.datasets", "serve", url) as (port, _), senders(port) as crew:
        connection = await asyncpg.connect(url)
        try:
            yield crew, connection
        finally:
            await connection.close()


async def complete(sender: Sender, claim: Any, keys: list[str]) -> None:
    task = claim["task"]
    events = [
        {"dataset_uuid": output["dataset_uuid"], "dataset_version": output["dataset_version"], "partition_key": key,
         "start": int(key.partition("-")[0]), "end": int(key.partition("-")[2])}
        for output in task.get("outputs", ()) for key in keys
    ]  # fmt: skip
    fence = {"task_id": task["task_id"], "attempt": claim["attempt"], "lease_token": claim["lease_token"]}
    await call(sender, "task-complete", status="Completed", events=events, **fence)


async def drain(crew: list[Sender], connection: asyncpg.Connection[Any], queue: str, tasks: int) -> None:
    """Claim and complete `tasks` tasks. Their ids are read from the table, as messages would bring them."""
    ready: asyncio.Queue[str | None] = asyncio.Queue()
    left, taken = tasks, set[str]()

    async def work(sender: Sender) -> None:
        nonlocal left
        while (task_id := await ready.get()) is not None:
            claim = await call(sender, "task-claim", task_id=task_id, worker_id="bench")
            keys = [given["partition_key"] for given in claim["task"]["inputs"]]
            await complete(sender, claim, keys)
            taken.discard(task_id)
            left -= 1

    async def feed() -> None:
        while left:
            if ready.qsize() < len(crew):
                for (task_id,) in await connection.fetch(FEED, [queue], list(taken)):
                    taken.add(task_id)
                    ready.put_nowait(task_id)
            await asyncio.sleep(0.005)
        for _ in crew:
            ready.put_nowait(None)

    await asyncio.wait_for(asyncio.gather(feed(), *map(work, crew)), 600)


async def serve(url: str) -> None:
    """The lease routes without authentication, and the loops of datasets."""
    from bench.leases import trusting
    from windlass.contracts.lease.mount import make_lease_app
    from windlass.datasets.loops import routing
    from windlass.net.server.server import listening
    from windlass.serve import open_engine

    async with open_engine(url) as engine, routing(engine):
        app = trusting(make_lease_app(engine, "bench", "s3://scratch"))
        async with listening(app, "127.0.0.1", 0) as place:
            await serve_forever(place)


# --------------------------------------------------------------------------------------------- D2


async def fan_out(url: str) -> dict[str, float]:
    """One event wakes a thousand jobs; beside it, as many tasks are submitted in batches of a thousand."""
    async with opened(url) as engine:
        file = dag_file("wide", job("source"), *(job(f"reader{number}", "source") for number in range(FAN_OUT)))
        await deployed(engine, file, "wide")
        router = engine.service(Router)
        connection = await asyncpg.connect(url)
        dataset, version = await version_of(connection, "wide", "source")
        routed: list[float] = []
        plain: list[float] = []
        for number in range(EVENTS):
            await report(connection, dataset, version, number)
            routed.append(await seconds(router.route_tick))
            batch = [Submission(kind="noop", queue=QUEUE) for _ in range(FAN_OUT)]
            plain.append(await seconds(lambda batch=batch: engine.submit_many(batch)))  # type: ignore[misc]
        made = await connection.fetchval("select count(*) from windlass.job_task")
        await connection.close()
    if made != EVENTS * FAN_OUT:
        raise RuntimeError(f"{made} tasks were made, and not {EVENTS * FAN_OUT}")
    routed_s, plain_s = statistics.median(routed[1:]), statistics.median(plain[1:])
    return {"rate": FAN_OUT / routed_s, "submit_rate": FAN_OUT / plain_s}


async def report(connection: asyncpg.Connection[Any], dataset: UUID, version: UUID, number: int) -> None:
    """An event of a partition with its commit, as the completion of a task writes them."""
    await connection.execute(PARTITIONS, version, number, number + 1)
    event = await connection.fetchval(
        """insert into windlass.event (id, namespace, task_id, attempt, dataset_uuid, dataset_version, partition_key,
                                       first, last, declared, caller, at, revision)
           values (gen_random_uuid(), 'default', gen_random_uuid(), 1, $1, $2, $3, $4, $5, true, '', now(), 1)
        returning id""",
        dataset, version, f"{number * 10}-{number * 10 + 9}", number * 10, number * 10 + 9,
    )  # fmt: skip
    await connection.execute(
        """insert into windlass.outbox (id, kind, namespace, task_id, attempt, body, available_at, created_at)
           select gen_random_uuid(), 'route', 'default', $1, 1, jsonb_build_object('event_id', $1::uuid), now(),
                  now()""",
        event,
    )


# --------------------------------------------------------------------------------------------- D3, D6


async def partitions(url: str, count: int) -> dict[str, float]:
    """Ten jobs were given all partitions of a dataset. How long the reconcile takes if nothing is owed, a page of
    partitions, a cutover and a rollback."""
    async with opened(url) as engine:
        readers = [job(f"reader{number}", "source") for number in range(EDGES)]
        file = dag_file("long", job("source"), *readers)
        await deployed(engine, file, "long")
        connection = await asyncpg.connect(url)
        dataset, version = await version_of(connection, "long", "source")
        few = count // 100
        await fill(connection, version, 0, few)
        before = await reconciled(engine, connection)
        await fill(connection, version, few, count)
        after = await reconciled(engine, connection)
        figures = {
            "reconcile_s": after["all_s"], "idle_ms": 1e3 * after["idle_s"], "idle_few_ms": 1e3 * before["idle_s"],
            "page_ms": await page_ms(engine, dataset, count), **await cut_over(engine, file),
        }  # fmt: skip
        tasks = await connection.fetchval("select count(*) from windlass.job_task")
        await connection.close()
    if tasks:
        raise RuntimeError(f"{tasks} tasks were made, though nothing was owed")
    return figures


async def fill(connection: asyncpg.Connection[Any], version: UUID, first: int, end: int) -> None:
    step = 100_000
    for low in range(first, end, step):
        await connection.execute(PARTITIONS, version, low, min(end, low + step), timeout=600)
        await connection.execute(CONSUMPTIONS, version, low, min(end, low + step), timeout=600)
    for table in ("partition", "partition_revision", "consumption"):
        await connection.execute(f"vacuum analyze windlass.{table}", timeout=600)


async def reconciled(engine: Engine, connection: asyncpg.Connection[Any]) -> dict[str, float]:
    """Seconds of a reconcile when no job is behind, and until none is when all were."""
    router = engine.service(Router)

    async def all_behind() -> None:
        while await connection.fetchval("select count(*) from windlass.job where behind"):
            await router.reconcile_tick()

    idle = statistics.median([await seconds(router.reconcile_tick) for _ in range(TRIES)])
    await connection.execute("update windlass.job set behind = true where name like 'reader%'")
    return {"idle_s": idle, "all_s": await seconds(all_behind)}


async def page_ms(engine: Engine, dataset: UUID, count: int) -> float:
    """The first page of partitions, and one in the middle: the slower of the two."""
    catalog, caller = engine.service(Catalog), Principal("bench", Role.ADMIN)
    middle = (count * 5, f"{count * 5}-{count * 5 + 9}")

    async def page(after: Any) -> None:
        found, _ = await catalog.partitions(caller, dataset, "default", after=after)
        assert len(found) == 50, found

    return max([1e3 * await median_seconds(lambda after=after: page(after)) for after in (None, middle)])  # type: ignore[misc]


async def cut_over(engine: Engine, file: str) -> dict[str, float]:
    """A second version, in which one job has changed, is activated and rolled back."""
    dags = engine.service(Dags)
    changed = file.replace("name: reader0,", "name: reader0, operator_version: two,")
    made, _ = await dags.deploy("long", changed, auto_cutover=False)
    async with engine.store.begin() as tx:  # as if it was built
        await tx.session.connection.execute("update windlass.deployment set state = 'ready' where id = $1", made.id)
    there = [await seconds(lambda: dags.activate("long", made.id))]
    back: list[float] = []
    for _ in range(TRIES):
        back.append(await seconds(lambda: dags.rollback("long")))
        there.append(await seconds(lambda: dags.activate("long", made.id)))
    return {"cutover_ms": 1e3 * statistics.median(there), "rollback_ms": 1e3 * statistics.median(back)}


async def sink(url: str, rows: int) -> dict[str, float]:
    """Rows a second of a sink, with batches of 10,000 and of 1,000 rows, and of COPY into a table with the same key."""
    figures: dict[str, float] = {}
    async with opened(url) as engine:
        await deployed(engine, SUNK, "sunk")
        connection = await asyncpg.connect(url)
        dataset, version = await version_of(connection, "sunk", "sunk")
        with tempfile.TemporaryDirectory() as folder:
            tried = Sink(engine, Scratch(f"file://{folder}", open_blobs(f"file://{folder}")))
            for size in (1000, 10_000):
                ours, copies = [], []
                for turn in range(SINK_TURNS):
                    await connection.execute(f"truncate windlass_data.{table_of(version)}")
                    given = [
                        [sunk_row(f"{size}-{turn}-{first + place}") for place in range(size)]
                        for first in range(0, rows, size)
                    ]
                    copies.append(rows / await copied(connection, version, given))
                    for number, batch in enumerate(given):
                        await written(connection, Path(folder), dataset, version, f"{size}-{turn}-{number}", batch)
                    ours.append(rows / await seconds(lambda: drained(tried)))
                    count = await connection.fetchval(f"select count(*) from windlass_data.{table_of(version)}")
                    if count != rows:
                        raise RuntimeError(f"{count} of {rows} rows are in the table")
                figures |= {f"rate_{size}": statistics.median(ours), f"copy_rate_{size}": statistics.median(copies)}
        await connection.close()
    return figures


async def drained(tried: Sink) -> None:
    while await tried.tick():
        pass


def sunk_row(key: str) -> dict[str, Any]:
    return {"dedupe_key": key, "severity": "high", "amount": len(key) * 1000, "event_time": "2026-01-01T00:00:00Z",
            "payload": {"rule": "large transfer", "block": 17, "seen": True}}  # fmt: skip


async def written(
    connection: asyncpg.Connection[Any], folder: Path, dataset: UUID, version: UUID, name: str, rows: Sequence[Any]
) -> None:
    """Publish a batch, as the server does when a worker reports it."""
    (folder / f"{name}.jsonl").write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    await connection.execute(PUBLISHED, uuid4(), dataset, version, f"file://{folder}/{name}.jsonl", len(rows))


async def copied(connection: asyncpg.Connection[Any], version: UUID, batches: Sequence[Sequence[Any]]) -> float:
    """Seconds of COPY into a table with the same columns, key and indexes."""
    await connection.execute(
        f"drop table if exists copied; create table copied (like windlass_data.{table_of(version)} including all)"
    )
    at, task_id = datetime(2026, 1, 1, tzinfo=UTC), uuid4()
    columns = ("dedupe_key", "severity", "amount", "event_time", "payload", "org_id", "producer_task_id",
               "producer_attempt", "ingested_at", "seq")  # fmt: skip
    records = [
        [(row["dedupe_key"], row["severity"], row["amount"], at, json.dumps(row["payload"]), "default", task_id, 1, at,
          number) for row in batch]
        for number, batch in enumerate(batches)
    ]  # fmt: skip

    async def copy() -> None:
        for batch in records:
            await connection.copy_records_to_table("copied", columns=columns, records=batch)

    return await seconds(copy)


async def plan(url: str) -> dict[str, float]:
    """The plan of a file of 500 jobs in which one has changed, against the version that is active."""
    jobs = [job("j0"), *(job(f"j{number}", f"j{(number - 1) // 3}") for number in range(1, PLANNED))]
    file = dag_file("tall", *jobs)
    async with opened(url) as engine:
        dags = engine.service(Dags)
        await deployed(engine, file, "tall")
        changed = file.replace("name: j1,", "name: j1, operator_version: two,")
        found = await dags.plan("tall", changed)
        assert {one.change for one in found.jobs} == {"unchanged", "changed", "affected"}
        return {"plan_ms": 1e3 * await median_seconds(lambda: dags.plan("tall", changed))}


async def seconds(work: Callable[[], Awaitable[object]]) -> float:
    began_s = time.perf_counter()
    await work()
    return time.perf_counter() - began_s


async def median_seconds(work: Callable[[], Awaitable[object]]) -> float:
    return statistics.median([await seconds(work) for _ in range(TRIES)])


# --------------------------------------------------------------------------------------------- for the harness


def routed_chain(stage: Stage, contestant: Contestant) -> Figures:
    return _child(stage, contestant, "chain", tasks=int(20_000 * stage.scale.share))


def routed_wide(stage: Stage, contestant: Contestant) -> Figures:
    return _child(stage, contestant, "fan_out")


def many_partitions(stage: Stage, contestant: Contestant) -> Figures:
    return _child(stage, contestant, "partitions", partitions=stage.scale.many)


def sink_batches(stage: Stage, contestant: Contestant) -> Figures:
    return _child(stage, contestant, "sink", rows=max(20_000, int(200_000 * stage.scale.share)))


def plan_jobs(stage: Stage, contestant: Contestant) -> Figures:
    return _child(stage, contestant, "plan")


def _child(stage: Stage, contestant: Contestant, command: str, **options: float) -> Figures:
    with stage.place(contestant) as place:
        return stage.child(contestant.python, "bench.datasets", command, place.url, **options)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.datasets")
    parser.add_argument("command", choices=("serve", "chain", "fan_out", "partitions", "sink", "plan"))
    parser.add_argument("url")
    parser.add_argument("--tasks", type=int, default=4000)
    parser.add_argument("--partitions", type=int, default=30_000)
    parser.add_argument("--rows", type=int, default=50_000)
    options = parser.parse_args()
    match options.command:
        case "serve":
            uvloop.run(serve(options.url))
        case "chain":
            print(json.dumps(uvloop.run(chain(options.url, options.tasks))))
        case "fan_out":
            print(json.dumps(uvloop.run(fan_out(options.url))))
        case "partitions":
            print(json.dumps(uvloop.run(partitions(options.url, options.partitions))))
        case "sink":
            print(json.dumps(uvloop.run(sink(options.url, options.rows))))
        case "plan":
            print(json.dumps(uvloop.run(plan(options.url))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
