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
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import asyncpg
import psycopg

from windlass.datasets.data.database import migrate_data
from windlass.store.embedded.launch import process_mark, read_record
from windlass.store.embedded.server import EmbeddedServer
from windlass.store.migrate import migrate

# A test's data may die with the machine, so it need not wait for the disk.
FAST_SETTINGS = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}


@dataclass(slots=True)
class Server:
    """Where the databases of the tests are made: `maintenance` is the database from which one makes others."""

    maintenance: str
    embedded: EmbeddedServer | None = None
    template: str | None = field(default=None, init=False)
    _connection: psycopg.Connection[Any] | None = field(default=None, init=False)

    def execute(self, statement: str) -> None:
        """By one connection for all tests; it belongs to no event loop."""
        if self._connection is None:
            self._connection = psycopg.connect(self.maintenance, autocommit=True)
        self._connection.execute(statement.encode())

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

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
        with closing(Server(given)) as server:
            yield server
        return
    version = os.environ.get("WINDLASS_TEST_PG")
    with (
        temporary_folder(_memory()) as folder,
        EmbeddedServer.open(
            folder / "server", version=int(version) if version else None, settings=FAST_SETTINGS
        ) as embedded,
        closing(Server(embedded.dsn_for("postgres"), embedded)) as server,
    ):
        _let_in_quickly(server, unquote(urlsplit(embedded.dsn).password or ""))
        yield server


def _let_in_quickly(server: Server, password: str) -> None:
    """Proving the password takes a third of a connection's time, and a test opens several."""
    server.execute("set scram_iterations = 1")
    server.execute(f"alter role current_user password '{password}'")


def _memory() -> Path | None:
    """A file system in memory, if there is one with room for a server and its programs: a third less time per database,
    and no waiting for a disk that others write to."""
    memory = Path("/dev/shm")
    if not memory.is_dir() or not os.access(memory, os.W_OK):
        return None
    status = os.statvfs(memory)
    roomy = status.f_bavail * status.f_frsize > 2 * 1024**3
    return memory if roomy and not status.f_flag & os.ST_NOEXEC else None


@contextmanager
def temporary_folder(parent: Path | None = None) -> Iterator[Path]:
    """A folder that root's unprivileged server can reach, unlike those of pytest; those of killed runs are swept up."""
    _sweep(parent or Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=f"windlass-test-{os.getpid()}-", dir=parent))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _sweep(parent: Path) -> None:
    for folder in parent.glob("windlass-test-*-*"):
        with suppress(FileNotFoundError, ProcessLookupError):  # others sweep too, or have just come to their end
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
    server.execute(f'create database "{name}" template "{server.template}" {server.clone_clause}')
    return server.dsn_for(name)


async def empty_database(server: Server) -> str:
    """The DSN of a new database without any schema."""
    name = f"windlass_test_{uuid.uuid4().hex}"
    server.execute(f'create database "{name}" template template0 {server.clone_clause}')
    return server.dsn_for(name)


async def drop_database(server: Server, dsn: str) -> None:
    """Also when the test left connections behind."""
    server.execute(f'drop database "{urlsplit(dsn).path[1:]}" with (force)')


async def drop_template(server: Server) -> None:
    if server.template is not None:
        server.execute(f'drop database "{server.template}" with (force)')
        server.template = None


async def _make_template(server: Server) -> str:
    dsn = await empty_database(server)
    connection = await asyncpg.connect(dsn)
    try:
        await migrate(connection)
        await migrate_data(connection)
    finally:
        await connection.close()
    return urlsplit(dsn).path[1:]
