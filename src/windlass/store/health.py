"""Facts about the health of a database. `engine.read.doctor` interprets them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import asyncpg
import msgspec

from windlass.core.delivery import claimed_types
from windlass.errors import Rejected, WindlassError
from windlass.store import migrate
from windlass.store.errors import translated
from windlass.store.queries import QUERIES

LISTEN_S = 2.0
CHANNEL = "windlass_doctor"


class ServerVitals(msgspec.Struct, frozen=True):
    version: str
    standby: bool
    fsync: bool
    synchronous_commit: bool
    autovacuum: bool
    connections_max: int
    connections: int
    oldest_transaction_s: float
    clock_s: float


class TableVitals(msgspec.Struct, frozen=True):
    name: str
    live: int
    dead: int


class WorkVitals(msgspec.Struct, frozen=True):
    workers: int
    leases_overdue: int
    effects_overdue: int
    effects_dead: int
    parked: int
    unattended: tuple[str, ...]


class Vitals(msgspec.Struct, frozen=True):
    """`schema` is the fault of the schema, None if it is right; with a fault, `tables` and `work` are empty."""

    server: ServerVitals
    receives_notifications: bool
    schema: str | None
    tables: tuple[TableVitals, ...] = ()
    work: WorkVitals | None = None


async def read_vitals(dsn: str) -> Vitals:
    with translated(dsn):
        connection = await asyncpg.connect(dsn, timeout=10, statement_cache_size=0)
        try:
            vitals = await _read(connection)
            await connection.close()
        finally:
            connection.terminate()
    return vitals


async def _read(connection: Any) -> Vitals:
    server = ServerVitals(**dict(await connection.fetchrow(QUERIES["server_vitals"])))
    receives_notifications = await _receives_notifications(connection)
    try:
        await migrate.check(connection)
    except Rejected as error:
        return Vitals(server, receives_notifications, error.message)
    tables = tuple(TableVitals(**dict(row)) for row in await connection.fetch(QUERIES["table_vitals"]))
    work = msgspec.convert(dict(await connection.fetchrow(QUERIES["work_vitals"], claimed_types())), WorkVitals)
    return Vitals(server, receives_notifications, None, tables, work)


async def _receives_notifications(connection: Any) -> bool:
    """Whether this connection receives a NOTIFY. Through a transaction-mode pooler it does not."""
    received = asyncio.Event()
    with contextlib.suppress(asyncpg.PostgresError, WindlassError, TimeoutError):
        await connection.add_listener(CHANNEL, lambda *_: received.set())
        await connection.execute(f"notify {CHANNEL}")
        await asyncio.wait_for(received.wait(), LISTEN_S)
    return received.is_set()
