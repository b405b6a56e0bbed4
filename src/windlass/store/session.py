"""One connection in use, and the pool it comes from. Everything that is said to PostgreSQL passes `Session.fetch`.

Two modes: direct (prepared statements, single statements commit themselves) and pooled, for a transaction-mode pooler
in front of the database: no prepared statement outlives its transaction, every statement is inside one, and nothing
else is kept in the session.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import asyncpg

from windlass.core.error import StoreBusy
from windlass.store.fault import CommitUnknown, translated
from windlass.store.query import QUERIES
from windlass.store.record import Row

COMMAND_TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 10.0


class _Connection(asyncpg.Connection):  # type: ignore[misc]
    def get_reset_query(self) -> str:
        """We leave nothing in a session, so there is nothing to reset: a round trip saved per transaction."""
        return ""


class Session:
    """A connection for the length of one unit of work."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def fetch(self, query: str, *args: object) -> Sequence[Row]:
        """Run a named query."""
        with translated():
            rows: Sequence[Row] = await self._connection.fetch(QUERIES[query], *args)
        return rows

    async def execute(self, command: str) -> None:
        with translated():
            await self._connection.execute(command)

    async def begin(self) -> None:
        await self.execute("begin")

    async def commit(self) -> None:
        try:
            await self.execute("commit")
        except StoreBusy as error:
            raise CommitUnknown(str(error)) from error

    async def rollback(self) -> None:
        if not self._connection.is_closed():
            await self.execute("rollback")


class Pool:
    """Connections to one database, made when first needed."""

    def __init__(self, dsn: str, *, pooled: bool, size: int) -> None:
        self._dsn, self.pooled, self._size = dsn, pooled, size
        self._pool: Any = None

    async def open(self) -> None:
        with translated():
            self._pool = await asyncpg.create_pool(
                self._dsn,
                min_size=0,
                max_size=self._size,
                statement_cache_size=0 if self.pooled else 200,
                command_timeout=COMMAND_TIMEOUT_S,
                timeout=CONNECT_TIMEOUT_S,
                connection_class=_Connection,
                server_settings={"application_name": "windlass"},
            )

    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.close()

    async def acquire(self) -> Session:
        with translated():
            return Session(await self._pool.acquire(timeout=CONNECT_TIMEOUT_S))

    async def release(self, session: Session) -> None:
        """A connection that broke is dropped by the driver; that is nobody's error any more."""
        try:
            with translated():
                await self._pool.release(session._connection)
        except StoreBusy:
            pass

    async def dedicated(self) -> Any:
        """A connection of its own, for LISTEN."""
        with translated():
            return await asyncpg.connect(self._dsn, timeout=CONNECT_TIMEOUT_S, statement_cache_size=0)
