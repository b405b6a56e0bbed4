"""Row locks: nobody waits for a row in somebody's long transaction, except who asked for just that row."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest
from tests.kit.work import begin, held, jobs, soon, state, task, waits_for, worker

from windlass import Engine, NotFound, State, StoreBusy
from windlass.core.command import Complete
from windlass.store.store import Store
from windlass.store.tables import task as task_table


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test waits for comes, however slow the machine is."""
    monkeypatch.setattr(task_table, "LOCK_TIMEOUT_MS", 60_000)


async def test_load_tasks_skips_locked_rows_and_never_waits(
    engine: Engine, store: Store, other_connection: asyncpg.Connection
) -> None:
    ids = sorted(await engine.submit_many(jobs(3)))
    async with held(other_connection, ids[1]), store.begin() as tx:
        found, now = await soon(tx.tasks.load_tasks(ids))
    assert list(found) == [ids[0], ids[2]]
    assert now is not None


async def test_load_tasks_locks_what_it_returns_until_the_commit(engine: Engine, store: Store) -> None:
    [id_] = await engine.submit_many(jobs(1))
    async with store.begin() as first:
        assert list((await first.tasks.load_tasks([id_]))[0]) == [id_]
        async with store.begin() as second:
            assert await soon(second.tasks.load_tasks([id_])) == ({}, None)
    async with store.begin() as third:
        assert list((await third.tasks.load_tasks([id_]))[0]) == [id_]


async def test_lock_tasks_gives_up_with_store_busy(
    engine: Engine, store: Store, other_connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_table, "LOCK_TIMEOUT_MS", 50)
    [id_] = await engine.submit_many(jobs(1))
    async with held(other_connection, id_):
        with pytest.raises(StoreBusy):
            async with store.begin() as tx:
                await tx.tasks.lock_tasks([id_])


async def test_lock_tasks_sees_what_the_holder_committed(
    engine: Engine, store: Store, other_connection: asyncpg.Connection
) -> None:
    [id_] = await engine.submit_many(jobs(1))
    async with store.begin() as tx:
        async with held(other_connection, id_):
            await other_connection.execute("update windlass.task set priority = 7")
            load = asyncio.create_task(tx.tasks.lock_tasks([id_]))
            await waits_for(other_connection)
        assert (await soon(load))[id_].priority == 7


async def test_the_time_of_a_patient_load_is_read_after_the_lock_is_held(
    engine: Engine, other_connection: asyncpg.Connection
) -> None:
    """A time read before waiting would run backwards."""
    claimed = await begin(engine)
    async with held(other_connection, claimed.task.id):
        done = asyncio.create_task(engine.complete(claimed))
        await waits_for(other_connection)
        await other_connection.execute("update windlass.test_clock set now = now + interval '1 hour'")
    later = await other_connection.fetchval("select windlass.now()")
    assert (await soon(done)).finished_at == later


async def test_a_row_in_a_long_transaction_does_not_stall_the_others_of_its_batch(
    engine: Engine, other_connection: asyncpg.Connection
) -> None:
    await engine.submit_many(jobs(5))
    stuck, *others = await engine.claim(await worker(engine), 5)
    async with held(other_connection, stuck.task.id):
        slow = asyncio.create_task(engine.complete(stuck))
        answers = await soon(asyncio.gather(*map(engine.complete, others)), 5)
        assert [answer.state for answer in answers] == [State.SUCCEEDED] * 4
        assert not slow.done()
    assert (await soon(slow)).state is State.SUCCEEDED


async def test_one_report_on_a_held_row_is_busy_and_the_others_of_the_same_call_are_accepted(
    engine: Engine, other_connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_table, "LOCK_TIMEOUT_MS", 50)
    await engine.submit_many(jobs(3))
    claimed = await engine.claim(await worker(engine), 3)
    reports = [Complete(c.task.id, c.task.attempt, c.task.lease_id) for c in claimed]
    async with held(other_connection, claimed[1].task.id):
        first, second, third = await engine.report(reports)
    assert first is third is State.SUCCEEDED
    assert isinstance(second, StoreBusy)
    assert await state(engine, claimed[1].task.id) is State.RUNNING
    [again] = await engine.report([reports[1]])
    assert again is State.SUCCEEDED


async def test_commands_on_a_held_row_keep_their_order(engine: Engine, other_connection: asyncpg.Connection) -> None:
    claimed = await begin(engine)
    async with held(other_connection, claimed.task.id):
        first = asyncio.create_task(engine.complete(claimed, b'"first"'))
        await waits_for(other_connection)
        second = asyncio.create_task(engine.complete(claimed, b'"second"'))
        await asyncio.sleep(0)
    assert (await soon(first)).result == b'"first"'
    with pytest.raises(Exception, match="already ended"):
        await soon(second)
    assert (await task(engine, claimed.task.id)).result == b'"first"'


async def test_a_held_row_does_not_stall_commands_that_come_later(
    engine: Engine, other_connection: asyncpg.Connection
) -> None:
    stuck, other = await engine.submit_many(jobs(2))
    async with held(other_connection, stuck):
        slow = asyncio.create_task(engine.cancel(stuck))
        await waits_for(other_connection)
        assert (await soon(engine.cancel(other), 5)).state is State.CANCELLED
    assert (await soon(slow)).state is State.CANCELLED


async def test_a_report_on_a_task_that_vanishes_meanwhile_is_not_found(
    engine: Engine, other_connection: asyncpg.Connection
) -> None:
    claimed = await begin(engine)
    async with held(other_connection, claimed.task.id):
        done = asyncio.create_task(engine.complete(claimed))
        await waits_for(other_connection)
        await other_connection.execute("delete from windlass.task")
    with pytest.raises(NotFound):
        await soon(done)
