"""Databases for tests: one PostgreSQL for a session, embedded or given, and a fresh database for each test."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit

import asyncpg

from windlass.serve import migrate_database

# A test's data need not survive a crash of the machine, so commits need not wait for the disk.
FAST_SETTINGS = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}


class TestServer:
    """Creates databases; `maintenance` is the database to connect to for that."""

    __test__ = False  # not a class of tests, whatever its name

    def __init__(self, maintenance: str) -> None:
        self._maintenance = maintenance
        self._template: str | None = None

    @asynccontextmanager
    async def database(self) -> AsyncIterator[str]:
        """The URL of a new database with the current schema, dropped at the end."""
        if self._template is None:
            self._template = await self._create("template0")
            await migrate_database(self._url(self._template))
        name = await self._create(self._template)
        try:
            yield self._url(name)
        finally:
            await self._administer(f'drop database "{name}" with (force)')

    def close(self) -> None:
        if self._template is not None:
            asyncio.run(self._administer(f'drop database "{self._template}" with (force)'))
            self._template = None

    async def _create(self, template: str) -> str:
        name = f"windlass_test_{uuid.uuid4().hex}"
        await self._administer(f'create database "{name}" template "{template}"')
        return name

    def _url(self, database: str) -> str:
        return urlsplit(self._maintenance)._replace(path="/" + quote(database, safe="")).geturl()

    async def _administer(self, statement: str) -> None:
        connection = await asyncpg.connect(self._maintenance)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()


@contextmanager
def open_test_server() -> Iterator[TestServer]:
    """The server of WINDLASS_TEST_DATABASE_URL (its role must be allowed to create databases), else an embedded one in
    a temporary folder."""
    if url := os.environ.get("WINDLASS_TEST_DATABASE_URL"):
        yield TestServer(url)
        return
    from windlass.store.embedded.server import EmbeddedServer  # an extra that production does not install

    folder = Path(tempfile.mkdtemp(prefix=f"windlass-test-{os.getpid()}-"))
    folder.chmod(0o711)  # so that the unprivileged server of a root user can reach it
    try:
        with EmbeddedServer.open(folder / "server", settings=FAST_SETTINGS) as server:
            yield TestServer(server.dsn_for("postgres"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
