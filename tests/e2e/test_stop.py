"""Stopping comes through, also when it comes together with something else."""

from __future__ import annotations

import asyncio

import pytest

from windlass.engine.loops.runner import Loop
from windlass.store.pool import Pool

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("turns", range(4))
async def test_a_loop_that_is_stopped_just_when_it_was_woken_stops(turns: int) -> None:
    ticked = asyncio.Event()

    async def tick() -> int:
        ticked.set()
        return 0

    loop = Loop("loop", tick, every_s=3600)
    loop.start()
    await ticked.wait()
    await asyncio.sleep(0)
    loop.wake()
    for _ in range(turns):
        await asyncio.sleep(0)
    _, hanging = await asyncio.wait({asyncio.create_task(loop.stop())}, timeout=60)
    assert not hanging


@pytest.mark.parametrize("turns", range(4))
async def test_who_is_cancelled_just_when_a_connection_becomes_free_is_cancelled_and_the_next_gets_it(
    database: str, turns: int
) -> None:
    pool = Pool(database, pooled=False, size=1)
    session = await pool.acquire()
    first, second = asyncio.create_task(pool.acquire()), asyncio.create_task(pool.acquire())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    pool.release(session)
    for _ in range(turns):
        await asyncio.sleep(0)
    if first.cancel():
        with pytest.raises(asyncio.CancelledError):
            await first
    else:
        pool.release(first.result())
    pool.release(await asyncio.wait_for(second, 60))
    await pool.close()
