"""Connections: one that broke is not given to the next, whatever the driver has noticed of it."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from windlass import StoreBusy, Submission
from windlass.store import pool as sessions
from windlass.store.pool import Pool
from windlass.store.store import Store


async def test_a_connection_that_did_not_answer_in_time_is_not_used_again(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "COMMAND_TIMEOUT_S", 0.05)
    pool = Pool(database, pooled=False, size=1)
    first = await pool.acquire()
    with pytest.raises(StoreBusy, match="away"):
        await first.execute("select pg_sleep(60)")
    assert not first._connection.is_closed()
    pool.release(first)
    second = await pool.acquire()
    assert second._connection is not first._connection
    await second.execute("select 1")
    pool.release(second)
    await pool.close()


async def test_a_connection_whose_caller_left_during_a_statement_is_not_used_again(database: str) -> None:
    """asyncpg before 0.32 raises CancelledError for ever after two such callers."""
    pool = Pool(database, pooled=False, size=1)
    first = await pool.acquire()
    statement = asyncio.create_task(first.execute("select 1"))
    await asyncio.sleep(0)
    statement.cancel()
    with pytest.raises(asyncio.CancelledError):
        await statement
    pool.release(first)
    second = await pool.acquire()
    assert second._connection is not first._connection
    await second.execute("select 1")
    pool.release(second)
    await pool.close()


async def test_what_is_written_after_a_transaction_whose_begin_was_cancelled_is_committed(database: str) -> None:
    store = Store(database, connections=1)
    async with store.single() as tx:
        await tx.now()  # opens the connection, so that the next call sends its begin at once
    beginning = asyncio.create_task(store.begin().__aenter__())
    await asyncio.sleep(0)
    beginning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await beginning
    task_id = uuid4()
    async with store.single() as tx:
        await tx.add_plain([Submission(id=task_id, kind="a")])
    async with store.single() as tx:
        assert await tx.tasks.existing_tasks([task_id]) == {task_id}
    await store.close()
