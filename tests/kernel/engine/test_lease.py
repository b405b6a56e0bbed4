"""Leases: heartbeats for many tasks at once, cancels told with them, and what a lost worker leaves behind."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import asyncpg
import pytest
from tests.kit.work import CRASH, begin, job, jobs, soon, state, task, until, worker

from windlass import Conflict, Engine, InvalidState, LeaseLost, NotFound, Outcome, Policy, State
from windlass.core.command import Cancelled
from windlass.testing.clock import VirtualClock


async def test_one_heartbeat_keeps_all_that_runs_under_a_lease(engine: Engine, clock: VirtualClock) -> None:
    lease = await worker(engine, ttl_s=10)
    await engine.submit_many(jobs(50))
    claimed = await engine.claim(lease, 50)
    for _ in range(5):
        now = await clock.advance(8)
        extension = await engine.extend_lease(lease, [c.task.id for c in claimed])
        assert extension.expires_at == now + timedelta(seconds=10)
        assert await engine.loops.expire_tick() == 0
    assert {(await task(engine, c.task.id)).state for c in claimed} == {State.RUNNING}


async def test_a_heartbeat_writes_one_narrow_row_and_no_task(
    engine: Engine, other_connection: asyncpg.Connection
) -> None:
    lease = await worker(engine)
    await engine.submit_many(jobs(20))
    claimed = await engine.claim(lease, 20)
    query = "select array_agg(xmin::text order by id) from windlass.task"
    before = await other_connection.fetchval(query)
    await engine.extend_lease(lease, [c.task.id for c in claimed])
    assert await other_connection.fetchval(query) == before


async def test_the_same_worker_again_is_another_lease(engine: Engine, clock: VirtualClock) -> None:
    """Every container is called the same; a new incarnation keeps nothing of the former one, and takes nothing."""
    first, second = await worker(engine, ttl_s=5), await worker(engine, ttl_s=50)
    claimed = await begin(engine, first)
    await clock.advance(4)
    await engine.extend_lease(first)
    await clock.advance(4)
    assert await engine.loops.expire_tick() == 0
    await clock.advance(2)
    assert await engine.loops.expire_tick() == 1
    assert (await task(engine, claimed.task.id)).outcome is Outcome.LOST
    await engine.extend_lease(second)


# ------------------------------------------------------------------------------------------------- lost workers


async def test_a_lost_worker_costs_a_loss_and_no_failure(engine: Engine, clock: VirtualClock) -> None:
    claimed = await begin(engine, await worker(engine, ttl_s=5), policy=Policy(max_attempts=1))
    await clock.advance(5)
    assert await engine.loops.expire_tick() == 1
    lost = await task(engine, claimed.task.id)
    assert (lost.state, lost.losses, lost.failures, lost.attempt) == (State.QUEUED, 1, 0, 1)
    assert lost.lease_id == claimed.task.lease_id, "attempt and lease stay on the row for a late reply"


async def test_a_task_that_kills_its_workers_is_failed_as_poison(engine: Engine, clock: VirtualClock) -> None:
    id_ = await engine.submit(job(policy=Policy(max_losses=3)))
    for _ in range(3):
        await clock.advance(1000)
        await engine.claim(await worker(engine, ttl_s=5))
        await clock.advance(5)
        await engine.loops.expire_tick()
    poison = await task(engine, id_)
    assert (poison.state, poison.losses) == (State.FAILED, 3)


async def test_a_lease_that_is_ended_gives_back_its_tasks_with_the_next_tick(
    engine: Engine, clock: VirtualClock
) -> None:
    lease = await worker(engine, ttl_s=3600)
    claimed = await begin(engine, lease)
    await engine.end_lease(lease)
    assert await engine.loops.expire_tick() == 1
    assert (await task(engine, claimed.task.id)).state is State.QUEUED
    with pytest.raises(LeaseLost):
        await engine.extend_lease(lease)
    await engine.end_lease(lease)


async def test_an_ended_lease_is_recovered_at_once_by_an_engine_that_runs(live_engine: Engine) -> None:
    lease = await worker(live_engine, ttl_s=3600)
    await begin(live_engine, lease, policy=Policy(retry_delay_s=0))
    other = await worker(live_engine)
    poll = asyncio.create_task(live_engine.claim(other, wait_s=60))
    await live_engine.end_lease(lease)
    assert len(await soon(poll)) == 1


async def test_more_tasks_than_one_tick_takes_are_all_recovered(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    lease = await worker(engine, ttl_s=5)
    await engine.submit_many(jobs(1100))
    await engine.claim(lease, 1100)
    await clock.advance(5)
    recovered = 0
    while done := await engine.loops.expire_tick():
        recovered += done
    assert recovered == 1100
    assert await other_connection.fetchval("select count(*) from windlass.lease") == 0


async def test_more_leases_than_one_tick_takes_are_all_removed(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    for _ in range(45):
        await begin(engine, await worker(engine, ttl_s=5))
    await clock.advance(5)
    while await engine.loops.expire_tick():
        pass
    assert await engine.tasks.totals() == {State.QUEUED: 45}
    assert await other_connection.fetchval("select count(*) from windlass.lease") == 0


# ------------------------------------------------------------------------------------------------- forgotten tasks


async def test_a_task_that_its_worker_does_not_name_is_taken_from_it(engine: Engine, clock: VirtualClock) -> None:
    """The reply to its claim never arrived: it would run for as long as the worker lives."""
    lease = await worker(engine, ttl_s=10)
    known, forgotten = [await begin(engine, lease) for _ in range(2)]
    for _ in range(3):
        await clock.advance(5)
        await engine.extend_lease(lease, [known.task.id])
    assert await state(engine, known.task.id) is State.RUNNING
    lost = await task(engine, forgotten.task.id)
    assert (lost.state, lost.losses, lost.error.reason) == (State.QUEUED, 1, "FORGOTTEN_BY_WORKER")  # type: ignore[union-attr]


async def test_a_task_that_may_still_be_on_its_way_is_not_forgotten(engine: Engine, clock: VirtualClock) -> None:
    lease = await worker(engine, ttl_s=10)
    claimed = await begin(engine, lease)
    await clock.advance(5)
    await engine.extend_lease(lease, [])
    assert await state(engine, claimed.task.id) is State.RUNNING


async def test_a_worker_that_names_nothing_at_all_loses_nothing(engine: Engine, clock: VirtualClock) -> None:
    lease = await worker(engine, ttl_s=10)
    claimed = await begin(engine, lease)
    for _ in range(5):
        await clock.advance(9)
        await engine.extend_lease(lease)
    assert await state(engine, claimed.task.id) is State.RUNNING


async def test_a_heartbeat_tells_the_worker_what_it_has_lost(engine: Engine, clock: VirtualClock) -> None:
    lease = await worker(engine, ttl_s=3600)
    timed_out, fine = await begin(engine, lease, policy=Policy(timeout_s=5)), await begin(engine, lease)
    await clock.advance(5)
    await engine.loops.timer_tick()
    extension = await engine.extend_lease(lease, [timed_out.task.id, fine.task.id])
    assert [getattr(lost, "task_id", lost) for lost in extension.lost] == [timed_out.task.id]


# ------------------------------------------------------------------------------------------------- cancel


async def test_what_waits_is_cancelled_at_once(engine: Engine) -> None:
    queued = await engine.submit(job())
    asleep = await begin(engine, queue="other")
    await engine.sleep(asleep, None)
    for id_ in (queued, asleep.task.id):
        ended = await engine.cancel(id_, "no longer needed")
        assert (ended.state, ended.error.message) == (State.CANCELLED, "no longer needed")  # type: ignore[union-attr]
    assert await engine.claim(await worker(engine)) == []


async def test_a_running_task_hears_of_its_cancel_with_the_heartbeat_every_time(engine: Engine) -> None:
    lease = await worker(engine)
    claimed, other = await begin(engine, lease), await begin(engine, lease)
    assert (await engine.cancel(claimed.task.id, "enough")).state is State.RUNNING
    for _ in range(2):
        [signal] = (await engine.extend_lease(lease)).cancels
        assert (signal.task_id, signal.attempt, signal.reason) == (claimed.task.id, 1, "enough")
    assert await engine.report([Cancelled(claimed.task.id, 1, lease.id)]) == [State.CANCELLED]
    assert (await engine.extend_lease(lease)).cancels == ()
    assert await state(engine, other.task.id) is State.RUNNING


async def test_the_grace_runs_from_the_moment_the_worker_has_heard(engine: Engine, clock: VirtualClock) -> None:
    lease = await worker(engine, ttl_s=3600)
    claimed = await begin(engine, lease, policy=Policy(cancel_grace_s=30))
    await engine.cancel(claimed.task.id)
    await clock.advance(600)
    await engine.loops.timer_tick()
    assert await state(engine, claimed.task.id) is State.RUNNING, "nobody has told it yet"
    await engine.extend_lease(lease)
    await clock.advance(29)
    await engine.loops.timer_tick()
    await engine.extend_lease(lease)  # telling it again does not give it more time
    assert await state(engine, claimed.task.id) is State.RUNNING
    await clock.advance(1)
    assert await engine.loops.timer_tick() == 1
    ended = await task(engine, claimed.task.id)
    assert (ended.state, ended.error.reason) == (State.FAILED, "CANCEL_TIMEOUT")  # type: ignore[union-attr]


async def test_a_worker_that_is_lost_before_it_hears_ends_as_cancelled(engine: Engine, clock: VirtualClock) -> None:
    claimed = await begin(engine, await worker(engine, ttl_s=5))
    await engine.cancel(claimed.task.id)
    await clock.advance(5)
    await engine.loops.expire_tick()
    assert await state(engine, claimed.task.id) is State.CANCELLED


async def test_a_forced_cancel_ends_at_once_and_the_worker_is_fenced_off(engine: Engine) -> None:
    claimed = await begin(engine)
    assert (await engine.cancel(claimed.task.id, force=True)).state is State.CANCELLED
    with pytest.raises(Conflict):
        await engine.complete(claimed)


async def test_a_result_that_comes_before_the_cancel_was_obeyed_counts(engine: Engine) -> None:
    claimed = await begin(engine)
    await engine.cancel(claimed.task.id)
    assert (await engine.complete(claimed)).state is State.SUCCEEDED


async def test_cancel_beats_retry(engine: Engine) -> None:
    claimed = await begin(engine)
    await engine.cancel(claimed.task.id)
    assert (await engine.fail(claimed, CRASH)).state is State.CANCELLED


async def test_cancelling_again_is_harmless_and_what_has_ended_otherwise_refuses(engine: Engine) -> None:
    id_ = await engine.submit(job())
    await engine.cancel(id_)
    assert (await engine.cancel(id_)).state is State.CANCELLED
    done = await begin(engine)
    await engine.complete(done)
    with pytest.raises(InvalidState):
        await engine.cancel(done.task.id)
    with pytest.raises(NotFound):
        await engine.cancel(engine.parts.randomness.new_id())


async def test_news_of_a_cancel_wakes_the_worker_that_waits_for_it(engine: Engine) -> None:
    lease = await worker(engine)
    claimed = await begin(engine, lease)
    await engine.await_notification(lease, 0)
    news = asyncio.create_task(engine.await_notification(lease, 3600))
    await asyncio.sleep(0)
    await engine.cancel(claimed.task.id)
    assert await soon(news) is True


async def test_news_that_came_before_the_worker_waited_is_not_lost(engine: Engine) -> None:
    lease = await worker(engine)
    claimed = await begin(engine, lease)
    await engine.await_notification(lease, 0)
    await engine.cancel(claimed.task.id)
    assert await soon(engine.await_notification(lease, 3600)) is True
    await engine.extend_lease(lease)
    assert await engine.await_notification(lease, 0) is False, "what was told is no news"


async def test_without_news_the_wait_ends_with_its_time(engine: Engine, clock: VirtualClock) -> None:
    lease = await worker(engine)
    await engine.await_notification(lease, 0)  # the first one begins to poll, which wakes whoever waits
    news = asyncio.create_task(engine.await_notification(lease, 10))
    await until(lambda: 10.0 in clock.alarms)
    await clock.advance(10)
    assert await soon(news) is False
