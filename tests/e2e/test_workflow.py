"""A workflow goes on in another process when its worker is killed: no recorded step is run again."""

from __future__ import annotations

import signal
from pathlib import Path

import asyncpg
import pytest
from tests.e2e.flow import STEPS, STOPS
from tests.e2e.test_drain import Workers, workers
from tests.kit.work import only_direct, soon, task

from windlass import Engine, State, Submission

__all__ = ["workers"]
pytestmark = [pytest.mark.slow, only_direct]


async def test_a_workflow_goes_on_where_it_was_when_its_worker_is_killed(
    workers: Workers, live_engine: Engine, other_connection: asyncpg.Connection, tmp_path: Path, pace: float
) -> None:
    await other_connection.execute("create table account as select 10 as balance")
    task_id = await live_engine.submit(Submission(kind="flow.long", payload=b"{}"))
    for stop in STOPS:
        process = workers.start("--lease", f"{2 * pace:g}", target="tests.e2e.flow:app")
        await workers.until(f"at-{stop}")
        process.send_signal(signal.SIGKILL)
        await workers.stopped(process)
        (tmp_path / f"go-{stop}").touch()
    workers.start("--lease", f"{2 * pace:g}", target="tests.e2e.flow:app")

    view = await soon(live_engine.wait(task_id, 120), 120)

    assert (view.task.state, view.task.result) == (State.SUCCEEDED, b"[0,1,2,3,4,5,6,7,7]"), workers.said
    calls = [line.split() for line in (tmp_path / "calls").read_text().splitlines()]
    expected = sorted([*range(STEPS), *STOPS])  # those that were killed before their record, once more
    assert sorted(int(number) for number, _, _ in calls) == expected
    assert len({key for _, key, _ in calls}) == STEPS, "the second time with the same key"
    assert len({pid for _, _, pid in calls}) == 3
    assert await other_connection.fetchval("select balance from account") == 7
    assert (await task(live_engine, task_id)).losses == len(STOPS)
