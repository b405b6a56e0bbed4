"""windlass.submit(): any program submits a task inside its own transaction."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import asyncpg
import msgspec
import pytest
from msgspec.structs import replace
from tests.kit.work import job, only_direct, poll, soon, worker

from windlass import Conflict, Engine, Policy, State
from windlass.core.delivery import PULL, RetryForm
from windlass.core.queue import QueueConfig
from windlass.core.validation import PAYLOAD_MAX_BYTES
from windlass.store.store import Store
from windlass.testing.clock import VirtualClock

ROW = "select row_to_json(t)::jsonb - 'id' from windlass.task t where id = $1"


async def test_a_task_submitted_by_sql_is_the_same_row_as_by_python(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    now = await clock.now()
    by_python = await engine.submit(
        job(
            kind="mail", payload=b'{"to": "ada"}', queue="q", namespace="n", priority=-3,
            available_at=now + timedelta(seconds=60), deadline_at=now + timedelta(hours=1), concurrency_key="key",
            idempotency_key="k1", policy=Policy(max_attempts=2),
        )
    )  # fmt: skip
    by_sql = await other_connection.fetchval(
        """select windlass.submit('mail', '{"to":"ada"}', queue => 'q', namespace => 'n', priority => -3,
             delay => interval '1 minute', deadline_at => windlass.now() + interval '1 hour',
             concurrency_key => 'key', idempotency_key => 'k2', policy => '{"max_attempts": 2}')"""
    )
    one, other = [await other_connection.fetchval(ROW, id_) for id_ in (by_python, by_sql)]
    assert one.replace("k1", "k2") == other


async def test_with_defaults_only_it_is_the_same_row_too(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    by_python = await engine.submit(job(payload=b"null"))
    by_sql = await other_connection.fetchval("select windlass.submit('job')")
    one, other = [await other_connection.fetchval(ROW, id_) for id_ in (by_python, by_sql)]
    assert one == other
    assert by_sql.version == 7


async def test_a_rollback_leaves_nothing(engine: Engine, other_connection: asyncpg.Connection) -> None:
    transaction = other_connection.transaction()
    await transaction.start()
    await other_connection.execute("select windlass.submit('job', idempotency_key => 'k')")
    await transaction.rollback()
    assert await other_connection.fetchval("select count(*) from windlass.task") == 0
    assert await other_connection.fetchval("select count(*) from windlass.idempotency") == 0
    assert await engine.claim(await worker(engine)) == []


async def test_it_can_be_claimed_once_and_only_after_the_commit(
    engine: Engine, other_connection: asyncpg.Connection
) -> None:
    lease = await worker(engine)
    async with other_connection.transaction():
        id_ = await other_connection.fetchval("select windlass.submit('job', '{\"n\": 1}')")
        assert await engine.claim(lease, 10) == []
    [claimed] = await engine.claim(lease, 10)
    assert (claimed.task.id, claimed.payload) == (id_, b'{"n": 1}')
    assert await engine.claim(lease, 10) == []


@only_direct
async def test_its_commit_wakes_a_claim_that_waits(live_engine: Engine, other_connection: asyncpg.Connection) -> None:
    async with poll(live_engine, await worker(live_engine)) as waiting:
        async with other_connection.transaction():
            id_ = await other_connection.fetchval("select windlass.submit('job')")
            assert not waiting.done()
        assert [c.task.id for c in await soon(waiting)] == [id_]


@pytest.mark.parametrize(("sql", "python"), [('{"b": 1, "a": [1, 2]}', b'{"a":[1,2],"b":1}'), ('"é"', b'"\\u00e9"')])
async def test_a_key_is_one_key_for_sql_and_python(
    engine: Engine, other_connection: asyncpg.Connection, sql: str, python: bytes
) -> None:
    submit = "select windlass.submit('job', $1::jsonb, idempotency_key => $2)"
    by_sql = await other_connection.fetchval(submit, sql, "sql first")
    assert await engine.submit(job(payload=python, idempotency_key="sql first")) == by_sql
    by_python = await engine.submit(job(payload=python, idempotency_key="python first"))
    assert await other_connection.fetchval(submit, sql, "python first") == by_python


async def test_other_content_under_a_key_is_refused_on_both_sides(
    engine: Engine, other_connection: asyncpg.Connection
) -> None:
    await other_connection.fetchval("select windlass.submit('job', '1', idempotency_key => 'k')")
    with pytest.raises(Conflict):
        await engine.submit(job(2, idempotency_key="k"))
    for other in ("'job', '2'", "'other', '1'", "'job', '1', queue => 'other'"):
        with pytest.raises(asyncpg.UniqueViolationError):
            await other_connection.fetchval(f"select windlass.submit({other}, idempotency_key => 'k')")
    assert await other_connection.fetchval("select count(*) from windlass.task") == 1


LONG = "repeat('x', {})"


@pytest.mark.parametrize(
    "arguments",
    [
        "null",
        "''",
        "E'a\\x1fb'",
        "E'a\\u0085b'",
        LONG.format(201),
        "'job', queue => ''",
        "'job', queue => E'tab\\there'",
        "'job', namespace => null",
        "'job', priority => 101",
        "'job', priority => -101",
        "'job', priority => null",
        "'job', payload => null",
        f"'job', payload => to_jsonb({LONG.format(PAYLOAD_MAX_BYTES)})",
        "'job', concurrency_key => null",
        f"'job', concurrency_key => {LONG.format(501)}",
        "'job', idempotency_key => ''",
        f"'job', idempotency_key => {LONG.format(501)}",
        "'job', delay => null",
        "'job', delay => interval '100000 years'",
        "'job', available_at => 'infinity'",
        "'job', available_at => '-infinity'",
        "'job', available_at => '20000-01-01'",
        "'job', available_at => '0100-01-01 BC'",
        "'job', deadline_at => 'infinity'",
        "'job', deadline_at => '20000-01-01'",
        "'job', policy => '5'",
        "'job', policy => '[]'",
        "'job', policy => '{\"max_attempts\": \"many\"}'",
        "'job', policy => '{\"max_attempts\": 0}'",
        "'job', policy => '{\"max_attempts\": 1.5}'",
        "'job', policy => '{\"max_attempts\": null}'",
        "'job', policy => '{\"max_losses\": -1}'",
        "'job', policy => '{\"timeout_s\": -1}'",
        "'job', policy => '{\"timeout_s\": 0}'",
        "'job', policy => '{\"timeout_s\": \"1\"}'",
        "'job', policy => '{\"retry_factor\": 0.5}'",
        "'job', policy => '{\"cancel_grace_s\": 1e300}'",
        "'job', policy => '{\"retry_delay_s\": true}'",
        "'job', policy => '{\"no_such_field\": 1}'",
    ],
)
@only_direct
async def test_bad_arguments_are_refused_and_write_nothing(
    store: Store, other_connection: asyncpg.Connection, arguments: str
) -> None:
    with pytest.raises(asyncpg.PostgresError):
        await other_connection.fetchval(f"select windlass.submit({arguments})")
    assert await other_connection.fetchval("select count(*) from windlass.task") == 0


@pytest.mark.parametrize(
    "arguments",
    [
        "'job', delay => interval '-1 day'",
        "'job', available_at => '1970-01-01', deadline_at => '9000-01-01'",
        f"{LONG.format(200)}, queue => {LONG.format(200)}, concurrency_key => {LONG.format(500)}",
        "'job', policy => '{}'",
        '\'job\', policy => \'{"max_attempts": 1, "max_losses": 0, "timeout_s": null, "retry_factor": 1}\'',
        """'job', policy => '{"timeout_s": 0.5, "cancel_grace_s": 0, "retry_delay_s": 1.5, "retry_delay_max_s": 60}'""",
        "'job', '{\"deep\": [1, 2.5, null, true, \"\\u00e9\"]}'",
    ],
)
async def test_whatever_it_accepts_can_be_claimed_run_and_listed(
    engine: Engine, other_connection: asyncpg.Connection, arguments: str
) -> None:
    """A row that no engine can read would stop the whole queue."""
    id_ = await other_connection.fetchval(f"select windlass.submit({arguments})")
    queue = await other_connection.fetchval("select queue from windlass.task where id = $1", id_)
    assert [row.task.id for row in (await engine.tasks.page()).tasks] == [id_]
    [claimed] = await engine.claim(await worker(engine, queue))
    assert (await engine.complete(claimed)).state is State.SUCCEEDED


@only_direct
async def test_it_knows_every_field_of_a_policy(store: Store, other_connection: asyncpg.Connection) -> None:
    for field in set(Policy.__struct_fields__) - {"unlimited", "lease_s"}:  # which only the engine sets
        value = msgspec.json.encode({field: getattr(Policy(), field)}).decode()
        await other_connection.execute("select windlass.submit('job', policy => $1::jsonb)", value)


async def test_ids_made_by_sql_sort_by_time_like_those_of_python(
    engine: Engine, other_connection: asyncpg.Connection
) -> None:
    ids: list[Any] = []
    for _ in range(5):
        ids.append(await other_connection.fetchval("select windlass.submit('job')"))
        await other_connection.execute("select pg_sleep(0.002)")  # ids have the real clock, in milliseconds
        ids.append(await engine.submit(job()))
        await other_connection.execute("select pg_sleep(0.002)")
    assert ids == sorted(ids)


async def test_it_is_allowed_what_the_workers_of_its_kind_declare(
    engine: Engine, other_connection: asyncpg.Connection
) -> None:
    """As a task that is submitted by name over HTTP: the call, then the kind, then the queue."""
    declared = Policy(max_attempts=2, timeout_s=60.0)
    await engine.declare_kinds("shop", {"mail": declared})
    retry = RetryForm(max_attempts=9)
    await engine.queues.put("q", delivery=PULL, retry=retry, limits=QueueConfig())

    async def policy(call: str) -> Policy:
        id_ = await other_connection.fetchval(f"select windlass.submit({call})")
        return (await engine.tasks.get(id_)).task.policy

    assert await policy("'mail', queue => 'q'") == declared
    laid_over = """'mail', queue => 'q', policy => '{"max_attempts": 1}'"""
    assert await policy(laid_over) == replace(declared, max_attempts=1)
    assert (await policy("'other', queue => 'q'")).max_attempts == 9
    assert await policy("'mail', namespace => 'n'") == Policy()


@only_direct
async def test_a_role_that_may_not_read_what_is_declared_submits_as_before(
    live_engine: Engine, other_connection: asyncpg.Connection
) -> None:
    await live_engine.declare_kinds("shop", {"mail": Policy(max_attempts=2)})
    await other_connection.execute(
        """create role clerk; grant usage on schema windlass to clerk;
           grant select, insert on windlass.task, windlass.idempotency to clerk;
           grant select on windlass.queue to clerk"""
    )
    try:
        await other_connection.execute("set role clerk")
        id_ = await other_connection.fetchval("select windlass.submit('mail')")
        assert (await live_engine.tasks.get(id_)).task.policy == Policy()
    finally:
        await other_connection.execute("reset role; drop owned by clerk; drop role clerk")
