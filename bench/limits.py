"""The raw limits: the statements of a queue in the fastest form that we found, with nothing around them.

Measured in every run with the same driver, so that ratios to them are meaningful. `python -m bench.limits NAME URL`
prints one line of JSON. Each function checks the rows in the table before it returns its figures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import Any

import asyncpg
import uvloop

from bench.agent import paced
from bench.recorder import quantiles

DDL = """
create table tasks(
  id bigint generated always as identity primary key,
  queue text not null default 'q', priority smallint not null default 0, state smallint not null default 0,
  attempt int not null default 0, available_at timestamptz not null default now(), lease_expires_at timestamptz,
  worker text, payload bytea, result bytea, created_at timestamptz not null default now());
create index tasks_ready on tasks(queue, priority, id) where state = 0;
create index tasks_lease on tasks(lease_expires_at) where state = 1;
"""
INSERT = "insert into tasks(payload) values ($1)"
UNNEST = "insert into tasks(queue, payload) select * from unnest($1::text[], $2::bytea[]) returning id"
CLAIM = """
update tasks t set state = 1, attempt = attempt + 1, lease_expires_at = now() + interval '30 s', worker = 'w'
from (select id from tasks where queue = 'q' and state = 0 order by priority, id limit $1 for update skip locked) s
where t.id = s.id returning t.id, t.attempt, t.payload"""
# `state + 0` keeps the planner from using the lease index, which it believes to be empty.
COMPLETE = """
update tasks t set state = 2, lease_expires_at = null, result = '\\x'
from unnest($1::bigint[], $2::int[]) u(id, attempt)
where t.id = u.id and t.attempt = u.attempt and t.state + 0 = 1"""
GUARD = "set enable_hashjoin = off; set enable_mergejoin = off; set enable_seqscan = off"
NOTIFY = "with i as (insert into tasks(payload) values ($1) returning id) select pg_notify('q', '') from i"
PAYLOAD = b"{}"
BATCH = 500


async def insert_one(url: str, arguments: argparse.Namespace) -> dict[str, float]:
    """One row and one commit at a time, on one connection."""
    connection = await asyncpg.connect(url)
    await connection.execute(DDL)
    statement = await connection.prepare(INSERT)
    for _ in range(20):
        await statement.fetch(PAYLOAD)
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < arguments.seconds:
        await statement.fetch(PAYLOAD)
        count += 1
    wall = time.perf_counter() - started
    await _check_rows(connection, "true", 20 + count)
    return {"rate": count / wall}


async def insert_unnest(url: str, arguments: argparse.Namespace) -> dict[str, float]:
    """1000 rows at a time from arrays, the ids returned."""
    connection = await asyncpg.connect(url)
    await connection.execute(DDL)
    statement = await connection.prepare(UNNEST)
    queues, payloads = ["q"] * 1000, [PAYLOAD] * 1000
    await statement.fetch(queues, payloads)
    started = time.perf_counter()
    for _ in range(0, arguments.count, 1000):
        await statement.fetch(queues, payloads)
    wall = time.perf_counter() - started
    await _check_rows(connection, "true", 1000 + arguments.count)
    return {"rate": arguments.count / wall}


async def claim_complete(url: str, arguments: argparse.Namespace) -> dict[str, float]:
    """The guarded limit: claim 500, complete 500 with the fence, in turn on one connection."""
    connection = await asyncpg.connect(url)
    await _fill(connection, arguments.count)
    await connection.execute(GUARD)
    claim, complete = await connection.prepare(CLAIM), await connection.prepare(COMPLETE)
    started, cpu = time.perf_counter(), time.process_time()
    while rows := await claim.fetch(BATCH):
        await complete.fetch([row[0] for row in rows], [row[1] for row in rows])
    wall, cpu = time.perf_counter() - started, time.process_time() - cpu
    await _check_rows(connection, "state = 2 and attempt = 1", arguments.count)
    return {"rate": arguments.count / wall, "worker_cpu_us": 1e6 * cpu / arguments.count}


async def notify_chain(url: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Milliseconds from an insert with NOTIFY to the claimed row in a listening worker."""
    worker, listener, client = [await asyncpg.connect(url) for _ in range(3)]
    await _fill(worker, 1000)
    await worker.execute("update tasks set state = 2")
    await worker.execute("vacuum analyze tasks")
    woken, latencies = asyncio.Event(), []
    await listener.add_listener("q", lambda *_: woken.set())
    claim, insert = await worker.prepare(CLAIM), await client.prepare(NOTIFY)

    async def work() -> None:
        while True:
            await woken.wait()
            woken.clear()
            for row in await claim.fetch(BATCH):
                latencies.append(time.monotonic() - float(row[2]))

    working = asyncio.create_task(work())
    await paced(arguments.count, arguments.rate, lambda _, sent_at: insert.fetch(repr(sent_at).encode()))
    await asyncio.sleep(0.5)
    working.cancel()
    await _check_rows(worker, "state = 1 and attempt = 1", len(latencies))
    if len(latencies) != arguments.count:
        raise RuntimeError(f"{arguments.count} sent, {len(latencies)} arrived")
    return quantiles(sorted(latencies))


async def _fill(connection: Any, count: int) -> None:
    await connection.execute(DDL)
    await connection.execute("insert into tasks(payload) select '\\x7b7d' from generate_series(1, $1::int)", count)
    await connection.execute("vacuum analyze tasks")
    await connection.execute("checkpoint")


async def _check_rows(connection: Any, condition: str, expected: int) -> None:
    found = await connection.fetchval(f"select count(*) from tasks where {condition}")
    if found != expected:
        raise RuntimeError(f"expected {expected} rows where {condition}, found {found}")


LIMITS = {f.__name__: f for f in (insert_one, insert_unnest, claim_complete, notify_chain)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.limits", description=__doc__)
    parser.add_argument("limit", choices=LIMITS)
    parser.add_argument("url")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--count", type=int, default=60_000)
    parser.add_argument("--rate", type=float, default=20.0)
    arguments = parser.parse_args()
    print(json.dumps(uvloop.run(LIMITS[arguments.limit](arguments.url, arguments))), flush=True)


if __name__ == "__main__":
    main()
