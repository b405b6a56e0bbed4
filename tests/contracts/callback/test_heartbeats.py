"""Attempts that are sent out, by engines on one database, directly and through a pooler."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from tests.conftest import NewEngine
from tests.kit.work import job, jobs, task, waits_for

from windlass import Engine, State
from windlass.contracts.callback.callbacks import CallbackHeartbeat, Callbacks
from windlass.contracts.callback.delivery import Push
from windlass.contracts.callback.rules import Scope, scope_of
from windlass.core.attempt import AttemptReport
from windlass.core.queue import QueueConfig
from windlass.core.states import Effect
from windlass.core.task import Outcome
from windlass.engine.send import outbox
from windlass.engine.send.outgoing import FreezeDetector
from windlass.errors import LeaseLost
from windlass.testing.clock import VirtualClock

PUSH = Push(url="http://worker.example/", heartbeat_interval_ms=1000, heartbeat_timeout_ms=3000)
HOUR = timedelta(hours=1)


async def set_up(engine: Engine, *others: Engine, **limits: Any) -> None:
    for one in (engine, *others):
        one.parts.effects["push"] = nowhere
    await engine.queues.put("default", delivery=PUSH, limits=QueueConfig(**limits))


async def nowhere(effect: Effect) -> None:
    """Only engines that can carry attempts begin them."""


async def scope(engine: Engine, task_id: UUID) -> Scope:
    return scope_of(await task(engine, task_id), await engine.parts.clock.now(), HOUR)


async def beat(engine: Engine, task_id: UUID) -> Any:
    known = await scope(engine, task_id)
    return await engine.service(Callbacks).heartbeat(CallbackHeartbeat(known, "ada"))


async def test_engines_that_send_out_at_the_same_time_send_each_task_once(
    engine: Engine, new_engine: NewEngine, other_connection: asyncpg.Connection
) -> None:
    engines = [engine, await new_engine(), await new_engine()]
    await set_up(*engines)
    ids = await engine.submit_many(jobs(40))
    while sum(await asyncio.gather(*(one.parts.outgoing.dispatch_tick() for one in engines))):
        pass

    sent = Counter(
        row[0] for row in await other_connection.fetch("select task_id from windlass.outbox where kind = 'push'")
    )
    assert sent == dict.fromkeys(ids, 1)
    assert await other_connection.fetchval("select count(*) from windlass.heartbeat") == 40
    assert {(await task(engine, id_)).attempt for id_ in ids} == {1}


async def test_a_limit_is_exact_with_several_engines(
    engine: Engine, new_engine: NewEngine, other_connection: asyncpg.Connection
) -> None:
    engines = [engine, await new_engine(), await new_engine()]
    await set_up(*engines, max_running=5)
    await engine.submit_many(jobs(20))
    for _ in range(4):
        await asyncio.gather(*(one.parts.outgoing.dispatch_tick() for one in engines))

    assert await other_connection.fetchval("select count(*) from windlass.task where state = 'running'") == 5


async def test_signs_of_life_of_many_attempts_by_two_engines(
    engine: Engine, new_engine: NewEngine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    other = await new_engine()
    await set_up(engine)
    ids = await engine.submit_many(jobs(30))
    await engine.parts.outgoing.dispatch_tick()
    await asyncio.gather(*(beat(one, id_) for id_ in ids for one in (engine, other)))
    await clock.advance(2)
    await asyncio.gather(*(beat(one, id_) for id_ in ids[:20] for one in (engine, other)))
    await clock.advance(2)
    assert await engine.parts.outgoing.silence_tick() + await other.parts.outgoing.silence_tick() == 10

    assert [(await task(engine, id_)).state for id_ in ids[:20]] == [State.RUNNING] * 20
    assert {(await task(engine, id_)).state for id_ in ids[20:]} == {State.QUEUED}
    assert await other_connection.fetchval("select count(*) from windlass.heartbeat") == 20


async def test_what_was_heard_counts_however_slowly_it_is_written_down(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    """The database stands still for one attempt, and so for the one in line behind it, until both have run out."""
    await set_up(engine)
    held, behind = await engine.submit_many(jobs(2))
    await engine.parts.outgoing.dispatch_tick()
    await asyncio.gather(beat(engine, held), beat(engine, behind))
    await clock.advance(1)
    async with other_connection.transaction():
        await other_connection.execute("select from windlass.heartbeat where task_id = $1 for update", held)
        beats = [asyncio.create_task(beat(engine, held))]
        await waits_for(other_connection)
        beats.append(asyncio.create_task(beat(engine, behind)))
        while not engine.service(Callbacks)._heartbeats._line:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await clock.advance(3)
        judging = asyncio.create_task(engine.parts.outgoing.silence_tick())
        await asyncio.sleep(0)
    assert await asyncio.gather(judging, *beats)
    assert [(await task(engine, id_)).state for id_ in (held, behind)] == [State.RUNNING] * 2


def test_who_stood_still_itself_knows() -> None:
    now_s = [100.0]
    watch = FreezeDetector(lambda: now_s[0])
    for passed_s, still in ((0.5, False), (1.0, False), (2.7, True), (0.5, False)):
        now_s[0] += passed_s
        assert watch.was_frozen(0.5) is still, passed_s


async def test_a_sign_of_life_and_the_end_of_patience_at_the_same_moment(engine: Engine, clock: VirtualClock) -> None:
    """Either it is kept alive or it is lost; never is it told that it lives and taken away."""
    await set_up(engine)
    task_id = await engine.submit(job())
    await engine.parts.outgoing.dispatch_tick()
    await beat(engine, task_id)
    await clock.advance(3.499)
    heard, _ = await asyncio.gather(beat(engine, task_id), engine.parts.outgoing.silence_tick())
    await clock.advance(1)
    await engine.parts.outgoing.silence_tick()

    assert heard.now
    assert (await task(engine, task_id)).state is State.RUNNING


async def test_what_has_ended_is_forgotten_when_its_time_is_over(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    await set_up(engine)
    task_id = await engine.submit(job())
    await engine.parts.outgoing.dispatch_tick()
    await beat(engine, task_id)
    await engine.service(Callbacks).finish(
        AttemptReport(await scope(engine, task_id), Outcome.SUCCEEDED, b"1", worker="ada")
    )
    await clock.advance(4)
    await engine.parts.outgoing.silence_tick()

    assert (await task(engine, task_id)).state is State.SUCCEEDED
    assert await other_connection.fetchval("select count(*) from windlass.heartbeat") == 0


async def test_no_more_is_sent_out_than_can_be_delivered(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.engine.send.dispatcher.UNDELIVERED_MAX", 3)
    await set_up(engine)
    await engine.submit_many(jobs(10))
    while await engine.parts.outgoing.dispatch_tick():
        pass
    assert await other_connection.fetchval("select count(*) from windlass.task where state = 'running'") == 3

    await other_connection.execute("delete from windlass.outbox")
    await clock.advance(1)  # it looks again by itself
    while await engine.parts.outgoing.dispatch_tick():
        pass
    assert await other_connection.fetchval("select count(*) from windlass.task where state = 'running'") == 6


async def test_a_retry_is_sent_out_when_its_time_comes_and_not_before(engine: Engine, clock: VirtualClock) -> None:
    await set_up(engine)
    task_id = await engine.submit(job())
    await engine.parts.outgoing.dispatch_tick()
    await engine.service(Callbacks).finish(AttemptReport(await scope(engine, task_id), Outcome.FAILED, worker="ada"))
    while await engine.parts.outgoing.dispatch_tick():
        pass
    assert (await task(engine, task_id)).attempt == 1

    await clock.advance(1.3)
    assert await engine.parts.outgoing.dispatch_tick() == 1
    assert (await task(engine, task_id)).attempt == 2
    known = await scope(engine, task_id)
    with pytest.raises(LeaseLost):
        await engine.service(Callbacks).heartbeat(CallbackHeartbeat(known.naming(1), "ada"))


async def test_a_push_that_was_given_up_after_it_was_taken_up_changes_nothing(engine: Engine) -> None:
    await set_up(engine)
    task_id = await engine.submit(job())
    await engine.parts.outgoing.dispatch_tick()

    async def broken(effect: Effect) -> None:
        await beat(engine, task_id)
        raise ConnectionError

    engine.parts.effects["push"] = broken
    tries, outbox.TRIES_MAX = outbox.TRIES_MAX, 1
    try:
        await engine.loops.effects_tick()
    finally:
        outbox.TRIES_MAX = tries
    assert (await task(engine, task_id)).state is State.RUNNING
