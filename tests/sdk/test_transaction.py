"""Submitting inside the caller's own transaction: with it or not at all, and workers hear of it after the commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import psycopg
import pytest
from tests.sdk.test_transaction_kinds import django_atomic, sqlalchemy_connection

from windlass import App, Conflict, Invalid, InvalidState, State, WorkflowContext


@asynccontextmanager
async def of_asyncpg(database: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(database)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def of_a_pool(database: str) -> AsyncIterator[Any]:
    async with asyncpg.create_pool(database, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        yield connection


@asynccontextmanager
async def of_psycopg(database: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
        yield connection


ASYNC = pytest.mark.parametrize("connect", [of_asyncpg, of_a_pool, of_psycopg])


@contextmanager
def blocking(database: str) -> Iterator[Any]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def shop(app: App) -> App:
    @app.task(queue="mail", priority=3, max_attempts=7)
    async def send(to: str, copies: int = 1) -> str:
        return f"{copies} to {to}"

    return app


async def count(database: str) -> int:
    async with of_asyncpg(database) as connection:
        return int(await connection.fetchval("select count(*) from windlass.task"))


@ASYNC
async def test_a_rollback_leaves_nothing_and_a_commit_leaves_both(shop: App, database: str, connect: Any) -> None:
    send = shop.handlers["shop.send"]
    async with connect(database) as connection:
        await connection.execute("create table orders (id integer primary key)")

        async def half_way() -> None:
            async with connection.transaction():
                await connection.execute("insert into orders values (1)")
                await send.submit("ada", connection=connection)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await half_way()
        assert await count(database) == 0
        async with connection.transaction():
            await connection.execute("insert into orders values (2)")
            handle = await send.options(connection=connection).submit("ada", copies=2)
            assert await count(database) == 0
    async with shop:
        task = (await shop.client.wait(handle.id, 0)).task
    assert (task.state, task.queue, task.priority, task.policy.max_attempts) == (State.QUEUED, "mail", 3, 7)


@ASYNC
async def test_a_worker_that_waits_is_woken_by_the_commit(shop: App, working: Any, database: str, connect: Any) -> None:
    send = shop.handlers["shop.send"]
    async with connect(database) as connection, working():
        async with connection.transaction():
            handle = await send.submit("ada", connection=connection)
        assert await handle.result("20s") == "1 to ada"


@ASYNC
async def test_everything_that_a_submission_can_say_arrives(shop: App, database: str, connect: Any) -> None:
    send = shop.handlers["shop.send"]
    at = datetime(2040, 1, 2, 3, 4, 5, tzinfo=UTC)
    options = {"queue": "slow", "priority": -4, "available_at": at, "deadline_at": at, "concurrency_key": "ada",
               "idempotency_key": "order 7"}  # fmt: skip
    async with connect(database) as connection, connection.transaction():
        first = await send.options(**options, connection=connection).submit("ä\u20ac")
        again = await send.options(**options, connection=connection).submit("ä\u20ac")
        many = await send.options(connection=connection, delay="1h").submit_many([("bob",), ("eve", 2)])
    assert first.id == again.id
    assert len({handle.id for handle in many}) == 2
    async with shop:
        seen: Any = await shop.client.wait(first.id, 0)
        same = await send.options(**options).submit("ä\u20ac")
    assert same.id == first.id, "the same key through an engine is the same task"
    task = seen.task
    assert (task.queue, task.priority, task.available_at, task.deadline_at, task.concurrency_key) == (
        "slow", -4, at, at, "ada",
    )  # fmt: skip
    assert shop.handlers["shop.send"].schema.arguments(seen.payload) == {"to": "ä\u20ac", "copies": 1}


async def test_a_codec_of_the_callers_connection_changes_nothing(shop: App, database: str) -> None:
    async with of_asyncpg(database) as connection:
        await connection.set_type_codec("jsonb", encoder=repr, decoder=str, schema="pg_catalog")
        async with connection.transaction():
            handle = await shop.handlers["shop.send"].submit("ada", connection=connection)
    async with shop:
        seen: Any = await shop.client.wait(handle.id, 0)
    assert shop.handlers["shop.send"].schema.arguments(seen.payload) == {"to": "ada", "copies": 1}


def test_programs_that_block_submit_in_their_transaction_and_need_no_engine(shop: App, database: str) -> None:
    send = shop.handlers["shop.send"]
    with blocking(database) as connection:

        def half_way() -> None:
            with connection.transaction():
                send.submit_sync("ada", connection=connection)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            half_way()
        assert asyncio.run(count(database)) == 0
        with connection.transaction():
            send.submit_sync("ada", connection=connection)
            send.options(connection=connection).submit_many_sync([("bob",), ("eve",)])
        assert asyncio.run(count(database)) == 3
    assert shop._sync_bridge is None


@ASYNC
async def test_what_is_wrong_is_an_error_of_ours(shop: App, database: str, connect: Any) -> None:
    send = shop.handlers["shop.send"]
    async with connect(database) as connection:
        with pytest.raises(Invalid, match="copies"):
            await send.submit("ada", "many", connection=connection)
        with pytest.raises(Invalid, match="NUL"):
            await send.submit("a\x00b", connection=connection)
        with pytest.raises(Invalid, match="run_id"):
            await send.options(run_id=uuid4(), connection=connection).submit("ada")
        async with connection.transaction():
            await send.options(idempotency_key="k", connection=connection).submit("ada")
        with pytest.raises(Conflict, match="other content"):
            async with connection.transaction():
                await send.options(idempotency_key="k", connection=connection).submit("bob")
    assert await count(database) == 1


@ASYNC
async def test_a_database_without_windlass_is_named(shop: App, bare_database: str, connect: Any) -> None:
    async with connect(bare_database) as connection:
        with pytest.raises(InvalidState, match="windlass migrate"):
            async with connection.transaction():
                await shop.handlers["shop.send"].submit("ada", connection=connection)


async def test_a_connection_of_the_wrong_kind_is_refused(shop: App, database: str) -> None:
    send = shop.handlers["shop.send"]
    with blocking(database) as connection, pytest.raises(Invalid, match="submit_sync"):
        await send.submit("ada", connection=connection)
    for connect in (of_asyncpg, of_psycopg):
        async with connect(database) as connection:
            with pytest.raises(Invalid, match="submit for an async one"):
                send.submit_sync("ada", connection=connection)
    for wrong in (database, object(), 7, dict):
        with pytest.raises(Invalid, match="connection"):
            await send.submit("ada", connection=wrong)
    assert await count(database) == 0


async def test_a_parameter_of_the_function_with_that_name_is_its_own(app: App) -> None:
    @app.task
    async def dial(connection: str) -> None: ...

    assert dial.submission((), {"connection": "fast"}).payload == b'{"connection":"fast"}'
    async with app:
        await dial.submit(connection="fast")


def test_errors_are_recognised_inside_those_of_a_framework(shop: App, database: str) -> None:
    send = shop.handlers["shop.send"]
    for opened in (django_atomic, sqlalchemy_connection):
        with opened(database) as (connection, _):
            send.options(idempotency_key="k", connection=connection).submit_sync("ada")
        with pytest.raises(Conflict, match="other content"), opened(database) as (connection, _):
            send.options(idempotency_key="k", connection=connection).submit_sync("bob")
    with blocking(database) as connection:
        connection.execute("drop schema windlass cascade")
    for opened in (django_atomic, sqlalchemy_connection):
        with pytest.raises(InvalidState, match="windlass migrate"), opened(database) as (connection, _):
            send.submit_sync("ada", connection=connection)


async def test_a_step_that_is_a_transaction_can_submit_in_it(shop: App, working: Any, database: str) -> None:
    send = shop.handlers["shop.send"]

    async def order(connection: Any, to: str) -> str:
        return str((await send.submit(to, connection=connection)).id)

    @shop.workflow
    async def sell(ctx: WorkflowContext, to: str) -> str:
        return await ctx.transaction(order, to)

    async with working():
        child = await (await sell.submit("ada")).result("20s")
        assert (await shop.client.wait(UUID(child), 20)).task.state is State.SUCCEEDED
