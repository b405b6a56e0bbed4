"""A small installation of real processes on a real PostgreSQL, a keeper that starts again whatever died, and a plan of
what is killed when.

Kills are bound to progress and not to time, so that they are spread over the work however fast the machine is. The seed
decides whom and when; what the processes were doing at that moment is up to the machine.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.asking import POLL_S, Asking
from tests.e2e.child import EXIT_AWAY, LEASE_TTL_S, ready_line

from windlass.errors import Unavailable
from windlass.store.embedded.server import EmbeddedServer

ROOT = Path(__file__).parents[2]
STOP_S = 60.0

# What is killed how often. A backend's death makes PostgreSQL throw out all others and recover by itself; after the
# postmaster's death the keeper starts it again. A frozen worker is thought dead, and comes back with its reports when
# others have its tasks: what the fence is for.
TARGETS = {"worker": 6, "frozen": 5, "engine": 3, "submit": 4, "backend": 4, "postmaster": 3}
FREEZE_S = 2.1 * LEASE_TTL_S

# Written by a trigger in the transaction of every change: a witness that does not trust the engine's own records.
WITNESS = """
create schema e2e;
create table e2e.execution (task_id uuid, attempt integer, worker text, secret text,
                            at timestamptz default clock_timestamp());
create table e2e.move (id bigserial, task_id uuid, was text, state text, attempt integer, result bytea);
create function e2e.note() returns trigger language plpgsql as $$
begin
    insert into e2e.move (task_id, was, state, attempt, result)
    values (new.id, old.state, new.state, new.attempt, new.result);
    return null;
end $$;
create trigger note_move after update on windlass.task for each row
    when (old.state <> new.state or old.attempt <> new.attempt or old.finished_at is not null)
    execute function e2e.note();
