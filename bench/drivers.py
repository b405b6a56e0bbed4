"""Compares the PostgreSQL drivers asyncpg and psycopg 3 on the statements that dominate the engine.

`python -m bench.drivers` repeats the measurement of docs/decisions/0002-postgresql-driver.md. The SQL text is the same
for all; psycopg takes `$1` through its raw cursor. Both run on uvloop, in one process, on one server, in turn, three
times, so that the ratios hold on a noisy machine. The figures are the median of rows per second, and the client's
processor time per row, which is what limits an engine.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from bench import venv
from bench.server import Server

REQUIREMENTS = ["asyncpg", "psycopg[binary]", "uvloop"]
DDL = """
drop table if exists tasks;
create table tasks(
  id uuid primary key, run_id uuid, queue text not null, kind text not null, key text, worker text, reason text,
  version text, state smallint not null, priority smallint not null, attempt int not null default 0,
  failures int not null default 0, losses int not null default 0, available_at timestamptz not null,
  created_at timestamptz not null, deadline_at timestamptz, started_at timestamptz,
  finished_at timestamptz, lease_token uuid, lease_expires_at timestamptz,
  payload bytea, result bytea) with (fillfactor = 70);
create index tasks_ready on tasks(queue, priority, available_at, id) where state = 0;
"""
SUBMIT = """
insert into tasks(id, run_id, queue, kind, key, version, state, priority, available_at, created_at, deadline_at,
                  payload)
select * from unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::smallint[],
                     $8::smallint[], $9::timestamptz[], $10::timestamptz[], $11::timestamptz[], $12::bytea[])"""
SELECT = """
select id, run_id, queue, kind, key, worker, reason, version, state, priority, attempt, failures, losses, available_at,
       created_at, deadline_at, started_at, lease_token, lease_expires_at, payload from tasks"""
CLAIM_SELECT = f"""{SELECT}
where queue = $1 and state = 0 order by priority, available_at, id limit $2 for update skip locked"""
CLAIM_UPDATE = """
update tasks t set state = 1, attempt = attempt + 1, started_at = now(), lease_expires_at = now() + interval '30 s'
from unnest($1::uuid[]) u(id) where t.id = u.id"""
LOAD = f"""{SELECT}
where id = any($1::uuid[]) order by id for update"""
APPLY = """
update tasks t set state = 2, reason = u.reason, result = u.result, finished_at = u.at
from unnest($1::uuid[], $2::text[], $3::bytea[], $4::timestamptz[]) u(id, reason, result, at) where t.id = u.id"""
SUBMIT_ONE = """
with i as (insert into tasks(id, run_id, queue, kind, key, version, state, priority, available_at, created_at,
                             deadline_at, payload) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12))
