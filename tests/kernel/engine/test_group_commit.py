"""Group commit on the real database: shared transactions, order per task, and a store that goes and comes back."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest
from tests.kit.database import Server
from tests.kit.outage import away, hang_up
from tests.kit.work import CRASH, begin, job, jobs, soon, state, task, worker

from windlass import Conflict, Draining, Engine, LeaseLost, NotFound, State
from windlass.core.command import Cancelled, Complete, Release

TRANSACTIONS = "select count(distinct xmin::text) from windlass.task"


async def test_submits_that_come_together_share_transactions(
    engine: Engine, other_connection: asyncpg.Connection
) -> None:
    await soon(asyncio.gather(*map(engine.submit, jobs(300))))
    assert await other_connection.fetchval("select count(*) from windlass.task") == 300
    assert await other_connection.fetchval(TRANSACTIONS) <= 5


async def test_reports_that_come_together_share_transactions(
    engine: Engine, other_connection: asyncpg.Connection
) -> None:
    await engine.submit_many(jobs(300))
    claimed = await engine.claim(await worker(engine), 300)
    answers = await soon(asyncio.gather(*map(engine.complete, claimed)))
    assert {answer.state for answer in answers} == {State.SUCCEEDED}
    assert await other_connection.fetchval(TRANSACTIONS) <= 5


async def test_commands_that_come_together_share_transactions(
    engine: Engine, other_connection: asyncpg.Connection
) -> None:
    ids = await engine.submit_many(jobs(100))
    await soon(asyncio.gather(*map(engine.cancel, ids)))
    assert await other_connection.fetchval(TRANSACTIONS) <= 3


async def test_one_bad_report_fails_alone(engine: Engine) -> None:
    await engine.submit_many(jobs(10))
    claimed = await engine.claim(await worker(engine), 10)
    reports: list[Any] = [Complete(c.task.id, c.task.attempt, c.task.lease_id) for c in claimed]
    reports[3] = Complete(engine.parts.randomness.new_id(), 1, claimed[3].task.lease_id)
    reports[7] = Complete(claimed[7].task.id, 99, claimed[7].task.lease_id)
    answers = await engine.report(reports)
    assert (type(answers[3]), type(answers[7])) == (NotFound, LeaseLost)
    assert [a for i, a in enumerate(answers) if i not in (3, 7)] == [State.SUCCEEDED] * 8


async def test_reports_on_one_task_in_one_batch_keep_their_order(engine: Engine) -> None:
    claimed = await begin(engine)
    first, second = (claimed.task.id, claimed.task.attempt, claimed.task.lease_id), b'"x"'
    answers = await engine.report([Complete(*first, second), Release(*first), Cancelled(*first)])
    assert answers[0] is State.SUCCEEDED
    assert [type(answer) for answer in answers[1:]] == [Conflict, Conflict]


async def test_calls_on_one_task_keep_their_order(engine: Engine) -> None:
    """The first to come decides, over and over, whoever shares its batch."""
    for _ in range(10):
        claimed = await begin(engine)
        done, failed = await asyncio.gather(
            engine.complete(claimed), engine.fail(claimed, CRASH), return_exceptions=True
        )
        assert done.state is State.SUCCEEDED
        assert isinstance(failed, Conflict)


async def test_connections_that_break_are_replaced_and_no_command_is_lost(
    engine: Engine, postgres: Server, database: str
) -> None:
    claimed = await begin(engine)
    await hang_up(postgres, database)
    assert (await soon(engine.complete(claimed))).state is State.SUCCEEDED
    await hang_up(postgres, database)
    assert await state(engine, await soon(engine.submit(job()))) is State.QUEUED


async def test_what_comes_while_the_store_is_away_is_answered_when_it_is_back(
    engine: Engine, postgres: Server, database: str
) -> None:
    lease = await worker(engine)
    await engine.submit_many(jobs(20))
    claimed = await engine.claim(lease, 20)
    async with away(postgres, database):
        calls: list[asyncio.Task[Any]] = [
            *(asyncio.create_task(engine.complete(one)) for one in claimed),
            *(asyncio.create_task(engine.submit(job(i, idempotency_key=f"key {i}"))) for i in range(5)),
            *(asyncio.create_task(engine.submit(job(i))) for i in range(5)),
            asyncio.create_task(engine.submit_many(jobs(5, run_id=engine.parts.randomness.new_id()))),
            asyncio.create_task(engine.extend_lease(lease)),
        ]
        done, _ = await asyncio.wait(calls, timeout=0.2)
        assert not done
    await soon(asyncio.gather(*calls), 30)
    totals = await engine.tasks.totals()
    assert totals == {State.SUCCEEDED: 20, State.QUEUED: 15}


async def test_a_command_whose_caller_has_gone_is_carried_out_or_not_but_never_half(
    engine: Engine, other_connection: asyncpg.Connection
) -> None:
    """Cancelled at one moment after another, from before its first statement until after its commit."""
    run_id = engine.parts.randomness.new_id()
    for steps in range(0, 40, 2):
        first, second = engine.parts.randomness.new_id(), engine.parts.randomness.new_id()
        pair = [job(id=first, run_id=run_id), job(id=second, run_id=run_id, after=(first,))]
        call = asyncio.create_task(engine.submit_many(pair))
        for _ in range(steps):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert await engine.submit_many(pair) == [first, second], "and again is a repeat"
    tasks, edges = await other_connection.fetchrow(
        "select (select count(*) from windlass.task), (select count(*) from windlass.edge)"
    )
    assert (tasks, edges) == (40, 20)


async def test_a_caller_who_goes_early_takes_nobody_with_it(engine: Engine) -> None:
    ids = await engine.submit_many(jobs(30))
    calls = [asyncio.create_task(engine.cancel(id_)) for id_ in ids]
    await asyncio.sleep(0)
    for call in calls[::3]:
        call.cancel()
    outcomes = await soon(asyncio.gather(*calls, return_exceptions=True))
    assert all(outcome.state is State.CANCELLED for i, outcome in enumerate(outcomes) if i % 3)
    for id_ in ids:  # those that went without an answer can be asked again
        assert (await engine.cancel(id_)).state is State.CANCELLED


async def test_an_engine_that_closes_finishes_what_it_accepted(new_engine: Any, engine: Engine) -> None:
    leaving = await new_engine()
    calls = [asyncio.create_task(leaving.submit(job(i))) for i in range(20)]
    await asyncio.sleep(0)
    await soon(leaving.close())
    ids = await soon(asyncio.gather(*calls))
    assert [(await task(engine, id_)).state for id_ in ids] == [State.QUEUED] * 20
    with pytest.raises(Draining):
        await leaving.submit(job())