"""


@dataclass(frozen=True, slots=True)
class Kill:
    """Kill `target` when `finished` tasks have ended, and a moment later than that."""

    finished: int
    target: str
    moment_s: float
    choice: float


def plan_of(seed: int, kills: int, total: int) -> list[Kill]:
    """Every kind of target comes up as often as its share says, in an order that the seed decides."""
    randomness = random.Random(seed)
    shares = [target for target, share in TARGETS.items() for _ in range(share)]
    whole, part = divmod(kills, len(shares))
    targets = shares * whole + randomness.sample(shares, part)
    randomness.shuffle(targets)
    moments = sorted(randomness.randrange(total // 50, total * 19 // 20) for _ in targets)
    return [Kill(m, t, randomness.random() * 0.3, randomness.random()) for m, t in zip(moments, targets, strict=True)]


@dataclass(slots=True)
class Child:
    """One place in the fleet, and the process that fills it now."""

    name: str
    arguments: list[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    killed: bool = False
    starts: int = 0
    frozen_until: float | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "tests.e2e.child", *self.arguments]
            self.process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_environment()
            )
        self.starts += 1
        self.killed, self.frozen_until = False, None

    def kill(self) -> None:
        assert self.process is not None
        self.killed = True
        self.process.kill()

    def freeze(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        self.frozen_until = time.monotonic() + FREEZE_S

    def thaw(self) -> None:
        if self.process is not None and self.frozen_until is not None:
            self.process.send_signal(signal.SIGCONT)
            self.frozen_until = None

    @property
    def ready(self) -> bool:
        return self.process is not None and ready_line(self.process.pid) in self.log.read_text(errors="replace")

    def tail(self, lines: int = 80) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}


@dataclass(slots=True)
class Fleet(Asking):
    """`settings` are those of PostgreSQL; by default the safe ones."""

    folder: Path
    total: int
    plan: list[Kill]
    workers: int = 3
    children: dict[str, Child] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)
    submitted: bool = False
    began: float = 0.0
    finished: int = 0
    server: EmbeddedServer | None = None
    dsn: str = ""

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger"

    # ----------------------------------------------------------------------------------------- life

    async def start(self) -> None:
        self.server = await asyncio.to_thread(EmbeddedServer.open, self.folder / "data")
        self.dsn = self.server.dsn
        from windlass.serve import migrate_database

        await migrate_database(self.dsn)
        await self.ask(lambda c: c.execute(WITNESS))
        self.began = time.monotonic()
        roles = {"engine": ["engine", self.dsn], "submit": ["submit", self.dsn, str(self.total), str(self.ledger)]}
        roles |= {f"worker-{i}": ["worker", self.dsn, f"worker-{i}"] for i in range(self.workers)}
        for name, arguments in roles.items():
            self.children[name] = Child(name, arguments, self.folder / f"{name}.log")
            self.children[name].start()

    async def close(self) -> None:
        """Nothing that was started here outlives the test."""
        for child in self.children.values():
            if child.process is not None and child.process.poll() is None:
                child.kill()
                child.process.wait()
        self.hang_up()
        if self.server is not None:
            await asyncio.to_thread(self.server.close)

    # ----------------------------------------------------------------------------------------- the keeper

    async def run(self, deadline_s: float) -> None:
        """Keep everything alive, kill by the plan, until all tasks have ended."""
        plan = list(self.plan)
        while plan or self.finished < self.total or not self.submitted:
            assert time.monotonic() - self.began < deadline_s, self.report("not all tasks ended in time")
            await self.look_after()
            if plan and self.finished >= plan[0].finished:
                await self._carry_out(plan.pop(0))
            await asyncio.sleep(POLL_S)

    async def look_after(self) -> None:
        """Start again what died. What died by itself, for another reason than an absent database, is a defect."""
        for child in self.children.values():
            if child.frozen_until is not None and child.frozen_until <= time.monotonic():
                child.thaw()
            code = None if child.process is None else child.process.poll()
            if code is None:
                continue
            if child.name == "submit" and code == 0:
                self.submitted, child.process = True, None
                continue
            assert child.killed or code == EXIT_AWAY, self.report(f"{child.name} died by itself, exit code {code}")
            child.start()
        await self.look_after_postgresql()
        self.finished = await self.ask(
            lambda c: c.fetchval("select count(*) from windlass.task where finished_at is not null")
        )

    async def look_after_postgresql(self) -> None:
        assert self.server is not None
        with suppress(Unavailable):
            _ = self.server.pid
            return
        again = await asyncio.to_thread(EmbeddedServer.open, self.folder / "data")
        again.close()
        assert again.dsn == self.dsn, (again.dsn, self.dsn)

    async def _carry_out(self, kill: Kill) -> None:
        await asyncio.sleep(kill.moment_s)  # chance, not patience: the moment of a kill is drawn
        who = getattr(self, f"_kill_{kill.target}")(kill.choice)
        who = await who if asyncio.iscoroutine(who) else who
        self.done[kill.target] += who is not None
        took = time.monotonic() - self.began
        print(f"{took:6.2f} s  {self.finished:6d} ended  {who or 'no ' + kill.target + ' there'}", flush=True)

    def _kill_worker(self, choice: float) -> str | None:
        return self._kill_child(f"worker-{int(choice * self.workers)}")

    def _kill_engine(self, _choice: float) -> str | None:
        return self._kill_child("engine")

    def _kill_submit(self, _choice: float) -> str | None:
        return self._kill_child("submit")

    def _kill_child(self, name: str) -> str | None:
        child = self.children[name]
        if child.process is None or child.process.poll() is not None:
            return None
        child.kill()
        return f"kill -9 {name} (pid {child.process.pid})"

    def _kill_frozen(self, choice: float) -> str | None:
        child = self.children[f"worker-{int(choice * self.workers)}"]
        if child.process is None or child.process.poll() is not None:
            return None
        child.freeze()
        return f"kill -STOP {child.name} (pid {child.process.pid})"

    def _kill_postmaster(self, _choice: float) -> str | None:
        assert self.server is not None
        with suppress(Unavailable):
            pid = self.server.pid
            os.kill(pid, signal.SIGKILL)
            return f"kill -9 the postmaster (pid {pid})"
        return None

    async def _kill_backend(self, choice: float) -> str | None:
        query = """select pid, coalesce(state, '') || ' ' || left(regexp_replace(query, '\\s+', ' ', 'g'), 40)
                     from pg_stat_activity
                    where backend_type = 'client backend' and pid <> pg_backend_pid()
                    order by (state = 'active') desc, pid"""
        rows = await self.ask(lambda c: c.fetch(query))
        if not rows:
            return None
        pid, doing = rows[int(choice**2 * len(rows))]
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return f"kill -9 a backend (pid {pid}): {doing}"

    # ----------------------------------------------------------------------------------------- the end

    async def stop(self, *names: str) -> None:
        """Ask nicely; a process that was asked ends with code 0."""
        for name in names:
            self.children[name].thaw()
        await self._all_ready(names)
        asked = {name: self.children[name].process for name in names}
        for process in asked.values():
            assert process is not None
            process.terminate()
        deadline = time.monotonic() + STOP_S
        for name, process in asked.items():
            assert process is not None
            while process.poll() is None:
                if time.monotonic() > deadline:
                    process.send_signal(signal.SIGUSR1)
                    await asyncio.sleep(1)  # until it has written where it hangs; the test has failed anyway
                    raise AssertionError(self.report(f"{name} did not stop"))
                await asyncio.sleep(POLL_S)
            assert process.returncode == 0, self.report(f"{name} ended with {process.returncode}")

    async def _all_ready(self, names: Sequence[str]) -> None:
        deadline = time.monotonic() + STOP_S
        while not all(self.children[name].ready for name in names):
            assert time.monotonic() < deadline, self.report(f"not all of {', '.join(names)} became ready")
            await self.look_after()
            await asyncio.sleep(POLL_S)

    async def until(self, moment: str, query: str, deadline_s: float) -> None:
        """Wait until a query that counts what should not be there counts nothing."""
        deadline = time.monotonic() + deadline_s
        while left := await self.ask(lambda c: c.fetchval(query)):
            assert time.monotonic() < deadline, self.report(f"{moment}: {left} left")
            await asyncio.sleep(POLL_S)

    def report(self, problem: str) -> str:
        """What a person wants to see when this fails."""
        logs = [f"--- {c.name}, started {c.starts} times\n{c.tail()}" for c in self.children.values()]
        return "\n".join([problem, f"{self.finished} of {self.total} ended, {dict(self.done)}", *logs])
