"""With the reference implementation, both ways: its client and our worker, our client and its worker."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import appose
import numpy as np
import pytest
from appose.service import Service as TheirService
from appose.service import TaskStatus
from appose.syntax import PythonSyntax
from tests.contracts.stdio.talk import START, WorkerProcess, blocks

from windlass.stdio import Environment, NDArray, Service, TaskError, share

pytestmark = pytest.mark.slow

PATIENCE_S = 10.0
WAIT = "import time\nwhile not task.cancel_requested: time.sleep(0.001)\ntask.cancel()"
THEIRS = Environment.of(
    sys.executable, "-c", "import appose.python_worker; appose.python_worker.main()", speaks_python=True
)


@pytest.fixture
def theirs_on_ours() -> Iterator[TheirService]:
    """Their client, our worker."""
    service = TheirService(Path.cwd(), None, sys.executable, START).syntax(PythonSyntax())
    yield service
    if service._process is not None:
        service.close()
        assert service.wait_for() in (0, 7, -9)
        for stream in (service._process.stdout, service._process.stderr):
            if stream is not None:
                stream.close()  # they leave it to the garbage


@pytest.fixture(scope="module")
def ours_on_theirs() -> Iterator[Service]:
    """Our client, their worker."""
    with THEIRS.service() as service:
        yield service


# --------------------------------------------------------------------------------------------- their client


def test_their_client_runs_tasks_with_updates_on_our_worker(theirs_on_ours: TheirService) -> None:
    heard: list[Any] = []
    task = theirs_on_ours.task("for i in range(3): task.update('step', i, 3)\ntask.outputs['n'] = x\nx * 2", {"x": 21})
    task.listen(heard.append)
    task.wait_for()

    assert task.outputs == {"n": 21, "result": 42}
    assert [event.response_type.value for event in heard] == ["LAUNCH", "UPDATE", "UPDATE", "UPDATE", "COMPLETION"]
    assert [(event.message, event.current, event.maximum) for event in heard[1:4]] == [("step", i, 3) for i in range(3)]
    assert theirs_on_ours.invalid_lines() == []


def test_their_client_sees_failures_and_cancels_of_our_worker(theirs_on_ours: TheirService) -> None:
    with pytest.raises(appose.TaskException, match="ZeroDivisionError"):
        theirs_on_ours.task("1 / 0").wait_for()
    with pytest.raises(appose.TaskException, match="enough"):
        theirs_on_ours.task("task.fail('enough')").wait_for()
    launched = threading.Event()
    task = theirs_on_ours.task(WAIT)
    task.listen(lambda _: launched.set())
    task.start()
    assert launched.wait(PATIENCE_S)
    task.cancel()
    with pytest.raises(appose.TaskException, match="canceled"):
        task.wait_for()
    assert task.status == TaskStatus.CANCELED


def test_their_client_shares_arrays_with_our_worker(theirs_on_ours: TheirService) -> None:
    before = blocks()
    with appose.NDArray("float32", [2, 3]) as array:
        array.ndarray()[:] = 1
        script = "a.ndarray()[0, 0] = 5\ntask.share(a.ndarray() * 2)"
        made = theirs_on_ours.task(script, {"a": array}).wait_for().result()
        assert array.ndarray()[0, 0] == 5
        assert made.ndarray().sum() == 20
        made.shm.unlink()
    assert blocks() == before


def test_scripts_that_make_arrays_with_their_package_run_on_our_worker(theirs_on_ours: TheirService) -> None:
    script = "import appose\na = appose.NDArray('int16', [3])\na.ndarray()[:] = 7\na"
    made = theirs_on_ours.task(script).wait_for().result()

    theirs_on_ours.close()
    assert theirs_on_ours.wait_for() == 0
    assert made.ndarray().tolist() == [7, 7, 7]  # the end of the worker did not take it away
    made.shm.unlink()


def test_their_proxies_work_on_our_worker(theirs_on_ours: TheirService) -> None:
    now = theirs_on_ours.task("import datetime; datetime.datetime(2020, 2, 3)").wait_for().result()

    assert (now.year, now.weekday(), now.replace(2021).year) == (2020, 0, 2021)
    theirs_on_ours.put_var("base", 40)
    assert theirs_on_ours.get_var("base") == 40
    assert theirs_on_ours.call("max", 1, 2) == 2
    theirs_on_ours.task("task.export(words=['a', 'b'])").wait_for()
    assert theirs_on_ours.proxy("words").index("b") == 1


def test_their_client_uses_the_main_queue_and_the_init_script_of_our_worker(theirs_on_ours: TheirService) -> None:
    theirs_on_ours.init("import numpy\nbase = 40")
    script = "import threading\nthreading.current_thread() is threading.main_thread() and base"

    assert theirs_on_ours.task(script, queue="main").wait_for().result() == 40


def test_their_client_sees_our_worker_crash(theirs_on_ours: TheirService) -> None:
    task = theirs_on_ours.task("import os, sys; print('bye', file=sys.stderr, flush=True); os._exit(7)")
    with pytest.raises(appose.TaskException, match="exit code 7"):
        task.wait_for()
    assert task.status == TaskStatus.CRASHED


def test_many_tasks_of_their_client_at_once_on_our_worker(theirs_on_ours: TheirService) -> None:
    tasks = [theirs_on_ours.task("print('noise', end='')\n'x' * n", {"n": 64_000}).start() for _ in range(100)]

    assert {len(task.wait_for().result()) for task in tasks} == {64_000}
    assert theirs_on_ours.invalid_lines() == []


# --------------------------------------------------------------------------------------------- their worker


def test_our_client_runs_tasks_with_updates_on_their_worker(ours_on_theirs: Service) -> None:
    heard: list[Any] = []
    task = ours_on_theirs.task("for i in range(3): task.update('step', i, 3)\nx * 2", {"x": 21}).listen(heard.append)

    assert task.result(PATIENCE_S) == 42
    assert [event.response_type for event in heard] == ["LAUNCH", "UPDATE", "UPDATE", "UPDATE", "COMPLETION"]


def test_our_client_sees_failures_and_cancels_of_their_worker(ours_on_theirs: Service) -> None:
    with pytest.raises(TaskError, match="ZeroDivisionError"):
        ours_on_theirs.task("1 / 0").wait_for(PATIENCE_S)
    launched = threading.Event()
    task = ours_on_theirs.task(WAIT).listen(lambda _: launched.set()).start()
    assert launched.wait(PATIENCE_S)
    task.cancel()
    with pytest.raises(TaskError, match="canceled"):
        task.wait_for(PATIENCE_S)


def test_our_client_shares_arrays_with_their_worker(ours_on_theirs: Service) -> None:
    before = blocks()
    with share(np.ones((2, 3), "float32")) as array:
        make = "import appose\nb = appose.NDArray('float32', [2, 3])"
        script = f"{make}\na.ndarray()[0, 0] = 5\nb.ndarray()[:] = a.ndarray() * 2\nb"
        with ours_on_theirs.task(script, {"a": array}).result(PATIENCE_S) as made:
            assert isinstance(made, NDArray)
            assert array.ndarray()[0, 0] == 5
            assert made.ndarray().sum() == 20
    assert blocks() == before
    assert not Path("/dev/shm", made.shm.name).exists()


def test_our_proxies_work_on_their_worker(ours_on_theirs: Service) -> None:
    now = ours_on_theirs.task("import datetime; datetime.datetime(2020, 2, 3)").result(PATIENCE_S)

    assert (now.year, now.weekday(), now.replace(year=2021).year) == (2020, 0, 2021)
    ours_on_theirs.put_var("base", [1])
    assert ours_on_theirs.get_var("base") == [1]
    assert ours_on_theirs.proxy("base").index(1) == 0
    assert len(ours_on_theirs.proxy("base")) == 1
    assert ours_on_theirs.call("math:hypot", 3, 4) == 5


def test_our_client_sees_their_worker_crash() -> None:
    with THEIRS.service() as service:
        task = service.task("import os, sys; print('bye', file=sys.stderr, flush=True); os._exit(7)")
        with pytest.raises(TaskError, match="exit code 7") as raised:
            task.wait_for(PATIENCE_S)

    assert "bye" in str(raised.value)
    assert task.status == "CRASHED"


def test_our_client_runs_the_init_script_and_the_main_queue_of_their_worker() -> None:
    with THEIRS.service(init="base = 40") as service:
        script = "import threading\n[threading.current_thread() is threading.main_thread(), base]"
        assert service.task(script, queue="main").result(PATIENCE_S) == [True, 40]


def test_of_400_tasks_at_once_on_their_worker_none_hangs() -> None:
    """It writes text and newline apart, so that messages of several threads share a line; long ones even mix."""
    with THEIRS.service(env={"PYTHONUNBUFFERED": "1"}) as service:
        tasks = [service.task(f"task.update('half', 1, 2)\n'{number:04}' * 100").start() for number in range(400)]
        assert [task.result(120.0) for task in tasks] == [f"{number:04}" * 100 for number in range(400)]
        long = [service.task(f"task.update('u' * 9000, 1, 2)\n'{number:04}' * 4000").start() for number in range(200)]
        for task in long:
            with contextlib.suppress(TaskError):
                task.wait_for(120.0)


def test_two_requests_on_one_line_are_two_requests() -> None:
    with WorkerProcess() as talk:
        line = b"".join(
            json.dumps({"task": name, "requestType": "EXECUTE", "script": f"'{name}'"}).encode() for name in ("a", "b")
        )
        talk.send(line)
        said = [said for said in (talk.next() for _ in range(4)) if said and said["responseType"] == "COMPLETION"]
        assert {each["task"]: each["outputs"]["result"] for each in said} == {"a": "a", "b": "b"}
