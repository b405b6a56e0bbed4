"""What workflows ask of the engine: records are durable and fenced, no wake-up is lost, forks keep what was before."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest
from tests.conftest import NewEngine
from tests.kit.work import CRASH, begin, held, job, soon, state, task, worker

from windlass import Claimed, Engine, InvalidState, LeaseLost, NotFound, State
from windlass.core.command import Sleep
from windlass.core.step import Place, Step, StepState
from windlass.core.step_command import StepChild, StepFailure, StepResult, StepSignal, StepSleep
from windlass.testing.clock import VirtualClock

DAY = 86400.0


def whose(claimed: Claimed) -> tuple[UUID, int, UUID]:
    assert claimed.task.lease_id is not None
    return claimed.task.id, claimed.task.attempt, claimed.task.lease_id


async def done(engine: Engine, claimed: Claimed, name: str, result: bytes = b"1", position: int = 0) -> Step:
    return await engine.record_step(StepResult(*whose(claimed), Place(position, name), result))


async def wait_for(engine: Engine, claimed: Claimed, signal: str, position: int = 0, **more: Any) -> Step:
    place = Place(position, f"signal:{signal}", position + 1)
    return await engine.record_step(StepSignal(*whose(claimed), place, signal=signal, **more))


async def sleep(engine: Engine, claimed: Claimed, *signals: str, children: tuple[UUID, ...] = ()) -> State:
    [answer] = await engine.report([Sleep(*whose(claimed), None, signals, children)])
    assert isinstance(answer, State), answer
    return answer


async def test_a_record_is_there_for_the_next_attempt(engine: Engine, clock: VirtualClock) -> None:
    claimed = await begin(engine)
    await done(engine, claimed, "charge", b'{"a":1}')
    await engine.fail(claimed, CRASH)
    await clock.advance(10)
    [again] = await engine.claim(await worker(engine))

    [step] = await engine.load_steps(again.task.id)

    assert (step.name, step.attempt, step.result, step.state) == ("charge", 1, b'{"a":1}', StepState.SUCCEEDED)


async def test_steps_of_many_workflows_share_their_transactions(
    engine: Engine, other_connection: asyncpg.Connection
) -> None:
    lease = await worker(engine)
    await engine.submit_many([job(number) for number in range(300)])
    claimed = await engine.claim(lease, 300)

    await asyncio.gather(*(done(engine, one, "charge") for one in claimed))

    assert await other_connection.fetchval("select count(*) from windlass.step") == 300
    assert len(await other_connection.fetch("select distinct xmin::text from windlass.step")) <= 3


async def test_the_row_of_the_task_is_not_rewritten_for_a_step(
    engine: Engine, other_connection: asyncpg.Connection
) -> None:
    claimed = await begin(engine)
    where = "select ctid, xmin from windlass.task where id = $1"
    before = await other_connection.fetchrow(where, claimed.task.id)

    await done(engine, claimed, "charge")

    assert await other_connection.fetchrow(where, claimed.task.id) == before


async def test_a_superseded_attempt_records_nothing(engine: Engine, clock: VirtualClock) -> None:
    claimed = await begin(engine)
    await clock.advance(31)
    await engine.loops.expire_tick()
    await clock.advance(10)
    [again] = await engine.claim(await worker(engine))

    with pytest.raises(LeaseLost):
        await done(engine, claimed, "charge", b'"old"')
    await done(engine, again, "charge", b'"new"')

    assert [step.result for step in await engine.load_steps(claimed.task.id)] == [b'"new"']


async def test_the_first_record_wins_also_within_one_batch(engine: Engine) -> None:
    claimed = await begin(engine)
    other = await begin(engine)

    _, first, second = await asyncio.gather(
        done(engine, other, "warm up"), done(engine, claimed, "charge", b"1"), done(engine, claimed, "charge", b"2")
    )
    third = await done(engine, claimed, "charge", b"3")

    assert {first.result, second.result, third.result} == {b"1"}


async def test_a_record_waits_for_who_holds_the_row_and_holds_up_nobody(
    engine: Engine, other_connection: asyncpg.Connection
) -> None:
    one, other = await begin(engine), await begin(engine)
    async with held(other_connection, one.task.id):
        waiting = asyncio.create_task(done(engine, one, "charge"))
        await soon(done(engine, other, "charge"))
        assert not waiting.done()
    assert (await soon(waiting)).state is StepState.SUCCEEDED


async def test_failures_of_a_step_are_counted_across_attempts(engine: Engine, clock: VirtualClock) -> None:
    claimed = await begin(engine)
    said = StepFailure(*whose(claimed), Place(0, "charge"), failure=CRASH, failures=1)
    first, again = await engine.record_step(said), await engine.record_step(said)

    assert first == again
    assert (first.state, first.failures) == (StepState.WAITING, 1)
    assert (await task(engine, claimed.task.id)).failures == 0


# ------------------------------------------------------------------------------------------------- signals


async def test_a_signal_that_came_before_is_there_when_it_is_asked_for(engine: Engine) -> None:
    claimed = await begin(engine)
    await engine.signal(claimed.task.id, "approval", b'"first"')
    await engine.signal(claimed.task.id, "approval", b'"second"')

    answers = [await wait_for(engine, claimed, "approval", position) for position in range(3)]

    assert [answer.result for answer in answers] == [b'"first"', b'"second"', None]


async def test_a_signal_wakes_who_sleeps_for_it_and_nobody_else(engine: Engine) -> None:
    claimed = await begin(engine)
    await wait_for(engine, claimed, "approval")
    assert await sleep(engine, claimed, "approval") is State.SLEEPING

    await engine.signal(claimed.task.id, "other")
    assert await state(engine, claimed.task.id) is State.SLEEPING
    await engine.signal(claimed.task.id, "approval")
    assert await state(engine, claimed.task.id) is State.QUEUED


async def test_a_signal_between_the_look_and_the_sleep_is_not_missed(engine: Engine) -> None:
    claimed = await begin(engine)
    await wait_for(engine, claimed, "approval")
    await engine.signal(claimed.task.id, "approval")

    assert await sleep(engine, claimed, "approval") is State.QUEUED


async def test_whoever_comes_first_a_signal_and_a_sleep_at_the_same_time_lose_nothing(new_engine: NewEngine) -> None:
    one, other = await new_engine(), await new_engine()
    lease = await worker(one)
    for _ in range(20):
        claimed = await begin(one, lease)
        await wait_for(one, claimed, "approval")
        await asyncio.gather(sleep(one, claimed, "approval"), other.signal(claimed.task.id, "approval"))
        assert await state(one, claimed.task.id) is State.QUEUED
        [again] = await one.claim(lease)
        assert (await wait_for(one, again, "approval")).state is StepState.SUCCEEDED
        await one.complete(again)


async def test_a_signal_that_is_sent_twice_is_one(engine: Engine) -> None:
    claimed = await begin(engine)
    once = uuid4()
    for _ in range(2):
        await engine.signal(claimed.task.id, "approval", b"1", signal_id=once)
    assert (await wait_for(engine, claimed, "approval", 0)).result == b"1"
    await engine.signal(claimed.task.id, "approval", b"1", signal_id=once)

    assert (await wait_for(engine, claimed, "approval", 1)).state is StepState.WAITING


async def test_a_signal_to_nobody_is_refused(engine: Engine) -> None:
    claimed = await begin(engine)
    await engine.complete(claimed)
    with pytest.raises(InvalidState):
        await engine.signal(claimed.task.id, "approval")
    with pytest.raises(NotFound):
        await engine.signal(uuid4(), "approval")


# ------------------------------------------------------------------------------------------------- child tasks


async def parent_and_child(engine: Engine) -> tuple[Claimed, Claimed]:
    parent = await begin(engine)
    child = await begin(engine, await worker(engine, "other"), queue="other", parent_id=parent.task.id)
    await engine.record_step(StepChild(*whose(parent), Place(0, "child"), child_id=child.task.id))
    return parent, child


async def test_the_end_of_a_child_wakes_its_workflow(engine: Engine) -> None:
    parent, child = await parent_and_child(engine)
    assert await sleep(engine, parent, children=(child.task.id,)) is State.SLEEPING
    await engine.complete(child, b"42")
    assert await engine.loops.wake_tick() == 1
    [again] = await engine.claim(await worker(engine))

    step = await engine.record_step(StepChild(*whose(again), Place(0, "child"), child_id=child.task.id))

    assert (step.state, step.result) == (StepState.SUCCEEDED, b"42")
    assert await engine.loops.wake_tick() == 0


async def test_a_workflow_does_not_sleep_over_the_end_of_its_child(engine: Engine) -> None:
    parent, child = await parent_and_child(engine)
    await engine.fail(child, CRASH)
    await engine.cancel(child.task.id)

    assert await sleep(engine, parent, children=(child.task.id,)) is State.QUEUED


async def test_a_workflow_whose_row_is_held_is_woken_later(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    parent, child = await parent_and_child(engine)
    await sleep(engine, parent, children=(child.task.id,))
    await engine.complete(child)
    async with held(other_connection, parent.task.id):
        assert await engine.loops.wake_tick() == 0
    await clock.advance(1)
    assert await engine.loops.wake_tick() == 1
    assert await state(engine, parent.task.id) is State.QUEUED


# ------------------------------------------------------------------------------------------------- transactions


async def test_effect_and_record_are_committed_together_or_not_at_all(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    await other_connection.execute("create table effect (of text)")
    claimed = await begin(engine)
    said = StepResult(*whose(claimed), Place(0, "debit"))

    async def work(connection: Any) -> bytes:
        await connection.execute("insert into effect values ('debit')")
        return b"1"

    first, again = await engine.transact_step(said, work), await engine.transact_step(said, work)
    assert first == again
    await clock.advance(31)
    await engine.loops.expire_tick()
    await clock.advance(10)
    [_] = await engine.claim(await worker(engine))
    with pytest.raises(LeaseLost):
        await engine.transact_step(StepResult(*whose(claimed), Place(1, "other")), work)

    assert await other_connection.fetchval("select count(*) from effect") == 1
    assert [step.name for step in await engine.load_steps(claimed.task.id)] == ["debit"]


async def test_a_transaction_whose_commit_got_no_answer_is_carried_out_once(
    engine: Engine, other_connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    from windlass.store.errors import CommitUnknown
    from windlass.store.pool import Session

    await other_connection.execute("create table effect (of text)")
    claimed = await begin(engine)
    commit, lost = Session.commit, []

    async def commit_and_lose(self: Session) -> None:
        await commit(self)
        if not lost:
            lost.append(1)
            raise CommitUnknown

    async def work(connection: Any) -> bytes:
        await connection.execute("insert into effect values ('debit')")
        return b"1"

    monkeypatch.setattr(Session, "commit", commit_and_lose)
    step = await engine.transact_step(StepResult(*whose(claimed), Place(0, "debit")), work)

    assert (lost, step.result) == ([1], b"1")
    assert await other_connection.fetchval("select count(*) from effect") == 1


# ------------------------------------------------------------------------------------------------- fork, retention


async def test_a_fork_keeps_what_was_recorded_before_a_step(engine: Engine) -> None:
    claimed = await begin(engine, priority=-3, queue="default")
    for position, name in enumerate(("charge", "pack", "ship")):
        await done(engine, claimed, name, position=position)
    await engine.complete(claimed)

    fork = await engine.fork(claimed.task.id, "pack")

    [again] = await engine.claim(await worker(engine))
    assert (again.task.id, again.task.attempt, again.task.priority, again.payload) == (fork, 2, -3, claimed.payload)
    assert [step.name for step in await engine.load_steps(fork)] == ["origin", "charge"]
    with pytest.raises(NotFound):
        await engine.fork(claimed.task.id, "nothing of the kind")
    with pytest.raises(NotFound):
        await engine.fork(uuid4(), "pack")


async def test_steps_and_signals_go_with_their_task(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    claimed = await begin(engine)
    alive = await begin(engine)
    for one in (claimed, alive):
        await done(engine, one, "charge")
        await engine.signal(one.task.id, "approval")
    await engine.complete(claimed)
    await clock.advance(8 * DAY)
    while await engine.loops.retention_tick():
        pass

    for table in ("step", "signal"):
        rows = await other_connection.fetch(f"select task_id from windlass.{table}")
        assert [row[0] for row in rows] == [alive.task.id]


async def test_a_child_is_kept_for_as_long_as_its_workflow_lives(engine: Engine, clock: VirtualClock) -> None:
    parent, child = await parent_and_child(engine)
    await sleep(engine, parent)
    await engine.complete(child, b"42")
    await clock.advance(8 * DAY)
    while await engine.loops.retention_tick():
        pass
    assert (await task(engine, child.task.id)).result == b"42"

    await engine.cancel(parent.task.id)
    await clock.advance(8 * DAY)
    while await engine.loops.retention_tick():
        pass
    with pytest.raises(NotFound):
        await task(engine, child.task.id)


async def test_when_a_sleep_ends_is_decided_by_the_database(engine: Engine, clock: VirtualClock) -> None:
    claimed = await begin(engine)
    now = await clock.now()
    said = StepSleep(*whose(claimed), Place(0, "sleep"), 60.0)
    first = await engine.record_step(said)
    await clock.advance(5)

    assert await engine.record_step(said) == first
    assert first.wake_at is not None
    assert (first.wake_at - now).total_seconds() == 60.0
