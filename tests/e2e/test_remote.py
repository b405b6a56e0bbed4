"""Remote workers as processes, with a server that is a process too: either is killed, and no task is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest
from tests.e2e.test_drain import Workers, finished, killed_under_supervision, submission, until_open
from tests.kit.ports import free_port
from tests.kit.work import only_direct, soon, task
from tests.kit.world import KEY

from windlass import Engine, State
from windlass.cli.output import Exit

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, only_direct]


class Server:
    """A server process on a port of its own, which can be killed and started again."""

    def __init__(self, dsn: str) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self._command = [sys.executable, "-m", "tests.e2e.server", dsn, self.address, KEY]
        self.start()

    def start(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
        self.process = subprocess.Popen(self._command, cwd=ROOT, stdout=subprocess.PIPE, env=environment)
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == f"http://{self.address}".encode()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def server(database: str) -> Iterator[Server]:
    server = Server(database)
    yield server
    server.kill()


@pytest.fixture
def workers(server: Server, tmp_path: Path) -> Iterator[Workers]:
    """Workers that know no database."""
    workers = Workers("postgresql://nobody@127.0.0.1:1/nowhere", tmp_path)
    yield workers
    workers.close()


def remote(server: Server) -> list[str]:
    return ["--server", f"http://{server.address}", "--api-key", KEY]


async def test_a_server_and_workers_that_are_killed_in_the_middle_lose_no_task(
    live_engine: Engine, server: Server, workers: Workers, other_connection: asyncpg.Connection, pace: float
) -> None:
    options = (*remote(server), "-c", "20", "--lease", f"{6 * pace:g}")  # longer than a server takes to start again
    fleet = [workers.start(*options) for _ in range(2)]
    await until_open(other_connection, 2)
    total = 1500
    await live_engine.submit_many([submission("short", b'{"number": %d}' % n) for n in range(total)])
    await until_finished(other_connection, 200)
    server.kill()
    server.start()
    await until_finished(other_connection, 600)
    fleet[0].kill()
    fleet.append(workers.start(*options))
    await until_finished(other_connection, total)
    rows = await other_connection.fetch(
        "select state, failures, count(*), sum(losses) from windlass.task group by 1, 2"
    )
    assert [tuple(row)[:3] for row in rows] == [("succeeded", 0, total)]
    assert rows[0]["sum"] <= 20, "only what the killed worker ran was lost and run again"


async def until_finished(other_connection: asyncpg.Connection, wanted: int) -> None:
    async with asyncio.timeout(120):
        while await finished(other_connection) < wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_remote_handler_that_holds_the_interpreters_lock_is_neither_lost_nor_run_twice(
    live_engine: Engine, server: Server, workers: Workers, pace: float
) -> None:
    id_ = await live_engine.submit(submission("holds_the_lock", b'{"seconds": %f}' % (3.5 * pace)))
    workers.start(*remote(server), "--lease", f"{2 * pace:g}")
    view = await soon(live_engine.wait(id_, 120), 120)
    assert (view.task.state, view.task.attempt, view.task.losses) == (State.SUCCEEDED, 1, 0)


async def test_a_supervised_remote_worker_that_is_killed_leaves_its_last_lines(
    live_engine: Engine, server: Server, workers: Workers
) -> None:
    await killed_under_supervision(live_engine, workers, *remote(server), "--lease", "600")


async def test_a_remote_worker_drains(live_engine: Engine, server: Server, workers: Workers) -> None:
    first, other = await live_engine.submit_many([submission("until_let_go") for _ in range(2)])
    process = workers.start(*remote(server), "-c", "1", "--prefetch", "1")
    await workers.until(f"begun-{first}")
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(120):
        while (await task(live_engine, other)).state is not State.QUEUED:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    (workers.folder / "go").touch()
    assert await workers.stopped(process) == Exit.OK
    seen = [await task(live_engine, id_) for id_ in (first, other)]
    assert [(one.state, one.failures, one.losses) for one in seen] == [(State.SUCCEEDED, 0, 0), (State.QUEUED, 0, 0)]
