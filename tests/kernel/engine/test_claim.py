"""Long polls: whatever makes a task claimable wakes who waits for it, and a poll that goes strands nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from tests.kit.work import (
    CRASH,
    SOON_S,
    begin,
    held,
    job,
    jobs,
    only_direct,
    poll,
    settle,
    soon,
    state,
    task,
    until,
    waiting,
    waits_for,
    worker,
)

from windlass import Category, Claimed, Engine, Failure, LeaseLost, Policy, Rate, State
from windlass.core.command import Park
from windlass.engine.claim.strategies import LOCKED_RETRY_S
from windlass.store.errors import CommitUnknown
from windlass.store.pool import Session
from windlass.store.store import Store
from windlass.testing.clock import VirtualClock

Steps = AsyncIterator[None]


async def test_a_claim_without_patience_returns_at_once(engine: Engine) -> None:
    assert await soon(engine.claim(await worker(engine))) == []


async def test_a_poll_ends_with_nothing_when_its_time_is_over(engine: Engine, clock: VirtualClock) -> None:
    lease = await worker(engine, ttl_s=3600)
    async with poll(engine, lease, wait_s=30) as waits:
        await clock.advance(29)
        await asyncio.sleep(0.01)
        assert not waits.done()
        await clock.advance(1)
        assert await soon(waits) == []
    assert waiting(engine) == 0


# ------------------------------------------------------------------------------------------------- what wakes


# Each prepares, yields, and then acts while a poll waits.


async def a_submit(engine: Engine, clock: VirtualClock) -> Steps:
    yield
    await engine.submit(job())


async def a_submit_of_many(engine: Engine, clock: VirtualClock) -> Steps:
    yield
    await engine.submit_many(jobs(3))


async def a_submit_with_a_key(engine: Engine, clock: VirtualClock) -> Steps:
    yield
    await engine.submit(job(idempotency_key="k"))


async def a_submit_into_a_run(engine: Engine, clock: VirtualClock) -> Steps:
    yield
    await engine.submit(job(run_id=engine.parts.randomness.new_id()))


async def a_retry_that_is_due(engine: Engine, clock: VirtualClock) -> Steps:
    claimed = await begin(engine, policy=Policy(retry_delay_s=5))
    yield
    await engine.fail(claimed, CRASH)
    await until(lambda: any(alarm < 7 for alarm in clock.alarms))
    await clock.advance(7)


async def a_release(engine: Engine, clock: VirtualClock) -> Steps:
    claimed = await begin(engine)
    yield
    await engine.release(claimed)


async def a_resume(engine: Engine, clock: VirtualClock) -> Steps:
    claimed = await begin(engine)
    await engine.report([Park(claimed.task.id, 1, claimed.task.lease_id, Failure(Category.CONFIGURATION, "no"))])
    yield
    await engine.resume(claimed.task.id)


async def a_wake(engine: Engine, clock: VirtualClock) -> Steps:
    claimed = await begin(engine)
    await engine.sleep(claimed, None)
    yield
    await engine.wake(claimed.task.id)


async def the_end_of_a_sleep(engine: Engine, clock: VirtualClock) -> Steps:
    claimed = await begin(engine)
    await engine.sleep(claimed, await clock.now() + timedelta(seconds=5))
    yield
    await clock.advance(5)
    await engine.loops.timer_tick()


async def a_lost_worker(engine: Engine, clock: VirtualClock) -> Steps:
    await begin(engine, await worker(engine, ttl_s=5), policy=Policy(retry_delay_s=0))
    yield
    await clock.advance(5)
    await engine.loops.expire_tick()


async def a_timeout(engine: Engine, clock: VirtualClock) -> Steps:
    await begin(engine, policy=Policy(timeout_s=5, retry_delay_s=0))
    yield
    await clock.advance(5)
    await engine.loops.timer_tick()


async def a_dependency(engine: Engine, clock: VirtualClock) -> Steps:
    run_id, first, second = (engine.parts.randomness.new_id() for _ in range(3))
    elsewhere = job(id=first, run_id=run_id, queue="elsewhere")
    await engine.submit_many([elsewhere, job(id=second, run_id=run_id, after=(first,))])
    [claimed] = await engine.claim(await worker(engine, "elsewhere"))
    yield
    await engine.complete(claimed)
    await settle(engine)


@pytest.mark.parametrize(
    "steps",
    [
        a_submit, a_submit_of_many, a_submit_with_a_key, a_submit_into_a_run, a_retry_that_is_due, a_release, a_resume,
        a_wake, the_end_of_a_sleep, a_lost_worker, a_timeout, a_dependency,
    ],
)  # fmt: skip
async def test_a_poll_is_woken_by(
    engine: Engine, clock: VirtualClock, steps: Callable[[Engine, VirtualClock], AsyncIterator[None]]
) -> None:
    act = steps(engine, clock)
    await anext(act)
    async with poll(engine, await worker(engine, ttl_s=3600)) as waits:
        await anext(act, None)
        assert len(await soon(waits)) == 1


async def freed_place(engine: Engine, running: Claimed, clock: VirtualClock) -> None:
    await engine.complete(running)


async def freed_by_sleep(engine: Engine, running: Claimed, clock: VirtualClock) -> None:
    await engine.sleep(running, None)


async def freed_by_force(engine: Engine, running: Claimed, clock: VirtualClock) -> None:
    await engine.cancel(running.task.id, force=True)


async def higher_limit(engine: Engine, running: Claimed, clock: VirtualClock) -> None:
    await engine.configure_queue("default", max_running=2)


async def no_limit(engine: Engine, running: Claimed, clock: VirtualClock) -> None:
    await engine.configure_queue("default")


@pytest.mark.parametrize("free", [freed_place, freed_by_sleep, freed_by_force, higher_limit, no_limit])
async def test_a_poll_is_woken_by_a_limit_that_gives_way(engine: Engine, clock: VirtualClock, free: Any) -> None:
    await engine.configure_queue("default", max_running=1)
    lease = await worker(engine, ttl_s=3600)
    running = await begin(engine, lease)
    second = await engine.submit(job())
    async with poll(engine, lease) as waits:
        await free(engine, running, clock)
        assert [c.task.id for c in await soon(waits)] == [second]


async def test_a_poll_is_woken_when_its_queue_goes_on(engine: Engine) -> None:
    await engine.pause_queue("default")
    id_ = await engine.submit(job())
    async with poll(engine, await worker(engine)) as waits:
        await engine.pause_queue("default", paused=False)
        assert [c.task.id for c in await soon(waits)] == [id_]


async def test_a_poll_is_woken_when_the_rate_allows_it(engine: Engine, clock: VirtualClock) -> None:
    await engine.configure_queue("default", rate=Rate(1, 10.0))
    lease = await worker(engine, ttl_s=3600)
    await engine.submit_many(jobs(2))
    assert len(await engine.claim(lease, 2)) == 1
    async with poll(engine, lease) as waits:
        await clock.advance(9)
        await asyncio.sleep(0.01)
        assert not waits.done()
        await clock.advance(1.1)
        assert len(await soon(waits)) == 1


async def test_a_delayed_task_starts_when_it_is_due_by_one_timer(engine: Engine, clock: VirtualClock) -> None:
    now = await clock.now()
    ids = [await engine.submit(job(i, available_at=now + timedelta(seconds=10 * i))) for i in (3, 1, 2)]
    lease = await worker(engine, ttl_s=3600)
    async with poll(engine, lease, wait_s=100) as waits:
        assert [alarm for alarm in clock.alarms if alarm < 100] == [10.0], "one alarm for the queue: the next task"
        await clock.advance(9.9)
        await asyncio.sleep(0.01)
        assert not waits.done()
        await clock.advance(0.1)
        assert [c.task.id for c in await soon(waits)] == [ids[1]]


async def test_many_polls_of_one_queue_need_one_timer(engine: Engine, clock: VirtualClock) -> None:
    await engine.submit(job(available_at=await clock.now() + timedelta(seconds=10)))
    polls = [asyncio.create_task(engine.claim(await worker(engine), wait_s=100)) for _ in range(10)]
    await until(lambda: waiting(engine) == 10)
    assert [alarm for alarm in clock.alarms if alarm < 100] == [10.0]
    await clock.advance(10)
    done, _ = await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED, timeout=20)
    assert [len(one.result()) for one in done] == [1]
    for one in polls:
        one.cancel()
    await asyncio.gather(*polls, return_exceptions=True)


async def test_an_earlier_task_moves_the_timer_forward(engine: Engine, clock: VirtualClock) -> None:
    now = await clock.now()
    await engine.submit(job(available_at=now + timedelta(seconds=50)))
    async with poll(engine, await worker(engine, ttl_s=3600), wait_s=100) as waits:
        early = await engine.submit(job(available_at=now + timedelta(seconds=5)))
        await until(lambda: 5.0 in clock.alarms)
        await clock.advance(5)
        assert [c.task.id for c in await soon(waits)] == [early]


async def test_a_wake_up_between_the_look_and_the_wait_is_not_lost(
    engine: Engine, other_connection: asyncpg.Connection
) -> None:
    """The task is submitted while the poll's first look is on its way and cannot see it."""
    lease = await worker(engine)
    async with other_connection.transaction():
        await other_connection.execute("select from windlass.lease for update")
        waits = asyncio.create_task(engine.claim(lease, wait_s=60))
        await waits_for(other_connection)
        id_ = await engine.submit(job(queue="default"))
    assert [c.task.id for c in await soon(waits)] == [id_]


