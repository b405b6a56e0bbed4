"""The pooler takes away what transaction mode takes away, and nothing else."""

from __future__ import annotations

import asyncio
import io
import struct
import subprocess
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import asyncpg
import pytest
from tests.kit.pooler import Address, Pooler, message, read_message

from windlass.store.embedded.host import find_software

pytestmark = pytest.mark.slow

STARTUP = struct.pack("!ii", 16, 196608) + b"user\0x\0\0"


@pytest.fixture
async def pooler(bare_database: str) -> AsyncIterator[Pooler]:
    async with Pooler(bare_database, backends=3) as pooler:
        yield pooler


@pytest.fixture
async def client(pooler: Pooler) -> AsyncIterator[asyncpg.Connection]:
    client = await asyncpg.connect(pooler.dsn, statement_cache_size=0)
    yield client
    if not client.is_closed():
        await client.execute("rollback")
        await client.close()


@pytest.fixture
async def direct(bare_database: str) -> AsyncIterator[asyncpg.Connection]:
    direct = await asyncpg.connect(bare_database)
    yield direct
    await direct.close()


async def backend_pid(client: asyncpg.Connection) -> int:
    async with client.transaction():
        return await client.fetchval("select pg_backend_pid()")  # type: ignore[no-any-return]


async def test_each_transaction_runs_on_another_backend_than_the_one_before(client: asyncpg.Connection) -> None:
    pids = [await backend_pid(client) for _ in range(8)]
    assert all(before != after for before, after in pairwise(pids))


async def test_a_client_waits_for_another_backend_even_when_its_own_is_idle(
    bare_database: str, direct: asyncpg.Connection
) -> None:
    async with Pooler(bare_database, backends=2) as pooler:
        client, other = [await asyncpg.connect(pooler.dsn, statement_cache_size=0) for _ in range(2)]
        await other.execute("begin")
        await client.execute("select 1")  # on the other one of the two
        waiting = asyncio.ensure_future(client.execute("select 1"))
        for _ in range(5):
            await direct.execute("select 1")
        assert not waiting.done()
        await other.execute("rollback")
        await waiting
        await client.close()
        await other.close()


async def test_a_transaction_stays_on_its_backend_until_it_ends(client: asyncpg.Connection) -> None:
    async with client.transaction():
        await client.execute("create temporary table t (n int) on commit drop")
        await client.executemany("insert into t values ($1)", [(1,), (2,), (3,)])
        assert await client.fetchval("select sum(n) from t") == 6


async def test_a_failed_transaction_keeps_its_backend_until_it_is_rolled_back(client: asyncpg.Connection) -> None:
    await client.execute("begin")
    with pytest.raises(asyncpg.DivisionByZeroError):
        await client.execute("select 1 / 0")
    with pytest.raises(asyncpg.InFailedSQLTransactionError):
        await client.execute("select 1")
    await client.execute("rollback")
    assert await client.execute("select 1") == "SELECT 1"


async def test_a_prepared_statement_of_an_earlier_transaction_is_gone(pooler: Pooler) -> None:
    client = await asyncpg.connect(pooler.dsn)  # with asyncpg's own cache of statements
    try:
        assert await backend_pid(client) > 0
        with pytest.raises(asyncpg.InvalidSQLStatementNameError):
            await backend_pid(client)
    finally:
        client.terminate()


async def test_a_setting_of_an_earlier_transaction_is_gone(client: asyncpg.Connection) -> None:
    await client.execute("set application_name = 'kept'")
    names = set()
    for _ in range(3):
        async with client.transaction():
            names.add(await client.fetchval("show application_name"))
    assert names == {""}


async def test_a_session_lock_of_an_earlier_transaction_is_free(
    client: asyncpg.Connection, direct: asyncpg.Connection
) -> None:
    await client.execute("select pg_advisory_lock(7)")
    await direct.execute("select pg_advisory_lock(7)")


