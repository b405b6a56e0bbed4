"""The PostgreSQL of one benchmark run: embedded, on disk, with default durability.

Owns the data directory `.bench/server` and a lock against a second run, which would disturb the measurements.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bench.venv import HOME
from windlass.store.embedded.host import find_software
from windlass.store.embedded.server import EmbeddedServer

if TYPE_CHECKING:
    from collections.abc import Iterator


class Server:
    """`with Server() as server: connect(server.url("postgres"))`."""

    def __init__(self) -> None:
        self.folder = HOME / "server"
        self.bin = find_software(None).program("psql").parent

    @property
    def pid(self) -> int:
        return self._embedded.pid

    def url(self, database: str) -> str:
        """A URL that libpq, asyncpg and SQLAlchemy all read."""
        return self._embedded.dsn_for(database)

    def environment(self) -> dict[str, str]:
        """An environment in whose PATH `psql` is found."""
        return {**os.environ, "PATH": f"{self.bin}{os.pathsep}{os.environ.get('PATH', '')}"}

    def psql(self, sql: str, database: str = "postgres") -> str:
        """Run a statement, outside of measured time."""
        command = [str(self.bin / "psql"), "-AtqX", "-v", "ON_ERROR_STOP=1", "-d", self.url(database), "-c", sql]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr.strip())
        return done.stdout.strip()

    @contextmanager
    def database(self, name: str) -> Iterator[str]:
        """An empty database, dropped afterwards. The checkpoint keeps earlier writes out of the next measurement."""
        self.psql(f"drop database if exists {name} with (force)")
        self.psql(f"create database {name}")
        self.psql("checkpoint")
        try:
            yield self.url(name)
        finally:
            self.psql(f"drop database if exists {name} with (force)")

    def __enter__(self) -> Server:
        self._lock = _only_run()
        if self.folder.exists():
            # A killed run may leave its server running: to open and close it stops it.
            EmbeddedServer.open(self.folder).close()
            shutil.rmtree(self.folder)
        self._embedded = EmbeddedServer.open(self.folder)
        return self

    def __exit__(self, *error: object) -> None:
        self._embedded.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)


def _only_run() -> int:
    Path(HOME).mkdir(exist_ok=True)
    lock = os.open(HOME / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise SystemExit("another benchmark is running on this machine, which would disturb the measurements") from None
    return lock
