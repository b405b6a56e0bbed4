"""The processes that the kill tests start and kill: `python -m tests.e2e.child engine|worker|submit DSN …`.

Each does what a real one does and nothing to survive: a process that finds no database ends with EXIT_AWAY, and its
keeper starts it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import secrets
import signal
import sys
import uuid
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import asyncpg
import msgspec

from windlass import Claimed, Engine, Lease, Policy, State, Submission, Unavailable, Worker, open_engine

EXIT_AWAY = 75  # the database was away when the process began
LEASE_TTL_S = 2.0
CONCURRENCY = 50
GROUP = 50
BACKLOG_MAX = 400
OVERLAP = 3
# Bad luck must not end a task: what is tested is that luck does not matter.
PATIENT = Policy(max_attempts=1000, max_losses=1000, retry_delay_s=0.05, retry_delay_max_s=0.5)


# ----------------------------------------------------------------------------------------------- what is submitted


def key_of(number: int) -> str:
    return f"order-{number}"


def group_of(index: int, total: int) -> list[Submission]:
    """Every fourth group is a run: its last task waits for the others. The same again each time it is asked for."""
    numbers = range(index * GROUP, min((index + 1) * GROUP, total))
    if index % 4:
        return [_submission(number) for number in numbers]
    run_id = _fixed_id(f"run-{index}")
    parts = [_submission(n, id=_fixed_id(key_of(n)), run_id=run_id) for n in numbers[:-1]]
    after = tuple(part.id for part in parts if part.id is not None)
    return [*parts, _submission(numbers[-1], kind="whole", id=_fixed_id(f"whole-{index}"), run_id=run_id, after=after)]


def _submission(number: int, kind: str = "part", **rest: Any) -> Submission:
    payload = msgspec.json.encode({"number": number})
    return Submission(kind=kind, payload=payload, idempotency_key=key_of(number), policy=PATIENT, **rest)


def _fixed_id(name: str) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_OID, name)


class Accepted(msgspec.Struct, frozen=True):
    """A line of the ledger: what the submitter was told. It is written after the answer, as a caller would."""

    index: int
    ids: list[uuid.UUID]


def read_ledger(ledger: Path) -> list[Accepted]:
    """A line that a kill cut short was never written down."""
    if not ledger.exists():
        return []
    lines = ledger.read_bytes().split(b"\n")[:-1]
    return [msgspec.json.decode(line, type=Accepted) for line in lines if line]


async def submit(engine: Engine, total: int, ledger: Path) -> None:
    """Goes on some groups before the last one that was noted: to submit again must be harmless."""
    noted = read_ledger(ledger)
    groups = -(-total // GROUP)
    begin = max(0, max((line.index for line in noted), default=-1) + 1 - OVERLAP)
    with ledger.open("ab", buffering=0) as file:
        file.write(b"\n")  # ends what a kill may have cut short
        for index in range(begin, groups):
            ids = await _persistently(lambda index=index: _submit_group(engine, group_of(index, total), index))
            file.write(msgspec.json.encode(Accepted(index, ids)) + b"\n")
            await _until_the_backlog_is_short(engine)


async def _submit_group(engine: Engine, group: Sequence[Submission], index: int) -> list[uuid.UUID]:
    if index % 2 == 0:
        return await engine.submit_many(group)
    return list(await asyncio.gather(*(engine.submit(submission) for submission in group)))


async def _until_the_backlog_is_short(engine: Engine) -> None:
    """So that submitting goes on for as long as the work does, and can be killed at any time of it."""
    while True:
        counts = await _persistently(engine.tasks.counts)
        waiting = sum(count for states in counts.values() for state, count in states.items() if state in UNFINISHED)
        if waiting < BACKLOG_MAX:
            return
        await asyncio.sleep(0.05)


UNFINISHED = (State.BLOCKED, State.QUEUED, State.RUNNING)


async def _persistently(call: Callable[[], Awaitable[Any]]) -> Any:
    while True:
        try:
            return await call()
        except Unavailable:
            await asyncio.sleep(0.1)


# ----------------------------------------------------------------------------------------------- who works on it


class AttemptSource:
    """An engine as a source of work that tells handlers which attempt they are."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def claim(self, lease: Lease, limit: int, *, wait_s: float) -> list[Claimed]:
        return [_told(claimed) for claimed in await self._engine.claim(lease, limit, wait_s=wait_s)]