async def test_listen_hears_nothing(client: asyncpg.Connection, direct: asyncpg.Connection) -> None:
    heard: list[object] = []
    await client.add_listener("news", lambda *said: heard.append(said))
    await direct.execute("notify news, 'x'")
    for _ in range(4):
        await backend_pid(client)
    assert heard == []
    async with client.transaction():
        assert await client.fetchval("select count(*) from pg_listening_channels()") == 0


async def test_one_simple_query_may_hold_several_statements_and_transactions(
    client: asyncpg.Connection, direct: asyncpg.Connection
) -> None:
    await client.execute(
        "create table t (n int); commit; begin; insert into t values (1); commit; insert into t values (2); rollback"
    )
    assert await direct.fetchval("select array_agg(n) from t") == [1]


async def test_copy_goes_through_in_both_directions(client: asyncpg.Connection) -> None:
    await client.execute("create table t (n int, s text)")
    rows = [(n, "x" * 500) for n in range(2000)]
    assert await client.copy_records_to_table("t", records=rows) == "COPY 2000"
    out = io.BytesIO()
    assert await client.copy_from_query("select * from t order by n", output=out) == "COPY 2000"
    assert len(out.getvalue().splitlines()) == 2000


async def test_a_copy_that_fails_leaves_the_client_usable(client: asyncpg.Connection) -> None:
    await client.execute("create table t (n int check (n < 5))")
    with pytest.raises(asyncpg.CheckViolationError):
        await client.copy_records_to_table("t", records=[(n,) for n in range(20_000)])
    assert await client.copy_records_to_table("t", records=[(1,)]) == "COPY 1"


async def test_a_copy_whose_sync_was_sent_ahead_ends_its_transaction(
    pooler: Pooler, client: asyncpg.Connection
) -> None:
    """As libpq does; the server never answers a Sync that it meets while it reads COPY data."""
    await client.execute("create table t (n int)")
    reader, writer = await raw_client(pooler)
    statement = (
        message(b"P", b"\0copy t from stdin\0\0\0")
        + message(b"B", b"\0\0" + bytes(6))
        + message(b"E", b"\0" + bytes(4))
    )
    before = pooler.transactions
    writer.write(statement + message(b"S"))
    await until(reader, b"G")
    writer.write(message(b"d", b"1\n2\n") + message(b"c") + message(b"S"))
    assert await until(reader, b"Z") == b"I"
    assert pooler.transactions == before + 1
    writer.close()
    await writer.wait_closed()


async def test_pipelined_transactions_are_answered_in_order(pooler: Pooler) -> None:
    reader, writer = await raw_client(pooler)
    writer.write(b"".join(message(b"Q", f"select {n}\0".encode()) for n in range(20)))
    answers = [await until(reader, b"D") for _ in range(20)]
    assert [int(answer[6:]) for answer in answers] == list(range(20))
    writer.close()
    await writer.wait_closed()


async def raw_client(pooler: Pooler) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await Address.parse(pooler.dsn).connect()
    writer.write(STARTUP)
    await until(reader, b"Z")
    return reader, writer


async def until(reader: asyncio.StreamReader, wanted: bytes) -> bytes:
    while True:
        kind, body = await read_message(reader)
        assert kind != b"E", body
        if kind == wanted:
            return body


async def test_a_client_that_vanishes_in_a_transaction_is_rolled_back(
    pooler: Pooler, direct: asyncpg.Connection
) -> None:
    await direct.execute("create table t (n int)")
    client = await asyncpg.connect(pooler.dsn, statement_cache_size=0)
    await client.execute("begin; lock table t; insert into t values (1)")
    client.terminate()
    await direct.execute("lock table t; insert into t values (2)")  # waits for the end of that transaction
    assert await direct.fetchval("select array_agg(n) from t") == [2]


async def test_a_client_that_vanishes_while_its_query_runs_is_rolled_back(
    pooler: Pooler, client: asyncpg.Connection, direct: asyncpg.Connection
) -> None:
    await direct.execute("select pg_advisory_lock(1)")
    _, writer = await raw_client(pooler)
    writer.write(message(b"Q", b"begin; select pg_advisory_xact_lock(2); select pg_advisory_xact_lock(1)\0"))
    await lock_wait(direct)
    writer.close()
    await writer.wait_closed()
    await client.execute("select pg_advisory_xact_lock(2)")  # waits until the server has noticed


