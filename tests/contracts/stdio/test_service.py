"""The client: tasks, listeners, waiting, crashes; from threads and from coroutines."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from windlass.contracts.stdio.protocol import environment
from windlass.contracts.stdio.protocol.environment import EnvironmentFailed
from windlass.stdio import Environment, Service, Task, TaskError, Update

pytestmark = pytest.mark.slow

PATIENCE_S = 30.0
WAIT = "import time\nwhile not task.cancel_requested: time.sleep(0.001)\n"


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Service() as service:
        yield service


def worker(program: str) -> Service:
    """A worker that is a few lines of Python and does what we tell it."""
    begin = "import json, os, sys, time\ndef say(**m): print(json.dumps(m), flush=True)\n"
    return Service([sys.executable, "-c", begin + program])


# --------------------------------------------------------------------------------------------- tasks


def test_a_task_runs_and_has_a_result(service: Service) -> None:
    task = service.task("task.outputs['twice'] = 2 * x\nx + 1", {"x": 20})
    assert (task.status, task.is_finished) == ("INITIAL", False)

    task.wait_for(PATIENCE_S)

    assert (task.status, task.outputs, task.is_error) == ("COMPLETE", {"twice": 40, "result": 21}, False)
    assert task.result() == 21


def test_listeners_hear_everything_in_order_and_cannot_break_anything(service: Service) -> None:
    heard: list[Update] = []

    def fails(update: Update) -> None:
        raise ValueError(update.response_type)

    task = service.task("for i in range(3): task.update('step', i, 3, info={'i': i})\n'done'")
    task.listen(fails).listen(heard.append)

    assert task.result(PATIENCE_S) == "done"
    assert [each.response_type for each in heard] == ["LAUNCH", "UPDATE", "UPDATE", "UPDATE", "COMPLETION"]
    assert [(each.message, each.current, each.maximum, each.info) for each in heard[1:4]] == [
        ("step", number, 3, {"i": number}) for number in range(3)
    ]
    with pytest.raises(RuntimeError, match="before the task is started"):
        task.listen(heard.append)
    with pytest.raises(RuntimeError, match="already started"):
        task.start()


def test_a_failure_raises_with_the_trace_of_the_script(service: Service) -> None:
    with pytest.raises(TaskError, match="ZeroDivisionError") as raised:
        service.task("1 / 0").wait_for(PATIENCE_S)

    assert raised.value.task.status == "FAILED"


def test_a_cancel_reaches_the_script(service: Service) -> None:
    launched = threading.Event()
    task = service.task(f"{WAIT}task.cancel()").listen(lambda update: launched.set())
    task.start()
    assert launched.wait(PATIENCE_S)

    task.cancel()
    with pytest.raises(TaskError, match="canceled"):
        task.wait_for(PATIENCE_S)
    assert task.status == "CANCELED"


def test_waiting_has_a_limit_and_the_task_goes_on(service: Service) -> None:
    task = service.task(f"{WAIT}'went on'")
    with pytest.raises(TimeoutError, match=r"QUEUED|RUNNING"):
        task.wait_for(0.01)

    task.cancel()
    assert task.result(PATIENCE_S) == "went on"


def test_many_threads_share_a_service(service: Service) -> None:
    found: list[int] = []

    def submit(base: int) -> None:
        for number in range(50):
            found.append(service.task("x", {"x": base + number, "pad": "p" * (number * 100)}).result(PATIENCE_S))

    threads = [threading.Thread(target=submit, args=(base * 1000,)) for base in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)

    assert sorted(found) == sorted(base * 1000 + number for base in range(16) for number in range(50))


def test_functions_are_called_by_where_they_are(service: Service) -> None:
    assert service.call("math:hypot", 3, 4) == 5
    assert service.call(os.path.join, "a", "b") == "a/b"
    assert service.call("collections:OrderedDict", a=1) == {"a": 1}
    assert service.call("len", [1, 2]) == 2
    assert service.submit("math:hypot", 3, 4).result(PATIENCE_S) == 5
    with pytest.raises(TaskError, match="No module named 'nowhere'"):
        service.call("nowhere:function")
    with pytest.raises(ValueError, match="not like module:function"):
        service.submit("os:system('x')")
    with pytest.raises(ValueError, match="a name in its module"):
        service.call(lambda: 1)


def test_what_cannot_be_sent_is_refused_before_it_is_sent(service: Service) -> None:
    with pytest.raises(TypeError, match="cannot be sent to a worker"):
        service.task("1", {"x": object()}).start()
    assert service.task("1").result(PATIENCE_S) == 1


# --------------------------------------------------------------------------------------------- asyncio


async def test_coroutines_wait_without_blocking_others() -> None:
    async with Service() as service:
        results = await asyncio.gather(*(service.task("x * 2", {"x": number}) for number in range(100)))
        assert results == [number * 2 for number in range(100)]

        heard = [update async for update in service.task("task.update('a', 1, 2)\n3").updates()]
        assert [each.response_type for each in heard] == ["LAUNCH", "UPDATE", "COMPLETION"]

        with pytest.raises(TaskError, match="ValueError"):
            await service.task("raise ValueError")


async def test_a_coroutine_that_is_cancelled_asks_its_script_to_stop() -> None:
    async with Service() as service:
        task = service.task(f"{WAIT}task.cancel()")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.ensure_future(task._wait()), 0.05)
        with pytest.raises(TaskError, match="canceled"):
            await task


async def test_a_worker_that_does_not_read_blocks_nobody() -> None:
    service = Service([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        tasks = [service.task("1", {"x": "x" * 200_000}).start() for _ in range(20)]
        service.kill()
        for task in tasks:
            with pytest.raises(TaskError, match="SIGKILL"):
                await task
    finally:
        service.kill()


# --------------------------------------------------------------------------------------------- bad workers


def end_of(service: Service, script: str = "1") -> Task:
    with service:
        task = service.task(script)
        with pytest.raises(TaskError):
            task.wait_for(PATIENCE_S)
    return task


def test_a_worker_that_dies_crashes_its_tasks_with_its_last_words() -> None:
    task = end_of(Service(), "import os, sys; print('last words', file=sys.stderr, flush=True); os._exit(7)")

    assert task.status == "CRASHED"
    assert "exit code 7" in (task.error or "")
    assert "last words" in (task.error or "")


def test_a_worker_that_is_killed_crashes_all_of_its_tasks_and_takes_no_more() -> None:
    service = Service().start()
    tasks = [service.task(WAIT).start() for _ in range(5)]
    os.kill(service.pid, signal.SIGKILL)
    for task in tasks:
        with pytest.raises(TaskError, match="killed by SIGKILL"):
            task.wait_for(PATIENCE_S)
    assert service.wait_for(PATIENCE_S) == -9
    assert not service.is_alive()
    with pytest.raises(TaskError, match="not sent"):
        service.task("1").wait_for(PATIENCE_S)


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("sys.exit(3)", "exit code 3"),
        ("print('half a li', end='', flush=True); os._exit(4)", "half a li"),
        ("sys.stdin.readline(); print('garbage'); print('[1, 2]'); sys.exit(5)", "garbage"),
        ("os.close(1); time.sleep(60)", "SIGKILL"),
        ("os.close(0); os.close(1); os.close(2); time.sleep(60)", "SIGKILL"),
        ("os.system('sleep 60 & exit'); os._exit(6)", "exit code 6"),
    ],
    ids=["ends", "half a line", "garbage", "closes stdout", "closes everything", "leaves a child with its pipes"],
)
def test_a_worker_that_breaks_down_never_leaves_its_client_waiting(program: str, says: str) -> None:
    task = end_of(worker(program))

    assert task.status == "CRASHED"
    # A worker that closes its stdout may be noticed before the task is written to it.
    assert says in (task.error or "") or ("closed its stdout" in (task.error or "") and says == "SIGKILL")


def test_garbage_between_messages_is_kept_for_people_and_harms_nothing() -> None:
    program = """
