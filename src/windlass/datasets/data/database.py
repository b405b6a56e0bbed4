"""The data database: connections to it, and its schema. It may be the database of the state.

Deploys, sinks and queries use it; claims, completions, routing and cutovers do not: they go on while it is away.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from importlib import resources
from typing import Any

from windlass.engine.engine import Engine
from windlass.errors import Rejected, Unavailable
from windlass.store.errors import translated
from windlass.store.pool import Pool, Session
from windlass.store.queries import register_queries

register_queries(__package__, "data.sql")

CONNECTIONS = 4
VERSION = 1
_LOCK = f"select pg_advisory_xact_lock({int.from_bytes(b'windlass') + 1})"
_LEDGER = """\
create schema if not exists windlass_data;
create table if not exists windlass_data.migration (
    version    integer     primary key,
    checksum   text        not null,
    applied_at timestamptz not null default statement_timestamp()
);"""


class DataDatabase:
    """The data database of one engine: the one of the state, unless `use` names another."""

    def __init__(self, engine: Engine) -> None:
        self.dsn = engine.store.dsn
        self._pool = Pool(self.dsn, pooled=engine.store.pooled, size=CONNECTIONS)
        engine.on_close(self.close)

    def use(self, dsn: str | None, *, pooled: bool = False) -> None:
        """Use another database. Call it before the first connection."""
        if dsn is not None and dsn != self.dsn:
            self.dsn, self._pool = dsn, Pool(dsn, pooled=pooled, size=CONNECTIONS)

    async def close(self) -> None:
        await self._pool.close()

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Session]:
        """A transaction: committed when the block ends, rolled back when it raises. Raises Unavailable if the database
        is away."""
        session = await self._pool.acquire()
        try:
            await session.execute("begin")
            try:
                yield session
            except BaseException:
                with contextlib.suppress(Unavailable):
                    await session.rollback()
                raise
            await session.commit()
        finally:
            self._pool.release(session)

    async def check(self) -> None:
        """Raise Unavailable if it is away, and Rejected unless it has the schema of this version."""
        async with self.begin() as session:
            await _check(session)


async def check_data(dsn: str, *, pooled: bool = False) -> None:
    """Raise Unavailable if a data database is away, and Rejected unless it has the schema of this version."""
    pool = Pool(dsn, pooled=pooled, size=1)
    try:
        session = await pool.acquire()
        try:
            await _check(session)
        finally:
            pool.release(session)
    finally:
        await pool.close()


async def _check(session: Session) -> None:
    if not await session.fetchval("has_data_ledger"):
        raise Rejected("the data database has no schema: run `windlass migrate`", reason="missing")
    applied = [(row[0], row[1]) for row in await session.fetch("data_ledger")]
    if applied != [(VERSION, checksum())]:
        raise Rejected("the schema of the data database is not the one of this version", reason="other")


@cache
def schema_sql() -> str:
    return (resources.files(__package__ or "") / "schema.sql").read_text(encoding="utf-8")


def checksum() -> str:
    return hashlib.sha256(schema_sql().encode()).hexdigest()


def render_data_sql() -> str:
    """A psql script that makes the schema of this version in a data database, and fails if there is one."""
    return f"""
-- The data database, version {VERSION}
begin;
{_LOCK};
{_LEDGER}
{schema_sql().rstrip()}
insert into windlass_data.migration (version, checksum) values ({VERSION}, '{checksum()}');
commit;
"""  # noqa: S608


async def migrate_data(connection: Any) -> bool:
    """Bring a data database to the schema of this version. Returns whether it was changed. Many processes may call this
    at once."""
    with translated():
        async with connection.transaction():
            await connection.execute(_LOCK)
            await connection.execute(_LEDGER)
            applied = await connection.fetch("select version, checksum from windlass_data.migration order by version")
            if not applied:
                await connection.execute(schema_sql())
                record = "insert into windlass_data.migration (version, checksum) values ($1, $2)"
                await connection.execute(record, VERSION, checksum())
                return True
    if [(row[0], row[1]) for row in applied] != [(VERSION, checksum())]:
        raise Rejected(
            "this data database was made by a development version of Windlass and cannot be upgraded: start with an "
            "empty one",
            reason="development",
        )
    return False
