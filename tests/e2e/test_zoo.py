"""Handlers that do harm to the whole process they run in: the worker goes on, or it ends and others take over; a signal
ends it in any case."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import WINDLASS, environment
from tests.kit.work import SOON_S, until
from tests.kit.zoo import WILD
from tests.kit.zoo_app import app, in_loop, neighbour

from windlass import Engine, Policy, State, Submission

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LEASE_S = 3.0


@pytest.fixture
def mode() -> str:
    """Pooler or not is the engine's business; here it is direct."""
    return "direct"


class Process:
    """`windlass worker` as a person starts it, beside the database."""

    def __init__(self, database: str, folder: Path) -> None:
        self.folder, self.output = folder, folder / "output"
        command = [str(WINDLASS), "worker", "tests.kit.zoo_app:app", "--lease", str(LEASE_S), "--json"]
        with self.output.open("wb") as output:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdout=output, stderr=output, start_new_session=True,
                env=environment(DATABASE_URL=database, WINDLASS_DATA_DIR=str(folder)),
            )  # fmt: skip

    @property
    def said(self) -> str:
        return self.output.read_text(errors="replace")

    @property
    def code(self) -> int | None:
        return self._process.poll()

    @property
    def ignores_signals(self) -> bool:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        [ignored] = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigIgn:")]
        return bool(ignored & (1 << (signal.SIGTERM - 1)))

    async def ended(self) -> int:
        await until(lambda: self.code is not None)
        assert self.code is not None
        return self.code

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@pytest.fixture
def start(database: str, tmp_path: Path) -> Iterator[Any]:
    started: list[Process] = []

    def begin() -> Process:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        started.append(Process(database, folder))
        return started[-1]

    yield begin
    for process in started:
        process.kill()


@asynccontextmanager
async def opened(engine: Engine) -> AsyncIterator[None]:
    @asynccontextmanager
    async def connected() -> AsyncIterator[Any]:
        yield engine

    usual = app.connect_by(connected)
    try:
        async with app:
            yield
    finally:
        app.connect_by(usual)


async def let_out(engine: Engine, name: str) -> Any:
    payload = in_loop.schema.payload((name,), {})
    policy = Policy(max_attempts=1, max_losses=0)
    return await engine.submit(Submission(kind=in_loop.kind, payload=payload, policy=policy))


async def near(count: int = 5) -> None:
    handles = await neighbour.submit_many([(number,) for number in range(count)])
    assert [await handle.result(f"{SOON_S:g}s") for handle in handles] == [2 * number for number in range(count)]


async def test_a_worker_outlives_what_handlers_do_to_its_process_and_ends_when_it_is_told_to(
    live_engine: Engine, start: Any
) -> None:
    worker = start()
    async with opened(live_engine):
        await near()
        for name in [name for name, (_, goes_on) in WILD.items() if goes_on]:
            task = (await live_engine.wait(await let_out(live_engine, name), SOON_S)).task
            assert task.state is State.SUCCEEDED, f"{name}: {task}"
            await near()
            assert worker.code is None, f"{name}: {worker.said}"
        exits = [await let_out(live_engine, name) for name in ("sys.exit", "KeyboardInterrupt", "words that exit")]
        assert {(await live_engine.wait(id_, SOON_S)).task.state for id_ in exits} == {State.FAILED}
        await near()
        await until(lambda: not worker.ignores_signals)  # they are its own again
        worker.stop()
        assert await worker.ended() == 0, worker.said


@pytest.mark.parametrize("name", [name for name, (_, goes_on) in WILD.items() if not goes_on])
async def test_a_worker_that_was_broken_ends_and_its_neighbours_run_elsewhere(
    live_engine: Engine, start: Any, name: str
) -> None:
    worker = start()
    async with opened(live_engine):
        await near()
        beast = await let_out(live_engine, name)
        handles = await neighbour.submit_many([(number,) for number in range(20)])
        code = await worker.ended()
        assert code != 0, worker.said
        rescuer = app.worker(kinds=["neighbour"], heartbeat_process=False)
        running = asyncio.create_task(rescuer.run())
        assert [await handle.result(f"{SOON_S:g}s") for handle in handles] == [2 * number for number in range(20)]
        seen = (await live_engine.wait(beast, SOON_S)).task
        assert seen.terminal or seen.state is State.QUEUED, seen
        rescuer.stop()
        await running
