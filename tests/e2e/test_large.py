"""Programs that are killed while they submit or report something large: nothing is lost, and nothing is left behind."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
from tests.kit.work import worker
from tests.kit.world import open_still

from windlass import Engine
from windlass.engine.payloads.objects import MARKER, UNCOMMITTED_S
from windlass.serve import open_blobs
from windlass.testing.clock import VirtualClock

pytestmark = pytest.mark.slow

# Runs an engine that kills its own process when the named method of the named class is called, or when it returns.
KILLED = """
import asyncio, os, sys
from windlass import Submission, open_engine
from windlass.blobs.object_store import ObjectStore
from windlass.engine.payloads.objects import Objects
from windlass.engine.submit.submitter import Submitter

url, folder, moment = sys.argv[1:]
owner, name, when = {
    "before the upload": (ObjectStore, "put", "before"),
    "after the upload": (ObjectStore, "put", "after"),
    "before the commit": (Submitter, "_add_grouped", "before"),
    "after the commit": (Submitter, "_add_grouped", "after"),
    "when it is settled": (Objects, "settle", "after"),
}[moment]
real = getattr(owner, name)

async def killed(self, *args, **options):
    if "windlass-store.txt" in args:
        return await real(self, *args, **options)
    if when == "before":
        os.kill(os.getpid(), 9)
    result = await real(self, *args, **options)
    os.kill(os.getpid(), 9)

setattr(owner, name, killed)

async def main():
    async with open_engine(url, blobs=folder) as engine:
        await engine.submit(Submission(kind="job", payload=b'"' + b"x" * 3_000_000 + b'"'))

asyncio.run(main())
"""


@pytest.fixture
async def engine(database: str, clock: VirtualClock, tmp_path: Path) -> AsyncIterator[Engine]:
    async with open_still(database, clock, blobs=open_blobs(str(tmp_path / "blobs"))) as engine:
        yield engine


@pytest.mark.parametrize(
    ("moment", "tasks"),
    [
        ("before the upload", 0),
        ("after the upload", 0),
        ("before the commit", 0),
        ("after the commit", 1),
        ("when it is settled", 1),
    ],
)
async def test_a_program_that_is_killed_while_it_submits_leaves_a_whole_task_or_nothing(
    moment: str, tasks: int, database: str, engine: Engine, clock: VirtualClock, tmp_path: Path,
    other_connection: asyncpg.Connection,
) -> None:  # fmt: skip
    folder = str(tmp_path / "blobs")
    program = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, database, folder, moment)
    assert await program.wait() == -signal.SIGKILL
    await clock.advance(UNCOMMITTED_S + 1)
    while await engine.loops.effects_tick():
        pass

    files = [file for file in Path(folder).rglob("*") if file.is_file() and file.name != MARKER]  # noqa: ASYNC240
    assert len(files) == tasks
    assert await other_connection.fetchval("select count(*) from windlass.task") == tasks
    assert await other_connection.fetchval("select count(*) from windlass.outbox") == 0
    claimed = await engine.claim(await worker(engine))
    assert [len(one.payload) for one in claimed] == [3_000_002] * tasks
