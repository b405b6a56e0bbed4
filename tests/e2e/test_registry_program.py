"""A program with `windlass.registry` as a real process: killed, its runs go on elsewhere; told to stop, it finishes."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest
from tests.kit.world import KEY

from windlass import Engine
from windlass.registry import Client
from windlass.serve import open_sessions

pytestmark = pytest.mark.slow

OPTIONS = {"heartbeat_s": 1.0, "stale_s": 3.0}


@pytest.fixture
def mode() -> str:
    return "direct"


def started(url: str, folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "tests.e2e.registry_program", url, KEY, str(folder)])


async def recorded(engine: Engine, run_id: str) -> None:
    """Until the first step of this run is on record."""
    async with asyncio.timeout(60):
        while not any(step.done for step in await engine.load_steps(UUID(run_id))):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_killed_worker_loses_no_run_and_repeats_no_step_and_sigterm_lets_it_finish(
    live_engine: Engine, tmp_path: Path
) -> None:
    runs = range(4)
    async with open_sessions(live_engine, grpc="127.0.0.1:0", api_key=KEY, registry=OPTIONS) as url:
        first = started(url, tmp_path)
        workers = [first]
        try:
            async with Client(url, api_key=KEY) as client:
                ids = [await client.start("order", number, queue="orders") for number in runs]
                for run_id in ids:
                    await recorded(live_engine, run_id)
                first.kill()  # kill -9, with four runs between two steps
                first.wait()
                (tmp_path / "go").touch()
                second = started(url, tmp_path)
                workers.append(second)

                assert [await client.result(run_id, 90) for run_id in ids] == list(runs)
                for number in runs:  # each step once
                    assert (tmp_path / f"{number}-charge").read_text() == f"{first.pid}\n"
                    assert (tmp_path / f"{number}-ship").read_text() == f"{second.pid}\n"

                (tmp_path / "go").unlink()
                last = await client.start("order", 9, queue="orders")
                await recorded(live_engine, last)
                second.send_signal(signal.SIGTERM)
                (tmp_path / "go").touch()
                assert await asyncio.to_thread(second.wait, 60) == 0
                assert (await client.get(last)).status in ("SLEEPING", "PENDING")  # it sleeps, and holds no worker
                offline = [worker.pid async for worker in client.workers(status="OFFLINE")]
                assert set(offline) == {first.pid, second.pid}
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