def _told(claimed: Claimed) -> Claimed:
    task = claimed.task
    payload = {**msgspec.json.decode(claimed.payload), "task_id": str(task.id), "attempt": task.attempt}
    return Claimed(task, msgspec.json.encode({**payload, "run_id": task.run_id}))


class Handlers:
    """Each execution leaves a row with a secret of its own, and returns that secret: so one can tell whose result
    was accepted."""

    def __init__(self, pool: asyncpg.Pool, name: str) -> None:
        self._pool, self._name = pool, name

    async def part(self, payload: dict[str, Any]) -> dict[str, Any]:
        secret = await self._note(payload)
        if payload["number"] % 40 == 7 and payload["attempt"] == 1:
            raise RuntimeError("the first try of this one always fails")
        # Some take longer than a lease: what a killed or frozen worker holds is mostly these.
        await asyncio.sleep(random.uniform(1, 3) if payload["number"] % 33 == 5 else random.random() * 0.02)
        return {"number": payload["number"], "square": payload["number"] ** 2, "secret": secret}

    async def whole(self, payload: dict[str, Any]) -> dict[str, Any]:
        secret = await self._note(payload)
        query = "select count(*) from windlass.task where run_id = $1 and state = 'succeeded'"
        return {"parts": await self._pool.fetchval(query, uuid.UUID(payload["run_id"])), "secret": secret}

    async def _note(self, payload: dict[str, Any]) -> str:
        secret = secrets.token_hex(8)
        await self._pool.execute(
            "insert into e2e.execution (task_id, attempt, worker, secret) values ($1, $2, $3, $4)",
            uuid.UUID(payload["task_id"]), payload["attempt"], self._name, secret,
        )  # fmt: skip
        return secret


async def work(engine: Engine, dsn: str, name: str) -> None:
    async with asyncpg.create_pool(dsn, min_size=0, max_size=4) as pool:
        handlers = Handlers(pool, name)
        worker = Worker(
            AttemptSource(engine),
            {"part": handlers.part, "whole": handlers.whole},
            name=name,
            concurrency=CONCURRENCY,
            lease_ttl_s=LEASE_TTL_S,
        )
        on_stop(worker.stop)
        await worker.run()


async def idle() -> None:
    """An engine that only runs its loops."""
    stop = asyncio.Event()
    on_stop(stop.set)
    await stop.wait()


def on_stop(call: Callable[[], None]) -> None:
    """From the line in the log on, this process ends in an orderly way when it is asked to."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, call)
    logging.getLogger("child").info("%s", ready_line(os.getpid()))


def ready_line(pid: int) -> str:
    return f"process {pid} is ready"


def show_tasks() -> None:
    """For the one who asks why a process does not stop: where everything in it waits."""
    for task in asyncio.all_tasks():
        print(task.get_name(), flush=True)
        with contextlib.suppress(TypeError):  # frames of extension modules have no lines
            task.print_stack(limit=8, file=sys.stdout)
    sys.stdout.flush()


async def main(role: str, dsn: str, *rest: str) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, show_tasks)
    async with open_engine(dsn) as engine:
        match role, rest:
            case "engine", ():
                await idle()
            case "worker", (name,):
                await work(engine, dsn, f"{name}-{os.getpid()}")
            case "submit", (total, ledger):
                await submit(engine, int(total), Path(ledger))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        asyncio.run(main(*sys.argv[1:]))
    except Unavailable as error:
        logging.getLogger("child").warning("the database is away: %s", error)
        sys.exit(EXIT_AWAY)
