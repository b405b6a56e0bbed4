"""One test that starts every kind of process that tests start, and never ends. `test_guard.py` interrupts it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.cli.conftest import SHOP, start_dev
from tests.contracts.machine.world import open_world
from tests.kit.database import temporary_folder
from tests.kit.s3 import open_s3

from windlass.testing.clock import VirtualClock

# In a session of its own, an orphan at once, without an environment, and it ignores polite signals.
STUBBORN = """# a stubborn process
import os, signal, sys, time
if os.fork():
    os._exit(0)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
open(sys.argv[1], "w").write(str(os.getpid()))
time.sleep(600)
"""


@pytest.fixture
def stubborn(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STUBBORN, str(tmp_path / "pid")]
    subprocess.run(command, env={}, start_new_session=True, check=True)


@pytest.fixture
def ready() -> Callable[[], object]:
    return partial(Path(os.environ["EVERY_HELPER_RUNS"]).write_text, "now")


@pytest.mark.usefixtures("stubborn", "nats_port", "aws_port")
async def test_every_helper(database: str, clock: VirtualClock, tmp_path: Path, ready: Callable[[], object]) -> None:
    with open_s3(), temporary_folder() as folder:
        (folder / "shop.py").write_text(SHOP)
        with start_dev(folder, "shop:app", "--json") as dev:
            assert dev.stdout is not None
            assert json.loads(dev.stdout.readline())["api"]
            async with open_world(database, clock, tmp_path) as world:
                await world.export(f"wait {world.file('never')}")
                ready()
                await asyncio.sleep(600)
