"""`windlass worker` as it is run in production: restarted, told to stop once and twice, its tasks cancelled."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from tests.kit.processes import gone
from tests.kit.work import only_direct, soon, task

from windlass import Engine, State, Submission
from windlass.cli.output import Exit

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, only_direct]


class Workers:
    """Worker processes of one test."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self.folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._environment = {
            **os.environ,
            "DATABASE_URL": dsn,
            "WINDLASS_TEST_FOLDER": str(folder),
            "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        }

    def start(self, *options: str, target: str = "tests.e2e.shop:app", cwd: Path = ROOT) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", "from windlass.cli import main; main()", "worker", target, *options]
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(command, env=self._environment, cwd=cwd, stdout=log, stderr=log)
        self._processes.append(process)
        return process

    @property
    def said(self) -> str:
        return (self.folder / "log").read_text()

    async def stopped(self, process: subprocess.Popen[bytes]) -> int:
        return await soon(asyncio.to_thread(process.wait), 120)

    async def until(self, name: str) -> None:
        """Until a handler has left this file."""
        async with asyncio.timeout(120):
            while not exists(self.folder / name):  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def exists(path: Path) -> bool:
    return path.exists()


@pytest.fixture
def workers(database: str, tmp_path: Path) -> Iterator[Workers]:
    workers = Workers(database, tmp_path)
    yield workers
    workers.close()


def submission(kind: str, payload: bytes = b"{}") -> Submission:
    return Submission(kind=f"shop.{kind}", payload=payload)


async def budgets(engine: Engine, *ids: UUID) -> list[tuple[State, int, int]]:
    seen = [await task(engine, id_) for id_ in ids]
    return [(one.state, one.failures, one.losses) for one in seen]


async def until_queued(engine: Engine, *ids: UUID) -> None:
    async with asyncio.timeout(120):
        while {state for state, _, _ in await budgets(engine, *ids)} != {State.QUEUED}:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_all_workers_restarted_one_after_the_other_lose_none_of_5000_tasks_and_use_up_no_retry(
    live_engine: Engine, workers: Workers, other_connection: asyncpg.Connection
) -> None:
    total, fleet = 5000, [workers.start("-c", "40", "--prefetch", "40") for _ in range(3)]
    await until_open(other_connection, 3)
    work = [submission("short", b'{"number": %d}' % n) for n in range(total)]
    await live_engine.submit_many(work[:2000])
    for place, process in enumerate(fleet):
        while await finished(other_connection) < 500 + 1000 * place:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await live_engine.submit_many(work[2000 + 1000 * place : 3000 + 1000 * place])  # so that there is always some
        process.send_signal(signal.SIGTERM)
        fleet[place] = workers.start("-c", "40", "--prefetch", "40")
        assert await workers.stopped(process) == Exit.OK
    async with asyncio.timeout(120):
        while await finished(other_connection) < total:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    counted = await other_connection.fetch(
        "select state, failures, losses, count(*) from windlass.task group by 1, 2, 3"
    )
    assert [tuple(row) for row in counted] == [("succeeded", 0, 0, total)]


async def until_open(other_connection: asyncpg.Connection, workers: int) -> None:
    """A worker that is told to stop before it has begun just ends."""
    async with asyncio.timeout(120):
        while await other_connection.fetchval("select count(*) from windlass.lease") < workers:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def finished(other_connection: asyncpg.Connection) -> int:
    return int(await other_connection.fetchval("select count(*) from windlass.task where finished_at is not null"))


async def test_the_first_signal_finishes_what_runs_and_gives_back_what_was_only_held_ready(
    live_engine: Engine, workers: Workers
) -> None:
    first, *others = await live_engine.submit_many([submission("until_let_go") for _ in range(3)])
    process = workers.start("-c", "1", "--prefetch", "5")
    await workers.until(f"begun-{first}")
    process.send_signal(signal.SIGTERM)
    await until_queued(live_engine, *others)
    assert await budgets(live_engine, first, *others) == [(State.RUNNING, 0, 0), *[(State.QUEUED, 0, 0)] * 2]
    (workers.folder / "go").touch()
    assert await workers.stopped(process) == Exit.OK
    assert await budgets(live_engine, first) == [(State.SUCCEEDED, 0, 0)]


@pytest.mark.parametrize("kind", ["for_ever", "in_thread_for_ever"])
async def test_the_second_signal_stops_at_once_and_gives_back_what_ran(
    live_engine: Engine, workers: Workers, kind: str
) -> None:
    id_ = await live_engine.submit(submission(kind))
    process = workers.start()
    await workers.until(f"begun-{id_}")
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(120):
        while "press again to stop at once" not in workers.said:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert await workers.stopped(process) == Exit.INTERRUPTED
    assert await budgets(live_engine, id_) == [(State.QUEUED, 0, 0)]


@pytest.mark.parametrize("kind", ["for_ever", "in_thread_until_cancelled", "in_process_for_ever"])
async def test_a_cancel_reaches_handlers_in_the_event_loop_in_threads_that_ask_and_in_processes(
    live_engine: Engine, workers: Workers, kind: str
) -> None:
    id_ = await live_engine.submit(submission(kind))
    workers.start()
    await workers.until(f"begun-{id_}")
    await live_engine.cancel(id_, "no longer needed")
    view = await soon(live_engine.wait(id_, 120), 120)
    assert view.task.state is State.CANCELLED
    if kind == "in_process_for_ever":
        process = (workers.folder / f"begun-{id_}").read_text()
        await gone(int(process))
    else:
        await workers.until("heard")


