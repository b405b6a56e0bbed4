"""Programs as operators: what they are told, may answer and may use, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.contracts.lease.worker.conftest import Bench
from tests.kit.processes import alive, gone
from tests.kit.work import soon, until

from windlass.contracts.lease.worker.child import Programs
from windlass.contracts.lease.worker.isolation import Isolation
from windlass.contracts.lease.worker.operator import Answer, Limits, Operator, OperatorFailed

pytestmark = pytest.mark.slow

Script = Callable[[str], list[str]]
TASK = {"task_id": "t", "attempt": 1, "operator": "work", "config": {"n": 21}, "inputs": []}


class Heard:
    def __init__(self) -> None:
        self.said: list[Any] = []

    def send(self, message: Any) -> None:
        self.said.append(message)


@pytest.fixture
def programs() -> Iterator[Programs]:
    programs = Programs(Isolation(None, ("not in this test",)))
    yield programs
    assert list(programs._base.iterdir()) == []
    programs.close()


async def run(programs: Programs, command: list[str], **options: Any) -> Answer:
    limits = Limits(**options.pop("limits", {}))
    messages, secrets = options.pop("messages", Heard()), options.pop("secrets", {})
    return await soon(programs.run(Operator(command=command, limits=limits, **options), TASK, messages, secrets))


async def test_a_program_gets_its_task_on_stdin_and_answers_on_stdout(programs: Programs) -> None:
    answer = await run(
        programs, ["jq", "{result: (.config.n * 2), outputs: [{output_index: 0}]}"]
    )  # over several lines

    assert answer == Answer(result=42, outputs=[{"output_index": 0}])


@pytest.mark.parametrize(
    ("printed", "answer"),
    [
        ("", Answer()),
        ("7", Answer(result=7)),
        ('{"any": "object"}', Answer(result={"any": "object"})),
        ('{"events": [1], "result": null}', Answer(events=[1])),
    ],
)
async def test_whatever_json_a_program_prints_is_its_answer(programs: Programs, printed: str, answer: Answer) -> None:
    assert await run(programs, ["printf", "%s", printed]) == answer


async def test_what_a_program_says_while_it_works_is_told_in_order(programs: Programs, script: Script) -> None:
    heard = Heard()
    command = script(
        "import json\n"
        "print(json.dumps({'say': 'events', 'events': [{'cursor': 1}]}))\n"
        "print(json.dumps({'say': 'publish', 'batch_uri': 's3://x'}))\n"
        "print(json.dumps({'say': 'nothing we know', 'result': 1}))"
    )
    answer = await run(programs, command, messages=heard)

    assert [message["say"] for message in heard.said] == ["events", "publish"]
    assert answer.result == {"say": "nothing we know", "result": 1}


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("raise SystemExit(3)", "it ended with exit code 3"),
        ("import sys; print('no disk', file=sys.stderr); sys.exit(1)", "it ended with exit code 1: no disk"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "it was killed by SIGSEGV"),
        ("print('no json')", "its answer is not JSON"),
        ("print('[' * 100000)", "its answer is not JSON"),
        ('print(\'{"error": "no luck"}\')', "no luck"),
        ("print('{\"outputs\": 7}')", "its outputs must be a list"),
    ],
)
async def test_a_program_that_fails_says_why(programs: Programs, script: Script, code: str, says: str) -> None:
    with pytest.raises(OperatorFailed, match=says):
        await run(programs, script(code))


async def test_a_program_that_is_not_there_fails_with_its_name(programs: Programs) -> None:
    with pytest.raises(OperatorFailed, match="cannot be started: /no/such/program"):
        await run(programs, ["/no/such/program"])


@pytest.mark.parametrize(
    ("code", "limits", "says"),
    [
        ("while True: pass", {"cpu_s": 1}, "killed by SIGXCPU"),
        ("import time; time.sleep(60)", {"timeout_s": 0.3}, "longer than 0.3 s"),
        ("print('x' * 5000)", {"output_bytes": 1000}, "more than 1000 bytes"),
        ("while True: print('x' * 60000)", {"output_bytes": 100_000}, "more than 100000 bytes"),
        ("b'x' * (512 * 1024 * 1024)", {"memory_bytes": 256 * 1024 * 1024}, "MemoryError"),
        ("open('big', 'wb').write(b'x' * 100_000)", {"file_bytes": 50_000}, "SIGXFSZ|File too large"),
    ],
    ids=["cpu", "time", "output", "endless output", "memory", "file"],
)
async def test_a_program_that_uses_more_than_it_may_is_ended(
    programs: Programs, script: Script, code: str, limits: dict[str, Any], says: str
) -> None:
    with pytest.raises(OperatorFailed, match=says):
        await run(programs, script(code), limits=limits)


async def test_a_flood_on_stderr_costs_nothing_and_its_end_is_told(programs: Programs, script: Script) -> None:
    command = script("import sys\nfor _ in range(2000): sys.stderr.write('x' * 1000)\nsys.exit('the very end')")

    with pytest.raises(OperatorFailed, match="the very end") as failed:
        await run(programs, command)
    assert len(str(failed.value)) < 5000


async def test_what_a_program_has_started_is_gone_when_it_has_ended(programs: Programs) -> None:
    answer = await run(programs, ["sh", "-c", "sleep 600 & echo $!"])

    await gone(answer.result)


async def test_a_program_that_is_no_longer_wanted_is_told_and_then_killed_with_its_children(
    programs: Programs, script: Script, tmp_path: Path, pace: float
) -> None:
    told = tmp_path / "told"
    command = script(
        "import signal, subprocess, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: open({str(told)!r}, 'a').write('told'))\n"
        "child = subprocess.Popen(['sh', '-c', 'trap \"\" TERM; while :; do sleep 1; done'])\n"
        f"open({str(told)!r} + '.pid', 'w').write(str(child.pid) + '\\n')\n"
        "while True: time.sleep(0.01)"
    )
    pids = tmp_path / "told.pid"
    running = asyncio.create_task(run(programs, command, limits={"grace_s": 0.2 * pace}))
    await until(lambda: pids.exists() and pids.read_text().endswith("\n"))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert told.read_text() == "told"
    await gone(int(pids.read_text()))


async def test_a_trusted_program_gets_the_secrets_of_its_queue_and_nothing_else_of_ours(
    world: Bench, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINDLASS_API_KEY", "ours")
    environment = {"SHOP_TOKEN": "for the shop", "OTHER": "for others"}
    command = script("import json, os\nprint(json.dumps({'result': dict(os.environ)}))")
    world.start(command=command, secrets=("SHOP_TOKEN",), environment=environment)

    assert await world.runs_one() == "ack"
    seen = world.report()["result"]
    assert seen["SHOP_TOKEN"] == "for the shop"
    assert not {"OTHER", "WINDLASS_API_KEY", "PYTHONPATH"} & seen.keys()


@pytest.mark.parametrize("named", [[], ["SHOP_TOKEN"], ["SHOP_TOKEN", "OTHER"]])
async def test_the_program_of_a_job_gets_those_secrets_of_its_queue_that_the_job_names(
    world: Bench, script: Script, named: list[str]
) -> None:
    world.dispatcher.task["secrets"] = named
    environment = {"SHOP_TOKEN": "for the shop", "BANK_TOKEN": "for the bank", "OTHER": "for others"}
    command = script("import json, os\nprint(json.dumps({'result': dict(os.environ)}))")
    world.start(command=command, secrets=("SHOP_TOKEN", "BANK_TOKEN"), environment=environment)

    assert await world.runs_one() == "ack"
    assert environment.keys() & world.report()["result"].keys() == {"SHOP_TOKEN"} & set(named)


async def test_a_secret_that_the_wrapper_does_not_have_fails_the_task_with_its_name(world: Bench) -> None:
    world.start(command=["true"], secrets=("SHOP_TOKEN",))

    assert await world.runs_one() == "ack"
    assert "SHOP_TOKEN" in world.report()["error_message"]


async def test_a_function_may_run_in_a_process_of_its_own_and_its_prints_are_no_answer(
    world: Bench, tmp_path: Path
) -> None:
    (tmp_path / "somewhere.py").write_text(
        "async def work(task, context):\n"
        "    print('just words')\n"
        "    context.emit({'cursor': 1})\n"
        "    return task['config']['n'] + 1\n"
    )
    world.start(function="somewhere:work", process=True, read=[tmp_path])

    assert await world.runs_one() == "ack"
    assert world.report()["result"] == 2
    assert world.dispatcher.requests_for("events")[0].body["events"] == [{"cursor": 1}]


async def test_a_function_that_fails_in_its_process_says_why(world: Bench, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def work(task):\n    raise ValueError('no way')\n")
    world.start(function="broken:work", process=True, read=[tmp_path])

    assert await world.runs_one() == "ack"
    assert world.report()["error_message"] == "ValueError: no way"


async def test_programs_go_when_their_wrapper_is_killed(tmp_path: Path) -> None:
    """The wrapper has no chance to do anything about it."""
    pid_file = tmp_path / "pid"
    wrapper = (
        "import asyncio\n"
        "from windlass.contracts.lease.worker.child import Programs\n"
        "from windlass.contracts.lease.worker.isolation import Isolation\n"
        "from windlass.contracts.lease.worker.operator import Operator\n"
        f"operator = Operator(command=['sh', '-c', 'echo $$ > {pid_file}; exec sleep 600'])\n"
        "asyncio.run(Programs(Isolation(None)).run(operator, {}, None, {}))\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", wrapper)
    await until(lambda: pid_file.exists() and pid_file.read_text().endswith("\n"))
    pid = int(pid_file.read_text())
    assert alive(pid)
    process.send_signal(signal.SIGKILL)
    await soon(process.wait())

    await gone(pid)


def test_folders_of_wrappers_that_were_killed_are_swept_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ended = subprocess.Popen(["true"])
    ended.wait()
    left, ours = tmp_path / f"windlass-wrapper-{ended.pid}-x", tmp_path / f"windlass-wrapper-{os.getpid()}-x"
    for folder in (left / "run", ours, tmp_path / "windlass-wrapper-odd-x"):
        folder.mkdir(parents=True)
    Programs(Isolation(None)).close()

    assert sorted(one.name for one in tmp_path.iterdir()) == sorted([ours.name, "windlass-wrapper-odd-x"])


async def test_a_program_that_cannot_be_watched_by_the_kernel_is_looked_at(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open")

    assert (await run(programs, ["sh", "-c", "sleep 600 & echo 7"])).result == 7


async def test_a_task_whose_program_runs_is_cancelled_by_its_end(world: Bench, tmp_path: Path, pace: float) -> None:
    begun = tmp_path / "begun"
    world.dispatcher.lease_s = 1.2 * pace
    world.start(command=["sh", "-c", f"touch {begun}; exec sleep 600"])
    world.carrier.put(uuid4())
    await until(begun.exists)
    world.dispatcher.cancelled = True

    assert await world.does() == ["ack"]
    assert world.report()["status"] == "Canceled"
