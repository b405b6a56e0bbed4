"""One connection in use, and the pool it comes from. Every named query passes `Session.fetch`.

Two modes: direct (prepared statements, single statements commit themselves) and pooled, for a transaction-mode pooler
in front of the database: no prepared statement outlives its transaction, every statement is inside one, and nothing
else is kept in the session.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import asyncpg

from windlass.errors import StoreBusy
from windlass.store.errors import CommitUnknown, DatabaseUnavailable, translated
from windlass.store.queries import QUERIES
from windlass.store.records import Row

COMMAND_TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 10.0
ACQUIRE_TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 5.0


class Session:
    """A connection for the length of one unit of work."""

    __slots__ = ("_connection", "broken", "interrupted")

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.broken = False  # the driver may notice that its connection is closed only after our error
        # The caller left during a statement, which goes on until it is cancelled. A `begin` that takes effect after the
        # release would leave what the next caller writes uncommitted. asyncpg before 0.32 raises CancelledError in all
        # later statements if the next caller leaves before the statement of the first is cancelled.
        self.interrupted = False

    @property
    def connection(self) -> Any:
        """The driver's connection, for code of the user that shares our transaction."""
        return self._connection

    async def fetch(self, query: str, *args: object) -> Sequence[Row]:
        """Run a named query."""
        try:
            with translated():
                rows: Sequence[Row] = await self._connection.fetch(QUERIES[query], *args)
        except DatabaseUnavailable:
            self.broken = True
            raise
        except asyncio.CancelledError:
            self.interrupted = True
            raise
        return rows

    async def fetchval(self, query: str, *args: object) -> Any:
        """Run a named query that gives one row, and return its first column."""
        [row] = await self.fetch(query, *args)
        return row[0]

    async def execute(self, command: str) -> None:
        try:
            with translated():
                await self._connection.execute(command)
        except DatabaseUnavailable:
            self.broken = True
            raise
        except asyncio.CancelledError:
            self.interrupted = True
            raise

    async def run(self, statement: str, *args: object) -> Sequence[Row]:
        """Run a statement whose text was made here, such as one on a table of a dataset."""
        with self._watched():
            rows: Sequence[Row] = await self._connection.fetch(statement, *args)
        return rows

    async def copy(self, table: str, columns: Sequence[str], records: Iterable[tuple[Any, ...]]) -> None:
        """Write records to a table that is in the search path."""
        with self._watched():
            await self._connection.copy_records_to_table(table, columns=columns, records=records)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            with translated():
                yield
        except DatabaseUnavailable:
            self.broken = True
            raise
        except asyncio.CancelledError:
            self.interrupted = True
            raise

    async def limit_lock_wait(self, lock_wait_ms: int) -> None:
        """Let no later statement of the transaction wait longer than this for a lock: it raises LockHeld."""
        await self.execute(f"set local lock_timeout = {lock_wait_ms}")

    async def commit(self) -> None:
        try:
            await self.execute("commit")
        except StoreBusy as error:
            raise CommitUnknown(str(error)) from error

    async def rollback(self) -> None:
        if not self._connection.is_closed():
            await self.execute("rollback")


class Pool:
    """Connections to one database, opened when first needed; the last used is used first. Not the driver's pool, since
    that takes as long as a small query; this one takes a microsecond."""

    def __init__(self, dsn: str, *, pooled: bool, size: int) -> None:
        self._dsn, self.pooled, self._size = dsn, pooled, size
        self._free: list[Any] = []
        self._made = 0
        self._line: deque[asyncio.Future[None]] = deque()
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    async def acquire(self) -> Session:
        while True:
            while self._free:
                connection = self._free.pop()
                if not connection.is_closed():
                    return Session(connection)
                self._made -= 1
            if self._made < self._size:
                return Session(await self._connect())
            with translated():
                async with asyncio.timeout(ACQUIRE_TIMEOUT_S):  # wait_for may swallow a cancel on Python 3.11
                    await self._in_line()

    def release(self, session: Session) -> None:
        """Return a connection to the pool, or close it if it is broken, interrupted or inside a transaction."""
        connection = session._connection
        if session.interrupted and not session.broken and not connection.is_closed():
            closing = asyncio.create_task(self._close(connection))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
            return
        if session.broken or connection.is_closed() or connection.is_in_transaction() or self._closed:
            connection.terminate()
            self._made -= 1
        else:
            self._free.append(connection)
        self._next()

    async def _close(self, connection: Any) -> None:
        """Close a connection after its statement was cancelled, as the driver does by itself. Until then it counts as
        one of the pool."""
        try:
            with suppress(StoreBusy), translated():
                await connection.close(timeout=CLOSE_TIMEOUT_S)
        finally:
            self._made -= 1
            self._next()

    async def close(self) -> None:
        self._closed = True
        if self._closing:
            await asyncio.wait(self._closing)
        for connection in self._free:
            with suppress(StoreBusy), translated():
                await connection.close(timeout=CLOSE_TIMEOUT_S)
        self._free.clear()

    async def dedicated(self) -> Any:
        """A connection of its own, for LISTEN."""
        with translated(self._dsn):
            return await asyncpg.connect(self._dsn, timeout=CONNECT_TIMEOUT_S, statement_cache_size=0)

    async def _connect(self) -> Any:
        self._made += 1
        try:
            with translated(self._dsn):
                return await asyncpg.connect(
                    self._dsn,
                    statement_cache_size=0 if self.pooled else 200,
                    command_timeout=COMMAND_TIMEOUT_S,
                    timeout=CONNECT_TIMEOUT_S,
                    server_settings={"application_name": "windlass"},
                )
        except BaseException:
            self._made -= 1
            self._next()
            raise

    async def _in_line(self) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._next()  # our turn had come: give it to the next
            raise

    def _next(self) -> None:
        while self._line:
            place = self._line.popleft()
            if not place.done():
                place.set_result(None)
                return
