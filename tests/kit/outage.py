"""A database that is away for a while: its connections break, and new ones are refused until it is back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import asyncpg
from tests.kit.database import Server


async def hang_up(server: Server, dsn: str) -> None:
    """Break every connection to this database."""
    connection = await asyncpg.connect(server.maintenance)
    try:
        await connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = $1", _name(dsn)
        )
    finally:
        await connection.close()


@asynccontextmanager
async def read_only(server: Server, dsn: str) -> AsyncIterator[None]:
    """A database that takes no writes, as a standby after a failover."""
    await _set_read_only(server, dsn, "on")
    try:
        yield
    finally:
        await _set_read_only(server, dsn, "off")


async def _set_read_only(server: Server, dsn: str, value: str) -> None:
    connection = await asyncpg.connect(server.maintenance)
    try:
        await connection.execute(f'alter database "{_name(dsn)}" set default_transaction_read_only = {value}')
    finally:
        await connection.close()
    await hang_up(server, dsn)


@asynccontextmanager
async def away(server: Server, dsn: str) -> AsyncIterator[None]:
    name = _name(dsn)
    await _rename(server, name, f"{name}_away")
    try:
        yield
    finally:
        await _rename(server, f"{name}_away", name)


async def _rename(server: Server, name: str, new_name: str) -> None:
    connection = await asyncpg.connect(server.maintenance)
    try:
        while True:
            await connection.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = $1", name)
            try:
                await connection.execute(f'alter database "{name}" rename to "{new_name}"')
            except asyncpg.ObjectInUseError:
                continue
            return
    finally:
        await connection.close()


def _name(dsn: str) -> str:
    return urlsplit(dsn).path[1:]