for line in sys.stdin:
    task = json.loads(line)["task"]
    print("noise"); print("{}"); print("null"); print('{"task": 5}'); print("x" * 3_000_000)
    print(json.dumps({"task": task, "responseType": "NONSENSE"}))
    print(json.dumps({"task": task, "responseType": ["COMPLETION"]}))
    print(json.dumps({"task": [task], "responseType": "COMPLETION"}))
    print(json.dumps({"task": "unknown", "responseType": "COMPLETION"}))
    print(json.dumps({"task": task, "responseType": "UPDATE", "current": {"odd": True}, "more": 1}))
    say(task=task, responseType="COMPLETION", outputs={"result": 1})
    say(task=task, responseType="FAILURE", error="twice")
"""
    with worker(program) as service:
        assert service.task("1").result(PATIENCE_S) == 1
        assert service.task("2").result(PATIENCE_S) == 1
        assert {"noise", "{}", "null"} <= set(service.invalid_lines())


@pytest.mark.parametrize(
    ("outputs", "status"),
    [
        ("{}", "COMPLETE"),
        ("None", "COMPLETE"),
        ("5", "FAILED"),
        ("{'a': {'appose_type': 'shm', 'name': 'wl_there_is_none', 'rsize': 4}}", "FAILED"),
        ("{'a': {'appose_type': 'worker_object'}}", "FAILED"),
        ("{'a': {'appose_type': 'unheard of', 'b': 1}}", "COMPLETE"),
    ],
)
def test_outputs_that_cannot_be_read_fail_the_task(outputs: str, status: str) -> None:
    program = f"""
