"""Workers of the registry contract as real processes: the example works, and kills lose and repeat nothing."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.registry_soak import Soak, begun_after_recorded
from tests.kit.world import KEY

from windlass import Engine
from windlass.core.submission import Submission
from windlass.serve import open_sessions

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/registry_worker.py"


@pytest.fixture
def mode() -> str:
    return "direct"


async def test_the_example_is_short_uses_nothing_of_ours_and_works(live_engine: Engine) -> None:
    text = EXAMPLE.read_text()
    assert len(text.splitlines()) < 150
    assert "import windlass" not in text
    assert "from windlass" not in text
    async with open_sessions(live_engine, grpc="127.0.0.1:0", api_key=KEY) as url:
        env = {**os.environ, "WINDLASS_API_KEY": KEY, "KAGZI_SERVER": url.removeprefix("http://")}
        env["PYTHONPATH"] = str(ROOT / "src")
        worker = subprocess.Popen([sys.executable, str(EXAMPLE)], env=env)  # noqa: ASYNC220
        try:
            task_id = await live_engine.submit(Submission(kind="order", queue="orders", payload=b"7"))
            view = await live_engine.wait(task_id, 60)

            assert json.loads(view.task.result or b"") == "shipped with receipt for 7"
            assert (view.task.failures, view.task.losses) == (0, 0)
            assert [step.name for step in await live_engine.load_steps(task_id)] == ["charge", "__sleep_0", "ship"]
            worker.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(worker.wait, 60) == 0
            [entry] = (await live_engine.workers.page(states=["offline"])).workers  # type: ignore[list-item]
            assert entry.queues == ("orders",)
        finally:
            worker.kill()
            worker.wait()


async def test_workers_and_servers_that_are_killed_lose_no_run_and_repeat_no_recorded_step(
    database: str, tmp_path: Path
) -> None:
    """A share of `make soak-registry`."""
    told = await Soak(database, tmp_path, workflows=150, workers=3, kills=8, randomness=random.Random(7)).run()

    assert sum(told["killed"].values()) == 8


def test_the_soak_would_notice_a_step_that_ran_again() -> None:
    run = "01a1e2c2-8a96-7ea5-9ca4-be147ecf5186"
    once = [f"begun {run} 0", f"begun {run} 0", f"recorded {run} 0", f"begun {run} 1", f"recorded {run} 1"]

    assert begun_after_recorded(once) == []
    assert begun_after_recorded([*once, f"begun {run} 0"]) == [f"{run} 0"]
