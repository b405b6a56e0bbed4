"""Idempotency keys: the same key and content is the same task, other content a conflict, whoever comes at once."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import asyncpg
import pytest
from tests.kit.work import begin, job, soon, waits_for

from windlass import Conflict, Engine, Submission
from windlass.engine.submit import submitter
from windlass.testing.clock import VirtualClock


async def count(other_connection: asyncpg.Connection, table: str = "task") -> int:
    return int(await other_connection.fetchval(f"select count(*) from windlass.{table}"))


async def test_a_hundred_submits_of_one_key_at_once_give_one_task(
    new_engine: Any, other_connection: asyncpg.Connection
) -> None:
    engines = [await new_engine() for _ in range(4)]
    calls = (engines[i % 4].submit(job(idempotency_key="once")) for i in range(100))
    assert len(set(await soon(asyncio.gather(*calls), 60))) == 1
    assert await count(other_connection) == await count(other_connection, "idempotency") == 1


async def test_the_same_key_and_content_later_is_the_same_task(engine: Engine) -> None:
    first = await engine.submit(job(idempotency_key="k"))
    assert await engine.submit(job(idempotency_key="k")) == first


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(b'{"a": 1, "b": [2, 3]}', b'{ "b":[2,3],"a":1 }', id="order and space"),
        pytest.param(b'"\\u00e9"', '"é"'.encode(), id="escapes"),
        pytest.param(b"null", b" null ", id="space"),
    ],
)
async def test_the_same_json_in_another_spelling_is_the_same_content(engine: Engine, one: bytes, other: bytes) -> None:
    first = await engine.submit(job(payload=one, idempotency_key="k"))
    assert await engine.submit(job(payload=other, idempotency_key="k")) == first


@pytest.mark.parametrize("change", [{"payload": b"2"}, {"kind": "other"}, {"queue": "other"}])
async def test_the_same_key_with_other_content_is_a_conflict_and_writes_nothing(
    engine: Engine, other_connection: asyncpg.Connection, change: dict[str, Any]
) -> None:
    first = await engine.submit(job(1, idempotency_key="k"))
    with pytest.raises(Conflict) as caught:
        await engine.submit(Submission(**{"kind": "job", "payload": b"1", "idempotency_key": "k", **change}))
    assert caught.value.details["task_id"] == first
    assert await count(other_connection) == 1


async def test_a_key_is_of_its_namespace(engine: Engine) -> None:
    ids = [await engine.submit(job(idempotency_key="k", namespace=name)) for name in ("one", "other")]
    assert len(set(ids)) == 2


async def test_concurrent_submits_with_other_content_agree_on_who_was_first(new_engine: Any) -> None:
    engines = [await new_engine() for _ in range(3)]
    calls = (engines[i % 3].submit(job(i % 2, idempotency_key="k")) for i in range(30))
    outcomes = await soon(asyncio.gather(*calls, return_exceptions=True), 60)
    winners = {i % 2 for i, outcome in enumerate(outcomes) if not isinstance(outcome, Conflict)}
    assert len(winners) == 1
    assert len({outcome for outcome in outcomes if not isinstance(outcome, Conflict)}) == 1


async def test_batches_with_the_same_keys_in_any_order_do_not_deadlock(
    new_engine: Any, other_connection: asyncpg.Connection
) -> None:
    engines = [await new_engine() for _ in range(4)]
    keys, randomness = [f"key {i}" for i in range(40)], random.Random(1)

    async def submit_all(engine: Engine) -> list[Any]:
        mixed = randomness.sample(keys, len(keys))
        return await engine.submit_many([job(payload=b"0", idempotency_key=key) for key in mixed])

    before = await other_connection.fetchval(
        "select deadlocks from pg_stat_database where datname = current_database()"
    )
    await soon(asyncio.gather(*(submit_all(engine) for engine in engines for _ in range(5))), 60)
    assert await count(other_connection) == 40
    await other_connection.execute("select pg_stat_clear_snapshot()")
    after = await other_connection.fetchval("select deadlocks from pg_stat_database where datname = current_database()")
    assert after == before


async def test_one_conflict_in_a_group_leaves_nothing_of_the_group(
    engine: Engine, other_connection: asyncpg.Connection
) -> None:
    await engine.submit(job(1, idempotency_key="taken"))
    with pytest.raises(Conflict):
        await engine.submit_many([job(idempotency_key="free"), job(), job(2, idempotency_key="taken")])
    assert await count(other_connection) == await count(other_connection, "idempotency") == 1


async def test_one_conflict_among_single_submits_fails_alone(engine: Engine) -> None:
    await engine.submit(job(1, idempotency_key="taken"))
    calls = [engine.submit(job(i, idempotency_key="taken" if i == 5 else f"key {i}")) for i in range(10)]
    outcomes = await soon(asyncio.gather(*calls, return_exceptions=True))
    assert [i for i, outcome in enumerate(outcomes) if isinstance(outcome, Conflict)] == [5]


async def test_the_same_key_twice_in_one_group_is_one_task(
    engine: Engine, other_connection: asyncpg.Connection
) -> None:
    first, second = await engine.submit_many([job(idempotency_key="k"), job(idempotency_key="k")])
    assert first == second
    assert await count(other_connection) == 1


async def test_an_id_that_is_taken_does_not_take_the_key(engine: Engine, other_connection: asyncpg.Connection) -> None:
    known = await engine.submit(job(1))
    with pytest.raises(Conflict):
        await engine.submit(job(2, id=known, idempotency_key="k"))
    assert await count(other_connection, "idempotency") == 0


async def test_a_key_in_somebodys_open_transaction_does_not_stall_other_keys(
    engine: Engine, other_connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submitter, "LONG_MS", 60_000)
    async with other_connection.transaction():
        theirs = await other_connection.fetchval("select windlass.submit('job', '0', idempotency_key => 'k')")
        slow = asyncio.create_task(engine.submit(job(idempotency_key="k")))
        await waits_for(other_connection)
        others = (engine.submit(job(i, idempotency_key=f"key {i}")) for i in range(5))
        assert len(await soon(asyncio.gather(*others), 10)) == 5
        assert not slow.done()
    assert await soon(slow) == theirs


async def test_a_key_is_free_again_when_its_task_was_forgotten(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    claimed = await begin(engine, idempotency_key="k")
    await engine.complete(claimed)
    await clock.advance(8 * 86400)
    await engine.loops.retention_tick()
    assert await count(other_connection, "idempotency") == 0
    assert await engine.submit(job(7, idempotency_key="k")) != claimed.task.id