@only_direct
async def test_a_submitted_task_starts_within_milliseconds(store: Store, database: str) -> None:
    """Submitted through another engine, to one that would look by itself only after an hour."""
    async with Engine(store, poll_s=3600.0) as engine, Engine(Store(database), poll_s=3600.0) as other:
        lease, took = await worker(engine), []
        for i in range(20):
            async with poll(engine, lease) as waits:
                began = time.perf_counter()
                await other.submit(job(i))
                [claimed] = await soon(waits)
                took.append(time.perf_counter() - began)
            await engine.complete(claimed)
    assert min(took) < 0.1, took  # a few milliseconds on a quiet machine; on another one, at least once


async def test_a_new_lane_is_found_though_a_full_look_is_dear(
    engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look that took long puts off the next full one; what only that can see must not wait for another wake-up."""
    lease = await worker(engine, ttl_s=3600)
    slow_time = iter(range(10_000))
    monkeypatch.setattr(engine.parts.claimer, "_stopwatch", lambda: clock.stopwatch() + next(slow_time) * 0.5)
    await engine.submit(job(available_at=await clock.now() + timedelta(hours=1)))
    waits = asyncio.create_task(engine.claim(lease, wait_s=3600))
    await until(lambda: waiting(engine) == 1)
    monkeypatch.setattr(engine.parts.claimer, "_stopwatch", clock.stopwatch)
    id_ = await engine.submit(job(priority=-5, concurrency_key="new"))
    async with asyncio.timeout(SOON_S):
        while not waits.done():
            await clock.advance(1)
            await asyncio.sleep(0.005)
    assert [c.task.id for c in waits.result()] == [id_]


# ------------------------------------------------------------------------------------------------- fairness of waiting


async def test_one_task_wakes_one_of_many_polls(engine: Engine) -> None:
    polls = [asyncio.create_task(engine.claim(await worker(engine), wait_s=60)) for _ in range(20)]
    await until(lambda: waiting(engine) == 20)
    await engine.submit(job())
    done, rest = await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED, timeout=20)
    assert len(done) == 1
    await until(lambda: waiting(engine) == 19)
    for one in rest:
        one.cancel()
    await asyncio.gather(*rest, return_exceptions=True)


async def test_work_for_many_reaches_all_who_wait(engine: Engine) -> None:
    polls = [asyncio.create_task(engine.claim(await worker(engine), wait_s=60)) for _ in range(20)]
    await until(lambda: waiting(engine) == 20)
    ids = await engine.submit_many(jobs(20))
    claimed = [c for batch in await soon(asyncio.gather(*polls)) for c in batch]
    assert sorted(c.task.id for c in claimed) == sorted(ids)


async def test_polls_for_other_kinds_do_not_hold_up_each_other(engine: Engine) -> None:
    async with (
        poll(engine, await worker(engine, kinds=["a"])) as for_a,
        poll(engine, await worker(engine, kinds=["b"])) as for_b,
    ):
        await engine.submit(job(kind="b"))
        assert [c.task.kind for c in await soon(for_b)] == ["b"]
        assert not for_a.done()
        await engine.submit(job(kind="a"))
        assert [c.task.kind for c in await soon(for_a)] == ["a"]


async def test_a_poll_on_several_queues_is_woken_by_each(engine: Engine) -> None:
    lease = await worker(engine, "a", "b", "c")
    for queue in "abc":
        async with poll(engine, lease) as waits:
            await engine.submit(job(queue=queue))
            assert [c.task.queue for c in await soon(waits)] == [queue]


# ------------------------------------------------------------------------------------------------- polls that go


async def test_a_poll_that_is_cancelled_while_it_waits_leaves_the_line(engine: Engine) -> None:
    async with poll(engine, await worker(engine)):
        pass
    assert waiting(engine) == 0
    id_ = await engine.submit(job())
    assert await state(engine, id_) is State.QUEUED


async def test_what_a_cancelled_poll_had_claimed_is_released_without_using_a_budget(
    engine: Engine, other_connection: asyncpg.Connection
) -> None:
    """Cancelled while its look is on its way: the look goes on and claims, and its task is given back."""
    id_ = await engine.submit(job())
    lease = await worker(engine)
    await engine.configure_queue("default", max_running=5)
    async with other_connection.transaction():
        await other_connection.execute("select from windlass.queue for update")
        waits = asyncio.create_task(engine.claim(lease, wait_s=60))
        await waits_for(other_connection)
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
    other = await worker(engine)
    [claimed] = await soon(engine.claim(other, wait_s=60))
    assert claimed.task.id == id_
    assert (claimed.task.attempt, claimed.task.failures, claimed.task.losses) == (2, 0, 0)


async def test_a_poll_that_goes_when_work_was_handed_to_it_gives_it_back(
    engine: Engine, other_connection: asyncpg.Connection
) -> None:
    await engine.configure_queue("default", max_running=5)
    async with poll(engine, await worker(engine)) as waits:
        async with other_connection.transaction():
            await other_connection.execute("select from windlass.queue for update")
            submit = asyncio.create_task(engine.submit(job()))
            await waits_for(other_connection)
            waits.cancel()
            await asyncio.gather(waits, return_exceptions=True)
        id_ = await soon(submit)
    [claimed] = await soon(engine.claim(await worker(engine), wait_s=60))
    assert (claimed.task.id, claimed.task.failures, claimed.task.losses) == (id_, 0, 0)


async def test_a_wake_up_that_a_leaving_poll_has_used_is_passed_on(engine: Engine) -> None:
    first = asyncio.create_task(engine.claim(await worker(engine), wait_s=60))
    await until(lambda: waiting(engine) == 1)
    second = asyncio.create_task(engine.claim(await worker(engine), wait_s=60))
    await until(lambda: waiting(engine) == 2)
    engine.parts.notifications.wake_queue("default", "default")  # as a notification would: it goes to the first
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    id_ = await engine.submit(job())
    assert [c.task.id for c in await soon(second)] == [id_]


async def test_many_polls_that_come_and_go_strand_nothing(engine: Engine) -> None:
    lease = await worker(engine)
    ids = set(await engine.submit_many(jobs(40)))
    taken: list[Claimed] = []
    for round_ in range(30):
        polls = [asyncio.create_task(engine.claim(lease, 1, wait_s=60)) for _ in range(4)]
        for _ in range(round_ * 3):
            await asyncio.sleep(0)
        for one in polls:
            one.cancel()
        for outcome in await asyncio.gather(*polls, return_exceptions=True):
            taken += outcome if isinstance(outcome, list) else []
    while len(taken) < 40:
        taken += await soon(engine.claim(lease, 100, wait_s=60))
    assert {c.task.id for c in taken} == ids
    for claimed in taken:
        kept = await task(engine, claimed.task.id)
        assert (kept.failures, kept.losses) == (0, 0)


async def test_a_poll_learns_that_its_lease_has_ended(engine: Engine, clock: VirtualClock) -> None:
    lease = await worker(engine, ttl_s=5)
    async with poll(engine, lease) as waits:
        await clock.advance(6)
        engine.parts.notifications.wake_queue("default", "default")
        with pytest.raises(LeaseLost):
            await soon(waits)


async def test_an_engine_that_closes_gives_back_what_a_cancelled_poll_still_claims(
    new_engine: Any, engine: Engine, other_connection: asyncpg.Connection
) -> None:
    leaving = await new_engine()
    id_ = await engine.submit(job())
    await engine.configure_queue("default", max_running=5)
    async with other_connection.transaction():
        await other_connection.execute("select from windlass.queue for update")
        waits = asyncio.create_task(leaving.claim(await worker(leaving), wait_s=60))
        await waits_for(other_connection)
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
        closing = asyncio.create_task(leaving.close())
        await asyncio.sleep(0.01)
    await soon(closing)
    kept = await task(engine, id_)
    assert (kept.state, kept.losses) == (State.QUEUED, 0)


async def test_a_row_that_somebody_held_is_found_when_it_is_free(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    """Nobody announces the end of a transaction that changed nothing; the poll looks again by itself before long."""
    id_ = await engine.submit(job())
    async with held(other_connection, id_):
        waits = asyncio.create_task(engine.claim(await worker(engine), wait_s=600))
        await until(lambda: waiting(engine) == 1)
    await clock.advance(LOCKED_RETRY_S)
    assert [c.task.id for c in await soon(waits)] == [id_]


async def test_a_client_that_waits_for_its_task_does_not_hide_it_from_a_poll(
    engine: Engine, store: Store, clock: VirtualClock
) -> None:
    """`wait` writes on the task's row; a poll that looks at that very moment passes it by."""
    id_ = await engine.submit(job())
    async with store.begin() as tx:
        await tx.tasks.await_task(id_)
        waits = asyncio.create_task(engine.claim(await worker(engine), wait_s=600))
        await until(lambda: waiting(engine) == 1)
    await clock.advance(LOCKED_RETRY_S)
    assert [c.task.id for c in await soon(waits)] == [id_]


@pytest.mark.parametrize("hidden", [{"kind": "other"}, {"requires": ("gpu",)}, {"queue": "default"}])
async def test_a_poll_does_not_look_again_for_what_it_cannot_take(
    engine: Engine, clock: VirtualClock, hidden: dict[str, Any]
) -> None:
    if "queue" in hidden:
        await engine.configure_queue("default", max_running_per_kind={"job": 0})
    await engine.submit(job(**hidden))
    async with poll(engine, await worker(engine, kinds=["job"]), wait_s=600):
        assert clock.alarms == [600.0]


async def test_what_is_claimed_after_a_heartbeat_whose_caller_left_runs_under_its_attempt(engine: Engine) -> None:
    lease = await worker(engine)
    await engine.submit_many(jobs(5))
    heartbeat = asyncio.create_task(engine.extend_lease(lease))
    await asyncio.sleep(0)  # it has sent its begin
    heartbeat.cancel()
    with pytest.raises(asyncio.CancelledError):
        await heartbeat
    claimed = await engine.claim(lease, 5)
    rows = [await task(engine, one.task.id) for one in claimed]
    assert [(row.state, row.attempt) for row in rows] == [(State.RUNNING, 1)] * 5


async def test_an_attempt_that_another_claim_of_the_lease_began_is_not_found_for_one_whose_reply_was_lost(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Polls of one worker share its lease, so both claims try to begin the same attempt under the same lease."""
    await engine.configure_queue("default", max_running=10)
    lease = await worker(engine)
    assert await engine.claim(lease) == []  # from now on it claims within limits at once
    await engine.submit(job())
    real, second = Session.commit, list[Claimed]()

    async def commit(session: Session) -> None:
        monkeypatch.setattr(Session, "commit", real)
        await session.rollback()
        second.extend(await engine.claim(lease))
        raise CommitUnknown("the connection broke before the commit")

    monkeypatch.setattr(Session, "commit", commit)
    first = await engine.claim(lease)
    assert len(second) == 1
    assert first == []
