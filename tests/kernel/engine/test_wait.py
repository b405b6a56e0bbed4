"""Waiting for the end of a task: told by a wake-up, in time, and never too early."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.kit.work import CRASH, FATAL, begin, job, soon, until

from windlass import Engine, NotFound, State
from windlass.testing.clock import VirtualClock


async def waiting_for(engine: Engine, clock: VirtualClock, task_id: Any) -> asyncio.Task[Any]:
    waits = asyncio.create_task(engine.wait(task_id, 1000))
    await until(lambda: any(alarm > 500 for alarm in clock.alarms))
    return waits


@pytest.mark.parametrize("how", ["complete", "fail", "cancel"])
async def test_it_returns_when_the_task_has_ended(engine: Engine, clock: VirtualClock, how: str) -> None:
    claimed = await begin(engine)
    waits = await waiting_for(engine, clock, claimed.task.id)
    if how == "complete":
        await engine.complete(claimed, b"42")
    elif how == "fail":
        await engine.fail(claimed, FATAL)
    else:
        await engine.cancel(claimed.task.id, force=True)
    assert (await soon(waits)).task.terminal


async def test_it_returns_at_once_when_the_task_has_ended_already(engine: Engine) -> None:
    claimed = await begin(engine)
    await engine.complete(claimed, b"42")
    assert (await soon(engine.wait(claimed.task.id, 1000))).task.result == b"42"


async def test_it_returns_the_task_as_it_is_when_the_time_is_over(engine: Engine, clock: VirtualClock) -> None:
    id_ = await engine.submit(job())
    waits = await waiting_for(engine, clock, id_)
    await clock.advance(999)
    await asyncio.sleep(0.01)
    assert not waits.done()
    await clock.advance(1)
    assert (await soon(waits)).task.state is State.QUEUED


async def test_without_patience_it_is_a_look(engine: Engine) -> None:
    assert (await soon(engine.wait(await engine.submit(job()), 0))).task.state is State.QUEUED


async def test_a_wake_up_for_everybody_does_not_end_it_early(engine: Engine, clock: VirtualClock) -> None:
    """As a poll without LISTEN gives, or a connection that was lost and made again."""
    claimed = await begin(engine)
    waits = await waiting_for(engine, clock, claimed.task.id)
    for _ in range(3):
        await engine.loops.poll_tick()
        await asyncio.sleep(0.01)
    assert not waits.done()
    await until(lambda: any(alarm > 500 for alarm in clock.alarms))
    await engine.complete(claimed)
    assert (await soon(waits)).task.state is State.SUCCEEDED


async def test_many_wait_for_one_task(engine: Engine, clock: VirtualClock) -> None:
    claimed = await begin(engine)
    waits = [asyncio.create_task(engine.wait(claimed.task.id, 1000)) for _ in range(10)]
    await until(lambda: len([alarm for alarm in clock.alarms if alarm > 500]) == 10)
    await engine.complete(claimed)
    assert {view.task.state for view in await soon(asyncio.gather(*waits))} == {State.SUCCEEDED}


async def test_a_retry_is_not_the_end(engine: Engine, clock: VirtualClock) -> None:
    claimed = await begin(engine)
    waits = await waiting_for(engine, clock, claimed.task.id)
    await engine.fail(claimed, CRASH)
    await asyncio.sleep(0.01)
    assert not waits.done()
    await engine.cancel(claimed.task.id)
    assert (await soon(waits)).task.state is State.CANCELLED


async def test_an_unknown_task_is_not_found(engine: Engine) -> None:
    with pytest.raises(NotFound):
        await engine.wait(engine.parts.randomness.new_id(), 10)


async def test_who_goes_leaves_nothing_behind(engine: Engine, clock: VirtualClock) -> None:
    claimed = await begin(engine)
    waits = await waiting_for(engine, clock, claimed.task.id)
    waits.cancel()
    await asyncio.gather(waits, return_exceptions=True)
    assert [alarm for alarm in clock.alarms if alarm > 500] == []
    assert (await engine.complete(claimed)).state is State.SUCCEEDED
