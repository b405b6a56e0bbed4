"""Connections: one that broke is not given to the next, whatever the driver has noticed of it."""

from __future__ import annotations

import pytest

from windlass import StoreBusy
from windlass.store import pool as sessions
from windlass.store.pool import Pool


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
