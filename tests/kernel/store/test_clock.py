"""windlass.now(): the only clock, stable within a statement, and moved by the test kit alone."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from windlass.store.store import Store
from windlass.testing.clock import VirtualClock, virtual_clock

VOLATILITY = "select provolatile::text from pg_proc where oid = 'windlass.now()'::regprocedure"


async def test_the_clock_is_stable_so_that_it_may_bound_an_index_scan(other_connection: asyncpg.Connection) -> None:
    assert await other_connection.fetchval(VOLATILITY) == "s"


async def test_the_clock_of_the_test_kit_is_stable_too(
    clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    assert await other_connection.fetchval(VOLATILITY) == "s"


async def test_the_clock_has_no_hook_in_production(other_connection: asyncpg.Connection) -> None:
    body = await other_connection.fetchval("select prosrc from pg_proc where oid = 'windlass.now()'::regprocedure")
    assert body.split() == ["select", "statement_timestamp()"]


async def test_time_goes_on_between_the_statements_of_a_transaction(other_connection: asyncpg.Connection) -> None:
    """Read after a lock was waited for, it is not the time before the wait."""
    async with other_connection.transaction():
        first = await other_connection.fetchval("select windlass.now()")
        assert await other_connection.fetchval("select windlass.now()") > first


async def test_time_stands_still_until_it_is_moved(clock: VirtualClock, store: Store) -> None:
    async with store.begin() as tx:
        before = await tx.now()
    assert await clock.now() == before
    assert await clock.advance(12.5) == before + timedelta(seconds=12.5)
    async with store.begin() as tx:
        assert await tx.now() == before + timedelta(seconds=12.5)


async def test_moving_the_clock_rings_the_alarms_that_are_due_in_their_order(clock: VirtualClock) -> None:
    rang: list[str] = []
    for name, delay_s in (("late", 9.0), ("second", 2.0), ("first", 1.0), ("never", 100.0), ("also second", 2.0)):
        clock.call_later(delay_s, lambda name=name: rang.append(name))  # type: ignore[misc]
    clock.call_later(3.0, lambda: rang.append("cancelled")).cancel()
    await clock.advance(5)
    assert rang == ["first", "second", "also second"]
    assert clock.alarms == [4.0, 95.0]
    await clock.advance(5)
    assert rang[3:] == ["late"]
    assert clock.stopwatch() == 10


async def test_two_clocks_of_one_database_are_one_time(clock: VirtualClock, database: str) -> None:
    other = await virtual_clock(database)
    await clock.advance(60)
    assert await other.now() == await clock.now()
    await other.close()


@pytest.mark.parametrize("seconds", [-5.0, 0.0])
async def test_a_clock_may_be_set_back(clock: VirtualClock, seconds: float) -> None:
    before = await clock.now()
    assert await clock.advance(seconds) == before + timedelta(seconds=seconds)


async def test_an_alarm_without_delay_needs_no_move(clock: VirtualClock) -> None:
    rang = asyncio.Event()
    clock.call_later(0.0, rang.set)
    await asyncio.wait_for(rang.wait(), 10)
