"""Workers and servers of the registry contract killed at random while workflows run, and what must hold after that.

`python -m tests.e2e.registry_soak --workflows 2000` is the whole of it (`make soak-registry`); a test runs a small
share. Kills are bound to progress, not to time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
from bench.progress import Progress
from tests.kit import database as databases
from tests.kit.ports import free_port

from windlass.core.retry import Policy
from windlass.core.submission import Submission
from windlass.engine.engine import Engine
from windlass.store.store import Store

ROOT = Path(__file__).parents[2]
KEY = "wl_a-key-for-the-soak"
BUDGET = 50
STALE_S, HEARTBEAT_S = 5.0, 1.0


@dataclass(slots=True)
class Soak:
    """One installation: a server, workers, and who is killed when."""

    dsn: str
    folder: Path
    workflows: int
    workers: int
    kills: int
    randomness: random.Random
    address: str = ""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    killed: Counter[str] = field(default_factory=Counter)
    progress: Progress | None = None

    async def run(self) -> dict[str, Any]:
        self.address = f"127.0.0.1:{free_port()}"
        self._start("server")
        for n in range(self.workers):
            self._start(f"worker {n}")
        began_s = time.monotonic()
        try:
            async with Engine(Store(self.dsn)) as engine:
                await self._submit(engine)
                await self._kill_until_done()
            return await self._examine(time.monotonic() - began_s)
        finally:
            for process in self.processes.values():
                process.kill()
                process.wait()

    async def _submit(self, engine: Engine) -> None:
        policy = Policy(max_attempts=BUDGET, max_losses=BUDGET, retry_delay_s=0.2, retry_delay_max_s=1.0)
        for start in range(0, self.workflows, 500):
            count = min(500, self.workflows - start)
            await engine.submit_many([Submission(kind="soak", queue="soak", policy=policy) for _ in range(count)])

    def _start(self, name: str) -> None:
        module = ["tests.e2e.registry_server", self.dsn, self.address, KEY, str(HEARTBEAT_S), str(STALE_S)]
        if name != "server":
            module = ["tests.e2e.registry_worker", self.address, KEY, str(self.folder / "trace")]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", *module], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, "GRPC_VERBOSITY": "NONE", "PYTHONUNBUFFERED": "1"},
            )  # fmt: skip

    async def _kill_until_done(self) -> None:
        moments = sorted(self.randomness.sample(range(1, max(2, self.workflows * 9 // 10)), self.kills))
        other_connection = await asyncpg.connect(self.dsn)
        last_s, last = time.monotonic(), -1
        try:
            while (ended := await other_connection.fetchval(_ENDED)) < self.workflows:
                if self.progress is not None:
                    self.progress.tell(ended, f"{self.killed.total()} of {self.kills} kills")
                if ended > last:
                    last, last_s = ended, time.monotonic()
                if time.monotonic() - last_s > 90:
                    raise AssertionError(
                        f"nothing ended for 90 s: {ended} of {self.workflows}\n{await self._state(other_connection)}"
                    )
                while moments and moments[0] <= ended:
                    moments.pop(0)
                    self._kill()
                for name, process in list(self.processes.items()):
                    if process.poll() is not None:
                        self._start(name)
                await asyncio.sleep(0.05)
        finally:
            other_connection.terminate()

    async def _state(self, connection: asyncpg.Connection) -> str:
        """Open runs, leases and what the database does; what each process does is in its log."""
        for process in self.processes.values():
            process.send_signal(signal.SIGUSR1)
        await asyncio.sleep(2)  # until they have written it; the soak has failed anyway
        rows = [row for query in (_OPEN, _LEASES, _SESSIONS) for row in await connection.fetch(query)]
        return "\n".join([*map(str, rows), self.tail()])

    def _kill(self) -> None:
        names = sorted(self.processes)
        name = "server" if self.randomness.random() < 0.3 else self.randomness.choice(names)
        self.processes[name].kill()
        self.processes[name].wait()
        self.killed["server" if name == "server" else "worker"] += 1

    async def _examine(self, took_s: float) -> dict[str, Any]:
        other_connection = await asyncpg.connect(self.dsn)
        rows = await other_connection.fetch("select id, state, failures, losses, result from windlass.task")
        other_connection.terminate()
        assert Counter(row["state"] for row in rows) == {"succeeded": self.workflows}
        assert {row["result"] for row in rows} == {json.dumps([n * n for n in range(5)]).encode()}
        assert all(row["failures"] == 0 for row in rows)
        assert max(row["losses"] for row in rows) < BUDGET
        again = begun_after_recorded((self.folder / "trace").read_text().splitlines())
        assert again == [], f"steps that were recorded ran again: {again[:5]}"
        lost = sum(row["losses"] for row in rows)
        most = max(row["losses"] for row in rows)
        return {"workflows": self.workflows, "killed": dict(self.killed), "losses": lost, "most": most, "s": took_s}

    def tail(self) -> str:
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{log.name}: {log.read_text(errors='replace')[-20000:]}" for log in logs)


_ENDED = "select count(*) from windlass.task where finished_at is not null"
_OPEN = """select id, state, attempt, outcome, lease_id, worker, available_at, started_at, timer_at, losses, now()
             from windlass.task where finished_at is null limit 5"""
_LEASES = (
    "select l.*, w.reported, w.heartbeat_at from windlass.lease l left join windlass.worker w on w.lease_id = l.id"
)
_SESSIONS = """select a.pid, a.application_name, a.state, a.wait_event, a.xact_start, pg_blocking_pids(a.pid), a.query
                 from pg_stat_activity a where a.datname = current_database() and a.pid <> pg_backend_pid()"""


def begun_after_recorded(lines: list[str]) -> list[str]:
    """Steps that ran though they had been recorded; the order of the lines is that of the moments."""
    recorded: set[str] = set()
    again = []
    for line in lines:
        what, _, step = line.partition(" ")
        UUID(step.split(" ")[0])
        if what == "recorded":
            recorded.add(step)
        elif step in recorded:
            again.append(step)
    return again


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workflows", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    given = parser.parse_args()
    sys.stderr.write(f"seed {given.seed}\n")
    progress = Progress(given.workflows, "workflows")

    async def soak(server: databases.Server) -> dict[str, Any]:
        dsn = await databases.fresh_database(server)
        with tempfile.TemporaryDirectory() as folder:
            randomness = random.Random(given.seed)
            soak = Soak(dsn, Path(folder), given.workflows, given.workers, given.kills, randomness, progress=progress)
            return await soak.run()

    with databases.open_server() as server:
        figures = asyncio.run(soak(server))
        progress.close()
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
