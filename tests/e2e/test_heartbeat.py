"""A worker whose event loop is blocked, by Python code or by a C call that holds the interpreter's lock, keeps what it
runs; one that is dead, stopped, or past its tasks' timeouts does not. Real processes, short leases."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.kit.processes import gone
from tests.kit.work import only_direct, soon

from windlass import Engine, Policy, State, Submission

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, only_direct]


@contextmanager
def worker(dsn: str, ttl_s: float) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.blocked", dsn, str(ttl_s)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


async def said(process: subprocess.Popen[bytes], word: str) -> None:
    """Until the worker has said it. The pipe is read in a thread, so that this process can go on."""
    assert process.stdout is not None
    while True:
        line = await soon(asyncio.to_thread(process.stdout.readline), 120)
        assert line, f"the worker ended before it said {word}"
        if line.decode().strip() == word:
            return


def submission(kind: str, **policy: Any) -> Submission:
    return Submission(kind=f"blocked.{kind}", payload=b"{}", policy=Policy(retry_delay_s=0.0, **policy))


def heartbeat_processes(worker: int) -> list[int]:
    children = Path(f"/proc/{worker}/task/{worker}/children").read_text().split()
    return [int(pid) for pid in children if b"heartbeat_process" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.fixture
def ttl_s(pace: float) -> float:
    """Leases are short, and longer if this machine was too busy for a sign of life within a short one."""
    return 2.0 * pace


@pytest.mark.parametrize("kind", ["busy_loop", "holds_the_lock", "catastrophic_match"])
async def test_a_handler_that_blocks_for_longer_than_the_lease_is_neither_lost_nor_run_twice(
    live_engine: Engine, database: str, kind: str, ttl_s: float
) -> None:
    task_id = await live_engine.submit(submission(kind))
    with worker(database, ttl_s) as process:
        await said(process, "blocking")
        view = await soon(live_engine.wait(task_id, 120), 120)
    assert (view.task.state, view.task.attempt, view.task.losses) == (State.SUCCEEDED, 1, 0)
    assert float(view.task.result or b"0") > 1.5 * ttl_s, "it blocked for longer than a lease lives"


async def test_a_cancel_is_heard_by_a_handler_that_blocks_the_event_loop_and_asks(
    live_engine: Engine, database: str, ttl_s: float
) -> None:
    task_id = await live_engine.submit(submission("asks_while_blocking"))
    with worker(database, ttl_s) as process:
        await said(process, "blocking")
        await live_engine.cancel(task_id, "enough")
        view = await soon(live_engine.wait(task_id, 120), 120)
    assert (view.task.state, view.task.losses) == (State.CANCELLED, 0)


async def test_a_worker_that_hangs_loses_a_task_with_a_timeout_and_then_its_lease(
    live_engine: Engine, database: str, other_connection: asyncpg.Connection, ttl_s: float
) -> None:
    task_id = await live_engine.submit(submission("hangs", timeout_s=ttl_s * 0.8, max_attempts=1))
    with worker(database, ttl_s) as process:
        await said(process, "blocking")
        view = await soon(live_engine.wait(task_id, 120), 120)
        assert view.task.state is State.FAILED
        assert view.task.error.reason == "ATTEMPT_TIMEOUT"  # type: ignore[union-attr]
        async with asyncio.timeout(120):
            while await other_connection.fetchval("select count(*) from windlass.lease"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert process.poll() is None


async def test_what_a_dead_worker_ran_is_not_kept_alive(live_engine: Engine, database: str, ttl_s: float) -> None:
    task_id = await live_engine.submit(submission("holds_the_lock"))
    with worker(database, ttl_s) as first:
        await said(first, "blocking")
        [heartbeat] = heartbeat_processes(first.pid)
        first.kill()
        first.wait()
        with worker(database, ttl_s) as second:
            await said(second, "blocking")
            view = await soon(live_engine.wait(task_id, 120), 120)
    assert (view.task.attempt, view.task.losses) == (2, 1)
    await gone(heartbeat)


async def test_what_a_stopped_worker_ran_is_given_to_another(live_engine: Engine, database: str, ttl_s: float) -> None:
    task_id = await live_engine.submit(submission("busy_loop"))
    with worker(database, ttl_s) as first:
        await said(first, "blocking")
        first.send_signal(signal.SIGSTOP)
        with worker(database, ttl_s) as second:
            await said(second, "blocking")
            view = await soon(live_engine.wait(task_id, 120), 120)
    assert (view.task.attempt, view.task.losses) == (2, 1)


async def test_an_idle_worker_has_no_heartbeat_process_and_a_small_one_from_its_first_task_on(
    live_engine: Engine, database: str, ttl_s: float
) -> None:
    with worker(database, ttl_s) as process:
        await said(process, "ready")
        assert heartbeat_processes(process.pid) == []
        await soon(live_engine.wait(await live_engine.submit(submission("nothing")), 60))
        [heartbeat] = heartbeat_processes(process.pid)
        assert pss_kb(heartbeat) < 8_000
        os.kill(heartbeat, signal.SIGKILL)
        await soon(live_engine.wait(await live_engine.submit(submission("nothing")), 60))
        task_id = await live_engine.submit(submission("busy_loop"))
        view = await soon(live_engine.wait(task_id, 120), 120)
        assert view.task.attempt == 1, "another one took its place"


def pss_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
