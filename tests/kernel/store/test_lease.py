"""Leases against claims, heartbeats and expiry that happen at the same time, on real locks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from uuid import UUID

import asyncpg
import pytest
from tests.kit.work import begin, held, job, soon, state, task, waits_for, worker

from windlass import Engine, LeaseLost, Outcome, State
from windlass.core.fairness import FIRST_LANE
from windlass.store.store import Store
from windlass.testing.clock import VirtualClock


async def test_a_claim_in_flight_keeps_its_lease_from_expiring(
    engine: Engine, store: Store, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    """The key share lock of the claim makes expiry pass the lease by; what was claimed is recovered afterwards."""
    await engine.submit(job())
    lease = await worker(engine, ttl_s=5)
    async with store.begin() as tx:
        view = await tx.queues.open_claim(lease, "default", FIRST_LANE, 10)
        assert view.live
        await clock.advance(6)
        assert await soon(engine.loops.expire_tick()) == 0
        assert await other_connection.fetchval("select count(*) from windlass.lease") == 1
    await engine.loops.expire_tick()
    assert await other_connection.fetchval("select count(*) from windlass.lease") == 0


@pytest.mark.parametrize("lanes", [1, 2])
async def test_what_was_claimed_while_the_lease_ran_out_is_recovered(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection, lanes: int
) -> None:
    """At once, and in several steps, as it is where a queue is known to have more than one lane."""
    lease = await worker(engine, ttl_s=5)
    if lanes == 2:
        await engine.submit_many([job(priority=1), job(priority=2)])
        await engine.claim(lease)
    task_id = await engine.submit(job())
    async with held_lease(other_connection, lease.id):
        claim = asyncio.create_task(engine.claim(lease))
        await waits_for(other_connection)
        await clock.advance(6)
    [claimed] = await soon(claim)  # live when the claim began
    assert await engine.loops.expire_tick() == lanes
    assert (await task(engine, task_id)).outcome is Outcome.LOST
    assert (await engine.complete(claimed)).state is State.SUCCEEDED, "and may still report until a newer one begins"


async def test_a_claim_that_waited_for_the_expiry_of_its_lease_gets_nothing(
    engine: Engine, store: Store, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    await engine.submit(job())
    lease = await worker(engine, ttl_s=5)
    async with held_lease(other_connection, lease.id):
        claim = asyncio.create_task(engine.claim(lease))
        await waits_for(other_connection)
        await other_connection.execute("delete from windlass.lease where id = $1", lease.id)  # as expiry does
    with pytest.raises(LeaseLost):
        await soon(claim)
    assert len(await engine.claim(await worker(engine))) == 1


async def test_a_heartbeat_that_waited_for_the_expiry_of_its_lease_is_told_so(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    lease = await worker(engine, ttl_s=5)
    async with held_lease(other_connection, lease.id):
        beat = asyncio.create_task(engine.extend_lease(lease))
        await waits_for(other_connection)
        await other_connection.execute("delete from windlass.lease where id = $1", lease.id)
    with pytest.raises(LeaseLost):
        await soon(beat)


async def test_a_lease_that_a_heartbeat_has_just_extended_does_not_expire(
    engine: Engine, store: Store, clock: VirtualClock
) -> None:
    lease = await worker(engine, ttl_s=5)
    claimed = await begin(engine, lease)
    await clock.advance(4.9)
    async with store.begin() as tx:
        extended = await tx.leases.extend_leases([lease.id])
        await clock.advance(0.2)
        assert await soon(engine.loops.expire_tick()) == 0, "the row is being written: expiry passes it by"
    assert extended[lease.id][0] > await clock.now()
    assert await engine.loops.expire_tick() == 0
    assert await state(engine, claimed.task.id) is State.RUNNING


async def test_a_heartbeat_that_comes_too_late_revives_nothing(engine: Engine, clock: VirtualClock) -> None:
    lease = await worker(engine, ttl_s=5)
    await begin(engine, lease)
    await clock.advance(5)
    with pytest.raises(LeaseLost):
        await engine.extend_lease(lease)
    assert await engine.loops.expire_tick() == 1


async def test_two_engines_that_expire_at_once_count_one_loss(engine: Engine, clock: VirtualClock) -> None:
    claimed = await begin(engine, await worker(engine, ttl_s=5))
    await clock.advance(5)
    assert sum(await soon(asyncio.gather(*(engine.loops.expire_tick() for _ in range(8))))) == 1
    assert (await task(engine, claimed.task.id)).losses == 1


async def test_a_lease_is_kept_until_a_task_that_somebody_holds_is_recovered_too(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    lease = await worker(engine, ttl_s=5)
    first, second = [await begin(engine, lease) for _ in range(2)]
    await clock.advance(5)
    async with held(other_connection, second.task.id):
        assert await soon(engine.loops.expire_tick()) == 1
        assert await other_connection.fetchval("select count(*) from windlass.lease") == 1
    assert await engine.loops.expire_tick() == 1
    assert await other_connection.fetchval("select count(*) from windlass.lease") == 0
    assert [await state(engine, c.task.id) for c in (first, second)] == [State.QUEUED] * 2


async def test_heartbeats_that_come_together_share_transactions(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    leases = [await worker(engine, ttl_s=30) for _ in range(50)]
    now = await clock.advance(7)
    extensions = await soon(asyncio.gather(*map(engine.extend_lease, leases)))
    assert {e.expires_at for e in extensions} == {now + timedelta(seconds=30)}
    assert await other_connection.fetchval("select count(distinct xmin::text) from windlass.lease") <= 3


async def test_the_lease_table_has_no_index_on_its_time(other_connection: asyncpg.Connection) -> None:
    """An indexed time would make every heartbeat a non-HOT update."""
    rows = await other_connection.fetch(
        "select indexdef from pg_indexes where schemaname = 'windlass' and tablename = 'lease'"
    )
    assert [row[0] for row in rows if "expires_at" in row[0]] == []


@asynccontextmanager
async def held_lease(other_connection: asyncpg.Connection, lease_id: UUID) -> AsyncIterator[None]:
    """Somebody's transaction that has locked the row of this lease, as expiry does."""
    async with other_connection.transaction():
        await other_connection.execute("select from windlass.lease where id = $1 for update", lease_id)
        yield
