"""What a network, a server and a slow reader do to a remote worker: it costs no task and no budget."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections import Counter
from typing import Any

import pytest
from tests.contracts.session.conftest import Wire
from tests.contracts.session.work import ended, until_counts, until_state, working
from tests.kit.work import SOON_S, job, jobs, soon, state, task, until
from tests.kit.world import KEY

from windlass import Engine, Policy, State
from windlass.contracts.session.client.remote import Remote, connect
from windlass.contracts.session.wire import session_pb2 as pb
from windlass.core.command import Complete, Release
from windlass.errors import LeaseLost, Unavailable

pytestmark = pytest.mark.slow


async def test_a_stream_that_breaks_again_and_again_costs_no_task_and_no_budget(
    live_engine: Engine, wire: Wire, remote: Remote
) -> None:
    runs: Counter[int] = Counter()

    async def handle(number: int) -> int:
        runs[number] += 1
        await asyncio.sleep(0.005)
        return number

    ids = await live_engine.submit_many(jobs(600))
    async with working(remote, handle, concurrency=20):
        for cuts in range(1, 6):
            await until(lambda cuts=cuts: len(runs) > cuts * 90)
            wire.cut()
        assert set(await ended(live_engine, *ids)) == {State.SUCCEEDED}
    seen = [await task(live_engine, id_) for id_ in ids]
    assert {(one.failures, one.losses) for one in seen} == {(0, 0)}
    assert set(runs.values()) == {1}, "and none was run twice, since the lease lived on"


async def test_what_never_reached_the_worker_is_given_to_another_at_once(
    live_engine: Engine, wire: Wire, remote: Remote
) -> None:
    lease = await remote.open_lease("far", ["default"], ttl_s=600.0)
    claiming = asyncio.create_task(remote.claim(lease, 5, wait_s=60))
    await until(lambda: remote._sessions[lease.id]._credit == 5)
    wire.hold()
    id_ = await live_engine.submit(job())
    await until_state(live_engine, id_, State.RUNNING)
    wire.cut()
    wire.let_go()
    claimed = await soon(claiming)  # given back when it came home without it, and pushed again
    assert [(one.task.id, one.task.attempt, one.task.losses) for one in claimed] == [(id_, 2, 0)]
    await remote.end_lease(lease)


async def test_a_report_whose_answer_was_lost_is_sent_again_and_answered_alike(
    live_engine: Engine, wire: Wire, remote: Remote
) -> None:
    lease = await remote.open_lease("far", ["default"])
    id_ = await live_engine.submit(job())
    [claimed] = await soon(remote.claim(lease, 1, wait_s=20))
    wire.hold()
    reporting = asyncio.create_task(remote.report([Complete(id_, claimed.task.attempt, lease.id, b"17")]))
    await ended(live_engine, id_)
    wire.cut()
    wire.let_go()
    assert await soon(reporting) == [None]
    await remote.end_lease(lease)


async def test_a_different_report_on_a_finished_task_is_a_conflict_and_the_others_are_heard(
    live_engine: Engine, remote: Remote
) -> None:
    lease = await remote.open_lease("far", ["default"])
    ids = await live_engine.submit_many(jobs(2))
    claimed = []
    while len(claimed) < 2:
        claimed += await soon(remote.claim(lease, 2, wait_s=20))
    first = Complete(ids[0], 1, lease.id, b"1")
    assert await remote.report([first]) == [None]
    other, good = await remote.report([Complete(ids[0], 1, lease.id, b"2"), Complete(ids[1], 1, lease.id, b"1")])
    assert (type(other).code, good) == ("conflict", None)
    await remote.end_lease(lease)


async def test_a_lease_that_ran_out_while_the_stream_was_broken_is_lost_and_a_late_report_is_still_heard(
    live_engine: Engine, wire: Wire, remote: Remote, pace: float
) -> None:
    lease = await remote.open_lease("far", ["default"], ttl_s=0.5 * pace)
    id_ = await live_engine.submit(job(policy=Policy(retry_delay_s=600.0)))
    [claimed] = await soon(remote.claim(lease, 1, wait_s=20))
    wire.accepting = False
    wire.cut()
    await until_state(live_engine, id_, State.QUEUED)
    wire.accepting = True
    assert await soon(remote.await_notification(lease, 20))
    with pytest.raises(LeaseLost):
        await remote.claim(lease, 1)
    assert await remote.report([Complete(id_, claimed.task.attempt, lease.id, b"17")]) == [None]
    assert await state(live_engine, id_) is State.SUCCEEDED


async def test_a_server_that_restarts_costs_no_task(live_engine: Engine, wire: Wire, remote: Remote) -> None:
    """The stream breaks, connections are refused for a while, then another server takes the lease up."""
    runs: Counter[int] = Counter()

    async def handle(number: int) -> None:
        runs[number] += 1
        await asyncio.sleep(0.005)

    ids = await live_engine.submit_many(jobs(200))
    async with working(remote, handle, concurrency=10):
        await until(lambda: len(runs) > 50)
        wire.accepting = False
        wire.cut()
        await until(lambda: len(remote._sessions) == 1 and next(iter(remote._sessions.values()))._stream is None)
        wire.accepting = True
        assert set(await ended(live_engine, *ids)) == {State.SUCCEEDED}
    assert set(runs.values()) == {1}


async def test_a_worker_that_does_not_read_is_pushed_no_more_than_its_credit_and_harms_nobody(
    live_engine: Engine, server: str, wire: Wire, remote: Remote
) -> None:
    slow = await remote.open_lease("slow", ["default"], ttl_s=600.0)
    wire.hold()
    await remote._sessions[slow.id]._write(pb.FromWorker(credit=pb.Credit(tasks=20)))
    await live_engine.submit_many([job(payload=b'"%s"' % (b"x" * 1_000_000)) for _ in range(30)])
    await until_counts(live_engine, running=20, queued=10)
    async with connect(server, KEY) as quick, working(quick, _nothing, concurrency=30):
        await until_counts(live_engine, running=20)
    wire.let_go()


async def _nothing(_: Any) -> None: ...


async def test_a_task_that_its_worker_forgot_is_given_to_another(
    live_engine: Engine, remote: Remote, pace: float
) -> None:
    lease = await remote.open_lease("forgetful", ["default"], ttl_s=0.6 * pace)
    id_ = await live_engine.submit(job(policy=Policy(retry_delay_s=0.0)))
    await soon(remote.claim(lease, 1, wait_s=20))
    remote._sessions[lease.id]._held.clear()
    async with asyncio.timeout(SOON_S):
        while await state(live_engine, id_) is State.RUNNING:
            await remote.extend_lease(lease, [])
            await remote.await_notification(lease, 0.1)
    assert (await task(live_engine, id_)).losses == 1
    await remote.end_lease(lease)


async def test_a_session_that_breaks_or_is_lost_leaves_no_error_that_nobody_looked_at(
    live_engine: Engine, wire: Wire, remote: Remote, caplog: pytest.LogCaptureFixture
) -> None:
    """asyncio tells of a future whose exception nobody has asked for, when it is collected."""
    lease = await remote.open_lease("far", ["default"], ttl_s=600.0)
    ids = await live_engine.submit_many(jobs(6))
    claimed = await soon(remote.claim(lease, 6, wait_s=60))
    assert {one.task.id for one in claimed} == set(ids)
    wire.cut()
    with contextlib.suppress(Unavailable):
        await soon(remote.extend_lease(lease, ids))
    await soon(remote.extend_lease(lease, ids))
    wire.hold()
    reports = [Complete(one.task.id, one.task.attempt, lease.id, b"1") for one in claimed]
    reporting = [asyncio.create_task(remote.report(reports[:3])), asyncio.create_task(remote.report(reports[3:]))]
    beating = asyncio.create_task(remote.extend_lease(lease, ids))
    session = remote._sessions[lease.id]
    await until(lambda: len(session._unanswered) == 6 and bool(session._heartbeats))
    session._release_inbox()
    session._start(session.report([Release(ids[0], 1, lease.id)]))
    await until(lambda: len(session._unanswered) == 7)
    await session.close()
    outcomes = await soon(asyncio.gather(*reporting, beating, return_exceptions=True))
    assert [type(outcome) for outcome in outcomes] == [Unavailable, Unavailable, LeaseLost]
    del outcomes, reporting, beating
    gc.collect()
    await asyncio.sleep(0)
    assert "never retrieved" not in caplog.text
    wire.let_go()


async def test_a_session_whose_reader_ends_for_any_reason_is_lost_and_not_silent(
    live_engine: Engine, wire: Wire, remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(stream: Any) -> None:
        raise RuntimeError("a message that nobody expects")

    lease = await remote.open_lease("far", ["default"], ttl_s=600.0)
    session = remote._sessions[lease.id]
    monkeypatch.setattr(session, "_read", broken)
    wire.cut()
    with pytest.raises(LeaseLost):
        await soon(remote.claim(lease, 1, wait_s=60))
    assert session.over