for line in sys.stdin:
    say(task=json.loads(line)["task"], responseType="COMPLETION", outputs={outputs})
"""
    with worker(program) as service:
        task = service.task("1").start()
        if status == "FAILED":
            with pytest.raises(TaskError, match="cannot be read"):
                task.wait_for(PATIENCE_S)
        else:
            task.wait_for(PATIENCE_S)
        assert task.status == status


def test_a_command_that_does_not_exist_says_so() -> None:
    with pytest.raises(FileNotFoundError):
        Service(["/no/such/program"]).task("1")


def test_a_closed_service_takes_no_more() -> None:
    service = Service().start()
    last = service.task("1").start()
    service.close()
    with pytest.raises(TaskError, match="closed"):
        service.task("1").start()
    assert last.result(PATIENCE_S) == 1
    assert service.wait_for(PATIENCE_S) == 0


def test_leaving_the_block_waits_for_what_runs_and_not_for_what_hangs() -> None:
    with Service() as service:
        slow = service.task("import time; time.sleep(0.2); 5").start()
    assert slow.result() == 5

    with Service(close_timeout_s=0.1) as service:
        hangs = service.task("import time; time.sleep(60)").start()
    assert hangs.status == "CRASHED"


# --------------------------------------------------------------------------------------------- environments


def test_an_init_script_and_variables_reach_the_worker(tmp_path: Path) -> None:
    with Service(init="base = 40", env={"SECRET": "s", "HOME": None}, cwd=tmp_path) as service:
        script = "import os; [base, os.environ.get('SECRET'), os.environ.get('HOME'), os.getcwd()]"
        assert service.task(script).result(PATIENCE_S) == [40, "s", None, str(tmp_path)]


def test_a_worker_runs_where_windlass_is_not_installed() -> None:
    with Environment.python("/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable).service(
        env={"PYTHONPATH": None}
    ) as service:
        script = "import importlib.util, sys; [importlib.util.find_spec('windlass') is None, sys.version_info.major]"
        found, major = service.task(script).result(PATIENCE_S)

    assert major == 3
    assert found == Path("/usr/bin/python3").exists()


def test_an_environment_is_made_once_from_its_requirements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = _wheel(tmp_path)
    made = Environment.uv([str(wheel)], folder=tmp_path / "kept")
    with made.service(env={"PYTHONPATH": None}) as service:
        assert service.call("little:twice", 21) == 42

    wheel.unlink()
    assert Environment.uv([str(wheel)], folder=tmp_path / "kept") == made
    with pytest.raises(EnvironmentFailed, match="ended with"):
        Environment.uv([str(tmp_path / "no-1.0-py3-none-any.whl")], folder=tmp_path / "kept")


def test_without_uv_an_environment_is_made_with_venv_and_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run: list[list[str]] = []
    monkeypatch.setattr(environment, "_uv", lambda: None)
    monkeypatch.setattr(environment, "_run", lambda command, _variables: run.append(command))

    environment._make(tmp_path / "made", ["numpy"], None, {})

    assert run[0] == [sys.executable, "-m", "venv", str(tmp_path / "made")]
    assert run[1][1:4] == ["-m", "pip", "install"]
    assert run[1][-1] == "numpy"


def _wheel(folder: Path) -> Path:
    import zipfile

    wheel = folder / "little-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("little.py", "def twice(x): return 2 * x\n")
        archive.writestr("little-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: little\nVersion: 1.0\n")
        archive.writestr(
            "little-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(
            "little-1.0.dist-info/RECORD",
            "little.py,,\nlittle-1.0.dist-info/METADATA,,\nlittle-1.0.dist-info/WHEEL,,\nlittle-1.0.dist-info/RECORD,,\n",
        )
    return wheel
