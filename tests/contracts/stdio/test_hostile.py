"""One message per line, whatever scripts do; and whatever comes in, only what it concerns fails."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.contracts.stdio.talk import WorkerProcess

pytestmark = pytest.mark.slow

NOISE = {
    "prints without an end": "print('noise', end='')",
    "prints through the original stream": "import sys; sys.__stdout__.write('noise'); sys.__stdout__.flush()",
    "native writes": "import os; os.write(1, b'noise')",
    "a C library": "import ctypes; ctypes.CDLL(None).write(1, b'noise', 5)",
    "child processes": "import subprocess; subprocess.run(['sh', '-c', 'printf noise; printf noise >&1'])",
    "a shell": "import os; os.system('printf noise')",
    "a descriptor opened again": "import os; os.write(os.open('/dev/fd/1', os.O_WRONLY), b'noise')",
    "nothing": "",
}


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "PYTHONUNBUFFERED"])
def test_sixteen_threads_with_answers_of_64_kb_and_noise_keep_to_one_message_per_line(unbuffered: str) -> None:
    noise = [script for name, script in NOISE.items() if "process" not in name and "shell" not in name]
    with WorkerProcess(PYTHONUNBUFFERED=unbuffered) as talk:
        for number in range(200):
            script = f"{noise[number % len(noise)]}\ntask.update('u' * 9000, 1, 2)\nresult = '{number:04}' * 16384"
            talk.execute(f"t{number}", script)
        answers: dict[str, list[str]] = {}
        while sum(kinds[-1] == "COMPLETION" for kinds in answers.values()) < 200:
            said = talk.next()
            assert said is not None
            answers.setdefault(said["task"], []).append(said["responseType"])
            if said["responseType"] == "COMPLETION":
                assert said["outputs"]["result"] == said["task"][1:].zfill(4) * 16384
        talk.close()

    assert {tuple(kinds) for kinds in answers.values()} == {("LAUNCH", "UPDATE", "COMPLETION")}


@pytest.mark.parametrize("name", NOISE)
def test_nothing_that_a_script_writes_reaches_the_protocol(name: str) -> None:
    with WorkerProcess() as talk:
        talk.execute("n", f"{NOISE[name]}\nresult = 1")
        said = [talk.next(), talk.next()]
        assert [each["responseType"] for each in said if each] == ["LAUNCH", "COMPLETION"]
        talk.close()

    assert ("noise" in "".join(talk.errors)) == (name != "nothing")


@pytest.mark.parametrize(
    "script",
    [
        "input()",
        "import sys; result = sys.stdin.read()",
        "import sys; result = sys.__stdin__.readline()",
        "import os; result = os.read(0, 1000).decode()",
        "import subprocess; result = subprocess.run(['cat'], stdout=-1, text=True).stdout",
    ],
)
def test_a_script_cannot_eat_requests_by_reading_stdin(script: str) -> None:
    with WorkerProcess() as talk:
        talk.execute("eater", script)
        for number in range(20):
            talk.execute(f"t{number}", str(number))
        said = [said for said in (talk.next() for _ in range(42)) if said and said["responseType"] != "LAUNCH"]

    outcomes = {each["task"]: each for each in said}
    assert {task: each.get("outputs") for task, each in outcomes.items() if task != "eater"} == {
        f"t{number}": {"result": number} for number in range(20)
    }
    assert outcomes["eater"].get("outputs", {"result": ""}) == {"result": ""}


# --------------------------------------------------------------------------------------------- what comes in

BAD: dict[str, tuple[bytes, str | None]] = {
    "a blank line": (b"", None),
    "spaces": (b"   \t ", None),
    "no JSON": (b"hello", None),
    "half of a request": (b'{"task":"bad","requestType":"EXECUTE","script":"1', "bad"),
    "no object": (b"[1, 2]", None),
    "null": (b"null", None),
    "a number": (b"42", None),
    "an unknown type": (b'{"task":"bad","requestType":"PAUSE"}', "bad"),
    "no type": (b'{"task":"bad"}', "bad"),
    "a type that is none": (b'{"task":"bad","requestType":["EXECUTE"]}', "bad"),
    "no task": (b'{"requestType":"EXECUTE","script":"1"}', None),
    "a task that is a number": (b'{"task":5,"requestType":"EXECUTE","script":"1"}', None),
    "a task that is an object": (b'{"task":{},"requestType":"CANCEL"}', None),
    "no script": (b'{"task":"bad","requestType":"EXECUTE"}', "bad"),
    "a script that is none": (b'{"task":"bad","requestType":"EXECUTE","script":7}', "bad"),
    "inputs that are none": (b'{"task":"bad","requestType":"EXECUTE","script":"1","inputs":[1]}', "bad"),
    "cancel of an unknown task": (b'{"task":"unknown","requestType":"CANCEL"}', None),
    "bytes that are no text": (b'{"task":"bad","requestType":"EXECUTE","script":"\xff\xfe"}', "bad"),
    "zeros": (b"\x00" * 50, None),
    "too deep": (b"[" * 200_000, None),
    "too deep for its task": (b'{"task":"bad","requestType":"EXECUTE","inputs":' + b"[" * 200_000, "bad"),
    "a number too large": (b'{"task":"bad","requestType":"EXECUTE","inputs":{"x":' + b"9" * 9000 + b"}}", "bad"),
    "a missing block": (
        (b'{"task":"bad","requestType":"EXECUTE","script":"1","inputs":'
        b'{"a":{"appose_type":"shm","name":"wl_there_is_none","rsize":16}}}'),
        "bad",
    ),
    "a block outside": (
        (b'{"task":"bad","requestType":"EXECUTE","script":"1","inputs":'
        b'{"a":{"appose_type":"shm","name":"../../etc/passwd","rsize":16}}}'),
        "bad",
    ),
    "a block that is none": (
        b'{"task":"bad","requestType":"EXECUTE","script":"1","inputs":{"a":{"appose_type":"shm","name":7}}}', "bad",
    ),
    "an array without a block": (
        (b'{"task":"bad","requestType":"EXECUTE","script":"1","inputs":'
        b'{"a":{"appose_type":"ndarray","dtype":"float32","shape":[2],"shm":5}}}'),
        "bad",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def shared() -> Any:
    with WorkerProcess() as talk:
        yield talk


@pytest.mark.parametrize("name", BAD)
def test_a_bad_line_fails_only_what_it_concerns(shared: WorkerProcess, name: str) -> None:
    line, task = BAD[name]
    shared.execute("running", "import time\nwhile not task.cancel_requested: time.sleep(0.001)\nresult = 'untouched'")
    shared.until("running", "LAUNCH")

    shared.send(line)
    if task is not None:
        failure = shared.until(task, "FAILURE")
        assert failure["error"]
    assert shared.result("1 + 1") == 2
    shared.cancel("running")
    assert shared.until("running")["outputs"] == {"result": "untouched"}


def test_a_request_about_a_running_task_that_cannot_be_read_does_not_end_it(shared: WorkerProcess) -> None:
    shared.execute("mine", "import time\nwhile not task.cancel_requested: time.sleep(0.001)\nresult = 1")
    shared.until("mine", "LAUNCH")
    shared.send(b'{"task":"mine","requestType":"PAUSE"}')
    shared.execute("mine", "2")
    shared.cancel("mine")

    assert shared.until("mine")["outputs"] == {"result": 1}


def test_a_line_of_50_mb_is_a_line_like_any_other() -> None:
    with WorkerProcess() as talk:
        talk.execute("big", "len(text)", {"text": "x" * 50_000_000})
        assert talk.until("big")["outputs"] == {"result": 50_000_000}
        talk.send(b"x" * 50_000_000)
        assert talk.result("1") == 1
        assert talk.close() == []


def test_a_line_beyond_the_limit_fails_its_own_task() -> None:
    with WorkerProcess(WINDLASS_STDIO_LINE_MAX="100000") as talk:
        talk.execute("big", "1", {"text": "x" * 1_000_000})
        talk.execute("small", "2")
        assert "too long" in talk.until("big", "FAILURE")["error"]
        assert talk.until("small")["outputs"] == {"result": 2}
        assert talk.close() == []


def test_lines_may_come_in_pieces_and_with_carriage_returns() -> None:
    with WorkerProcess() as talk:
        assert talk.process.stdin is not None
        line = json.dumps({"task": "p", "requestType": "EXECUTE", "script": "'ü'"}, ensure_ascii=False).encode()
        for byte in line:
            talk.process.stdin.write(bytes([byte]))
            talk.process.stdin.flush()
        talk.send(b"\r\n")

        assert talk.until("p")["outputs"] == {"result": "ü"}


@pytest.mark.parametrize(
    ("last", "says"),
    [
        (b'{"task":"p","requestType":"EXECUTE","script":"1"}', ["LAUNCH", "COMPLETION"]),
        (b'{"task":"p","requestType":"EXECUTE","scri', ["FAILURE"]),
        (b'{"task":"p', []),
    ],
    ids=["whole", "half", "less"],
)
def test_a_last_line_without_a_newline_is_taken_for_what_it_is(last: bytes, says: list[str]) -> None:
    with WorkerProcess() as talk:
        assert talk.process.stdin is not None
        talk.process.stdin.write(last)
        talk.process.stdin.flush()

        assert [said["responseType"] for said in talk.close()] == says


def test_memory_that_came_with_a_task_goes_with_it() -> None:
    from windlass.stdio import NDArray

    maps = "open('/proc/self/maps').read().count('/dev/shm/')"
    descriptors = "len(__import__('os').listdir('/proc/self/fd'))"
    with WorkerProcess() as talk, NDArray("float64", [1000]) as array:
        before = talk.result(f"[{maps}, {descriptors}]")
        for number in range(30):
            wire = array.to_wire()
            talk.run(f"t{number}", "def f(): return a\nf().shm.size", {"a": wire},
                     queue="main" if number % 2 else None)  # fmt: skip
        # A task lets go after its end was told, so the last ones may still be at it.
        for _ in range(1000):
            after = talk.result(f"[{maps}, {descriptors}]")
            if after[0] <= before[0] and after[1] <= before[1] + 2:
                break

    assert after[0] <= before[0]
    assert after[1] <= before[1] + 2
