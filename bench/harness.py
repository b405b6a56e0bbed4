"""The environment of a measurement: a fresh store, worker processes that record what they ran, an agent that submits.

Ensures isolation and exactness: each measurement has its own database and starts after a checkpoint, every process is
ended afterwards, and there is no figure unless the store and the workers agree that every task ran exactly once.
`measure` defines the measurements.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg

from bench import process, recorder
from bench.ours import KEY
from bench.process import Child
from bench.server import Server
from bench.subject import Subject
from bench.venv import ROOT

Figures = dict[str, float]
DATABASE, KEPT = "measured", "kept"
STALLED_S = 60.0  # without progress
READY_S = 30.0


class Failed(RuntimeError):
    """A measurement that gives no figure: it broke, or it was not exact."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured. QUICK only shows that everything works; its figures mean little."""

    seconds: float  # of single submissions
    batched: int  # tasks in a batch submit
    share: float  # of a subject's drain
    samples: int  # of latency, per repetition
    rate: float  # of those, per second: low enough for a worker to be idle in between
    settle_s: float  # PostgreSQL reports the statistics of an idle session 10 s late
    window_s: float  # in which an idle worker is observed
    few: int
    many: int
    finished: int


FULL = Scale(2.0, 60_000, 1.0, 700, 40.0, 11.0, 10.0, 10_000, 1_000_000, 10_000_000)
QUICK = Scale(0.7, 10_000, 0.2, 60, 40.0, 1.0, 2.0, 5_000, 30_000, 30_000)


@dataclass(frozen=True, slots=True)
class Contestant:
    subject: Subject
    python: Path

    @property
    def name(self) -> str:
        return self.subject.name


class Query:
    """A connection for queries while workers run. One connection per query would cost the server more."""

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self._connection: Any = self._runner.run(asyncpg.connect(url))

    def count(self, sql: str) -> int:
        return int(self._runner.run(self._connection.fetchval(sql)))

    def execute(self, sql: str) -> None:
        self._runner.run(self._connection.execute(sql))

    def close(self) -> None:
        self._runner.run(self._connection.close())
        self._runner.close()


@dataclass(frozen=True, slots=True)
class Place:
    """An empty store: its URL, its process, and a connection if it can be queried."""

    url: str
    server_pid: int
    query: Query | None

    def count(self, sql: str) -> int | None:
        return self.query.count(sql) if self.query is not None and sql else None

    def flush(self) -> None:
        """Update the statistics, as in a store that has run for a while, and write everything to disk."""
        if self.query is not None:
            self.query.execute("analyze")
            self.query.execute("checkpoint")


class Crew:
    """The workers of one measurement."""

    def __init__(self, children: list[Child], folder: Path) -> None:
        self.children, self.folder = children, folder

    def cpu_s(self) -> float:
        return sum(process.cpu_s(child.pid) for child in self.children)

    def pss_mb(self) -> float:
        return sum(process.pss_mb(child.pid) for child in self.children)

    def started(self) -> int:
        return recorder.count(self.folder)

    def hits(self) -> recorder.Hits:
        return recorder.read(self.folder)

    def await_started(self, count: int, notice: Callable[[int], None] = lambda _: None) -> None:
        """Wait until `count` handlers have started; `notice` gets the number every few milliseconds."""
        seen, progress_at, checked_at = 0, time.monotonic(), time.monotonic()
        while seen < count:
            time.sleep(0.005)
            started, now = self.started(), time.monotonic()
            notice(started)
            if started != seen:
                seen, progress_at = started, now
            if now - checked_at > 0.5:
                checked_at = now
                for child in self.children:
                    child.check()
            if now - progress_at > STALLED_S:
                raise Failed(f"{seen} of {count} tasks started, then none for {STALLED_S:.0f} s")


