"""Every kind of connection that a submission can join, by the real library: in a transaction, or refused.

The libraries are imported where they are used: none of them is needed to collect the tests.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from windlass import App, Conflict, Invalid

ORDER = "insert into orders values (1)"


@pytest.fixture
async def shop(app: App, other_connection: asyncpg.Connection) -> App:
    @app.task
    async def send(to: str) -> None: ...

    await other_connection.execute("create table orders (id integer)")
    return app


@pytest.fixture
def left(database: str) -> Callable[[], tuple[int, int]]:
    """How many orders and how many tasks others see."""

    def count() -> tuple[int, int]:
        with psycopg.connect(database) as other:
            row = other.execute("select (select count(*) from orders), (select count(*) from windlass.task)").fetchone()
            assert row is not None
            return row[0], row[1]

    return count


class Undone(Exception):
    """What makes a caller roll back."""


# ------------------------------------------------------------------------------- async: a transaction, and none
# Each opens a connection, and gives it with a function that inserts an order on it. What is raised inside rolls back.

Opened = AbstractAsyncContextManager[tuple[Any, Callable[[], Any]]]


@asynccontextmanager
async def with_asyncpg(database: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(database)
    try:
        async with connection.transaction():
            yield connection, lambda: connection.execute(ORDER)
    finally:
        await connection.close()


@asynccontextmanager
async def with_asyncpg_by_statements(database: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(database)
    try:
        await connection.execute("begin")
        yield connection, lambda: connection.execute(ORDER)
        await connection.execute("commit")
    finally:
        await connection.close()


@asynccontextmanager
async def with_psycopg(database: str) -> AsyncIterator[Any]:
    """It begins by itself with the first statement, which may be ours."""
    async with await psycopg.AsyncConnection.connect(database) as connection:
        yield connection, lambda: connection.execute(ORDER)


@asynccontextmanager
async def with_psycopg_block(database: str) -> AsyncIterator[Any]:
    connecting = psycopg.AsyncConnection.connect(database, autocommit=True)
    async with await connecting as connection, connection.transaction():
        yield connection, lambda: connection.execute(ORDER)


@asynccontextmanager
async def with_psycopg_pipeline(database: str) -> AsyncIterator[Any]:
    connecting = psycopg.AsyncConnection.connect(database, autocommit=True)
    async with await connecting as connection, connection.pipeline(), connection.transaction():
        yield connection, lambda: connection.execute(ORDER)


@asynccontextmanager
async def async_engine(database: str, driver: str, **options: Any) -> AsyncIterator[Any]:
    from sqlalchemy.ext.asyncio import create_async_engine

    connect = asyncpg.connect if driver == "asyncpg" else psycopg.AsyncConnection.connect
    made = create_async_engine(f"postgresql+{driver}://", async_creator=lambda: connect(database), **options)
    try:
        yield made
    finally:
        await made.dispose()


@asynccontextmanager
async def with_sqlalchemy(database: str, driver: str = "asyncpg") -> AsyncIterator[Any]:
    from sqlalchemy import text

    async with async_engine(database, driver) as engine, engine.begin() as connection:
        yield connection, lambda: connection.execute(text(ORDER))


@asynccontextmanager
async def with_sqlalchemy_psycopg(database: str) -> AsyncIterator[Any]:
    async with with_sqlalchemy(database, "psycopg") as opened:
        yield opened


@asynccontextmanager
async def with_async_session(database: str) -> AsyncIterator[Any]:
    """Begun, says SQLAlchemy; the driver begins with the first statement."""
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import AsyncSession

    class OurSession(AsyncSession): ...

    async with async_engine(database, "asyncpg") as engine, OurSession(engine) as session, session.begin():
        yield session, lambda: session.execute(text(ORDER))


@asynccontextmanager
async def with_lazy_async_session(database: str) -> AsyncIterator[Any]:
    """Not even SQLAlchemy has begun."""
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import async_sessionmaker

    async with async_engine(database, "psycopg") as engine, async_sessionmaker(engine)() as session:
        yield session, lambda: session.execute(text(ORDER))
        await session.commit()


JOINED = [
    with_asyncpg, with_asyncpg_by_statements, with_psycopg, with_psycopg_block, with_sqlalchemy,
    with_sqlalchemy_psycopg, with_async_session, with_lazy_async_session,
]  # fmt: skip


@pytest.mark.parametrize("opened", [*JOINED, with_psycopg_pipeline])
@pytest.mark.parametrize("task_first", [True, False], ids=["task first", "order first"])
async def test_a_rollback_leaves_neither_orders_nor_tasks(
    shop: App, database: str, left: Any, opened: Callable[[str], Opened], task_first: bool
) -> None:
    send = shop.handlers["shop.send"]

    async def order(*, then_fail: bool) -> None:
        async with opened(database) as (connection, insert):
            if not task_first:
                await insert()
            await send.submit("ada", connection=connection)
            await send.options(connection=connection).submit_many([("bob",), ("eve",)])
            await insert()
            if then_fail:
                raise Undone

    with pytest.raises(Undone):
        await order(then_fail=True)
    assert left() == (0, 0)
    await order(then_fail=False)
    assert left() == (1 if task_first else 2, 3)


@pytest.mark.parametrize("opened", JOINED)  # an error in a pipeline of psycopg ends its transaction
async def test_many_are_all_or_none_also_if_the_caller_goes_on(
    shop: App, database: str, left: Any, opened: Callable[[str], Opened]
) -> None:
    send = shop.handlers["shop.send"]
    async with opened(database) as (connection, insert):
        with pytest.raises(Conflict):
            await send.options(idempotency_key="k", connection=connection).submit_many([("ada",), ("bob",)])
        with pytest.raises(Invalid, match="NUL"):
            await send.options(connection=connection).submit_many([("ada",), ("b\x00b",)])
        await insert()
    assert left() == (1, 0)


@asynccontextmanager
async def without_asyncpg(database: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(database)
    yield connection, "async with connection.transaction"
    await connection.close()


@asynccontextmanager
async def without_asyncpg_pool(database: str) -> AsyncIterator[Any]:
    async with asyncpg.create_pool(database, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        yield connection, "async with connection.transaction"


@asynccontextmanager
async def without_psycopg(database: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
        yield connection, "with connection.transaction"


@asynccontextmanager
async def without_psycopg_pipeline(database: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
        pipeline = connection.pipeline()
        await pipeline.__aenter__()
        yield connection, "with connection.transaction"
        with suppress(psycopg.errors.PipelineAborted):  # depends on which answers have come by now
            await pipeline.__aexit__(None, None, None)


@asynccontextmanager
async def with_the_driver_of_a_session_that_begins_late(database: str) -> AsyncIterator[Any]:
    """What was found: SQLAlchemy has begun, its driver has not, and what is said to the driver is committed."""
    from sqlalchemy.ext.asyncio import AsyncSession

    async with async_engine(database, "asyncpg") as engine, AsyncSession(engine) as session, session.begin():
        raw = await (await session.connection()).get_raw_connection()
        yield raw.driver_connection, "AsyncConnection or AsyncSession"


@asynccontextmanager
async def without_sqlalchemy(database: str) -> AsyncIterator[Any]:
    options = {"isolation_level": "AUTOCOMMIT"}
    async with async_engine(database, "asyncpg", **options) as engine, engine.connect() as connection:
        yield connection, "AUTOCOMMIT"


@asynccontextmanager
async def without_async_session(database: str) -> AsyncIterator[Any]:
    from sqlalchemy.ext.asyncio import AsyncSession

    async with async_engine(database, "psycopg") as engine:
        session = AsyncSession(engine.execution_options(isolation_level="AUTOCOMMIT"))
        yield session, "AUTOCOMMIT"
        await session.close()


@pytest.mark.parametrize(
    "opened",
    [
        without_asyncpg, without_asyncpg_pool, without_psycopg, without_psycopg_pipeline,
        with_the_driver_of_a_session_that_begins_late, without_sqlalchemy, without_async_session,
    ],
)  # fmt: skip
@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
async def test_a_connection_that_is_not_in_a_transaction_is_refused(
    shop: App, database: str, left: Any, opened: Callable[[str], AbstractAsyncContextManager[Any]], many: bool
) -> None:
    send = shop.handlers["shop.send"]
    async with opened(database) as (connection, hint):
        joined = send.options(connection=connection)
        with pytest.raises(Invalid, match="is not in a transaction") as refused:
            await (joined.submit_many([("ada",), ("bob",)]) if many else joined.submit("ada"))
    assert refused.value.field == "connection"
    assert hint in str(refused.value)
    assert left() == (0, 0)


# ------------------------------------------------------------------------------- the same for programs that block


@contextmanager
def psycopg_begins(database: str) -> Iterator[Any]:
    with psycopg.connect(database) as connection:
        yield connection, lambda: connection.execute(ORDER)


@contextmanager
def psycopg_block(database: str) -> Iterator[Any]:
    with psycopg.connect(database, autocommit=True) as connection, connection.transaction():
        yield connection, lambda: connection.execute(ORDER)


@contextmanager
def psycopg2_connection(database: str, *, autocommit: bool = False) -> Iterator[Any]:
    import psycopg2

    connection = psycopg2.connect(database)
    connection.autocommit = autocommit
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def psycopg2_begins(database: str) -> Iterator[Any]:
    with psycopg2_connection(database) as connection, connection:
        yield connection, lambda: connection.cursor().execute(ORDER)


@contextmanager
def psycopg2_autocommit(database: str) -> Iterator[Any]:
    with psycopg2_connection(database, autocommit=True) as connection:
        yield connection, "turn its autocommit off"


@contextmanager
def blocking_engine(database: str, **options: Any) -> Iterator[Any]:
    from sqlalchemy import create_engine

    made = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(database), **options)
    try:
        yield made
    finally:
        made.dispose()


@contextmanager
def sqlalchemy_connection(database: str) -> Iterator[Any]:
    from sqlalchemy import text

    with blocking_engine(database) as engine, engine.begin() as connection:
        yield connection, lambda: connection.execute(text(ORDER))


@contextmanager
def sqlalchemy_session(database: str) -> Iterator[Any]:
    from sqlalchemy import text
    from sqlalchemy.orm import scoped_session, sessionmaker

    with blocking_engine(database) as engine:
        session = scoped_session(sessionmaker(engine))
        try:
            yield session, lambda: session.execute(text(ORDER))
            session.commit()
        finally:
            session.remove()


@contextmanager
def django_database(database: str) -> Iterator[Any]:
    import django
    from django.conf import settings
    from django.db import connections

    if not settings.configured:
        settings.configure(USE_TZ=True)
        django.setup()
    known = conninfo_to_dict(database)
    own = {"ENGINE": "django.db.backends.postgresql", "NAME": known.pop("dbname"), "OPTIONS": known}
    connections.settings = connections.configure_settings({"default": own})  # type: ignore[misc]
    try:
        yield connections["default"]
    finally:
        connections["default"].close()
        del connections["default"]


@contextmanager
def django_atomic(database: str) -> Iterator[Any]:
    from django.db import connection, transaction

    with django_database(database), transaction.atomic():
        yield connection, lambda: connection.cursor().execute(ORDER)


@pytest.mark.parametrize(
    "opened", [psycopg_begins, psycopg_block, psycopg2_begins, sqlalchemy_connection, sqlalchemy_session, django_atomic]
)
def test_programs_that_block_leave_neither_orders_nor_tasks(
    shop: App, database: str, left: Any, opened: Callable[[str], AbstractContextManager[Any]]
) -> None:
    send = shop.handlers["shop.send"]

    def order(*, then_fail: bool) -> None:
        with opened(database) as (connection, insert):
            send.options(connection=connection).submit_many_sync([("bob",), ("eve",)])
            send.submit_sync("ada", connection=connection)
            insert()
            with pytest.raises(Conflict):
                send.options(idempotency_key="k", connection=connection).submit_many_sync([("ada",), ("bob",)])
            if then_fail:
                raise Undone

    with pytest.raises(Undone):
        order(then_fail=True)
    assert left() == (0, 0)
    order(then_fail=False)
    assert left() == (1, 3)


@contextmanager
def psycopg_autocommit(database: str) -> Iterator[Any]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection, "with connection.transaction"


@contextmanager
def sqlalchemy_autocommit(database: str) -> Iterator[Any]:
    with blocking_engine(database, isolation_level="AUTOCOMMIT") as engine, engine.connect() as connection:
        yield connection, "AUTOCOMMIT"


@contextmanager
def django_autocommit(database: str) -> Iterator[Any]:
    from django.db import connection

    with django_database(database):
        yield connection, "transaction.atomic"


@pytest.mark.parametrize("opened", [psycopg_autocommit, psycopg2_autocommit, sqlalchemy_autocommit, django_autocommit])
@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_programs_that_block_are_refused_without_a_transaction(
    shop: App, database: str, left: Any, opened: Callable[[str], AbstractContextManager[Any]], many: bool
) -> None:
    send = shop.handlers["shop.send"]
    with opened(database) as (connection, hint):
        joined = send.options(connection=connection)
        with pytest.raises(Invalid, match="is not in a transaction") as refused:
            joined.submit_many_sync([("ada",), ("bob",)]) if many else joined.submit_sync("ada")
    assert hint in str(refused.value)
    assert left() == (0, 0)


async def test_the_other_flavour_of_a_library_is_refused(shop: App, database: str, left: Any) -> None:
    send = shop.handlers["shop.send"]
    async with with_sqlalchemy(database) as (connection, _), with_async_session(database) as (session, _):
        for wrong in (connection, session):
            with pytest.raises(Invalid, match="submit for an async one"):
                send.submit_sync("ada", connection=wrong)
    with sqlalchemy_connection(database) as (blocking, _), sqlalchemy_session(database) as (blocked, _):
        for wrong in (blocking, blocked):
            with pytest.raises(Invalid, match="submit_sync"):
                await send.submit("ada", connection=wrong)
    assert left() == (0, 0)


async def test_code_for_the_blocking_flavour_can_be_run_on_an_async_connection(
    shop: App, database: str, left: Any
) -> None:
    """By `run_sync`, as SQLAlchemy offers it."""
    send = shop.handlers["shop.send"]
    async with with_sqlalchemy(database) as (connection, _):
        await connection.run_sync(lambda blocking: send.submit_sync("ada", connection=blocking))
        assert left() == (0, 0)
    assert left() == (0, 1)
