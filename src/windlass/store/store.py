"""The store: one PostgreSQL database, seen as units of work.

`begin` gives a transaction. After its commit, this process gets its notifications directly, the others by NOTIFY.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from windlass.core.states import Transition
from windlass.errors import Unavailable
from windlass.store import migrate
from windlass.store.errors import translated
from windlass.store.notify import PendingNotifications, parse
from windlass.store.pool import Pool, Session
from windlass.store.tables.task import Finished
from windlass.store.tables.view import Views
from windlass.store.transaction import Transaction

log = logging.getLogger("windlass.store")

RECONNECT_S = 1.0


class Observer(Protocol):
    """Gets what was committed."""

    def moved(self, moves: Sequence[Transition]) -> None: ...
    def finished(self, finished: Sequence[Finished]) -> None: ...


class Store:
    """`pooled` is for a transaction-mode pooler in front of the database."""

    def __init__(self, dsn: str, *, pooled: bool = False, connections: int = 10) -> None:
        self._pool = Pool(dsn, pooled=pooled, size=connections)
        self.dsn, self.pooled = dsn, pooled
        self.announce: Callable[[PendingNotifications], None] = lambda _: None
        self.observer: Observer | None = None

    async def close(self) -> None:
        await self._pool.close()

    async def session(self) -> Session:
        return await self._pool.acquire()

    def release(self, session: Session) -> None:
        self._pool.release(session)

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Transaction]:
        """A transaction: committed when the block ends, rolled back when it raises."""
        session = await self.session()
        try:
            tx = Transaction(session, counted=self.observer is not None)
            await session.execute("begin")
            try:
                yield tx
            except BaseException:
                with contextlib.suppress(Unavailable):
                    await session.rollback()
                raise
            await session.commit()
        finally:
            self.release(session)
        self._publish(tx)

    @asynccontextmanager
    async def single(self) -> AsyncIterator[Transaction]:
        """For exactly one statement. Without a pooler it commits itself, which saves two round trips."""
        if self.pooled:
            async with self.begin() as tx:
                yield tx
            return
        session = await self.session()
        try:
            tx = Transaction(session, counted=self.observer is not None)
            yield tx
        finally:
            self.release(session)
        self._publish(tx)

    def _publish(self, tx: Transaction) -> None:
        """After the commit, send its notifications and its metrics."""
        if tx.wakes:
            self.announce(tx.wakes)
        if self.observer is not None:
            if tx.moves:
                self.observer.moved(tx.moves)
            if tx.finished:
                self.observer.finished(tx.finished)

    @asynccontextmanager
    async def views(self) -> AsyncIterator[Views]:
        """Reads for people, on one connection."""
        async with self.begin() as tx:
            yield Views(tx.session)

    async def check_schema(self) -> None:
        """Raise Rejected unless the database has the schema of this version."""
        connection = await self._pool.dedicated()
        try:
            with translated():
                await migrate.check(connection)
                await connection.close()
        finally:
            connection.terminate()

    async def listen(
        self, receive: Callable[[PendingNotifications], None], ready: Callable[[], None] = lambda: None
    ) -> None:
        """Call `receive` with the notifications of other processes, for ever. After a gap, it gets `everything`."""
        while True:
            try:
                await self._listen_once(receive, ready)
            except Unavailable as error:
                log.warning("cannot listen for notifications, trying again: %s", error)
                await asyncio.sleep(RECONNECT_S)

    async def _listen_once(self, receive: Callable[[PendingNotifications], None], ready: Callable[[], None]) -> None:
        connection = await self._pool.dedicated()
        try:
            closed = asyncio.Event()
            connection.add_termination_listener(lambda _: closed.set())

            with translated():
                await connection.add_listener("windlass", lambda *message: receive(parse(message[-1])))
            receive(PendingNotifications(everything=True))
            ready()
            await closed.wait()
        finally:
            connection.terminate()
