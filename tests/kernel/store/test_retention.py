"""Retention: finished tasks and old history go, what is alive stays, whatever the clock says."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from tests.kit.work import CRASH, begin, job, jobs, settle, soon, worker

from windlass import Engine, NotFound, State
from windlass.core.ids import derived_id, uuid7
from windlass.engine.loops import retention
from windlass.engine.loops.retention import PARTITIONS_AHEAD
from windlass.testing.clock import VirtualClock

DAY = 86400.0
PARTITIONS = """select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
                 where i.inhparent = 'windlass.history'::regclass and c.relname <> 'history_default' order by 1"""


async def count(other_connection: asyncpg.Connection, table: str) -> int:
    return int(await other_connection.fetchval(f"select count(*) from windlass.{table}"))


async def partitions(other_connection: asyncpg.Connection) -> list[str]:
    return [row[0] for row in await other_connection.fetch(PARTITIONS)]


async def tidy(engine: Engine) -> None:
    while await engine.loops.retention_tick():
        pass


async def test_a_finished_task_is_kept_for_its_time_and_then_forgotten(engine: Engine, clock: VirtualClock) -> None:
    claimed = await begin(engine)
    await engine.complete(claimed)
    await clock.advance(7 * DAY - 1)
    await tidy(engine)
    assert (await engine.tasks.get(claimed.task.id)).task.state is State.SUCCEEDED
    await clock.advance(2)
    await tidy(engine)
    with pytest.raises(NotFound):
        await engine.tasks.get(claimed.task.id)


async def test_what_has_not_ended_is_kept_however_old(engine: Engine, clock: VirtualClock) -> None:
    lease = await worker(engine, ttl_s=7 * DAY)
    waiting = await engine.submit(job(available_at=await clock.advance(0) + timedelta(days=365)))
    running, slept = [await begin(engine, lease) for _ in range(2)]
    await engine.sleep(slept, None)
    await clock.advance(100 * DAY)
    await tidy(engine)
    for task_id in (waiting, running.task.id, slept.task.id):
        assert not (await engine.tasks.get(task_id)).task.terminal


async def test_a_walk_goes_on_past_tasks_that_live_long(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "BATCH", 10)
    lease = await worker(engine)
    await engine.submit_many(jobs(25, queue="idle"))
    await engine.submit_many(jobs(25))
    for claimed in await engine.claim(lease, 25):
        await engine.complete(claimed)
    await clock.advance(8 * DAY)
    await tidy(engine)
    assert await count(other_connection, "task") == 25


@pytest.mark.parametrize(
    "task_id",
    [UUID(int=1), derived_id("child", "a"), UUID("d5a7f4f1-38a5-4a36-9a54-5c2b2b0c7a11"), UUID(int=(1 << 128) - 1)],
    ids=str,
)
async def test_retention_reaches_an_ended_task_whatever_its_id(
    engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, task_id: UUID
) -> None:
    """Ids of children, chains and keyed groups are derived, and callers may give their own."""
    monkeypatch.setattr(retention, "BATCH", 10)
    await engine.complete(await begin(engine, id=task_id))
    now_ms = int((await clock.advance(8 * DAY)).timestamp() * 1000)
    await engine.submit_many([job(id=uuid7(now_ms, n)) for n in range(25)])
    await tidy(engine)
    with pytest.raises(NotFound):
        await engine.tasks.get(task_id)


async def test_retention_goes_through_every_namespace(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "BATCH", 4)
    for n in range(7):
        await engine.submit_many(jobs(3, namespace=f"n{n}", queue="idle"))
        for _ in range(3):
            await engine.cancel(await engine.submit(job(namespace=f"n{n}")))
    await clock.advance(8 * DAY)
    await engine.submit_many(jobs(5, namespace="n3", queue="young"))
    await tidy(engine)
    assert await other_connection.fetchval("select count(*) from windlass.task where queue = 'idle'") == 21
    assert await count(other_connection, "task") == 21 + 5


async def test_what_hangs_on_a_task_goes_with_it(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    run_id, first, second = (engine.parts.randomness.new_id() for _ in range(3))
    await engine.submit_many(
        [job(id=first, run_id=run_id, idempotency_key="k"), job(id=second, run_id=run_id, after=(first,))]
    )
    lease = await worker(engine)
    for _ in range(2):
        [claimed] = await engine.claim(lease)
        await engine.complete(claimed)
        await settle(engine)
    await clock.advance(8 * DAY)
    await tidy(engine)
    for table in ("task", "run", "edge", "idempotency", "outbox"):
        assert await count(other_connection, table) == 0, table


async def test_a_run_is_kept_as_long_as_one_of_its_tasks(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    run_id = engine.parts.randomness.new_id()
    await engine.submit_many([job(run_id=run_id), job(run_id=run_id, queue="idle")])
    [claimed] = await engine.claim(await worker(engine))
    await engine.complete(claimed)
    await clock.advance(8 * DAY)
    await tidy(engine)
    assert (await count(other_connection, "task"), await count(other_connection, "run")) == (1, 1)


async def test_partitions_for_the_coming_days_are_there_before_their_days(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    await tidy(engine)
    today = await clock.now()
    expected = [f"history_{today + timedelta(days=d):%Y%m%d}" for d in range(1, PARTITIONS_AHEAD + 1)]
    assert await partitions(other_connection) == expected
    await tidy(engine)
    assert await partitions(other_connection) == expected


async def test_history_goes_to_the_partition_of_its_day(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    await tidy(engine)
    now = await clock.advance(DAY)
    await engine.fail(await begin(engine), CRASH)
    assert await count(other_connection, f"history_{now:%Y%m%d}") == 1
    assert await count(other_connection, "history_default") == 0


async def test_a_clock_that_jumps_ahead_of_the_partitions_finds_the_default_one(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    await tidy(engine)
    await clock.advance(30 * DAY)
    await engine.fail(await begin(engine), CRASH)
    assert await count(other_connection, "history_default") == 1
    await tidy(engine)
    await clock.advance(8 * DAY)
    await tidy(engine)
    assert await count(other_connection, "history_default") == 0


async def test_a_clock_that_went_back_does_not_stop_retention(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    """History of a day that has no partition yet lies in the default one, so that its partition cannot be made."""
    await clock.advance(2 * DAY)
    await engine.fail(await begin(engine), CRASH)
    await clock.advance(-2 * DAY)
    await tidy(engine)
    now = await clock.now()
    assert f"history_{now + timedelta(days=1):%Y%m%d}" in await partitions(other_connection)
    assert await count(other_connection, "history") == 1


async def test_old_partitions_are_dropped_whole(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    for day in range(12):
        await tidy(engine)
        await engine.fail(await begin(engine, queue=f"day {day}"), CRASH)
        now = await clock.advance(DAY)
    await tidy(engine)
    oldest = f"history_{now - timedelta(days=7):%Y%m%d}"
    assert min(await partitions(other_connection)) >= oldest
    assert await other_connection.fetchval("select min(at) from windlass.history") >= now - timedelta(days=8)


async def test_many_engines_that_tidy_at_once_do_not_stumble(
    new_engine: Any, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    engines = [await new_engine() for _ in range(4)]
    await engines[0].submit_many(jobs(40))
    for claimed in await engines[0].claim(await worker(engines[0]), 40):
        await engines[0].complete(claimed)
    await clock.advance(8 * DAY)
    await soon(asyncio.gather(*(tidy(engine) for engine in engines)))
    assert await count(other_connection, "task") == 0
    assert len(await partitions(other_connection)) == PARTITIONS_AHEAD