async def test_a_client_that_asks_for_encryption_is_told_no_and_may_go_on(pooler: Pooler) -> None:
    reader, writer = await Address.parse(pooler.dsn).connect()
    for code in (80877103, 80877104):
        writer.write(struct.pack("!ii", 8, code))
        assert await asyncio.wait_for(reader.readexactly(1), 60) == b"N"
    writer.write(STARTUP)
    assert await until(reader, b"Z") == b"I"
    writer.close()
    await writer.wait_closed()


async def lock_wait(direct: asyncpg.Connection) -> None:
    """Returns when some backend waits for an advisory lock."""
    query = "select exists (select from pg_locks where locktype = 'advisory' and not granted)"
    while not await direct.fetchval(query):  # noqa: ASYNC110
        await asyncio.sleep(0.002)


async def test_a_query_can_be_cancelled(client: asyncpg.Connection, direct: asyncpg.Connection) -> None:
    await direct.execute("select pg_advisory_lock(1)")
    blocked = asyncio.ensure_future(client.execute("select pg_advisory_xact_lock(1)"))
    await lock_wait(direct)
    blocked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await blocked
    assert await client.execute("select 1") == "SELECT 1"


async def test_more_clients_than_backends_take_turns(bare_database: str) -> None:
    async with Pooler(bare_database, backends=2) as pooler:
        clients = await asyncio.gather(*(asyncpg.connect(pooler.dsn, statement_cache_size=0) for _ in range(12)))
        await clients[0].execute("create table t (n int not null); insert into t values (0)")

        async def count(client: asyncpg.Connection) -> None:
            for _ in range(5):
                async with client.transaction():
                    await client.execute("update t set n = n + $1", 1)

        await asyncio.gather(*map(count, clients))
        async with clients[0].transaction():
            assert await clients[0].fetchval("select n from t") == 60
        await asyncio.gather(*(client.close() for client in clients))


async def test_a_lost_backend_costs_its_client_the_connection_and_is_replaced(
    pooler: Pooler, client: asyncpg.Connection, direct: asyncpg.Connection
) -> None:
    lost = asyncio.Event()
    client.add_termination_listener(lambda _: lost.set())
    await client.execute("begin")
    pid = await client.fetchval("select pg_backend_pid()")
    assert await direct.fetchval("select pg_terminate_backend($1)", pid)
    await asyncio.wait_for(lost.wait(), 30)
    assert client.is_closed()
    others = await asyncio.gather(*(asyncpg.connect(pooler.dsn, statement_cache_size=0) for _ in range(3)))
    await asyncio.gather(*(other.execute("begin") for other in others))  # needs all three backends at once
    await asyncio.gather(*(other.execute("rollback") for other in others))
    await asyncio.gather(*(other.close() for other in others))


async def test_libpq_programs_work_through_it(pooler: Pooler) -> None:
    script = "create table t (n int);\n\\copy t from stdin\n1\n2\n\\.\nselect sum(n) from t;\n"
    command = [str(find_software(None).program("psql")), "-XqAt", pooler.dsn]
    done = await asyncio.to_thread(
        subprocess.run, command, input=script, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout, done.stderr) == ("3\n", "")


async def test_a_stopped_pooler_leaves_no_backend_and_no_socket(bare_database: str, direct: asyncpg.Connection) -> None:
    pooler = Pooler(bare_database)
    await pooler.start()
    client = await asyncpg.connect(pooler.dsn, statement_cache_size=0)
    await client.execute("begin")
    folder = Path(Address.parse(pooler.dsn).host)
    await pooler.stop()
    client.terminate()
    query = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    while await direct.fetchval(query):  # noqa: ASYNC110
        await asyncio.sleep(0.002)
    assert not folder.exists()  # noqa: ASYNC240
