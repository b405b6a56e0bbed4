"""Settling runs: a run or a task that somebody holds is told later, the others at once."""

from __future__ import annotations

import asyncio
from uuid import UUID

import asyncpg
import pytest
from tests.kit.work import held, job, soon, state, waits_for, worker

from windlass import Engine, State
from windlass.engine.loops import ticks as tick_module
from windlass.engine.loops.ticks import HELD_DELAY_S
from windlass.testing.clock import VirtualClock


@pytest.fixture
async def pairs(engine: Engine) -> list[list[UUID]]:
    """Two runs of two tasks, the second after the first, which has succeeded."""
    pairs = []
    for _ in range(2):
        run_id, first, second = (engine.parts.randomness.new_id() for _ in range(3))
        after = job(run_id=run_id, id=second, after=(first,))
        pairs.append(await engine.submit_many([job(run_id=run_id, id=first), after]))
    for claimed in await engine.claim(await worker(engine), 2):
        await engine.complete(claimed)
    return pairs


async def test_a_task_that_somebody_holds_does_not_keep_other_runs_waiting(
    engine: Engine, clock: VirtualClock, pairs: list[list[UUID]], other_connection: asyncpg.Connection
) -> None:
    async with held(other_connection, pairs[0][1]):
        assert await soon(engine.loops.settle_tick()) == 1
        assert await state(engine, pairs[1][1]) is State.QUEUED
        assert await engine.loops.settle_tick() == 0, "what is held does not stand at the head of the line"
    await clock.advance(HELD_DELAY_S)
    assert await engine.loops.settle_tick() == 1
    assert await state(engine, pairs[0][1]) is State.QUEUED


async def test_a_run_that_somebody_holds_does_not_keep_other_runs_waiting(
    engine: Engine, clock: VirtualClock, pairs: list[list[UUID]], other_connection: asyncpg.Connection
) -> None:
    run_id = (await engine.tasks.get(pairs[0][0])).task.run_id
    async with other_connection.transaction():
        await other_connection.execute("select from windlass.run where id = $1 for update", run_id)
        assert await soon(engine.loops.settle_tick()) == 1
        assert await state(engine, pairs[1][1]) is State.QUEUED
    await clock.advance(HELD_DELAY_S)
    assert await engine.loops.settle_tick() == 1
    assert await state(engine, pairs[0][1]) is State.QUEUED


async def test_what_is_held_for_a_moment_only_is_told_in_the_same_tick(
    engine: Engine, pairs: list[list[UUID]], other_connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tick_module, "HELD_WAIT_MS", 60_000)
    async with held(other_connection, pairs[0][1]):
        tick = asyncio.create_task(engine.loops.settle_tick())
        await waits_for(other_connection)
    assert await soon(tick) == 2


async def test_two_engines_that_settle_at_once_release_each_task_once(
    engine: Engine, pairs: list[list[UUID]], other_connection: asyncpg.Connection
) -> None:
    await soon(asyncio.gather(*(engine.loops.settle_tick() for _ in range(8))))
    assert [await state(engine, pair[1]) for pair in pairs] == [State.QUEUED] * 2
    assert await other_connection.fetchval("select count(*) from windlass.outbox") == 0
    assert await other_connection.fetchval("select count(*) from windlass.edge") == 0
