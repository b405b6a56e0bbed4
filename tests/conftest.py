"""The fixtures that all tests share: one PostgreSQL per session, one database per test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.support import database as databases


@pytest.fixture(scope="session")
def postgres() -> Iterator[databases.Server]:
    """The PostgreSQL of this session; see `tests.support.database` for how to choose another."""
    with databases.open_server() as server:
        yield server
        asyncio.run(databases.drop_template(server))


@pytest.fixture
async def database(postgres: databases.Server) -> AsyncIterator[str]:
    """The DSN of a database with the current schema, for this test alone."""
    dsn = await databases.fresh_database(postgres)
    yield dsn
    await databases.drop_database(postgres, dsn)


@pytest.fixture
async def bare_database(postgres: databases.Server) -> AsyncIterator[str]:
    """The DSN of a database without any schema, for this test alone."""
    dsn = await databases.empty_database(postgres)
    yield dsn
    await databases.drop_database(postgres, dsn)
