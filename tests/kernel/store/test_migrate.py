"""Migrations on real databases: order, turns, checksums, and the script for psql."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest

from windlass.errors import Invalid, Rejected, StoreBusy
from windlass.store.embedded.host import find_software
from windlass.store.migrate import Migration, check, load_migrations, migrate, read_migrations, render_sql

FIRST = Migration(1, "first", "create table windlass.a (n int);\ninsert into windlass.a values (1);")
SECOND = Migration(2, "second", "alter table windlass.a add column m int default 7 -- no semicolon")
THIRD = Migration(3, "third", "create function windlass.f() returns int language sql as $$ select 3; $$;")
ALL = (FIRST, SECOND, THIRD)


@pytest.fixture
async def connection(bare_database: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(bare_database)
    yield connection
    await connection.close()


async def versions(connection: asyncpg.Connection) -> list[int]:
    return [row["version"] for row in await connection.fetch("select version from windlass.migration order by version")]


async def reason(connection: asyncpg.Connection, migrations: tuple[Migration, ...]) -> object:
    with pytest.raises(Rejected) as caught:
        await check(connection, migrations=migrations)
    return caught.value.details["reason"]


def write(folder: Path, *names: str, ends: str = "\n") -> Path:
    """A schema, and migrations of these names beside it."""
    (folder / "migrations").mkdir(parents=True)
    for path in (folder / "schema.sql", *(folder / "migrations" / name for name in names)):
        path.write_bytes(f"select 1;{ends}select 2;{ends}".encode())
    return folder


async def test_migrate_applies_everything_in_order_and_says_what(connection: asyncpg.Connection) -> None:
    assert await migrate(connection, migrations=ALL) == ALL
    assert await connection.fetchval("select n + m + windlass.f() from windlass.a") == 11
    rows = await connection.fetch("select version, name, checksum from windlass.migration order by version")
    assert [tuple(row) for row in rows] == [(m.version, m.name, m.checksum) for m in ALL]


async def test_migrate_again_does_nothing(connection: asyncpg.Connection) -> None:
    await migrate(connection, migrations=ALL)
    assert await migrate(connection, migrations=ALL) == ()
    await check(connection, migrations=ALL)


@pytest.mark.parametrize("start", [0, 1, 2, 3])
async def test_migrate_continues_from_every_earlier_version(connection: asyncpg.Connection, start: int) -> None:
    assert await migrate(connection, target=start, migrations=ALL) == ALL[:start]
    assert await versions(connection) == [1, 2, 3][:start]
    assert await migrate(connection, migrations=ALL) == ALL[start:]


async def test_migrate_with_an_earlier_target_takes_nothing_back(connection: asyncpg.Connection) -> None:
    await migrate(connection, migrations=ALL)
    assert await migrate(connection, target=1, migrations=ALL) == ()
    assert await versions(connection) == [1, 2, 3]


@pytest.mark.parametrize("target", [-1, 4])
async def test_migrate_refuses_a_target_that_does_not_exist(connection: asyncpg.Connection, target: int) -> None:
    with pytest.raises(Invalid, match="the last one is 3"):
        await migrate(connection, target=target, migrations=ALL)


async def test_many_processes_that_migrate_at_once_apply_each_migration_once(bare_database: str) -> None:
    connections = await asyncio.gather(*(asyncpg.connect(bare_database) for _ in range(6)))
    try:
        applied = await asyncio.gather(*(migrate(each, migrations=ALL) for each in connections))
        assert sorted(m.version for part in applied for m in part) == [1, 2, 3]
        assert await connections[0].fetchval("select count(*) from windlass.a") == 1
    finally:
        await asyncio.gather(*(each.close() for each in connections))


async def test_a_process_that_waited_for_its_turn_sees_what_was_applied_meanwhile(bare_database: str) -> None:
    first, second = await asyncpg.connect(bare_database), await asyncpg.connect(bare_database)
    try:
        await second.execute("set default_transaction_isolation = 'repeatable read'")
        async with first.transaction():
            await migrate(first, migrations=ALL)
            waiting = asyncio.create_task(migrate(second, migrations=ALL))
            await lock_wait(bare_database, second.get_server_pid())
        assert await waiting == ()
    finally:
        await first.close()
        await second.close()


async def lock_wait(dsn: str, pid: int) -> None:
    """Returns when that server process waits for a lock."""
    watcher = await asyncpg.connect(dsn)
    try:
        while not await watcher.fetchval("select cardinality(pg_blocking_pids($1)) > 0", pid):  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    finally:
        await watcher.close()


async def test_a_failing_migration_changes_nothing_and_keeps_those_before_it(connection: asyncpg.Connection) -> None:
    broken = replace(SECOND, sql="create table windlass.b (n int); select 1 / 0;")
    with pytest.raises(Rejected, match="0002_second failed and changed nothing: division by zero"):
        await migrate(connection, migrations=(FIRST, broken, THIRD))
    assert await versions(connection) == [1]
    assert await connection.fetchval("select to_regclass('windlass.b')") is None
    assert await migrate(connection, migrations=ALL) == (SECOND, THIRD)


async def test_a_migration_that_cannot_have_its_lock_may_be_tried_again(bare_database: str) -> None:
    holder, other = await asyncpg.connect(bare_database), await asyncpg.connect(bare_database)
    try:
        await migrate(holder, target=1, migrations=ALL)
        async with holder.transaction():
            await holder.execute("lock table windlass.a")
            await other.execute("set lock_timeout = '10ms'")
            with pytest.raises(StoreBusy, match="0002_second was interrupted"):
                await migrate(other, migrations=ALL)
        assert await migrate(other, migrations=ALL) == (SECOND, THIRD)
    finally:
        await holder.close()
        await other.close()


async def test_a_database_that_began_with_another_schema_is_refused(connection: asyncpg.Connection) -> None:
    await migrate(connection, migrations=ALL)  # as many as a development version had
    schema = (Migration(1, "schema", "create table windlass.b (n int);"),)
    with pytest.raises(Rejected, match=r"development version of Windlass \(0001_first\).* remove .* empty database"):
        await migrate(connection, migrations=schema)
    assert await reason(connection, schema) == "development"


async def test_an_edited_migration_is_refused_by_migrate_and_by_check(connection: asyncpg.Connection) -> None:
    await migrate(connection, target=2, migrations=ALL)
    edited = (FIRST, replace(SECOND, sql=SECOND.sql + " "), THIRD)
    with pytest.raises(Rejected, match="0002_second is not the one that was applied"):
        await migrate(connection, migrations=edited)
    assert await reason(connection, edited) == "edited"
    assert await versions(connection) == [1, 2]


async def test_check_tells_missing_older_and_newer_apart(connection: asyncpg.Connection) -> None:
    assert await reason(connection, ALL) == "missing"
    await migrate(connection, target=2, migrations=ALL)
    assert await reason(connection, ALL) == "older"
    assert await reason(connection, ALL[:1]) == "newer"
    await check(connection, migrations=ALL[:2])


async def test_migrate_refuses_a_schema_newer_than_the_code(connection: asyncpg.Connection) -> None:
    await migrate(connection, migrations=ALL)
    with pytest.raises(Rejected, match="at version 3, newer than this Windlass, which knows 1"):
        await migrate(connection, migrations=ALL[:1])


@pytest.mark.parametrize("call", [migrate, check])
async def test_a_server_that_is_too_old_is_refused(call: Any) -> None:
    old = SimpleNamespace(get_server_version=lambda: SimpleNamespace(major=13))
    with pytest.raises(Rejected, match="PostgreSQL 14 or newer; this server is 13"):
        await call(old)


async def test_the_schema_of_this_release_passes_its_own_check(database: str) -> None:
    connection = await asyncpg.connect(database)
    try:
        await check(connection)
    finally:
        await connection.close()


async def test_the_schema_of_this_release_can_be_reached_from_every_earlier_one(bare_database: str) -> None:
    connection = await asyncpg.connect(bare_database)
    try:
        for migration in load_migrations():
            assert await migrate(connection, target=migration.version) == (migration,)
        await check(connection)
    finally:
        await connection.close()


def test_migrations_are_the_schema_and_the_files_beside_it_in_order(tmp_path: Path) -> None:
    found = read_migrations(write(tmp_path, "0003_b.sql", "0002_a.sql", "README.md"))
    assert [(m.version, m.title) for m in found] == [(1, "0001_schema"), (2, "0002_a"), (3, "0003_b")]


@pytest.mark.parametrize("names", [("0001_a.sql",), ("0003_b.sql",), ("0002_a.sql", "0004_c.sql")])
def test_gaps_and_repeats_are_refused(tmp_path: Path, names: tuple[str, ...]) -> None:
    with pytest.raises(Invalid, match="without gaps"):
        read_migrations(write(tmp_path, *names))


@pytest.mark.parametrize("name", ["2_a.sql", "0002-a.sql", "0002_it's.sql", "0002_A.sql"])
def test_a_name_that_cannot_be_read_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(Invalid, match=re.escape(repr(name))):
        read_migrations(write(tmp_path, name))


def test_the_checksum_does_not_depend_on_line_ends(tmp_path: Path) -> None:
    unix, dos = write(tmp_path / "unix", "0002_a.sql"), write(tmp_path / "dos", "0002_a.sql", ends="\r\n")
    assert read_migrations(unix) == read_migrations(dos)


def psql(dsn: str, script: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PGOPTIONS": "-c client_min_messages=warning"}
    command = [str(find_software(None).program("psql")), "--no-psqlrc", "--quiet", dsn]
    return subprocess.run(command, input=script, env=environment, capture_output=True, text=True, check=False)


async def test_the_rendered_script_does_what_migrate_does(bare_database: str, connection: asyncpg.Connection) -> None:
    done = await asyncio.to_thread(psql, bare_database, render_sql(ALL))
    assert (done.returncode, done.stderr) == (0, "")
    await check(connection, migrations=ALL)
    assert await connection.fetchval("select n + m + windlass.f() from windlass.a") == 11


async def test_the_rendered_script_continues_after_a_version(
    bare_database: str, connection: asyncpg.Connection
) -> None:
    await migrate(connection, target=1, migrations=ALL)
    done = await asyncio.to_thread(psql, bare_database, render_sql(ALL[1:]))
    assert (done.returncode, done.stderr) == (0, "")
    await check(connection, migrations=ALL)


@pytest.mark.parametrize(("applied", "after"), [(2, 1), (0, 1), (3, 0)])
async def test_the_rendered_script_refuses_another_beginning(
    bare_database: str, connection: asyncpg.Connection, applied: int, after: int
) -> None:
    await migrate(connection, target=applied, migrations=ALL)
    done = await asyncio.to_thread(psql, bare_database, render_sql(ALL[after:]))
    assert done.returncode != 0
    assert f"cannot follow schema version {applied}" in done.stderr
    assert await versions(connection) == [1, 2, 3][:applied]
