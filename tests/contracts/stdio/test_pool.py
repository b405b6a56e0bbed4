"""Queues whose tasks run in child processes: the fence, progress, logs, cancel and limits of all other tasks."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from tests.contracts.stdio.talk import blocks
from tests.kit.processes import gone
from tests.kit.work import SOON_S, only_direct
from tests.kit.work import until as until_true
from tests.shape.source import ROOT

from windlass import Category, Engine, Policy, QueueConfig, State, Submission, Task
from windlass.contracts.stdio import host
from windlass.contracts.stdio.delivery import Stdio, StdioHandler
from windlass.contracts.stdio.host import StdioHost
from windlass.contracts.stdio.protocol import environment
from windlass.sdk.worker.worker import Worker
from windlass.serve import open_pools

pytestmark = [pytest.mark.slow, only_direct]
ONCE = Policy(max_attempts=1, max_losses=0)
WAIT = "import os, time\ntask.update('waiting', os.getpid())\nwhile not task.cancel_requested: time.sleep(0.005)\n"


def script(text: str) -> StdioHandler:
    return StdioHandler(script=text)


@asynccontextmanager
async def pool(engine: Engine, limits: QueueConfig | None = None, **delivery: Any) -> AsyncIterator[StdioHost]:
    await engine.queues.put("images", delivery=Stdio(**delivery), limits=limits or QueueConfig())
    async with StdioHost(engine, lambda: engine.queues.delivered(Stdio), read_s=0.05) as host:
        yield host


async def submit(engine: Engine, kind: str = "job", payload: Any = None, **more: Any) -> UUID:
    body = msgspec.json.encode({} if payload is None else payload)
    return await engine.submit(Submission(kind=kind, payload=body, queue="images", **more))


async def ended(engine: Engine, task_id: UUID) -> Task:
    return (await engine.wait(task_id, 60)).task


async def result(engine: Engine, task_id: UUID) -> Any:
    seen = await engine.wait(task_id, 60)
    assert seen.task.state is State.SUCCEEDED, seen.task.error
    return msgspec.json.decode((await engine.results([task_id]))[task_id])


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(SOON_S):
        while not await holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def running(engine: Engine, task_id: UUID) -> int:
    """The process that runs it, which says so as its progress."""
    await until(lambda: _has_progress(engine, task_id))
    progress = await engine.progress(task_id)
    assert progress is not None
    return int(progress.current)


async def _has_progress(engine: Engine, task_id: UUID) -> bool:
    return await engine.progress(task_id) is not None


# --------------------------------------------------------------------------------------------- their environment

SERVER = {
    "DATABASE_URL": "postgresql://windlass:hunter2@db/windlass", "WINDLASS_API_KEY": "wl_root", "SHOP_TOKEN": "shop",
    "AWS_SECRET_ACCESS_KEY": "aws", "LANG": "C.UTF-8",
}  # fmt: skip
SEEN = script("import os\nresult = dict(os.environ)")


async def test_a_program_sees_nothing_of_the_servers_environment_but_what_its_queue_names(
    live_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SERVER.items():
        monkeypatch.setenv(name, value)
    async with pool(live_engine, handlers={"job": SEEN}, env={"MODE": "fast"}, secrets=("SHOP_TOKEN",)):
        seen = await result(live_engine, await submit(live_engine))

    assert seen.items() >= {"MODE": "fast", "SHOP_TOKEN": "shop", "LANG": "C.UTF-8", "PATH": os.environ["PATH"]}.items()
    assert not seen.keys() & {"DATABASE_URL", "WINDLASS_API_KEY", "AWS_SECRET_ACCESS_KEY"}
    assert not [value for value in seen.values() if "hunter2" in value]


async def test_a_secret_that_the_server_does_not_have_is_named_in_the_log(
    live_engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    async with pool(live_engine, handlers={"job": SEEN}, secrets=("NOT_THERE_AT_ALL",)):
        await until(lambda: _logged(caplog, "this server has no variable NOT_THERE_AT_ALL"))


async def _logged(caplog: pytest.LogCaptureFixture, text: str) -> bool:
    return text in caplog.text


async def test_what_installs_the_requirements_of_a_queue_sees_no_secret_either(
    live_engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in {**SERVER, "PIP_INDEX_URL": "https://index", "XDG_CACHE_HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    given: list[dict[str, str]] = []
    monkeypatch.setattr(environment, "_run", lambda _command, variables: given.append(dict(variables)))
    async with pool(live_engine, handlers={"job": SEEN}, requirements=("numpy",)):
        await until(lambda: _made(given))

    assert all(variables["PIP_INDEX_URL"] == "https://index" for variables in given)
    assert not [name for variables in given for name in variables if name in SERVER and name != "LANG"]


async def _made(given: list[dict[str, str]]) -> bool:
    return bool(given)


# --------------------------------------------------------------------------------------------- handlers


async def test_a_handler_is_a_function_a_script_or_whatever_a_program_makes_of_the_kind(live_engine: Engine) -> None:
    handlers = {
        "hypot": StdioHandler(function="tests.contracts.stdio.handlers:hypot"),
        "twice": script("result = 2 * x"),
        "all": script("task.outputs['a'] = 1\ntask.outputs['b'] = [2]"),
        "nothing": script("x = 1"),
        "value": script("value + 1"),
        "trace": script("task.traceparent"),
    }
    async with pool(live_engine, handlers=handlers, cwd=str(ROOT)):
        cases = {
            "hypot": ({"a": 3, "b": 4}, 5.0), "twice": ({"x": 21}, 42), "all": (None, {"a": 1, "b": [2]}),
            "nothing": (None, None), "value": (41, 42),
        }  # fmt: skip
        ids = {kind: await submit(live_engine, kind, payload) for kind, (payload, _) in cases.items()}
        assert {kind: await result(live_engine, ids[kind]) for kind in cases} == {k: v for k, (_, v) in cases.items()}

        traced = await submit(live_engine, "trace", trace="00-" + "1" * 32 + "-" + "2" * 16 + "-01")
        assert await result(live_engine, traced) == "00-" + "1" * 32 + "-" + "2" * 16 + "-01"

        missing = await ended(live_engine, await submit(live_engine, "unheard-of"))
        assert (missing.state, missing.error and missing.error.reason) == (State.FAILED, "NO_HANDLER")


async def test_any_program_that_speaks_the_protocol_is_a_worker(live_engine: Engine) -> None:
    handlers = {"shout": script('echo "$word" | tr a-z A-Z')}
    perl = ["perl", str(ROOT / "examples/stdio_shell_worker.pl")]
    async with pool(live_engine, command=perl, handlers=handlers, kinds_are_scripts=True):
        assert await result(live_engine, await submit(live_engine, "shout", {"word": "ahoy"})) == "AHOY"
        assert await result(live_engine, await submit(live_engine, "pwd", {})) == str(Path.cwd())


async def test_progress_and_printed_lines_are_kept_with_the_attempt(live_engine: Engine) -> None:
    text = "import sys\nprint('printed')\nsys.stderr.write('warned\\n')\ntask.update('half', 1, 2)\nprint('last')"
    async with pool(live_engine, handlers={"job": script(text)}):
        task_id = await submit(live_engine)
        await result(live_engine, task_id)

    progress = await live_engine.progress(task_id)
    assert progress is not None
    assert (progress.current, progress.maximum, progress.message) == (1, 2, "half")
    lines = [line.message for line in (await live_engine.parts.progress.log(task_id)).lines]
    assert sorted(lines) == ["half", "last", "printed", "warned"]


# --------------------------------------------------------------------------------------------- what goes wrong


async def test_a_script_that_fails_is_tried_again_within_its_budget(live_engine: Engine, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    text = (
        "import os\nif not os.path.exists(file):\n    open(file, 'w').close()\n    raise ValueError\nresult = 'second'"
    )
    async with pool(live_engine, handlers={"job": script(text), "bad": script("raise ValueError('always')")}):
        again = await submit(live_engine, payload={"file": str(seen)}, policy=Policy(retry_delay_s=0.0))
        assert await result(live_engine, again) == "second"

        failed = await ended(live_engine, await submit(live_engine, "bad", policy=ONCE))
        assert failed.error is not None
        assert (failed.error.category, failed.error.message) == (Category.USER_CODE, "ValueError: always")
        assert "raise ValueError('always')" in failed.error.trace


async def test_a_process_that_dies_fails_its_attempt_with_its_last_lines_and_is_replaced(live_engine: Engine) -> None:
    text = "import os, sys\nsys.stderr.write('last words\\n')\nsys.stderr.flush()\nos._exit(7)"
    async with pool(live_engine, handlers={"die": script(text), "job": script("1")}):
        died = await ended(live_engine, await submit(live_engine, "die", policy=ONCE))
        assert died.error is not None
        assert (died.error.category, died.error.reason) == (Category.INFRASTRUCTURE, "PROCESS_DIED")
        assert "exit code 7" in died.error.message
        assert "last words" in died.error.trace
        assert await result(live_engine, await submit(live_engine)) == 1


async def test_a_cancel_reaches_the_script_which_ends_in_its_own_way(live_engine: Engine) -> None:
    async with pool(live_engine, handlers={"stop": script(f"{WAIT}task.cancel()"), "end": script(f"{WAIT}'in time'")}):
        stops, ends = await submit(live_engine, "stop"), await submit(live_engine, "end")
        await running(live_engine, stops)
        await live_engine.cancel(stops)
        assert (await ended(live_engine, stops)).state is State.CANCELLED

        await running(live_engine, ends)
        await live_engine.cancel(ends)
        assert await result(live_engine, ends) == "in time"


async def test_a_script_that_does_not_hear_a_cancel_is_killed_after_its_grace(live_engine: Engine, pace: float) -> None:
    deaf = "import os, time\ntask.update('deaf', os.getpid())\nwhile True: time.sleep(0.01)"
    handlers = {"job": script(deaf), "ok": script("1")}
    async with pool(live_engine, handlers=handlers, cancel_grace_period_ms=int(2000 * pace)):
        task_id = await submit(live_engine)
        process = await running(live_engine, task_id)
        await live_engine.cancel(task_id)

        assert (await ended(live_engine, task_id)).state is State.CANCELLED
        await gone(process)
        assert await result(live_engine, await submit(live_engine, "ok")) == 1


async def test_who_shares_a_process_with_one_that_is_killed_is_run_again_at_no_cost(
    live_engine: Engine, tmp_path: Path, pace: float
) -> None:
    deaf = "import os, time\ntask.update('deaf', os.getpid())\nwhile True: time.sleep(0.01)"
    other = (
        "import os, time\ntask.update('other', os.getpid())\nwhile not os.path.exists(go): time.sleep(0.01)\nresult = 1"
    )
    handlers = {"deaf": script(deaf), "other": script(other)}
    go = tmp_path / "go"
    async with pool(live_engine, handlers=handlers, tasks_per_worker=2, cancel_grace_period_ms=int(2000 * pace)):
        try:
            kept = await submit(live_engine, "other", {"go": str(go)}, policy=ONCE)
            killed = await submit(live_engine, "deaf")
            assert await running(live_engine, kept) == await running(live_engine, killed)
            await live_engine.cancel(killed)
            assert (await ended(live_engine, killed)).state is State.CANCELLED
            go.touch()

            assert await result(live_engine, kept) == 1
        finally:
            go.touch()  # so that it ends whatever happened here


async def test_a_process_that_is_killed_from_outside_costs_a_try_and_no_more(live_engine: Engine) -> None:
    async with pool(live_engine, handlers={"job": script(f"{WAIT}1")}):
        task_id = await submit(live_engine, policy=Policy(retry_delay_s=0.0))
        first = await running(live_engine, task_id)
        os.kill(first, signal.SIGKILL)

        async def again() -> bool:
            progress = await live_engine.progress(task_id)
            return progress is not None and int(progress.current) != first

        await until(again)
        await live_engine.cancel(task_id)
        assert await result(live_engine, task_id) == 1


async def test_a_result_that_is_no_json_fails_and_leaves_no_memory(live_engine: Engine) -> None:
    before = blocks()
    handlers = {"array": script("task.array('int8', [4])"), "object": script("object()")}
    async with pool(live_engine, handlers=handlers):
        for kind in handlers:
            failed = await ended(live_engine, await submit(live_engine, kind))
            assert (failed.state, failed.error and failed.error.reason) == (State.FAILED, "RESULT_NOT_JSON")
    assert blocks() == before


# --------------------------------------------------------------------------------------------- pools


async def test_as_many_processes_as_were_asked_for_and_limits_hold(live_engine: Engine) -> None:
    handlers = {"job": script(f"{WAIT}1")}
    async with pool(live_engine, QueueConfig(max_running=3), handlers=handlers, workers=2, tasks_per_worker=2):
        ids = [await submit(live_engine) for _ in range(6)]
        begun = [await running(live_engine, task_id) for task_id in ids[:3]]
        assert len(set(begun)) == 2
        states = [(await live_engine.tasks.get(task_id)).task.state for task_id in ids]
        assert states.count(State.RUNNING) == 3
        for task_id in ids:
            await live_engine.cancel(task_id)
        await asyncio.gather(*(ended(live_engine, task_id) for task_id in ids))


async def test_pools_follow_what_is_set_for_queues(live_engine: Engine) -> None:
    async with pool(live_engine, handlers={"job": script("1")}):
        assert await result(live_engine, await submit(live_engine)) == 1
        await live_engine.queues.put("images", delivery=Stdio(handlers={"job": script("2")}), limits=QueueConfig())

        async def new() -> bool:
            return bool(await result(live_engine, await submit(live_engine)) == 2)

        await until(new)


async def test_a_program_that_cannot_be_started_claims_nothing_until_it_can(
    live_engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "AGAIN_S", 0.05)
    program = tmp_path / "worker"
    async with pool(live_engine, command=[str(program)], handlers={"job": script("5 + 1")}):
        task_id = await submit(live_engine)
        program.write_text(f"#!/bin/sh\nexec {sys.executable} {ROOT}/src/windlass/contracts/stdio/protocol/start.py\n")
        program.chmod(0o755)

        assert await result(live_engine, task_id) == 6
        assert (await live_engine.tasks.get(task_id)).task.attempt == 1


async def test_the_end_of_a_server_does_not_wait_for_ever_for_a_script_that_hangs(live_engine: Engine) -> None:
    text = "import os, time\ntask.update('x', os.getpid())\ntime.sleep(3600)"
    await live_engine.queues.put("images", delivery=Stdio(handlers={"job": script(text)}), limits=QueueConfig())
    async with open_pools(live_engine, drain_s=0.1):
        task_id = await submit(live_engine)
        process = await running(live_engine, task_id)

    seen = (await live_engine.tasks.get(task_id)).task
    assert (seen.state, seen.attempt, seen.failures, seen.losses) == (State.QUEUED, 1, 0, 0)
    await gone(process)


async def test_the_end_of_a_server_finishes_what_runs_and_leaves_no_process(live_engine: Engine) -> None:
    text = "import os, time\ntask.update('x', os.getpid())\ntime.sleep(0.3)\n7"
    await live_engine.queues.put("images", delivery=Stdio(handlers={"job": script(text)}), limits=QueueConfig())
    async with open_pools(live_engine):
        task_id = await submit(live_engine)
        process = await running(live_engine, task_id)

    assert await result(live_engine, task_id) == 7
    await gone(process)


async def test_of_400_tasks_at_once_on_the_reference_worker_none_hangs(live_engine: Engine) -> None:
    start = "import appose.python_worker; appose.python_worker.main()"
    delivery = {
        "command": [sys.executable, "-c", start], "env": {"PYTHONUNBUFFERED": "1"}, "tasks_per_worker": 400,
        "handlers": {"job": script("task.update('half', 1, 2)\nstr(number) * 100")},
    }  # fmt: skip
    async with pool(live_engine, **delivery):
        ids = [await submit(live_engine, "job", {"number": number}) for number in range(400)]
        for number, task_id in enumerate(ids):
            assert await result(live_engine, task_id) == str(number) * 100


# --------------------------------------------------------------------------------------------- how long a cancel takes

DEAF = "import os, time\ntask.update('deaf', os.getpid())\nwhile True: time.sleep(0.01)"


async def test_a_script_that_hears_its_cancel_ends_at_once_also_beside_many_that_do_not(live_engine: Engine) -> None:
    """Each wait used to take one of a few threads: who came last waited for the grace of all others."""
    handlers = {"deaf": script(DEAF), "stop": script(f"{WAIT}task.cancel()")}
    grace = {"cancel_grace_period_ms": 120_000, "tasks_per_worker": 40}
    async with pool(live_engine, handlers=handlers, **grace):
        deaf = [await submit(live_engine, "deaf") for _ in range(36)]
        stops = await submit(live_engine, "stop")
        for task_id in (*deaf, stops):
            await running(live_engine, task_id)
        for task_id in (*deaf, stops):
            await live_engine.cancel(task_id)
        assert (await ended(live_engine, stops)).state is State.CANCELLED
        assert not any([(await live_engine.tasks.get(task_id)).task.terminal for task_id in deaf])
        for task_id in deaf:
            await live_engine.cancel(task_id, force=True)


async def test_a_forced_cancel_kills_without_waiting_for_the_grace(live_engine: Engine) -> None:
    async with pool(live_engine, handlers={"job": script(DEAF)}, cancel_grace_period_ms=600_000):
        task_id = await submit(live_engine)
        process = await running(live_engine, task_id)
        await live_engine.cancel(task_id, force=True)
        assert (await ended(live_engine, task_id)).state is State.CANCELLED
        await gone(process)


async def test_a_process_that_is_gone_ends_the_grace_of_its_task(live_engine: Engine) -> None:
    async with pool(live_engine, handlers={"job": script(DEAF)}, cancel_grace_period_ms=600_000):
        task_id = await submit(live_engine)
        process = await running(live_engine, task_id)
        await live_engine.cancel(task_id)
        os.kill(process, signal.SIGKILL)
        assert (await ended(live_engine, task_id)).state is State.CANCELLED


async def test_a_result_of_nan_fails_with_the_reason(live_engine: Engine) -> None:
    start = "import appose.python_worker; appose.python_worker.main()"
    for more in ({}, {"command": [sys.executable, "-c", start]}):
        async with pool(live_engine, handlers={"job": script("{'mean': float('nan')}")}, **more):
            failed = await ended(live_engine, await submit(live_engine, policy=ONCE))
            assert failed.state is State.FAILED
            assert failed.error is not None
            assert "NaN" in failed.error.message


async def test_progress_keeps_its_fractions(live_engine: Engine) -> None:
    async with pool(live_engine, handlers={"job": script("task.update(0.25, 1.0)\n1")}):
        task_id = await submit(live_engine)
        await result(live_engine, task_id)
        progress = await live_engine.progress(task_id)
        assert progress is not None
        assert (progress.current, progress.maximum, progress.fraction) == (0.25, 1.0, 0.25)


async def test_a_pool_that_fails_is_started_again(
    live_engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run, runs = Worker.run, 0

    async def fail_once(self: Worker) -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise RuntimeError("planted")
        await run(self)

    monkeypatch.setattr(Worker, "run", fail_once)
    monkeypatch.setattr("windlass.contracts.stdio.host.AGAIN_S", 0.01)
    async with pool(live_engine, handlers={"job": script("task.outputs['n'] = 1")}):
        assert await result(live_engine, await submit(live_engine)) == {"n": 1}
    assert "starting it again" in caplog.text


async def test_queues_are_followed_after_an_error(live_engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    failing = asyncio.Event()

    async def queues() -> dict[tuple[str, str], Stdio]:
        if failing.is_set():
            failing.clear()
            raise RuntimeError("planted")
        return await live_engine.queues.delivered(Stdio)

    async with StdioHost(live_engine, queues, read_s=0.02):
        failing.set()
        await until_true(lambda: "planted" in caplog.text)
        await live_engine.queues.put(
            "images", delivery=Stdio(handlers={"job": script("task.outputs['n'] = 1")}), limits=QueueConfig()
        )
        assert await result(live_engine, await submit(live_engine)) == {"n": 1}