select pg_notify('tasks', $3)"""
# Fixed for the whole database, so that all drivers get the same plans.
PINNED = ("enable_seqscan", "enable_hashjoin", "enable_mergejoin")

NOW = datetime.now(UTC)
PAYLOAD = b'{"customer": 4711, "amount": "12.50", "items": [1, 2, 3]}'


class Driver:
    """A connection. A `pooled` one prepares no statements, as behind a transaction-mode pooler."""

    def __init__(self, url: str, pooled: bool, *, binary: bool = False) -> None:
        self.url, self.pooled, self.binary = url, pooled, binary
        self.connection: Any = None

    async def open(self) -> None:
        raise NotImplementedError

    async def fetch(self, sql: str, *args: object) -> list[Any]:
        raise NotImplementedError

    def transaction(self) -> Any:
        return self.connection.transaction()

    async def close(self) -> None:
        await self.connection.close()


class AsyncpgDriver(Driver):
    async def open(self) -> None:
        import asyncpg

        self.connection = await asyncpg.connect(self.url, **({"statement_cache_size": 0} if self.pooled else {}))

    async def fetch(self, sql: str, *args: object) -> list[Any]:
        rows: list[Any] = await self.connection.fetch(sql, *args)
        return rows


class PsycopgDriver(Driver):
    """psycopg 3 with its C extension; `binary` also sends arrays in binary, which is not its default."""

    async def open(self) -> None:
        import psycopg
        from psycopg.types.array import ListBinaryDumper

        self.connection = await psycopg.AsyncConnection.connect(self.url, autocommit=True)
        self.connection.prepare_threshold = None if self.pooled else 0
        if self.binary:
            self.connection.adapters.register_dumper(list, ListBinaryDumper)
        self.cursor = psycopg.AsyncRawCursor(self.connection)

    async def fetch(self, sql: str, *args: object) -> list[Any]:
        await self.cursor.execute(sql, args, binary=True)
        return await self.cursor.fetchall() if self.cursor.description else []


DRIVERS: dict[str, Callable[[str, bool], Driver]] = {
    "asyncpg": AsyncpgDriver,
    "psycopg": PsycopgDriver,
    "psycopg, binary arrays": partial(PsycopgDriver, binary=True),
}


def rows(count: int, first: int = 0) -> list[tuple[object, ...]]:
    """Tasks as they are submitted, with ascending ids as of UUIDv7."""
    base, later = 0x0190_0000_0000_7000_8000_0000_0000_0000, NOW + timedelta(hours=1)
    return [
        (uuid.UUID(int=base + i), None, "q", "noop", f"key-{i % 50}", "1", 0, i % 3, NOW, NOW, later, PAYLOAD)
        for i in range(first, first + count)
    ]


def batches(count: int) -> list[list[list[object]]]:
    """The rows as columns, 1000 at a time; built before the measurement starts."""
    return [[list(c) for c in zip(*rows(1000, first), strict=True)] for first in range(0, count, 1000)]


async def submit_batches(db: Driver, prepared: list[list[list[object]]]) -> int:
    """(a) insert … select from unnest, 1000 rows and one commit at a time."""
    for columns in prepared:
        async with db.transaction():
            await db.fetch(SUBMIT, *columns)
    return 1000 * len(prepared)


async def claim_batches(db: Driver, _: object) -> int:
    """(b) select 500 for update skip locked, update them by their ids, until nothing is left."""
    done = 0
    while True:
        async with db.transaction():
            found = await db.fetch(CLAIM_SELECT, "q", 500)
            if not found:
                return done
            await db.fetch(CLAIM_UPDATE, [row[0] for row in found])
        done += len(found)


async def complete_batches(db: Driver, prepared: list[list[uuid.UUID]]) -> int:
    """(c) load 500 by id for update, write the outcome of each from unnest."""
    for ids in prepared:
        async with db.transaction():
            found = await db.fetch(LOAD, ids)
            n = len(found)
            await db.fetch(APPLY, [row[0] for row in found], ["done"] * n, [b'{"ok": true}'] * n, [NOW] * n)
    return sum(map(len, prepared))


async def submit_singly(db: Driver, prepared: list[tuple[object, ...]]) -> int:
    """(d) one row, one NOTIFY, one commit at a time."""
    for row in prepared:
        # Behind a pooler asyncpg needs a transaction even here: it parses and executes in separate round trips.
        if db.pooled and isinstance(db, AsyncpgDriver):
            async with db.transaction():
                await db.fetch(SUBMIT_ONE, *row)
        else:
            await db.fetch(SUBMIT_ONE, *row)
    return len(prepared)


def id_batches(count: int) -> list[list[object]]:
    ids = [row[0] for row in rows(count)]
    return [ids[first : first + 500] for first in range(0, count, 500)]


@dataclass(frozen=True, slots=True)
class Work:
    """One kind of work: its input, the number of rows, whether they exist before it, and the condition for done."""

    title: str
    run: Callable[[Driver, Any], Awaitable[int]]
    prepare: Callable[[int], Any]
    count: int
    filled: bool
    proof: str


WORKS = [
    Work("(a) submit, 1000 by unnest", submit_batches, batches, 60_000, False, "true"),
    Work("(b) claim 500, update by id", claim_batches, int, 40_000, True, "state = 1 and attempt = 1"),
    Work("(c) load 500, apply by unnest", complete_batches, id_batches, 40_000, True, "state = 2 and reason = 'done'"),
    Work("(d) submit one, NOTIFY", submit_singly, rows, 3_000, False, "true"),
]


@asynccontextmanager
async def opened(name: str, url: str, *, pooled: bool) -> AsyncIterator[Driver]:
    db = DRIVERS[name](url, pooled)
    await db.open()
    try:
        yield db
    finally:
        await db.close()


async def measure(server: Server, name: str, work: Work, *, pooled: bool) -> tuple[float, float]:
    """Rows per second, and microseconds of the client's processor time per row."""
    url = server.url("bench")
    server.psql(DDL, "bench")
    if work.filled:
        async with opened("asyncpg", url, pooled=False) as db:
            await submit_batches(db, batches(work.count))
        server.psql("vacuum analyze tasks", "bench")
    server.psql("checkpoint")
    prepared = work.prepare(work.count)
    async with opened(name, url, pooled=pooled) as db:
        await db.fetch("select 1")
        started, cpu = time.perf_counter(), time.process_time()
        done = await work.run(db, prepared)
        wall, cpu = time.perf_counter() - started, time.process_time() - cpu
    proven = int(server.psql(f"select count(*) from tasks where {work.proof}", "bench"))
    if not done == proven == work.count:
        raise RuntimeError(f"{name}, {work.title}: {done} done, {proven} in the table, {work.count} expected")
    return work.count / wall, 1e6 * cpu / work.count


