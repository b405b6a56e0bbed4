"""Handlers in processes: the same as elsewhere, cancelled by a kill, and a process that dies fails its own attempt."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from tests.kit.processes import alive, gone
from tests.sdk import process_handlers as handlers
from tests.sdk.process_handlers import Point
from tests.shape.source import ROOT

from windlass import App, Category, Context, Invalid, State, Submission, TaskFailed

pytestmark = pytest.mark.slow

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only there the kernel ends a process with its parent")


@pytest.fixture
def working(database: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("DATABASE_URL", database)

    @asynccontextmanager
    async def work() -> AsyncIterator[App]:
        async with handlers.app as app:
            worker = app.worker(name="ada")
            running = asyncio.create_task(worker.run())
            yield app  # type: ignore[misc]
            worker.stop()
            await running

    return work


async def test_a_handler_runs_in_a_process_that_is_used_again(working: Any) -> None:
    async with working():
        results = [await (await handlers.norm.submit(Point(3, 4), scale=2.0)).result("30s") for _ in range(3)]
        assert {value for value, _ in results} == {10.0}
        assert {pid for _, pid in results} == {results[0][1]} != {os.getpid()}
        assert await (await handlers.doubled.submit(4)).result("30s") == 8
        assert (await (await handlers.renamed.submit(Point(3, 4))).result("30s"))[0] == 5.0


async def test_at_most_so_many_processes_as_the_app_was_told(working: Any) -> None:
    async with working() as app:
        done = await handlers.norm.map([Point(number) for number in range(20)])
        pids = {pid for _, pid in await done.results("60s")}
        assert len(pids) <= 2
        assert len(app.processes._free) == len(pids)
    await gone(*pids)


async def test_what_it_says_is_kept_and_its_death_is_tried_again(working: Any) -> None:
    async with working() as app:
        handle = await handlers.walk.submit()
        assert await handle.result("60s") == [3, 2]
        progress = await handle.progress()
        lines = (await app.client.parts.progress.log(handle.id)).lines
    assert progress is not None
    assert (progress.current, progress.message, progress.attempt) == (3, "on the way", 3)
    assert [(line.attempt, line.message) for line in lines] == [(1, "try 1"), (2, "try 2"), (3, "try 3")]


@pytest.mark.parametrize(
    ("how", "state", "category", "message", "trace"),
    [
        ("exit", State.FAILED, Category.INFRASTRUCTURE, "exit code 3", "some words before the end"),
        ("signal", State.FAILED, Category.INFRASTRUCTURE, "killed by SIGSEGV", "some words before the end"),
        ("raise", State.FAILED, Category.USER_CODE, "not like this", "process_handlers.py"),
        ("system exit", State.FAILED, Category.USER_CODE, "4", "sys.exit(4)"),
        ("fail", State.FAILED, Category.DATA_QUALITY, "bad rows", ""),
        ("retry", State.FAILED, Category.USER_CODE, "later", ""),
        ("cancel", State.CANCELLED, Category.CANCELLED, "not needed", ""),
    ],
)
async def test_every_end_is_told_as_what_it_is(
    working: Any, how: str, state: State, category: Category, message: str, trace: str
) -> None:
    async with working():
        with pytest.raises(TaskFailed, match=message) as failed:
            await (await handlers.end.submit(how)).result("60s")
        assert (failed.value.state, failed.value.category) == (state, category)
        assert trace in failed.value.remote_traceback
        assert await (await handlers.doubled.submit(2)).result("60s") == 4


async def test_cancel_kills_the_process_of_that_task_alone(working: Any) -> None:
    async with working() as app:
        killed, other = await handlers.spin.submit(), await handlers.spin.submit()
        pids = [await _pid(app, handle.id) for handle in (killed, other)]
        await killed.cancel("enough")
        with pytest.raises(TaskFailed) as failed:
            await killed.result("30s")
        assert failed.value.state is State.CANCELLED
        await gone(pids[0])
        assert alive(pids[1])
        await other.cancel()
        with pytest.raises(TaskFailed):
            await other.result("30s")


async def _pid(app: Any, task_id: Any) -> int:
    """The checkpoint that `spin` leaves when it runs."""
    async with asyncio.timeout(60):
        while (left := await app.client.checkpoint(task_id)) is None:
            await app.client.wait(task_id, 0.02)
    return int(msgspec.json.decode(left))


async def test_a_payload_that_does_not_fit_is_bad_data_there_too(working: Any) -> None:
    async with working() as app:
        task_id = await app.client.submit(Submission(kind="cpu.norm", payload=b'{"point": 1}'))
        with pytest.raises(TaskFailed, match="Expected `object`") as failed:
            await app.handle(task_id).result("60s")
    assert failed.value.category is Category.DATA_QUALITY


@pytest.mark.parametrize("handler", ["spin", pytest.param("hold_the_lock", marks=LINUX)])
async def test_processes_end_with_their_worker(database: str, monkeypatch: pytest.MonkeyPatch, handler: str) -> None:
    """Killed, the worker cannot say goodbye; the line to it that breaks does, or the kernel."""
    program = """
import asyncio
from tests.sdk.process_handlers import app

async def main():
    async with app:
        await app.worker().run()

asyncio.run(main())
"""
    monkeypatch.setenv("DATABASE_URL", database)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["src", "."])}
    worker = await asyncio.create_subprocess_exec(sys.executable, "-c", program, cwd=ROOT, env=environment)
    try:
        async with handlers.app as app:
            pid = await _pid(app, (await handlers.app.handlers[f"cpu.{handler}"].submit()).id)
        assert alive(pid)
    finally:
        worker.kill()
        await worker.wait()
    await gone(pid)


def test_a_script_is_not_run_a_second_time(database: str, tmp_path: Any) -> None:
    script = tmp_path / "script.py"
    script.write_text("""
import asyncio
from windlass import App

app = App("script")

@app.task(run_in="process")
def where() -> str:
    return __name__

async def main() -> None:
    async with app:
        worker = app.worker()
        working = asyncio.create_task(worker.run())
        print(await (await where.submit()).result("30s"))
        worker.stop()
        await working

if __name__ == "__main__":
    asyncio.run(main())
""")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=150, check=False,
        env={**os.environ, "DATABASE_URL": database, "PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "__mp_main__\n"), done.stderr


def test_what_cannot_run_in_a_process_is_refused_where_it_is_declared() -> None:
    app = App("shop")

    def inside(ctx: Context) -> None: ...
    async def inside_async() -> None: ...

    for function, run_in in (
        (inside, "process"),
        (lambda: None, "process"),
        (inside_async, "thread"),
        (inside, "moon"),
    ):
        with pytest.raises(Invalid, match="run_in"):
            app.task(run_in=run_in)(function)  # type: ignore[call-overload]
    with pytest.raises(Invalid, match="run_in"):
        app.workflow(run_in="process")(handlers.doubled.function)


async def test_a_pool_that_a_start_hook_already_used_is_closed_with_the_app(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database)
    monkeypatch.setattr(handlers.app, "_starting", [])
    seen = []

    @handlers.app.on_start
    async def work_at_once() -> None:
        worker = handlers.app.worker()
        running = asyncio.create_task(worker.run())
        seen.append((await (await handlers.norm.submit(Point(1))).result("30s"))[1])
        worker.stop()
        await running

    async with handlers.app:
        assert alive(seen[0])
    await gone(seen[0])