class Stage:
    """Everything a measurement needs from its surroundings."""

    def __init__(self, server: Server, scale: Scale) -> None:
        self.server, self.scale = server, scale
        self.folder = Path(tempfile.mkdtemp(prefix="wl-bench-"))
        self._kept = False
        # A run takes long: the copy keeps edits made meanwhile out of the measurements.
        self.code = self.folder / "code"
        for package in (ROOT / "bench", ROOT / "src" / "windlass"):
            shutil.copytree(package, self.code / package.name, ignore=shutil.ignore_patterns("__pycache__", "out"))

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextmanager
    def place(self, contestant: Contestant) -> Iterator[Place]:
        """A store with the subject's schema, and nothing else in it."""
        with self._fresh() as folder:
            own = contestant.subject.open_store(folder)
            if own is not None:
                try:
                    yield Place(own.url, own.process.pid, None)
                finally:
                    process.end(own.process)
                return
        with self.server.database(DATABASE) as url:
            self.agent(contestant, "setup", url)
            with self._queried(url) as place:
                yield place

    @contextmanager
    def kept_place(self, contestant: Contestant) -> Iterator[Place]:
        """A store that is kept for the whole run, since it takes long to fill."""
        if not self._kept:
            self._kept = True
            self.server.psql(f"create database {KEPT}")
            self.agent(contestant, "setup", self.server.url(KEPT))
        with self._queried(self.server.url(KEPT)) as place:
            yield place

    @contextmanager
    def _queried(self, url: str) -> Iterator[Place]:
        with closing(Query(url)) as query:
            yield Place(url, self.server.pid, query)

    @contextmanager
    def crew(self, contestant: Contestant, place: Place, count: int, *, capacity: int) -> Iterator[Crew]:
        """`count` workers, ended afterwards."""
        with self._fresh() as folder:
            environment = self.environment() | {
                recorder.FOLDER: str(folder),
                recorder.CAPACITY: str(capacity + 5_000),  # room for the warm-up and for duplicates
            }
            children: list[Child] = []
            try:
                for command in contestant.subject.worker_commands(contestant.python, place.url, count):
                    children.append(Child(command, environment=environment, folder=self.code, log=folder / "log"))
                yield Crew(children, folder)
            finally:
                for child in children:
                    child.stop()

    def agent(self, contestant: Contestant, command: str, url: str, **options: float | str) -> Figures:
        """Run one command of `bench.agent` in the subject's environment."""
        return self.child(contestant.python, "bench.agent", contestant.name, command, url, **options)

    def transactions(self, place: Place) -> float:
        """The number of transactions in the measured database; read from another database, so as not to be counted."""
        if place.query is None:
            return 0.0
        sql = f"select xact_commit + xact_rollback from pg_stat_database where datname = '{DATABASE}'"
        return float(self.server.psql(sql))

    def limit(self, name: str, **options: float | str) -> Figures:
        with self.server.database(DATABASE) as url:
            return self.child(Path(sys.executable), "bench.limits", name, url, **options)

    def child(self, python: Path, module: str, *words: str, **options: float | str) -> Figures:
        """A process that prints one line of JSON."""
        flags = [f"--{name}={value}" for name, value in options.items()]
        command = [str(python), "-m", module, *words, *flags]
        done = subprocess.run(
            command, env=self.environment(), capture_output=True, text=True, check=False, timeout=1800, cwd=self.code
        )
        if done.returncode:
            raise Failed(f"{module} {words[0]} {words[1]}: {(done.stderr or done.stdout).strip()[-600:]}")
        figures: Figures = json.loads(done.stdout.splitlines()[-1])
        return figures

    def environment(self) -> dict[str, str]:
        return {**self.server.environment(), "PYTHONPATH": str(self.code), "PYTHONUNBUFFERED": "1"}

    @contextmanager
    def running(
        self, command: Sequence[str | Path], name: str, variables: Mapping[str, str] | None = None
    ) -> Iterator[Child]:
        """A process that is ended afterwards. Its output goes to `NAME.log`."""
        environment = {**self.environment(), **(variables or {})}
        child = Child(command, environment=environment, folder=self.code, log=self.folder / f"{name}.log")
        try:
            yield child
        finally:
            child.stop()

    @contextmanager
    def windlass_server(
        self, contestant: Contestant, place: Place, *options: str, **variables: str
    ) -> Iterator[tuple[Child, str, str]]:
        """`windlass serve`, ready: its process and its addresses for HTTP and gRPC."""
        http, grpc = (f"127.0.0.1:{port}" for port in process.free_ports(2))
        command = [
            str(contestant.python.with_name("windlass")), "serve", "--database-url", place.url, "--http", http,
            "--grpc", grpc, "--api-key", KEY, *options,
        ]  # fmt: skip
        with self.running(command, "serve", variables) as server:
            deadline = time.monotonic() + READY_S
            while True:
                server.check()
                with suppress(OSError), urllib.request.urlopen(f"http://{http}/readyz", timeout=1):
                    break
                if time.monotonic() > deadline:
                    raise Failed(f"the server was not ready after {READY_S:.0f} s: {process.tail(server.log)}")
                time.sleep(0.1)
            yield server, http, grpc

    @contextmanager
    def _fresh(self) -> Iterator[Path]:
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
