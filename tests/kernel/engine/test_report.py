"""Reports of workers: the fence, late replies, repeats, conflicts that are kept, sleeps, parks."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from tests.kit.work import CRASH, FATAL, begin, job, poll, soon, state, task, worker

from windlass import (
    Category,
    Claimed,
    Conflict,
    Engine,
    Failure,
    InvalidState,
    LeaseLost,
    NotFound,
    Outcome,
    Policy,
    State,
)
from windlass.core.command import Cancelled, Complete, Fail, Park, Release, Sleep
from windlass.engine.read.metrics import Tally
from windlass.testing.clock import VirtualClock

MISMATCH = Failure(Category.CONFIGURATION, "step 2 is called `pay` now", "CODE_MISMATCH")


def said(report: type, claimed: Claimed, *rest: Any) -> Any:
    return report(claimed.task.id, claimed.task.attempt, claimed.task.lease_id, *rest)


async def lose(engine: Engine, clock: VirtualClock, **policy: Any) -> Claimed:
    """An attempt whose worker was lost; its task waits for its next attempt."""
    fields = {"retry_delay_s": 100.0, "retry_delay_max_s": 100.0, **policy}
    claimed = await begin(engine, await worker(engine, ttl_s=5), policy=Policy(**fields))
    await clock.advance(5)
    assert await engine.loops.expire_tick() == 1
    return claimed


# ------------------------------------------------------------------------------------------------- what is said


async def test_a_result_is_kept(engine: Engine, clock: VirtualClock) -> None:
    claimed = await begin(engine)
    await clock.advance(3)
    done = await engine.complete(claimed, b'{"sum": 3}')
    assert done == await task(engine, claimed.task.id)
    assert (done.state, done.outcome, done.result) == (State.SUCCEEDED, Outcome.SUCCEEDED, b'{"sum": 3}')
    assert done.finished_at == await clock.now()


async def test_a_failure_is_retried_after_its_delay_until_the_budget_is_used(
    engine: Engine, clock: VirtualClock
) -> None:
    lease = await worker(engine, ttl_s=3600)
    claimed = await begin(engine, lease, policy=Policy(max_attempts=3, retry_delay_s=10, retry_factor=2))
    for attempt, delay in ((1, 10), (2, 20)):
        failed = await engine.fail(claimed, CRASH)
        waits_s = (failed.available_at - await clock.now()).total_seconds()
        assert (failed.state, failed.failures) == (State.QUEUED, attempt)
        assert delay <= waits_s <= delay * 1.2
        assert await engine.claim(lease) == []
        await clock.advance(waits_s)
        [claimed] = await engine.claim(lease)
        assert claimed.task.attempt == attempt + 1
    failed = await engine.fail(claimed, CRASH)
    assert (failed.state, failed.failures, failed.error) == (State.FAILED, 3, CRASH)


async def test_a_worker_may_name_the_delay(engine: Engine, clock: VirtualClock) -> None:
    failed = await engine.fail(await begin(engine), Failure(Category.USER_CODE, "busy", retry_after_s=500.0))
    assert 500 <= (failed.available_at - await clock.now()).total_seconds() <= 600


@pytest.mark.parametrize("failure", [FATAL, Failure(Category.DATA_QUALITY, "empty file")])
async def test_a_failure_that_no_retry_can_mend_ends_the_task(engine: Engine, failure: Failure) -> None:
    assert (await engine.fail(await begin(engine), failure)).state is State.FAILED


async def test_a_release_uses_no_budget_and_is_in_line_at_once(engine: Engine) -> None:
    lease = await worker(engine)
    claimed = await begin(engine, lease)
    released = await engine.release(claimed)
    assert (released.state, released.failures, released.losses) == (State.QUEUED, 0, 0)
    [again] = await engine.claim(lease)
    assert again.task.attempt == 2


async def test_a_worker_that_stopped_by_itself_ends_the_task(engine: Engine) -> None:
    claimed = await begin(engine)
    assert await engine.report([said(Cancelled, claimed, "asked to by a signal")]) == [State.CANCELLED]
    assert (await task(engine, claimed.task.id)).error.message == "asked to by a signal"


async def test_what_is_completed_at_once_shows_in_the_counters(engine: Engine) -> None:
    tally = Tally()
    engine.count(tally)
    claimed = [await begin(engine) for _ in range(3)]
    await engine.report([said(Complete, claimed[0]), said(Complete, claimed[1]), said(Fail, claimed[2], FATAL)])
    [kind] = {c.task.kind for c in claimed}
    assert tally.ended == {("default", kind, "succeeded"): 2, ("default", kind, "failed"): 1}
    assert sum(tally.durations["default", kind].counts) == 3


async def test_a_completion_at_once_wakes_who_waits_for_its_place(engine: Engine) -> None:
    await engine.configure_queue("default", max_running=1)
    lease = await worker(engine)
    first = await begin(engine, lease)
    second = await engine.submit(job())
    async with poll(engine, lease) as waits:
        await engine.report([said(Complete, first)])
        [claimed] = await soon(waits)
    assert claimed.task.id == second


# ------------------------------------------------------------------------------------------------- the fence


@pytest.mark.parametrize("report", [Complete, Release, Sleep, Cancelled])
async def test_a_superseded_attempt_changes_nothing(engine: Engine, clock: VirtualClock, report: type) -> None:
    old = await lose(engine, clock, retry_delay_s=0)
    [new] = await engine.claim(await worker(engine))
    before = await task(engine, old.task.id)
    [answer] = await engine.report([said(report, old)])
    assert isinstance(answer, LeaseLost)
    assert await task(engine, old.task.id) == before
    assert (await engine.complete(new)).state is State.SUCCEEDED


async def test_a_report_under_another_lease_changes_nothing(engine: Engine) -> None:
    claimed, other = await begin(engine), await worker(engine)
    [answer] = await engine.report([Complete(claimed.task.id, 1, other.id)])
    assert isinstance(answer, LeaseLost)
    assert await state(engine, claimed.task.id) is State.RUNNING


async def test_a_report_on_an_unknown_task_is_not_found(engine: Engine) -> None:
    lease = await worker(engine)
    [answer] = await engine.report([Complete(engine.parts.randomness.new_id(), 1, lease.id)])
    assert isinstance(answer, NotFound)


# ------------------------------------------------------------------------------------------------- late replies


async def test_a_late_result_counts_until_a_newer_attempt_begins(engine: Engine, clock: VirtualClock) -> None:
    claimed = await lose(engine, clock)
    assert await state(engine, claimed.task.id) is State.QUEUED
    done = await engine.complete(claimed, b"1")
    assert (done.state, done.losses, done.result) == (State.SUCCEEDED, 1, b"1")
    await clock.advance(1000)
    assert await engine.claim(await worker(engine)) == []


async def test_a_late_failure_counts_as_a_failure_too(engine: Engine, clock: VirtualClock) -> None:
    failed = await engine.fail(await lose(engine, clock), CRASH)
    assert (failed.state, failed.failures, failed.losses) == (State.QUEUED, 1, 1)


async def test_a_late_release_changes_nothing(engine: Engine, clock: VirtualClock) -> None:
    claimed = await lose(engine, clock)
    before = await task(engine, claimed.task.id)
    await engine.release(claimed)
    assert await task(engine, claimed.task.id) == before


@pytest.mark.parametrize("report", [Sleep, Park])
async def test_a_late_sleep_or_park_is_accepted(engine: Engine, clock: VirtualClock, report: type) -> None:
    claimed = await lose(engine, clock)
    [answer] = await engine.report([said(report, claimed, *([MISMATCH] if report is Park else []))])
    assert answer is (State.PARKED if report is Park else State.SLEEPING)


async def test_after_the_end_nothing_is_accepted(engine: Engine, clock: VirtualClock) -> None:
    claimed = await lose(engine, clock, max_losses=1)
    assert await state(engine, claimed.task.id) is State.FAILED
    [answer] = await engine.report([said(Complete, claimed)])
    assert isinstance(answer, Conflict)
    assert await state(engine, claimed.task.id) is State.FAILED


# ------------------------------------------------------------------------------------------------- repeats


@pytest.mark.parametrize(
    ("report", "rest", "final"),
    [
        (Complete, (b'"x"',), State.SUCCEEDED),
        (Fail, (FATAL,), State.FAILED),
        (Cancelled, (), State.CANCELLED),
        (Sleep, (), State.SLEEPING),
        (Release, (), State.QUEUED),
        (Park, (MISMATCH,), State.PARKED),
    ],
)
async def test_the_same_report_again_gets_the_same_answer_and_writes_nothing(
    engine: Engine, other_connection: asyncpg.Connection, report: type, rest: tuple[Any, ...], final: State
) -> None:
    claimed = await begin(engine)
    [first] = await engine.report([said(report, claimed, *rest)])
    entries = await other_connection.fetchval("select count(*) from windlass.history")
    [second] = await engine.report([said(report, claimed, *rest)])
    assert first is second is final
    assert await other_connection.fetchval("select count(*) from windlass.history") == entries


async def test_a_failure_that_is_retried_can_be_repeated_too(engine: Engine) -> None:
    claimed = await begin(engine)
    first = await engine.fail(claimed, CRASH)
    assert await engine.fail(claimed, CRASH) == first
    assert (await task(engine, claimed.task.id)).failures == 1


@pytest.mark.parametrize(
    "other",
    [(Complete, (b'"other"',)), (Fail, (CRASH,)), (Release, ()), (Sleep, ()), (Park, (MISMATCH,)), (Cancelled, ())],
)
async def test_another_report_after_the_end_is_a_conflict_and_is_kept_for_audit(
    engine: Engine, other: tuple[type, tuple[Any, ...]]
) -> None:
    claimed = await begin(engine)
    done = await engine.complete(claimed, b'"x"')
    report, rest = other
    [answer] = await engine.report([said(report, claimed, *rest)])
    assert isinstance(answer, Conflict)
    assert await task(engine, claimed.task.id) == done
    lines = await engine.tasks.timeline(claimed.task.id)
    [refused] = [line for line in lines if line.what == "refused"]
    assert (refused.attempt, refused.worker) == (1, "ada")
    assert refused.detail is not None


# ------------------------------------------------------------------------------------------------- sleep and park


async def test_a_sleep_holds_no_worker_and_ends_at_its_time(engine: Engine, clock: VirtualClock) -> None:
    lease = await worker(engine, ttl_s=3600)
    claimed = await begin(engine, lease)
    asleep = await engine.sleep(claimed, await clock.now() + timedelta(seconds=60))
    assert asleep.state is State.SLEEPING
    await clock.advance(59)
    await engine.loops.timer_tick()
    assert await engine.claim(lease) == []
    await clock.advance(1)
    await engine.loops.timer_tick()
    [again] = await engine.claim(lease)
    assert (again.task.attempt, again.task.failures, again.task.losses) == (2, 0, 0)


async def test_a_sleep_without_an_end_lasts_until_somebody_wakes_it(engine: Engine, clock: VirtualClock) -> None:
    claimed = await begin(engine)
    await engine.sleep(claimed, None)
    await clock.advance(10 * 365 * 86400)
    await engine.loops.timer_tick()
    assert await state(engine, claimed.task.id) is State.SLEEPING
    assert (await engine.wake(claimed.task.id)).state is State.QUEUED


async def test_only_a_sleeping_task_can_be_woken(engine: Engine) -> None:
    with pytest.raises(InvalidState):
        await engine.wake(await engine.submit(job()))


async def test_a_parked_task_waits_for_a_person_and_then_goes_on(engine: Engine, clock: VirtualClock) -> None:
    lease = await worker(engine, ttl_s=86400)
    claimed = await begin(engine, lease)
    assert await engine.report([said(Park, claimed, MISMATCH)]) == [State.PARKED]
    assert (await task(engine, claimed.task.id)).error == MISMATCH
    await clock.advance(3600)
    await engine.loops.timer_tick()
    assert await engine.claim(lease) == []
    resumed = await engine.resume(claimed.task.id)
    assert (resumed.state, resumed.error) == (State.QUEUED, None)
    assert len(await engine.claim(lease)) == 1


async def test_only_a_parked_task_can_be_resumed(engine: Engine) -> None:
    with pytest.raises(InvalidState):
        await engine.resume(await engine.submit(job()))


async def test_a_deadline_ends_a_sleep_and_a_park_too(engine: Engine, clock: VirtualClock) -> None:
    lease = await worker(engine, ttl_s=3600)
    deadline = await clock.now() + timedelta(seconds=60)
    asleep, parked = [await begin(engine, lease, deadline_at=deadline) for _ in range(2)]
    await engine.sleep(asleep, None)
    await engine.report([said(Park, parked, MISMATCH)])
    await clock.advance(60)
    assert await engine.loops.timer_tick() == 2
    for claimed in (asleep, parked):
        ended = await task(engine, claimed.task.id)
        assert (ended.state, ended.error.reason) == (State.FAILED, "DEADLINE_EXCEEDED")  # type: ignore[union-attr]


# ------------------------------------------------------------------------------------------------- what is stored


async def test_text_that_cannot_be_stored_is_mended_and_not_lost(engine: Engine) -> None:
    broken = Failure(Category.USER_CODE, "a\x00b\ud800c", "X\x00", trace="t\x00" + "x" * 100_000, retryable=False)
    ended = await engine.fail(await begin(engine), broken)
    assert ended.error is not None
    assert (ended.error.message, ended.error.reason) == ("a\ufffdb\ufffdc", "X\ufffd")
    assert len(ended.error.trace) <= 64 * 1024
    assert (await task(engine, ended.id)) == ended
    stopped = await begin(engine)
    await engine.report([said(Cancelled, stopped, "a\x00b\ud800c")])
    assert (await task(engine, stopped.task.id)).error.message == "a\ufffdb\ufffdc"  # type: ignore[union-attr]
