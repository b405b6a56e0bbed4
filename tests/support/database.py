"""A fresh, migrated database for each test, cloned from a template that is migrated once per server.

`WINDLASS_TEST_PG=16` runs the suite on another version of the embedded server; `WINDLASS_TEST_DATABASE_URL` runs it
on a server that exists, with a role that may create databases. What a test does with its database is not known here.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit

import asyncpg

from windlass.store.embedded import EmbeddedServer
from windlass.store.embedded_launch import process_mark, read_record
from windlass.store.migrate import migrate

# A test's data may die with the machine, so it need not wait for the disk.
FAST_SETTINGS = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}


@dataclass(slots=True)
class Server:
    """Where the databases of the tests are made: `maintenance` is the database from which one makes others."""

    maintenance: str
    embedded: EmbeddedServer | None = None
    template: str | None = field(default=None, init=False)

    def dsn_for(self, database: str) -> str:
        return urlsplit(self.maintenance)._replace(path="/" + quote(database, safe="")).geturl()

    @property
    def clone_clause(self) -> str:
        # Copying files needs two checkpoints: cheap without fsync (17 ms instead of 21), dear with it.
        return "strategy file_copy" if self.embedded else ""


@contextmanager
def open_server() -> Iterator[Server]:
    """The server that the environment names; by default an embedded one in a folder of its own."""
    if given := os.environ.get("WINDLASS_TEST_DATABASE_URL"):
        yield Server(given)
        return
    version = os.environ.get("WINDLASS_TEST_PG")
    with temporary_folder() as folder:
        settings = FAST_SETTINGS
        with EmbeddedServer.open(
            folder / "server", version=int(version) if version else None, settings=settings
        ) as server:
            yield Server(server.dsn_for("postgres"), server)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that root's unprivileged server can reach, unlike those of pytest; those of killed runs are swept up."""
    _sweep()
    folder = Path(tempfile.mkdtemp(prefix=f"windlass-test-{os.getpid()}-"))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _sweep() -> None:
    for folder in Path(tempfile.gettempdir()).glob("windlass-test-*-*"):
        if folder.stat().st_uid == os.geteuid() and process_mark(int(folder.name.split("-")[2])) is None:
            for record in folder.rglob("control/process"):
                if pid := read_record(record):
                    os.kill(pid, signal.SIGQUIT)
            shutil.rmtree(folder, ignore_errors=True)


async def fresh_database(server: Server) -> str:
    """The DSN of a new database with the current schema."""
    if server.template is None:
        server.template = await _make_template(server)
    name = f"windlass_test_{uuid.uuid4().hex}"
    await _administer(server, f'create database "{name}" template "{server.template}" {server.clone_clause}')
    return server.dsn_for(name)


async def empty_database(server: Server) -> str:
    """The DSN of a new database without any schema."""
    name = f"windlass_test_{uuid.uuid4().hex}"
    await _administer(server, f'create database "{name}" template template0 {server.clone_clause}')
    return server.dsn_for(name)


async def drop_database(server: Server, dsn: str) -> None:
    """Also when the test left connections behind."""
    await _administer(server, f'drop database "{urlsplit(dsn).path[1:]}" with (force)')


async def drop_template(server: Server) -> None:
    if server.template is not None:
        await _administer(server, f'drop database "{server.template}" with (force)')
        server.template = None


async def _make_template(server: Server) -> str:
    dsn = await empty_database(server)
    connection = await asyncpg.connect(dsn)
    try:
        await migrate(connection)
    finally:
        await connection.close()
    return urlsplit(dsn).path[1:]


async def _administer(server: Server, statement: str) -> None:
    connection = await asyncpg.connect(server.maintenance)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
