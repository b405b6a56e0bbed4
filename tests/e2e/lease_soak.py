"""Dispatcher, carrier, workers and database killed at random while tasks of the lease contract run, and what must hold
after that: no task is lost, none is committed twice, the outbox drains.

`python -m tests.e2e.lease_soak --carrier nats --tasks 10000` is the whole of it for one carrier (`make soak-lease` for
all three); a test runs a small share. All are the real programs: `windlass serve`, `windlass wrapper`, NATS, moto's
server for SQS, PostgreSQL. Kills are bound to progress, not to time. A witness in the database (`fleet.WITNESS`) says
what was committed, independently of the engine's own records.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
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
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
from bench.progress import Progress
from tests.e2e.asking import POLL_S, Asking
from tests.e2e.fleet import WITNESS
from tests.kit.carriers import AWS_ENVIRONMENT, nats_program
from tests.kit.database import temporary_folder
from tests.kit.ports import free_port

from windlass import Engine, Policy, Submission
from windlass.contracts.lease.delivery import Wakeup
from windlass.contracts.lease.tls import certificates
from windlass.core.queue import QueueConfig
from windlass.errors import Unavailable
from windlass.serve import migrate_database
from windlass.store.embedded.server import EmbeddedServer
from windlass.store.store import Store

ROOT = Path(__file__).parents[2]
CARRIERS = ("postgres", "nats", "sqs")
QUEUE = "soak"
DATASET, VERSION = str(UUID(int=0xD1)), str(UUID(int=0xE1))
# Bad luck must not end a task: what is tested is that luck does not matter.
PATIENT = Policy(max_attempts=1000, max_losses=1000, retry_delay_s=0.05, retry_delay_max_s=0.5)
SHARES = {"worker": 5, "dispatcher": 4, "carrier": 3, "backend": 2, "postmaster": 2}
STANDSTILL_S = 150.0
GROUP, BACKLOG_MAX = 50, 300
# The server that stands in for SQS looks at every message each time it is asked: it is given few, and time.
GENTLE_RESEND_MS, GENTLE_VISIBILITY_MS, GENTLE_GROUP, GENTLE_BACKLOG_MAX = 10_000, 30_000, 10, 60
CLI = [sys.executable, "-c", "from windlass.cli import main; main()"]


@dataclass(slots=True)
class Soak(Asking):
    """One installation, and who is killed when."""

    folder: Path
    carrier: str
    tasks: int
    kills: int
    randomness: random.Random
    workers: int = 2
    hurried: bool = False  # what a killed dispatcher has taken from the outbox is given back at once, not in a minute
    began_s: float = 0.0
    submitted: int = 0
    server: EmbeddedServer | None = None
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    killed: Counter[str] = field(default_factory=Counter)
    ports: dict[str, int] = field(default_factory=dict)
    progress: Progress | None = None

    async def run(self) -> dict[str, Any]:
        self.began_s = time.monotonic()
        try:
            await self._begin()
            await self._kill_until_done()
            await self._drained()
            return {**await self._examine(), "s": round(time.monotonic() - self.began_s, 1)}
        finally:
            await self._close()

    # ----------------------------------------------------------------------------------------- who is there

    @property
    def dsn(self) -> str:
        assert self.server is not None
        return self.server.dsn

    @property
    def _gently(self) -> bool:
        return self.carrier == "sqs" and not self.hurried

    @property
    def trace(self) -> Path:
        return self.folder / "trace"

    async def _begin(self) -> None:
        self.server = await asyncio.to_thread(EmbeddedServer.open, self.folder / "data")
        await migrate_database(self.dsn)
        await self.ask(lambda c: c.execute(WITNESS))
        _make_certificates(self.folder)
        self.ports = {"internal": free_port(), "carrier": free_port()}
        self.trace.touch()
        async with Engine(Store(self.dsn)) as engine:
            delivery = Wakeup(
                carrier=self.carrier, lease_ms=4000, max_deliveries=1000,
                visibility_ms=GENTLE_VISIBILITY_MS if self._gently else 10_000,
                resend_ms=GENTLE_RESEND_MS if self._gently else 2000,
            )  # type: ignore[arg-type]  # fmt: skip
            await engine.queues.put(QUEUE, delivery=delivery, retry=None, limits=QueueConfig())
        for name in self._names():
            self._start(name)
        self._tell("all are started")

    def _tell(self, what: str) -> None:
        if self.progress is not None:
            self.progress.say(f"{self.carrier}: {what}")
        else:
            print(f"{time.monotonic() - self.began_s:6.1f} s {what}", flush=True)

    def _tell_count(self, ended: int) -> None:
        if self.progress is not None:
            self.progress.tell(ended, f"{self.carrier}, {self.killed.total()} of {self.kills} kills")

    def _names(self) -> list[str]:
        carrier = [] if self.carrier == "postgres" else ["carrier"]
        return [*carrier, "dispatcher", *(f"worker-{n}" for n in range(self.workers))]

    def _start(self, name: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                self._command(name), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment()
            )

    def _command(self, name: str) -> list[str]:
        port = str(self.ports["carrier"])
        match name, self.carrier:
            case "carrier", "nats":
                return [nats_program(), "-a", "127.0.0.1", "-p", port, "-js", "-sd", str(self.folder / "nats")]
            case "carrier", _:
                return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", port]
            case "dispatcher", _:
                return [*CLI, "serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--api-key", "soak",
                        "--internal", f"127.0.0.1:{self.ports['internal']}"]  # fmt: skip
        return [*CLI, "wrapper", "--server", f"https://127.0.0.1:{self.ports['internal']}", "-q", QUEUE,
                "--certificate", f"{self.folder}/wrapper.pem", "--key", f"{self.folder}/wrapper.key",
                "--ca", f"{self.folder}/ca.pem", "--function", "square=tests.e2e.lease_operator:work",
                "--concurrency", "16", "--state-dir", f"{self.folder}/state", "--log-level", "warning",
                *self._reach()]  # fmt: skip

    def _reach(self) -> list[str]:
        match self.carrier:
            case "nats":
                return ["--nats-url", f"nats://127.0.0.1:{self.ports['carrier']}"]
            case "sqs":
                return ["--aws-region", "eu-west-1", "--aws-endpoint-url", f"http://127.0.0.1:{self.ports['carrier']}"]
        return []

    def _environment(self) -> dict[str, str]:
        ours = {
            "DATABASE_URL": self.dsn, "WINDLASS_API_KEY": "wl_soak", "SOAK_TRACE": str(self.trace),
            "WINDLASS_INTERNAL_CERTIFICATE": f"{self.folder}/server.pem",
            "WINDLASS_INTERNAL_KEY": f"{self.folder}/server.key", "WINDLASS_INTERNAL_CA": f"{self.folder}/ca.pem",
        }  # fmt: skip
        reach = self._reach()
        more = {
            f"WINDLASS_{name[2:].replace('-', '_').upper()}": value
            for name, value in zip(reach[::2], reach[1::2], strict=True)
        }
        return {**os.environ, **AWS_ENVIRONMENT, **ours, **more}

    async def _close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        self.hang_up()
        if self.server is not None:
            await asyncio.to_thread(self.server.close)

    # ----------------------------------------------------------------------------------------- kills

    def _plan(self) -> list[tuple[int, str]]:
        """Every kind comes up as often as its share says, at moments that the seed decides."""
        shares = {name: share for name, share in SHARES.items() if name != "carrier" or self.carrier != "postgres"}
        kinds = [name for name, share in shares.items() for _ in range(share)]
        once = list(shares)[: self.kills]  # a few kills are one of each, as far as they go
        more = [self.randomness.choice(kinds) for _ in range(self.kills - len(once))]
        moments = sorted(self.randomness.randrange(self.tasks // 50, self.tasks * 9 // 10) for _ in range(self.kills))
        order = self.randomness.sample([*once, *more], self.kills)
        if self.hurried:  # those that were announced often are announced seldom: it takes long until they are again
            order.sort(key=lambda target: target != "carrier")
        return list(zip(moments, order, strict=True))

    async def _kill_until_done(self) -> None:
        async with Engine(Store(self.dsn)) as engine:
            await self._submit_and_kill(engine)

    async def _submit(self, engine: Engine, ended: int) -> None:
        """Never more than a few hundred wait: a task that waits for long is announced again and again."""
        most, group = (GENTLE_BACKLOG_MAX, GENTLE_GROUP) if self._gently else (BACKLOG_MAX, GROUP)
        while self.submitted < min(self.tasks, ended + most):
            numbers = range(self.submitted, min(self.submitted + group, self.tasks))
            try:
                await engine.submit_many([_submission(number) for number in numbers])
            except Unavailable:
                return  # whether they were taken or not: the same keys again are the same tasks
            self.submitted = numbers.stop

    async def _submit_and_kill(self, engine: Engine) -> None:
        plan, last, last_s = self._plan(), -1, time.monotonic()
        while True:
            ended = await self.ask(lambda c: c.fetchval(_ENDED))
            await self._submit(engine, ended)
            self._tell_count(ended)
            if ended > last:
                last, last_s = ended, time.monotonic()
            if ended >= self.tasks and not plan:
                self._tell("all tasks have ended")
                return
            assert time.monotonic() - last_s < STANDSTILL_S, self.report(
                f"nothing ended for long: {ended} of {self.tasks}"
            )
            while plan and plan[0][0] <= ended:
                self._tell(f"{ended:,} have ended, now kill {plan[0][1]}")
                await self._kill(plan.pop(0)[1])
            self._look_after()
            await asyncio.sleep(POLL_S)

    def _look_after(self) -> None:
        for name, process in list(self.processes.items()):
            if process.poll() is not None:
                self._start(name)

    async def _kill(self, target: str) -> None:
        await asyncio.sleep(self.randomness.random() * 0.2)  # chance, not patience: the moment of a kill is drawn
        self.killed[target] += 1
        match target:
            case "backend":
                query = (
                    "select pid from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"
                )
                if pids := [row[0] for row in await self.ask(lambda c: c.fetch(query))]:
                    _kill_hard(self.randomness.choice(pids))
            case "postmaster":
                with contextlib.suppress(Unavailable):
                    assert self.server is not None
                    _kill_hard(self.server.pid)
            case "worker":
                self.processes[f"worker-{self.randomness.randrange(self.workers)}"].kill()
            case _:
                self.processes[target].kill()

    async def look_after_postgresql(self) -> None:
        assert self.server is not None
        with contextlib.suppress(Unavailable):
            _ = self.server.pid
            return
        again = await asyncio.to_thread(EmbeddedServer.open, self.folder / "data")
        again.close()

    # ----------------------------------------------------------------------------------------- what must hold

    async def _drained(self) -> None:
        """Nobody is killed any more: what is on its way arrives, and nothing is left to be done."""
        until_s = time.monotonic() + 150
        while left := await self.ask(lambda c: c.fetchval("select count(*) from windlass.outbox")):
            assert time.monotonic() < until_s, self.report(f"{left} effects are left in the outbox")
            if self.hurried:
                await self.ask(lambda c: c.execute(_GIVE_BACK))
            self._look_after()
            await asyncio.sleep(POLL_S)
        self._tell("the outbox is empty")
        for name in self._names():
            if name.startswith("worker"):
                self.processes[name].send_signal(signal.SIGTERM)
        for name in self._names():
            if name.startswith("worker"):
                code = await asyncio.to_thread(self.processes[name].wait, 60)
                assert code in (0, -signal.SIGTERM), self.report(f"{name} ended with {code}")

    async def _examine(self) -> dict[str, Any]:
        rows = await self.ask(
            lambda c: c.fetch("select id, state, attempt, losses, payload, result from windlass.task")
        )
        assert Counter(row["state"] for row in rows) == {"succeeded": self.tasks}, self.report("not all succeeded")
        for row in rows:
            number = json.loads(row["payload"])["number"]
            assert json.loads(row["result"]) == number * number, row
        twice = await self.ask(lambda c: c.fetch(COMMITTED_TWICE))
        assert not twice, twice[:5]
        await self._examine_events()
        ran = Counter(tuple(line.split()) for line in self.trace.read_text().splitlines())
        assert {task for task, _ in ran} == {str(row["id"]) for row in rows}
        again = [run for run, times in ran.items() if times > 1]
        assert not again, f"an attempt was run twice: {again[:5]}"
        return {
            "carrier": self.carrier, "tasks": self.tasks, "killed": dict(self.killed), "executions": sum(ran.values()),
            "losses": sum(row["losses"] for row in rows), "attempts_most": max(row["attempt"] for row in rows),
        }  # fmt: skip

    async def _examine_events(self) -> None:
        """Each that was intended is there, and none twice, however often it was told."""
        rows = await self.ask(lambda c: c.fetch(_EVENTS))
        seen = Counter(row["cursor"] for row in rows)
        wanted = {1_000_000 + number for number in range(self.tasks)} | set(range(0, self.tasks, 3))
        assert wanted == seen.keys(), (len(wanted), len(seen))
        assert max(seen.values()) == 1, seen.most_common(3)

    def report(self, problem: str) -> str:
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join([problem, *(f"--- {log.name}\n{log.read_text(errors='replace')[-2500:]}" for log in logs)])


_ENDED = "select count(*) from windlass.task where finished_at is not null"
COMMITTED_TWICE = """
select t.id, count(m.id) from windlass.task t
  left join e2e.move m on m.task_id = t.id and m.state = 'succeeded' and m.was <> m.state
 group by t.id having count(m.id) <> 1"""
_GIVE_BACK = """
update windlass.outbox set available_at = windlass.now()
 where dead_at is null and available_at > windlass.now() + interval '5 seconds'"""
_EVENTS = "select cursor from windlass.event"


def _submission(number: int) -> Submission:
    wire = {"outputs": [{"dataset_uuid": DATASET, "dataset_version": VERSION}]}
    return Submission(
        kind="square", queue=QUEUE, payload=msgspec.json.encode({"number": number}), policy=PATIENT,
        idempotency_key=str(number), wire=msgspec.json.encode(wire),
    )  # fmt: skip


def _make_certificates(folder: Path) -> None:
    now = datetime.now(UTC)
    authority = certificates.make_authority(now, 2)
    made = {
        "ca": authority,
        "server": certificates.issue_server(authority, certificates.LOCAL_HOSTS, now, 2),
        "wrapper": certificates.issue_client(authority, "wrapper", now, 2),
    }
    for name, pair in made.items():
        certificates.write(pair, certificates.Files(folder / f"{name}.pem", folder / f"{name}.key"))


def _kill_hard(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--carrier", choices=CARRIERS, action="append")
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    given = parser.parse_args()
    sys.stderr.write(f"seed {given.seed}\n")
    for carrier in given.carrier or CARRIERS:
        progress = Progress(given.tasks, "tasks")
        with temporary_folder(Path(tempfile.gettempdir())) as folder:
            soak = Soak(
                folder, carrier, given.tasks, given.kills, random.Random(given.seed), workers=given.workers,
                progress=progress,
            )  # fmt: skip
            figures = asyncio.run(soak.run())
        progress.close()
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
