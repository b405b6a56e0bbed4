"""What the worker does with each request, seen line by line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contracts.stdio.talk import PATIENCE_S, WorkerProcess


@pytest.fixture(scope="module")
def shared() -> Iterator[WorkerProcess]:
    with WorkerProcess() as talk:
        yield talk


# --------------------------------------------------------------------------------------------- the document


def test_the_manual_test_of_the_document() -> None:
    request = '{"task":"test-123","requestType":"EXECUTE","script":"result = 5 + 6","inputs":{}}\n'

    done = subprocess.run(
        [sys.executable, "-m", "windlass.stdio"], input=request, capture_output=True, text=True, check=True
    )

    launch, completion = map(json.loads, done.stdout.splitlines())
    assert launch == {"task": "test-123", "responseType": "LAUNCH"}
    assert completion == {"task": "test-123", "responseType": "COMPLETION", "outputs": {"result": 11}}


def test_the_command_is_the_same_worker() -> None:
    request = '{"task":"t","requestType":"EXECUTE","script":"x * 2","inputs":{"x":5}}\n'
    command = [sys.executable, "-c", "from windlass.cli import main; main()", "stdio", "worker"]

    done = subprocess.run(command, input=request, capture_output=True, text=True, check=True)

    assert json.loads(done.stdout.splitlines()[-1])["outputs"] == {"result": 10}


def test_the_command_loads_nothing_of_the_server() -> None:
    shown = (
        "import sys; from windlass.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "sys.stderr.write(' '.join(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", shown, "stdio", "worker"], input="", capture_output=True, text=True, check=True
    )

    assert {"cyclopts", "rich", "asyncpg", "msgspec", "windlass.engine"}.isdisjoint(done.stderr.split())


@pytest.mark.parametrize(
    ("script", "outputs"),
    [
        ("result = x * 2", {"result": 10}),
        ("x * 2", {"result": 10}),
        ("a = result = 7", {"result": 7}),
        ("result: int = 7", {"result": 7}),
        ("result = 1\nresult += x", {"result": 6}),
        ("y = x", {}),
        ("x += 1", {}),
        ("x: int", {}),
        ("None", {}),
        ("", {}),
        ("{'a': 1, 'b': [x]}", {"a": 1, "b": [5]}),
        ("result = {'a': 1}", {"result": {"a": 1}}),
        ("import os\nresult = 1 if os.fork() else 2", {"result": 1}),
        ("task.outputs['q'] = x", {"q": 5}),
        ("task.outputs['q'] = 1\nx", {"q": 1, "result": 5}),
        ("task.inputs['x']", {"result": 5}),
        ("def twice(y):\n    return 2 * y * x\ntwice(3)", {"result": 30}),
        ("return 7", {"result": 7}),
        ("class A:\n    b = x\nA.b", {"result": 5}),
        ("if x:\n    result = 1", {}),
        ("[1, 2.5, None, True, 'ä\\n']", {"result": [1, 2.5, None, True, "ä\n"]}),
    ],
)
def test_what_a_script_results_in(shared: WorkerProcess, script: str, outputs: dict[str, Any]) -> None:
    assert shared.run("r", script, {"x": 5})["outputs"] == outputs


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("'half', 1, 2", {"message": "half", "current": 1, "maximum": 2}),
        ("1, 2, 'half'", {"message": "half", "current": 1, "maximum": 2}),
        ("'only'", {"message": "only"}),
        ("3, 4", {"current": 3, "maximum": 4}),
        ("'n', maximum=9", {"message": "n", "maximum": 9}),
        ("current=1, message='k'", {"message": "k", "current": 1}),
        ("'i', 1, 2, {'a': 1}", {"message": "i", "current": 1, "maximum": 2, "info": {"a": 1}}),
        ("2.9, 4.2, 'f'", {"message": "f", "current": 2.9, "maximum": 4.2}),
        ("0.25, 1.0", {"current": 0.25, "maximum": 1}),
        ("None, 1, 2", {"current": 1, "maximum": 2}),
        ("'0', 1", {"message": "0", "current": 1}),
    ],
)
def test_an_update_in_any_order_of_its_arguments(shared: WorkerProcess, call: str, said: dict[str, Any]) -> None:
    shared.execute("u", f"task.update({call})")
    update = shared.until("u", "UPDATE")
    shared.until("u")

    assert {key: value for key, value in update.items() if value is not None} == {
        **said, "task": "u", "responseType": "UPDATE",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["cancel_requested", "cancelRequested"])
def test_a_script_that_asks_is_told_to_cancel(shared: WorkerProcess, name: str) -> None:
    shared.execute("c", f"import time\nwhile not task.{name}: time.sleep(0.001)\ntask.cancel()")
    shared.until("c", "LAUNCH")
    shared.cancel("c")

    assert shared.until("c")["responseType"] == "CANCELATION"


def test_a_failure_shows_the_script_and_nothing_of_ours(shared: WorkerProcess) -> None:
    error = shared.run("f", "def deep():\n    return 1 / 0\ndeep()")["error"]

    assert error.endswith("ZeroDivisionError: division by zero\n")
    assert "return 1 / 0" in error
    assert "windlass" not in error


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("task.fail('no good')", "no good"),
        ("raise ValueError('bad')", "ValueError: bad"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("this is no python", "SyntaxError"),
        ("task.outputs[(1, 2)] = 3", "keys must be"),
        ("a = []; a.append(a); a", "Circular reference"),
        ("task.update('x', info={(1,): 2})", "keys must be"),
        ("class Bad(Exception):\n    def __str__(self): raise RuntimeError\nraise Bad", "Bad"),
    ],
)
def test_whatever_a_script_does_its_task_fails_and_the_worker_goes_on(
    shared: WorkerProcess, script: str, says: str
) -> None:
    failure = shared.run("f", script)

    assert failure["responseType"] == "FAILURE"
    assert says in failure["error"]
    assert shared.result("1") == 1


def test_the_first_end_wins(shared: WorkerProcess) -> None:
    shared.execute("w", "task.fail('first'); task.cancel(); task.update('late'); 5")
    shared.execute("x", "task.cancel(); raise ValueError")
    said = [shared.next() for _ in range(4)]

    assert sorted((each["task"], each["responseType"]) for each in said if each) == [
        ("w", "FAILURE"), ("w", "LAUNCH"), ("x", "CANCELATION"), ("x", "LAUNCH"),
    ]  # fmt: skip
    assert shared.result("1") == 1


def test_exports_are_known_to_later_tasks_until_they_are_forgotten(shared: WorkerProcess) -> None:
    shared.run("e", "def twice(x): return 2 * x\ntask.export(twice=twice, base=20)")

    assert shared.result("twice(base) + n", {"n": 2}) == 42
    shared.run("e", "task.forget('base')")
    assert "NameError" in shared.run("e", "base")["error"]


def test_what_json_does_not_know_stays_in_the_worker_and_can_be_named(shared: WorkerProcess) -> None:
    made = shared.result("import datetime\n[datetime.date(2020, 2, 3), {'s': {1}}]")

    assert [made[0]["appose_type"], made[1]["s"]["appose_type"]] == ["worker_object", "worker_object"]
    assert shared.result(f"{made[0]['var_name']}.year") == 2020
    assert shared.result("day.year", {"day": made[0]}) == 2020


def test_a_task_carries_its_trace(shared: WorkerProcess) -> None:
    assert shared.run("t", "task.traceparent", traceparent="00-1-2-01")["outputs"]["result"] == "00-1-2-01"


def test_tasks_run_side_by_side() -> None:
    with WorkerProcess() as talk:
        talk.execute("setup", "import threading; task.export(gate=threading.Barrier(50))")
        talk.until("setup")
        for number in range(50):
            talk.execute(f"t{number}", "gate.wait(20)\nresult = 1")
        ended = {talk.next()["task"] for _ in range(100)}  # type: ignore[index]

        assert len(ended) == 50
        assert talk.close() == []


def test_the_main_queue_runs_in_the_main_thread_in_order_and_others_beside_it() -> None:
    with WorkerProcess() as talk:
        talk.execute("setup", "import threading; task.export(go=threading.Event(), seen=[])")
        talk.until("setup")
        talk.execute("m0", "go.wait(20); seen.append(0); threading.current_thread() is threading.main_thread()",
                     {}, queue="main")  # fmt: skip
        talk.until("m0", "LAUNCH")
        for number in range(1, 9):
            talk.execute(f"m{number}", f"seen.append({number})", queue="main")
        talk.cancel("m5")
        assert talk.until("m5")["responseType"] == "CANCELATION"  # it has not begun
        talk.execute("free", "import threading; task.export(threading=threading); go.set()")
        talk.until("m8")

        assert talk.result("seen") == [0, 1, 2, 3, 4, 6, 7, 8]


def test_at_the_end_of_its_input_it_finishes_what_it_has_accepted() -> None:
    with WorkerProcess() as talk:
        for number in range(5):
            talk.execute(f"m{number}", "import time; time.sleep(0.02)", queue="main")
            talk.execute(f"t{number}", "import time; time.sleep(0.05); 1")
        ended = [said["task"] for said in talk.close() if said["responseType"] == "COMPLETION"]

    assert sorted(ended) == ["m0", "m1", "m2", "m3", "m4", "t0", "t1", "t2", "t3", "t4"]


def test_an_init_script_runs_first_in_the_main_thread_and_exports_its_names(tmp_path: Path) -> None:
    script = tmp_path / "init.txt"
    script.write_text("import threading\nbase = 40\n_hidden = 1\nmain = threading.current_thread().name\n")
    with WorkerProcess(APPOSE_INIT_SCRIPT=str(script)) as talk:
        assert talk.result("[base + 2, main]") == [42, "MainThread"]
        assert "NameError" in talk.run("h", "_hidden")["error"]
    assert not script.exists()


def test_an_init_script_that_fails_is_told_and_the_worker_works(tmp_path: Path) -> None:
    script = tmp_path / "init.txt"
    script.write_text("early = 1\nraise ValueError('no')\n")
    with WorkerProcess(APPOSE_INIT_SCRIPT=str(script)) as talk:
        assert talk.result("early") == 1
        talk.close()
        assert any("Init script failed: ValueError: no" in line for line in talk.errors)


def test_scripts_import_from_the_folder_that_the_worker_runs_in(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("here = 7\n")
    (tmp_path / "wire.py").write_text("here = 8\n")  # not to be mistaken for one of ours
    request = '{"task":"t","requestType":"EXECUTE","script":"import mine, wire; mine.here + wire.here"}\n'
    from tests.contracts.stdio.talk import WORKER

    done = subprocess.run(WORKER, input=request, capture_output=True, text=True, check=True, cwd=tmp_path,
                          env={**os.environ, "PYTHONPATH": ""}, timeout=PATIENCE_S)  # fmt: skip

    assert json.loads(done.stdout.splitlines()[-1])["outputs"] == {"result": 15}


def test_the_very_first_request_does_not_keep_the_next_from_being_read() -> None:
    script = "import time\nwhile not task.cancel_requested: time.sleep(0.001)\ntask.cancel()"
    for _ in range(10):
        with WorkerProcess() as talk:
            talk.execute("w", script)
            talk.cancel("w")
            assert talk.until("w")["responseType"] == "CANCELATION"
