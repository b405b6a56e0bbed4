"""`kill -9` of engines, workers, submitters and PostgreSQL at random moments: nothing is lost, nothing is committed
twice, and every task ends. Some workers are only frozen, and come back when nobody expects them any more.

Real processes and real durability. Work may be executed more than once, that is what a kill means; its result is
accepted once. A witness in the database (`fleet.WITNESS`) says so independently of the engine's own records.
`WINDLASS_KILL_SEED=…` repeats a plan.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import asyncpg
import pytest
from tests.e2e.child import GROUP, group_of, key_of, read_ledger
from tests.e2e.fleet import TARGETS, Fleet, plan_of
from tests.kit.database import temporary_folder

from windlass import open_engine
from windlass.core.states import TABLE, TERMINAL, State

pytestmark = pytest.mark.slow

NEVER_MOVED = TERMINAL


@pytest.fixture
def seed() -> int:
    return int(os.environ.get("WINDLASS_KILL_SEED") or random.randrange(10**6))


@pytest.fixture
async def fleet_of(seed: int) -> AsyncIterator[Callable[[int, int], Awaitable[Fleet]]]:
    """Starts a fleet on data of its own, and leaves nothing behind."""
    fleets = []

    async def begin(total: int, kills: int) -> Fleet:
        print(f"\n{total} tasks, {kills} kills; again with WINDLASS_KILL_SEED={seed}")
        fleet = Fleet(folder, total, plan_of(seed, kills, total))
        fleets.append(fleet)
        await fleet.start()
        return fleet

    with temporary_folder() as folder:
        try:
            yield begin
        finally:
            for fleet in fleets:
                await fleet.close()


@pytest.mark.timeout(900)
async def test_killing_anything_at_random_during_20000_tasks_loses_nothing_and_commits_nothing_twice(
    fleet_of: Callable[[int, int], Awaitable[Fleet]],
) -> None:
    fleet = await fleet_of(20_000, sum(TARGETS.values()))
    await fleet.run(deadline_s=600)
    await check(fleet)
    assert all(fleet.done[target] for target in TARGETS), fleet.done


@pytest.mark.timeout(900)
async def test_killing_a_few_processes_during_2000_tasks_loses_nothing_and_commits_nothing_twice(
    fleet_of: Callable[[int, int], Awaitable[Fleet]],
) -> None:
    fleet = await fleet_of(2_000, 4)
    await fleet.run(deadline_s=300)
    await check(fleet)


async def check(fleet: Fleet) -> None:
    await settled(fleet)
    nobody_met_a_defect(fleet)
    connection = await asyncpg.connect(fleet.dsn)
    try:
        await everything_was_accepted_once_and_ended(connection, fleet)
        await what_was_told_to_the_submitter_is_true(connection, fleet.ledger)
        await results_are_right(connection)
        await one_result_was_accepted_for_each_task(connection)
        await attempts_are_consistent(connection)
        executions = await connection.fetchval("select count(*) from e2e.execution")
    finally:
        await connection.close()
    await timelines_are_consistent(fleet.dsn)
    took = time.monotonic() - fleet.began
    print(f"{fleet.total} tasks, {executions - fleet.total} executions repeated, {dict(fleet.done)}, {took:.1f} s")


async def settled(fleet: Fleet) -> None:
    """Workers leave, and an engine that is left alone tidies up all that they and the killed ones held."""
    await fleet.stop(*(name for name in fleet.children if name.startswith("worker")))
    for table in ("lease", "outbox", "edge"):
        await fleet.until(f"{table} is empty", f"select count(*) from windlass.{table}", 120)
    await fleet.stop("engine")


def nobody_met_a_defect(fleet: Fleet) -> None:
    """An absent database is a warning; anything that shows as an error or a traceback was not expected by the code."""
    for child in fleet.children.values():
        lines = child.log.read_text(errors="replace").splitlines()
        bad = [i for i, line in enumerate(lines) if " ERROR " in line or line.startswith("Traceback")]
        assert not bad, f"{child.name}:\n" + "\n".join(lines[bad[0] : bad[0] + 60])


async def nothing(connection: asyncpg.Connection, query: str, *args: object) -> None:
    """The query selects what must not be there."""
    rows = await connection.fetch(query, *args)
    assert not rows, f"{len(rows)} rows of: {query}\n" + "\n".join(str(dict(row)) for row in rows[:20])


async def everything_was_accepted_once_and_ended(connection: asyncpg.Connection, fleet: Fleet) -> None:
    keys = await connection.fetch("select idempotency_key from windlass.task")
    assert sorted(row[0] for row in keys) == sorted(map(key_of, range(fleet.total)))
    await nothing(connection, "select id, state, error from windlass.task where state <> 'succeeded'")
    await nothing(connection, "select id from windlass.task where finished_at is null or result is null")


async def what_was_told_to_the_submitter_is_true(connection: asyncpg.Connection, ledger: Path) -> None:
    """An id that was handed out stays the id of that key, also when the submitter asked twice."""
    rows = await connection.fetch("select idempotency_key, id from windlass.task")
    known = {row[0]: row[1] for row in rows}
    for line in read_ledger(ledger):
        told = {key_of(line.index * GROUP + i): id_ for i, id_ in enumerate(line.ids)}
        assert told == {key: known[key] for key in told}


async def results_are_right(connection: asyncpg.Connection) -> None:
    results = "select t.*, convert_from(t.result, 'UTF8')::jsonb as r, convert_from(t.payload, 'UTF8')::jsonb as p"
    await nothing(
        connection,
        f"""select * from ({results} from windlass.task t) t where kind = 'part'
             and ((r->>'number')::bigint <> (p->>'number')::bigint
               or (r->>'square')::bigint <> (p->>'number')::bigint * (p->>'number')::bigint)""",
    )
    await nothing(
        connection,
        f"select id, r from ({results} from windlass.task t) t where kind = 'whole' and (r->>'parts')::integer <> $1",
        len(group_of(0, GROUP)) - 1,
    )
    await nothing(  # the result is the one of the attempt that the row names, and of no other
        connection,
        f"""select t.id, t.attempt, r from ({results} from windlass.task t) t
              left join e2e.execution e on e.task_id = t.id and e.attempt = t.attempt and e.secret = r->>'secret'
             where e.task_id is null""",
    )


async def one_result_was_accepted_for_each_task(connection: asyncpg.Connection) -> None:
    accepted = "select task_id, count(*) as n from e2e.move where state = 'succeeded' and was <> state group by task_id"
    await nothing(
        connection,
        f"""select t.id, a.n from windlass.task t left join ({accepted}) a on a.task_id = t.id
             where a.n is distinct from 1""",
    )
    await nothing(
        connection,
        """select t.id from windlass.task t join e2e.move m on m.task_id = t.id and m.state = 'succeeded'
            where m.attempt <> t.attempt or m.result <> t.result""",
    )
    await nothing(connection, "select * from e2e.move where was = any($1)", list(map(str, NEVER_MOVED)))
    moves = await connection.fetch("select distinct was, state from e2e.move")
    allowed = {pair for pairs in TABLE.values() for pair in pairs}
    assert {(State(row[0]), State(row[1])) for row in moves} <= allowed


async def attempts_are_consistent(connection: asyncpg.Connection) -> None:
    """The number of an attempt is the number of claims so far, each attempt is executed at most once, and each one but
    the last has an entry that says how it ended."""
    await nothing(
        connection,
        """select task_id, attempt, n from (
             select *, row_number() over (partition by task_id order by id) as n
               from e2e.move where state = 'running') m
            where attempt <> n""",
    )
    await nothing(
        connection,
        """select t.id, t.attempt, m.n from windlass.task t
             join (select task_id, count(*) as n from e2e.move where state = 'running' group by task_id) m
               on m.task_id = t.id where t.attempt <> m.n""",
    )
    await nothing(
        connection,
        """select task_id, attempt, array_agg(worker), array_agg(secret), array_agg(at) from e2e.execution
            group by task_id, attempt having count(*) > 1""",
    )
    await nothing(
        connection,
        """select t.id, n from windlass.task t cross join generate_series(1, t.attempt - 1) n
            where not exists (select from windlass.history h where h.task_id = t.id and h.attempt = n
                                 and h.what in ('lost', 'failed', 'released'))""",
    )
    for counter, what in (("failures", "failed"), ("losses", "lost")):
        await nothing(
            connection,
            f"""select t.id, t.{counter}, count(h.what) from windlass.task t
                  left join windlass.history h on h.task_id = t.id and h.what = $1
                 group by t.id having t.{counter} <> count(h.what)""",
            what,
        )


async def timelines_are_consistent(dsn: str, sample: int = 100) -> None:
    """As a person would read them, for those that had the most to go through."""
    connection = await asyncpg.connect(dsn)
    rows = await connection.fetch("select id, attempt from windlass.task order by attempt desc, id limit $1", sample)
    await connection.close()
    async with open_engine(dsn) as engine:
        for task_id, attempt in rows:
            timeline = await engine.tasks.timeline(task_id)
            assert timeline[0].what == "submitted"
            assert (timeline[-1].what, timeline[-1].attempt) == ("succeeded", attempt)
            numbers = [line.attempt for line in timeline]
            assert numbers == sorted(numbers)
            assert set(numbers) == set(range(attempt + 1))
