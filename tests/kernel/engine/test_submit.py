"""Submissions: durable when accepted, all or none, and the same again is the same task."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from tests.kit.work import job, jobs, poll, soon, state, task, until, waiting, worker

from windlass import Conflict, Engine, Invalid, LeaseLost, Policy, State, Submission
from windlass.core.validation import PAYLOAD_MAX_BYTES
from windlass.store.errors import CommitUnknown
from windlass.store.pool import Session
from windlass.testing.clock import VirtualClock


async def count(other_connection: asyncpg.Connection) -> int:
    return int(await other_connection.fetchval("select count(*) from windlass.task"))


async def test_a_submission_is_kept_as_it_was_said(engine: Engine, clock: VirtualClock) -> None:
    now = await clock.now()
    asked = Submission(
        kind="mail", payload=b'{"to":"ada"}', queue="q", namespace="n", priority=-7,
        available_at=now + timedelta(seconds=5), deadline_at=now + timedelta(hours=1), concurrency_key="ada",
        idempotency_key="once", policy=Policy(max_attempts=2, timeout_s=9.5), requires=("gpu", "eu"),
    )  # fmt: skip
    view = await engine.tasks.get(await engine.submit(asked))
    kept = view.task
    assert (kept.kind, kept.queue, kept.namespace, kept.priority) == ("mail", "q", "n", -7)
    assert (kept.available_at, kept.deadline_at) == (asked.available_at, asked.deadline_at)
    assert (kept.concurrency_key, view.idempotency_key, kept.policy) == ("ada", "once", asked.policy)
    assert (view.requires, view.payload, view.created_at) == (("gpu", "eu"), b'{"to":"ada"}', now)
    assert (kept.state, kept.attempt) == (State.QUEUED, 0)


async def test_ids_are_in_the_order_of_the_submissions(engine: Engine) -> None:
    ids = await engine.submit_many(jobs(50))
    payloads = [(await engine.tasks.get(id_)).payload for id_ in ids]
    assert payloads == [str(i).encode() for i in range(50)]


async def test_submitting_nothing_is_allowed(engine: Engine, other_connection: asyncpg.Connection) -> None:
    assert await engine.submit_many([]) == []
    assert await count(other_connection) == 0


async def test_the_same_id_and_content_again_is_a_repeat(engine: Engine, other_connection: asyncpg.Connection) -> None:
    id_ = engine.parts.randomness.new_id()
    for _ in range(2):
        assert await engine.submit(job(1, id=id_)) == id_
        assert await engine.submit_many([job(1, id=id_)]) == [id_]
    assert await count(other_connection) == 1


@pytest.mark.parametrize("change", [{"payload": b"2"}, {"kind": "other"}, {"queue": "other"}, {"namespace": "other"}])
async def test_the_same_id_with_other_content_is_a_conflict(
    engine: Engine, other_connection: asyncpg.Connection, change: Any
) -> None:
    id_ = await engine.submit(job(1))
    with pytest.raises(Conflict):
        await engine.submit(Submission(**{"kind": "job", "payload": b"1", "id": id_, **change}))
    assert await count(other_connection) == 1


async def test_a_repeat_does_not_bring_a_finished_task_back(engine: Engine) -> None:
    id_ = await engine.submit(job(1))
    await engine.cancel(id_)
    assert await engine.submit(job(1, id=id_)) == id_
    assert await state(engine, id_) is State.CANCELLED


async def test_one_conflict_leaves_nothing_of_its_group(engine: Engine, other_connection: asyncpg.Connection) -> None:
    taken = await engine.submit(job(1))
    with pytest.raises(Conflict):
        await engine.submit_many([*jobs(5), job(2, id=taken)])
    assert await count(other_connection) == 1


async def test_one_invalid_submission_leaves_nothing_of_its_group(
    engine: Engine, other_connection: asyncpg.Connection
) -> None:
    with pytest.raises(Invalid):
        await engine.submit_many([*jobs(5), job(kind="")])
    assert await count(other_connection) == 0


async def test_one_conflict_among_single_submits_fails_alone(
    engine: Engine, other_connection: asyncpg.Connection
) -> None:
    taken = await engine.submit(job(-1))
    calls = [engine.submit(job(i, id=taken if i == 4 else None)) for i in range(10)]
    outcomes = await soon(asyncio.gather(*calls, return_exceptions=True))
    assert [i for i, outcome in enumerate(outcomes) if isinstance(outcome, Conflict)] == [4]
    assert await count(other_connection) == 10


async def test_a_repeat_among_new_ones_adds_only_the_new_ones(
    engine: Engine, other_connection: asyncpg.Connection
) -> None:
    known = await engine.submit(job(0))
    ids = await engine.submit_many([job(0, id=known), *jobs(3)])
    assert ids[0] == known
    assert await count(other_connection) == 4


async def test_the_same_id_twice_in_one_group_is_refused(engine: Engine, other_connection: asyncpg.Connection) -> None:
    id_ = engine.parts.randomness.new_id()
    with pytest.raises(Invalid):
        await engine.submit_many([job(1, id=id_), job(1, id=id_)])
    assert await count(other_connection) == 0


async def test_many_at_once_are_one_transaction(engine: Engine, other_connection: asyncpg.Connection) -> None:
    await engine.submit_many(jobs(5000))
    assert await count(other_connection) == 5000
    assert await other_connection.fetchval("select count(distinct xmin::text) from windlass.task") == 1


async def test_the_largest_payload_is_kept_and_one_byte_more_is_refused(engine: Engine) -> None:
    largest = b'"' + b"x" * (PAYLOAD_MAX_BYTES - 2) + b'"'
    id_ = await engine.submit(job(payload=largest))
    assert (await engine.tasks.get(id_)).payload == largest
    with pytest.raises(Invalid):
        await engine.submit(job(payload=largest + b" "))


async def test_repeats_of_a_group_with_runs_and_keys_change_nothing(
    engine: Engine, other_connection: asyncpg.Connection
) -> None:
    run_id, first, second = (engine.parts.randomness.new_id() for _ in range(3))
    group = [
        job(1, id=first, run_id=run_id, idempotency_key="a"),
        job(2, id=second, run_id=run_id, after=(first,), idempotency_key="b"),
    ]
    for _ in range(3):
        assert await engine.submit_many(group) == [first, second]
    assert await count(other_connection) == 2
    assert await other_connection.fetchval("select count(*) from windlass.edge") == 1


# ------------------------------------------------------------------------------------------------- batches


async def test_a_batch_is_a_task_for_each_payload_in_their_order(
    engine: Engine, other_connection: asyncpg.Connection
) -> None:
    ids = await engine.submit_batch(job(queue="q", namespace="n"), [b"%d" % n for n in range(50)])
    views = [await engine.tasks.get(id_) for id_ in ids]
    assert [view.payload for view in views] == [b"%d" % n for n in range(50)]
    assert {(v.task.kind, v.task.queue, v.task.namespace, v.task.state) for v in views} == {("job", "q", "n", "queued")}
    assert await other_connection.fetchval("select count(distinct xmin::text) from windlass.task") == 1


async def test_a_batch_may_be_empty(engine: Engine, other_connection: asyncpg.Connection) -> None:
    assert await engine.submit_batch(job(), []) == []
    assert await count(other_connection) == 0


@pytest.mark.parametrize(
    ("change", "payloads"),
    [
        ({}, [b"1", b"{"]),
        ({}, [b"1", "2"]),
        ({}, [b"1", b'"\xff"']),
        ({"kind": ""}, [b"1", b"2"]),
        ({"priority": 101}, [b"1", b"2"]),
        ({"id": UUID(int=7)}, [b"1", b"2"]),
        ({"payload": b"{"}, [b"1", b"2"]),
    ],
)
async def test_one_thing_that_is_wrong_leaves_nothing_of_a_batch(
    engine: Engine, other_connection: asyncpg.Connection, change: Any, payloads: Any
) -> None:
    with pytest.raises(Invalid):
        await engine.submit_batch(Submission(**{"kind": "job", **change}), payloads)
    assert await count(other_connection) == 0


async def test_a_batch_keeps_what_its_tasks_share(engine: Engine) -> None:
    policy = Policy(max_attempts=2)
    ids = await engine.submit_batch(job(priority=3, concurrency_key="ada", policy=policy), [b"1", b"2"])
    kept = [await task(engine, id_) for id_ in ids]
    assert {(t.priority, t.concurrency_key, t.policy.max_attempts) for t in kept} == {(3, "ada", 2)}


async def test_a_batch_under_one_key_is_a_conflict_unless_all_of_it_is_the_same(
    engine: Engine, other_connection: asyncpg.Connection
) -> None:
    first, again = await engine.submit_batch(job(idempotency_key="same"), [b"1", b"1"])
    assert first == again
    with pytest.raises(Conflict):
        await engine.submit_batch(job(idempotency_key="other"), [b"1", b"2"])
    assert await count(other_connection) == 1


async def test_a_batch_is_handed_to_a_waiting_claim(engine: Engine) -> None:
    async with poll(engine, await worker(engine), limit=5) as waits:
        ids = await engine.submit_batch(job(), [b"1", b"2"])
        claimed = await soon(waits)
    assert [(c.task.id, c.payload, c.task.state) for c in claimed] == [
        (ids[0], b"1", State.RUNNING),
        (ids[1], b"2", State.RUNNING),
    ]


async def test_a_batch_whose_reply_was_lost_is_there_once(
    engine: Engine, other_connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, lost = Session.fetch, []

    async def fetch(session: Session, query: str, *args: object) -> Any:
        rows = await real(session, query, *args)
        if query == "insert_plain_tasks" and not lost:
            lost.append(query)
            raise CommitUnknown("the answer was lost")
        return rows

    monkeypatch.setattr(Session, "fetch", fetch)
    ids = await soon(engine.submit_batch(job(), [b"1", b"2", b"3"]))
    assert lost == ["insert_plain_tasks"]
    assert [(await engine.tasks.get(id_)).payload for id_ in ids] == [b"1", b"2", b"3"]
    assert await count(other_connection) == 3


# ------------------------------------------------------------------------------------------------- hand-off


async def test_a_submitted_task_is_handed_to_a_waiting_claim_in_its_own_transaction(
    engine: Engine, other_connection: asyncpg.Connection
) -> None:
    async with poll(engine, await worker(engine)) as waits:
        id_ = await engine.submit(job(5))
        [claimed] = await soon(waits)
    assert (claimed.task.id, claimed.payload, claimed.task.state) == (id_, b"5", State.RUNNING)


async def test_a_hand_off_does_not_jump_the_line(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    """A task that another program has just submitted, and that no wake-up has told of yet, is first."""
    async with poll(engine, await worker(engine)) as waits:
        older = await other_connection.fetchval("select windlass.submit('job')")
        await clock.advance(1)
        newer = await engine.submit(job())
        assert [c.task.id for c in await soon(waits)] == [older]
    assert await state(engine, newer) is State.QUEUED


async def test_a_hand_off_keeps_to_the_limits(engine: Engine) -> None:
    await engine.configure_queue("default", max_running=1)
    lease = await worker(engine)
    await engine.submit(job())
    [running] = await engine.claim(lease)
    async with poll(engine, lease) as waits:
        second = await engine.submit(job())
        assert await state(engine, second) is State.QUEUED
        await engine.complete(running)
        assert [c.task.id for c in await soon(waits)] == [second]


async def test_a_hand_off_goes_only_to_who_can_take_it(engine: Engine) -> None:
    async with (
        poll(engine, await worker(engine, kinds=["other"])) as wrong,
        poll(engine, await worker(engine, labels=["cpu"])) as unfit,
        poll(engine, await worker(engine, labels=["gpu"])) as right,
    ):
        id_ = await engine.submit(job(requires=("gpu",)))
        assert [c.task.id for c in await soon(right)] == [id_]
        assert not wrong.done()
        assert not unfit.done()


async def test_a_lease_that_ran_out_while_it_waited_gets_nothing(engine: Engine, clock: VirtualClock) -> None:
    async with poll(engine, await worker(engine, ttl_s=5)) as waits:
        await clock.advance(6)
        id_ = await engine.submit(job())
        with pytest.raises(LeaseLost):
            await soon(waits)
    assert await state(engine, id_) is State.QUEUED


async def test_several_waiting_claims_share_what_is_submitted(engine: Engine) -> None:
    async with poll(engine, await worker(engine)) as one, poll(engine, await worker(engine)) as other:
        ids = await engine.submit_many(jobs(2))
        taken = [c.task.id for claimed in await soon(asyncio.gather(one, other)) for c in claimed]
    assert sorted(taken) == sorted(ids)


@pytest.mark.parametrize("statement", range(1, 9))
async def test_a_submitter_that_goes_in_the_middle_strands_nothing(
    engine: Engine, other_connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch, statement: int
) -> None:
    """Cancelled while its nth statement is on its way, its commit among them: the task is not there, or the waiting
    claim gets it, or it is in line."""
    lease = await worker(engine)
    async with poll(engine, lease) as waits:
        id_ = engine.parts.randomness.new_id()
        with gone_at(statement, monkeypatch) as submitter:
            submitter.append(asyncio.create_task(engine.submit(job(id=id_))))
            await asyncio.gather(*submitter, return_exceptions=True)
        await until(lambda: waits.done() or waiting(engine) == 1)
        known = await other_connection.fetchval("select count(*) from windlass.task")
        if not waits.done():
            assert [c.task.id for c in await engine.claim(lease, 5)] == [id_] * known
        else:
            assert [c.task.id for c in await waits] == [id_]
    if known:
        assert (await task(engine, id_)).losses == 0


@contextmanager
def gone_at(statement: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[asyncio.Task[Any]]]:
    """Cancels the caller that is put into the list when so many statements were sent."""
    callers: list[asyncio.Task[Any]] = []
    sent = 0

    def counting(original: Any) -> Any:
        async def send(self: Session, *args: Any) -> Any:
            nonlocal sent
            sent += 1
            if sent == statement:
                asyncio.get_running_loop().call_soon(callers[0].cancel)
            return await original(self, *args)

        return send

    with monkeypatch.context() as patch:
        for name in ("fetch", "execute"):
            patch.setattr(Session, name, counting(getattr(Session, name)))
        yield callers
