"""The loops, one tick at a time: deadlines, timeouts and what a pulse finds to do; and the loops themselves."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from tests.kit.database import Server
from tests.kit.outage import away
from tests.kit.work import CRASH, begin, held, job, jobs, soon, state, task, until, waiting, worker

from windlass import Conflict, Engine, Outcome, Policy, State
from windlass.engine.loops import runner
from windlass.engine.loops.runner import Loop
from windlass.errors import Unavailable
from windlass.testing.clock import VirtualClock


async def test_an_attempt_that_takes_too_long_is_a_failure_and_is_retried(engine: Engine, clock: VirtualClock) -> None:
    lease = await worker(engine, ttl_s=3600)
    claimed = await begin(engine, lease, policy=Policy(timeout_s=30, retry_delay_s=5))
    await clock.advance(29)
    assert await engine.loops.timer_tick() == 0
    await clock.advance(1)
    assert await engine.loops.timer_tick() == 1
    timed_out = await task(engine, claimed.task.id)
    assert (timed_out.state, timed_out.failures, timed_out.losses) == (State.QUEUED, 1, 0)
    assert (timed_out.outcome, timed_out.error.reason) == (Outcome.TIMED_OUT, "ATTEMPT_TIMEOUT")  # type: ignore[union-attr]
    with pytest.raises(Conflict):
        await engine.complete(claimed)


async def test_a_timeout_runs_from_the_start_of_each_attempt(engine: Engine, clock: VirtualClock) -> None:
    lease = await worker(engine, ttl_s=3600)
    await engine.submit(job(policy=Policy(timeout_s=30)))
    await clock.advance(300)
    [claimed] = await engine.claim(lease)
    await clock.advance(29)
    assert await engine.loops.timer_tick() == 0
    await engine.release(claimed)
    await clock.advance(300)
    assert await engine.loops.timer_tick() == 0, "nothing runs, so nothing takes too long"
    await engine.claim(lease)
    await clock.advance(30)
    assert await engine.loops.timer_tick() == 1


async def test_the_last_timeout_fails_the_task(engine: Engine, clock: VirtualClock) -> None:
    claimed = await begin(engine, policy=Policy(timeout_s=30, max_attempts=1))
    await clock.advance(30)
    await engine.loops.timer_tick()
    assert await state(engine, claimed.task.id) is State.FAILED


@pytest.mark.parametrize("where", ["queued", "running", "delayed", "blocked"])
async def test_a_deadline_ends_a_task_wherever_it_is(engine: Engine, clock: VirtualClock, where: str) -> None:
    now = await clock.now()
    deadline, lease = now + timedelta(seconds=60), await worker(engine, ttl_s=3600)
    if where == "blocked":
        run_id, first = engine.parts.randomness.new_id(), engine.parts.randomness.new_id()
        after = job(run_id=run_id, after=(first,), deadline_at=deadline)
        _, id_ = await engine.submit_many([job(run_id=run_id, id=first, queue="idle"), after])
    else:
        available_at = now + timedelta(hours=1) if where == "delayed" else None
        id_ = await engine.submit(job(deadline_at=deadline, available_at=available_at))
    if where == "running":
        await engine.claim(lease)
    await clock.advance(59)
    assert await engine.loops.timer_tick() == 0
    await clock.advance(1)
    assert await engine.loops.timer_tick() == 1
    ended = await task(engine, id_)
    assert (ended.state, ended.error.reason) == (State.FAILED, "DEADLINE_EXCEEDED")  # type: ignore[union-attr]
    assert await engine.claim(lease) == []


async def test_a_deadline_comes_before_a_later_timeout_and_stays_through_a_retry(
    engine: Engine, clock: VirtualClock
) -> None:
    deadline = await clock.now() + timedelta(seconds=60)
    claimed = await begin(engine, deadline_at=deadline, policy=Policy(timeout_s=3600, retry_delay_s=0))
    await engine.fail(claimed, CRASH)
    await engine.claim(await worker(engine, ttl_s=3600))
    await clock.advance(60)
    await engine.loops.timer_tick()
    assert await state(engine, claimed.task.id) is State.FAILED


async def test_a_result_in_time_takes_the_timer_away(engine: Engine, clock: VirtualClock) -> None:
    claimed = await begin(engine, policy=Policy(timeout_s=30))
    await engine.complete(claimed)
    await clock.advance(1000)
    assert await engine.loops.timer_tick() == 0
    assert await state(engine, claimed.task.id) is State.SUCCEEDED


async def test_timers_ring_once_whoever_ticks(engine: Engine, clock: VirtualClock) -> None:
    await engine.submit_many(jobs(30, deadline_at=await clock.now() + timedelta(seconds=1)))
    await clock.advance(1)
    assert sum(await soon(asyncio.gather(*(engine.loops.timer_tick() for _ in range(8))))) == 30
    assert await engine.tasks.totals() == {State.FAILED: 30}


async def test_a_timer_of_a_row_that_somebody_holds_does_not_keep_others_waiting(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    ids = await engine.submit_many(jobs(3, deadline_at=await clock.now() + timedelta(seconds=1)))
    await clock.advance(1)
    async with held(other_connection, ids[0]):
        assert await soon(engine.loops.timer_tick()) == 2
    assert await engine.loops.timer_tick() == 1


async def test_more_timers_than_one_tick_takes_all_ring(engine: Engine, clock: VirtualClock) -> None:
    await engine.submit_many(jobs(1100, deadline_at=await clock.now() + timedelta(seconds=1)))
    await clock.advance(1)
    rang = 0
    while done := await engine.loops.timer_tick():
        rang += done
    assert rang == 1100


# ------------------------------------------------------------------------------------------------- an engine that runs


async def test_an_engine_that_runs_does_all_of_it_by_itself(live_engine: Engine, pace: float) -> None:
    """Timeout, lost lease, deadline, sleep and dependency, without a tick by hand."""
    engine, now = live_engine, (await live_engine.tasks.get(await live_engine.submit(job(queue="x")))).created_at
    lease, short = await worker(engine), await worker(engine, "short", ttl_s=0.5 * pace)
    run_id, first, second = (engine.parts.randomness.new_id() for _ in range(3))
    timed_out = await begin(engine, lease, policy=Policy(timeout_s=0.2 * pace, max_attempts=1))
    asleep = await begin(engine, lease)
    lost = await begin(engine, short, queue="short", policy=Policy(max_losses=1))
    await engine.sleep(asleep, now + timedelta(seconds=0.3 * pace))
    late = await engine.submit(job(queue="idle", deadline_at=now + timedelta(seconds=0.3 * pace)))
    await engine.submit_many(
        [job(id=first, run_id=run_id), job(id=second, run_id=run_id, after=(first,), queue="after")]
    )
    [upstream] = [c for c in await engine.claim(lease, 5, wait_s=20) if c.task.id == first]
    await engine.complete(upstream)
    [after] = await soon(engine.claim(await worker(engine, "after"), wait_s=20))
    assert after.task.id == second
    for id_, final in ((timed_out.task.id, State.FAILED), (lost.task.id, State.FAILED), (late, State.FAILED)):
        assert (await soon(engine.wait(id_, 20))).task.state is final
    [woken] = await soon(engine.claim(await worker(engine), wait_s=20))
    assert woken.task.id == asleep.task.id


async def test_an_engine_survives_that_its_database_is_away(
    live_engine: Engine, postgres: Server, database: str
) -> None:
    lease = await worker(live_engine, ttl_s=60)
    waits = asyncio.create_task(live_engine.claim(lease, wait_s=60))
    await until(lambda: waiting(live_engine) == 1)
    async with away(postgres, database):
        submit = asyncio.create_task(live_engine.submit(job()))
        await asyncio.sleep(0.1)
    id_ = await soon(submit, 30)
    outcome = await asyncio.gather(soon(waits, 30), return_exceptions=True)
    if isinstance(outcome[0], BaseException):  # it looked while the database was away: a worker claims again
        outcome = [await soon(live_engine.claim(lease, wait_s=20))]
    assert [c.task.id for c in outcome[0]] == [id_]


# ------------------------------------------------------------------------------------------------- loops


async def test_a_loop_ticks_again_at_once_while_there_is_work_and_then_waits_to_be_woken() -> None:
    left, ticks, idle = 3, 0, asyncio.Event()

    async def tick() -> int:
        nonlocal left, ticks
        ticks += 1
        if left == 0:
            idle.set()
            return 0
        left -= 1
        return 1

    loop = Loop("test", tick, every_s=3600)
    loop.start()
    await soon(idle.wait())
    assert ticks == 4
    idle.clear()
    left = 1
    loop.wake()
    await soon(idle.wait())
    assert ticks == 6
    await loop.stop()


async def test_a_loop_that_fails_goes_on(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(runner, "AFTER_ERROR_S", 0)
    outcomes: list[Any] = [ValueError("a defect"), Unavailable("away"), 0]
    done = asyncio.Event()

    async def tick() -> int:
        outcome = outcomes.pop(0) if outcomes else 0
        if isinstance(outcome, Exception):
            raise outcome
        done.set()
        return 0

    loop = Loop("test", tick, every_s=0.001)
    loop.start()
    await soon(done.wait())
    await loop.stop()
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]


async def test_a_loop_that_is_stopped_in_the_middle_of_a_tick_ends() -> None:
    began = asyncio.Event()

    async def tick() -> int:
        began.set()
        await asyncio.sleep(3600)
        return 0

    loop = Loop("test", tick, every_s=1)
    loop.start()
    await soon(began.wait())
    await soon(loop.stop())
    await loop.stop()