async def test_the_last_lines_of_a_killed_process_are_kept_with_its_attempt(
    live_engine: Engine, workers: Workers
) -> None:
    id_ = await live_engine.submit(submission("in_process_killed"))
    workers.start()
    async with asyncio.timeout(120):
        while not (failed := [e for e in await live_engine.tasks.timeline(id_) if e.what == "failed"]):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert "the last words of a process" in str((failed[0].detail or {})["trace"])


async def test_a_supervised_worker_that_is_killed_leaves_its_last_lines_and_is_replaced_at_once(
    live_engine: Engine, workers: Workers
) -> None:
    await killed_under_supervision(live_engine, workers, "--lease", "600")


@pytest.mark.parametrize("code", [0, 1, 3])
async def test_a_supervised_worker_that_ends_unasked_is_replaced_whatever_its_exit_code(
    live_engine: Engine, workers: Workers, code: int
) -> None:
    id_ = await live_engine.submit(submission("ends_its_worker", b'{"code": %d}' % code))
    process = workers.start("--supervised", "--lease", "600")
    seen = (await soon(live_engine.wait(id_, 120), 120)).task

    assert (seen.state, seen.result, seen.losses) == (State.SUCCEEDED, b"2", 1)
    assert f"The worker ended unexpectedly with exit code {code}." in workers.said
    process.send_signal(signal.SIGTERM)
    assert await workers.stopped(process) == Exit.OK


async def test_a_supervised_worker_that_its_engine_lets_go_is_not_replaced(
    live_engine: Engine, workers: Workers
) -> None:
    id_ = await live_engine.submit(submission("short", b'{"number": 1}'))
    process = workers.start("--supervised")
    await soon(live_engine.wait(id_, 120), 120)
    [worker] = (await live_engine.workers.page("default")).workers
    await live_engine.workers.drain(worker.id)

    assert await workers.stopped(process) == Exit.OK
    assert "ended unexpectedly" not in workers.said


async def test_a_supervised_worker_that_cannot_be_meant_is_not_tried_again(
    live_engine: Engine, workers: Workers
) -> None:
    process = workers.start("--supervised", target="tests.e2e.shop:nothing")

    assert await workers.stopped(process) == Exit.USAGE
    assert workers.said.count("has no attribute nothing") == 1


async def killed_under_supervision(engine: Engine, workers: Workers, *options: str) -> None:
    """With a lease that would have to run out for ten minutes."""
    id_ = await engine.submit(submission("kills_its_worker"))
    process = workers.start("--supervised", *options)
    seen = (await soon(engine.wait(id_, 120), 120)).task
    assert (seen.state, seen.result, seen.losses) == (State.SUCCEEDED, b"2", 1)
    [lost] = [entry for entry in await engine.tasks.timeline(id_) if entry.what == "lost"]
    assert "the last words of a worker" in str((lost.detail or {})["trace"])
    assert (lost.detail or {})["reason"] == "WORKER_DIED"
    assert "the last words of a worker" in workers.said, "and they went on to where output goes"
    process.send_signal(signal.SIGTERM)
    assert await workers.stopped(process) == Exit.OK


async def test_the_registry_shows_host_process_version_labels_and_kinds(live_engine: Engine, workers: Workers) -> None:
    process = workers.start(
        "-q", "mail,default", "-k", "shop.short", "-l", "gpu,eu", "--app-version", "1.2.3", "--name", "ada",
        "--namespace", "acme",
    )  # fmt: skip
    leases: list[Any] = []
    async with asyncio.timeout(120):
        while not leases:
            async with live_engine.store.views() as views:
                leases = await views.list_leases("acme")
    [lease] = leases
    assert (lease.worker, lease.queues, lease.kinds) == ("ada", ("mail", "default"), ("shop.short",))
    assert (lease.host, lease.pid, lease.version) == (os.uname().nodename, process.pid, "1.2.3")
    assert lease.labels == ("gpu", "eu")


CODE = "from windlass import App\nimport tests.e2e.shop as shop\napp = shop.app\n\n\n"


async def test_reload_runs_new_code_and_lets_the_old_finish_what_it_runs(
    live_engine: Engine, workers: Workers, tmp_path: Path
) -> None:
    module = tmp_path / "code" / "grocer.py"
    module.parent.mkdir()
    module.write_text(CODE)
    process = workers.start("--reload", target="grocer:app", cwd=module.parent)
    running = await live_engine.submit(submission("until_let_go"))
    await workers.until(f"begun-{running}")
    module.write_text(f"{CODE}@app.task\ndef added() -> str:\n    return 'new'\n")
    added = await live_engine.submit(submission("added"))
    assert (await soon(live_engine.wait(added, 120), 120)).task.result == b'"new"'
    assert await budgets(live_engine, running) == [(State.RUNNING, 0, 0)]
    (workers.folder / "go").touch()
    seen = (await soon(live_engine.wait(running, 120), 120)).task
    assert (seen.state, seen.attempt, seen.losses) == (State.SUCCEEDED, 1, 0)
    process.send_signal(signal.SIGTERM)
    assert await workers.stopped(process) == Exit.OK