Cell = tuple[str, bool, str]


async def run(reps: int) -> dict[Cell, list[tuple[float, float]]]:
    """Every work with every driver in turn, `reps` times."""
    found: dict[Cell, list[tuple[float, float]]] = {}
    with Server() as server:
        server.psql("create database bench")
        for setting in PINNED:
            server.psql(f"alter database bench set {setting} = off")
        await measure(server, "asyncpg", WORKS[0], pooled=False)  # the first one also warms the server
        for rep in range(reps):
            for work in WORKS:
                for pooled in (False, True):
                    print(f"\r\033[Krepetition {rep + 1}/{reps} {work.title:40}", end="", file=sys.stderr, flush=True)
                    for name in random.sample(list(DRIVERS), len(DRIVERS)):  # no driver always goes first
                        figures = await measure(server, name, work, pooled=pooled)
                        found.setdefault((work.title, pooled, name), []).append(figures)
    print(file=sys.stderr)
    return found


def table(found: dict[Cell, list[tuple[float, float]]]) -> str:
    """Markdown. A ratio is the median of the ratios of each repetition, not the ratio of two medians."""
    lines = [
        "| work | mode | driver | rows/s (range) | client CPU per row | rows/s against asyncpg | CPU against asyncpg |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for title, pooled, name in sorted(found, key=lambda c: (c[0], c[1], list(DRIVERS).index(c[2]))):
        values = found[title, pooled, name]
        base = found[title, pooled, "asyncpg"]
        rates, cpus = zip(*values, strict=True)
        faster = statistics.median(v[0] / b[0] for v, b in zip(values, base, strict=True))
        dearer = statistics.median(v[1] / b[1] for v, b in zip(values, base, strict=True))
        lines.append(
            f"| {title} | {'pooler-safe' if pooled else 'prepared'} | {name} | {statistics.median(rates):,.0f} "
            f"({min(rates):,.0f}–{max(rates):,.0f}) | {statistics.median(cpus):.1f} µs | {faster:.2f} | {dearer:.2f} |"
        )
    return "\n".join(lines)


IMPORT = """
import asyncio, ssl, sys, time
pss = lambda: next(int(line.split()[1]) for line in open("/proc/self/smaps_rollup") if line.startswith("Pss:"))
before, started = pss(), time.perf_counter()
__import__(sys.argv[1])
print(1000 * (time.perf_counter() - started), (pss() - before) / 1024)
"""


def import_cost(module: str) -> str:
    """The time and memory of importing the driver, beyond asyncio and ssl (Linux)."""
    command = [sys.executable, "-c", IMPORT, module]
    pairs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() for _ in range(5)]
    milliseconds, megabytes = (statistics.median(map(float, column)) for column in zip(*pairs, strict=True))
    return f"import {module}: {milliseconds:.0f} ms, {megabytes:.1f} MB"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.drivers", description=__doc__)
    parser.add_argument("--reps", type=int, default=3)
    arguments = parser.parse_args()
    # psycopg is not a dependency of ours: continue in an environment that has both, with our path for the server.
    if os.environ.get("BENCH_DRIVERS_CHILD") is None:
        interpreter = venv.ensure("venv", REQUIREMENTS)
        path = os.pathsep.join([str(venv.ROOT), *(p for p in sys.path if p.endswith("site-packages"))])
        os.execve(
            interpreter,
            [str(interpreter), "-m", "bench.drivers", f"--reps={arguments.reps}"],
            {**os.environ, "BENCH_DRIVERS_CHILD": path},
        )
    sys.path.extend(os.environ["BENCH_DRIVERS_CHILD"].split(os.pathsep))
    import uvloop

    print(table(uvloop.run(run(arguments.reps))))
    print(f"\n{import_cost('asyncpg')}; {import_cost('psycopg')}")


if __name__ == "__main__":
    main()
