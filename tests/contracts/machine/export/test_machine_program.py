"""A program on its machine, the exporter or any other: what it reads, what it says when, what it leaves behind."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest
from tests.contracts.machine.export.archive import Answer
from tests.contracts.machine.export.machine import ROOT_PI, SECRET, SIGNATURE, TASK, Machine
from tests.contracts.machine.export.samples import simple

from windlass.contracts.machine.export.mods.options import Options
from windlass.contracts.machine.export.mods.program import export
from windlass.contracts.machine.worker.run import peak_mb
from windlass.sdk.machine import ExportError, Job

pytestmark = pytest.mark.slow

CALLBACK = f"/callback/{TASK}"


def hello(job: Job) -> dict[str, int]:
    job.output("hello.txt", content_type="text/plain").path.write_text("hello")
    return {"entities_exported": 1}


# --------------------------------------------------------------------------------------------- as a process


def test_an_export_from_the_environment_to_the_callback(machine: Machine) -> None:
    simple(machine.archive, ROOT_PI)

    code, said = machine.finish()

    key = f"exports/{TASK}/{ROOT_PI}.xml"
    assert code == 0, said
    assert list(machine.stored) == [key]
    metrics = machine.callback["metrics"]
    assert machine.callback == {
        "task_id": TASK, "batch_id": "single", "status": "success", "output_r2_key": key,
        "output_file_name": f"{ROOT_PI}.xml", "output_file_size": len(machine.stored[key]), "metrics": metrics,
    }  # fmt: skip
    assert set(metrics) == {
        "total_time_ms", "entities_exported", "entities_failed", "entities_incomplete", "peak_memory_mb",
    }  # fmt: skip
    assert metrics["total_time_ms"] > 0
    assert 5 < metrics["peak_memory_mb"] < 100
    assert machine.left == []
    machine.document()


def test_a_failure_from_the_environment_to_the_callback(machine: Machine) -> None:
    code, said = machine.finish()

    assert code == 1
    assert machine.callback == {
        "task_id": TASK, "batch_id": "single", "status": "error",
        "error": f"Failed to fetch manifest for PI {ROOT_PI}: 404 Not Found",
    }  # fmt: skip
    assert "Traceback" not in said
    assert machine.left == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_machine_that_is_stopped_says_so_and_leaves_nothing(machine: Machine, number: signal.Signals) -> None:
    simple(machine.archive, ROOT_PI, refs={"a.ref.json": {}})
    machine.archive.answers[f"/entities/{ROOT_PI}"].gate = threading.Event()
    process = machine.start()
    machine.archive.until_asked("/entities/")
    (temporary,) = machine.left

    process.send_signal(number)
    out, err = process.communicate(timeout=60)

    assert re.fullmatch(rf"{TASK}-\d{{13}}-{ROOT_PI}\.xml", temporary)
    assert process.returncode == 1, out + err
    assert machine.callback["error"] == f"The machine was stopped by {number.name}"
    assert machine.left == []
    assert machine.stored == {}


STUBBORN = """
import asyncio, os, urllib.request
from windlass.sdk import machine

async def export(job):
    job.output("x")
    try:
        await asyncio.to_thread(urllib.request.urlopen, os.environ["WINDLASS_MODS_API_URL"] + "/begun")
        await asyncio.sleep(600)
    except Exception:
        pass

machine.main(export)
"""


def test_a_coroutine_that_swallows_errors_is_stopped_too(machine: Machine) -> None:
    machine.archive.answers["/begun"] = Answer()
    process = machine.start("-c", STUBBORN)
    machine.archive.until_asked("/begun")

    process.terminate()
    out, err = process.communicate(timeout=60)

    assert process.returncode == 1, out + err
    assert machine.callback["error"] == "The machine was stopped by SIGTERM"
    assert machine.left == []


def test_a_machine_that_is_stopped_after_its_upload_has_succeeded(machine: Machine) -> None:
    simple(machine.archive, ROOT_PI)
    machine.env["CALLBACK_PATIENCE_MS"] = "600000"
    machine.archive.answers[CALLBACK] = Answer(503)
    process = machine.start()
    machine.archive.until_asked(CALLBACK)

    process.terminate()
    out, err = process.communicate(timeout=60)

    assert process.returncode == 0, out + err
    assert {callback["status"] for callback in machine.archive.callbacks} == {"success"}
    assert machine.left == []
    assert len(machine.stored) == 1


def test_nothing_secret_is_in_the_log(machine: Machine) -> None:
    simple(machine.archive, ROOT_PI)
    machine.archive.answers[CALLBACK] = Answer(401, f'{{"error": "bad sig {SIGNATURE}"}}'.encode())
    machine.env |= {"R2_ACCESS_KEY_ID": "AKIAPUBLICISH", "R2_SECRET_ACCESS_KEY": SECRET,
                    "R2_ACCOUNT_ID": "account", "R2_ENDPOINT": machine.archive.url}  # fmt: skip

    code, said = machine.finish()

    assert code == 0
    assert "the callback was refused: 401" in said
    assert "bad sig ***" in said
    assert [word for word in (SECRET, SIGNATURE, "AKIAPUBLICISH") if word in said] == []


def test_without_lxml_it_says_what_to_install(machine: Machine) -> None:
    hidden = "import sys; sys.modules['lxml'] = None; "
    hidden += "from windlass.contracts.machine.export.mods.program import main; main()"

    code, _ = machine.finish("-c", hidden)

    assert code == 1
    assert machine.callback["error"] == "lxml is not installed on this machine: pip install 'windlass-engine[mods]'"


# --------------------------------------------------------------------------------------------- the environment


@pytest.mark.parametrize("name", ["TASK_ID", "PI"])
def test_what_is_missing_is_told_to_whoever_can_be_told(machine: Machine, name: str) -> None:
    del machine.env[name]

    assert machine.run(hello) == 1

    assert machine.callback["error"] == f"Missing required environment variables: {name}"
    assert machine.callback["task_id"] == TASK
    assert machine.stored == {}


def test_all_that_is_missing_is_named_at_once(machine: Machine) -> None:
    machine.env = {"CALLBACK_URL": machine.env["CALLBACK_URL"], "R2_ACCESS_KEY_ID": "some id"}

    assert machine.run(hello) == 1
    assert machine.callback["error"] == (
        "Missing required environment variables: TASK_ID, PI, R2_ACCOUNT_ID, R2_SECRET_ACCESS_KEY"
    )
    assert machine.callback["batch_id"] == "default"


@pytest.mark.parametrize("url", ["", "nowhere", "ftp://host/x", "http://", "http://[", "http://a b/"])
def test_without_an_address_nobody_is_called_back(machine: Machine, url: str) -> None:
    machine.env["CALLBACK_URL"] = url

    assert machine.run(hello) == 1
    assert machine.archive.requests == []


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("{", "EXPORT_OPTIONS is not JSON"),
        ("[1]", "EXPORT_OPTIONS must be a JSON object"),
        ('{"maxDepth": -1}', "EXPORT_OPTIONS: Expected `int` >= 0 - at `$.maxDepth`"),
        ('{"maxDepth": "5"}', "EXPORT_OPTIONS: Expected `int`, got `str` - at `$.maxDepth`"),
        ('{"parallelBatchSize": 0}', "EXPORT_OPTIONS: Expected `int` >= 1 - at `$.parallelBatchSize`"),
        ('{"parallelBatchSize": 1.5}', "EXPORT_OPTIONS: Expected `int`, got `float` - at `$.parallelBatchSize`"),
        ('{"recursive": "yes"}', "EXPORT_OPTIONS: Expected `bool`, got `str` - at `$.recursive`"),
        ('{"includeOcr": 1}', "EXPORT_OPTIONS: Expected `bool`, got `int` - at `$.includeOcr`"),
        ('{"cheimarrosMode": "all"}', "EXPORT_OPTIONS: Invalid enum value 'all' - at `$.cheimarrosMode`"),
    ],
)
def test_options_that_are_wrong_are_told(machine: Machine, options: str, why: str) -> None:
    machine.env["EXPORT_OPTIONS"] = options

    assert machine.run(export) == 1
    assert why in machine.callback["error"]
    assert machine.left == []


@pytest.mark.parametrize("format_", ["pinax", "mods-json", "MODS"])
def test_another_format_is_refused(machine: Machine, format_: str) -> None:
    machine.env["EXPORT_FORMAT"] = format_

    assert machine.run(export) == 1
    assert f"EXPORT_FORMAT is '{format_}'" in machine.callback["error"]
    assert machine.left == []


def test_options_have_limits_only_where_they_protect_something(machine: Machine) -> None:
    simple(machine.archive, ROOT_PI)
    machine.env["EXPORT_OPTIONS"] = '{"recursive": true, "maxDepth": 1000.0, "parallelBatchSize": 100000}'

    assert machine.run(export) == 0, machine.callback
    assert Options(parallel_batch_size=100_000).at_once == 100


@pytest.mark.parametrize("options", ["", "null", "{}", '{"maxDepth": null, "unknown": 1, "validate": true}'])
def test_options_that_say_nothing_are_the_defaults(machine: Machine, options: str) -> None:
    simple(machine.archive, ROOT_PI)
    machine.env["EXPORT_OPTIONS"] = options

    assert machine.run(export) == 0
    assert machine.callback["output_file_name"] == f"{ROOT_PI}.xml"


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("PI", "../../etc/passwd", "PI is not a persistent identifier"),
        ("TASK_ID", "../x", "TASK_ID is not a valid task id"),
        ("WINDLASS_MODS_API_URL", "file:///etc", "WINDLASS_MODS_API_URL must be an http or https URL"),
        ("UPLOAD_TIMEOUT_MS", "soon", "UPLOAD_TIMEOUT_MS must be a number of milliseconds, at most 86400000"),
        ("UPLOAD_URL", "file:///etc", "UPLOAD_URL must be an http or https URL"),
    ],
)
def test_values_that_are_wrong_are_named_and_not_shown(machine: Machine, name: str, value: str, why: str) -> None:
    machine.env[name] = value

    assert machine.run(export) == 1
    assert machine.callback["error"] == why


def test_a_program_sees_all_of_its_environment(machine: Machine) -> None:
    seen: list[Job] = []
    machine.env |= {"EXPORT_FORMAT": "csv", "FLY_MACHINE_ID": "d891", "TRACEPARENT": "00-aa-bb-01"}

    def look(job: Job) -> None:
        seen.append(job)
        hello(job)

    assert machine.run(look, columns=["a"]) == 0
    (job,) = seen
    assert (job.task_id, job.pi, job.format, job.batch_id, job.machine_id) == (TASK, ROOT_PI, "csv", "single", "d891")
    assert job.options == {"columns": ["a"]}
    assert SIGNATURE not in repr(job)
    assert machine.archive.requests[-1].headers["traceparent"] == "00-aa-bb-01"


def test_a_program_for_any_task_has_its_payload(machine: Machine) -> None:
    seen: list[object] = []
    machine.env |= {"PAYLOAD": '{"a": [1]}', "PI": ""}

    def look(job: Job) -> None:
        seen.append(job.payload())
        hello(job)

    assert machine.run(look) == 0
    machine.env["PAYLOAD_URL"] = f"{machine.archive.url}/payload/{TASK}?sig={SIGNATURE}"
    del machine.env["PAYLOAD"]
    machine.archive.answers[f"/payload/{TASK}"] = Answer(body=b'"' + b"x" * 1_000_000 + b'"')
    machine.archive.trouble[f"/payload/{TASK}"] = [Answer(503, headers={"Retry-After": "0"})]
    assert machine.run(look) == 0
    assert seen == [{"a": [1]}, "x" * 1_000_000]


@pytest.mark.parametrize(("answer", "why"), [(Answer(404), "404 Not Found"), (Answer(body=b"{"), "is not JSON")])
def test_a_payload_that_cannot_be_had_is_told(machine: Machine, answer: Answer, why: str) -> None:
    machine.env["PAYLOAD_URL"] = f"{machine.archive.url}/payload/{TASK}?sig={SIGNATURE}"
    machine.archive.answers[f"/payload/{TASK}"] = answer

    assert machine.run(lambda job: job.payload()) == 1
    assert why in machine.callback["error"]


# --------------------------------------------------------------------------------------------- callbacks


@pytest.mark.parametrize(
    "trouble",
    [[Answer(500)], [Answer(503, headers={"Retry-After": "0"}), Answer(429)], [Answer(200, b"{}", cut=0)]],
    ids=["500", "busy", "cut"],
)
def test_a_callback_is_repeated_until_it_is_heard(machine: Machine, trouble: list[Answer]) -> None:
    tries = len(trouble) + 1
    machine.archive.trouble[CALLBACK] = trouble

    assert machine.run(hello) == 0

    said = machine.archive.callbacks
    assert len(said) == tries
    assert all(callback == said[0] for callback in said)
    assert machine.archive.requests[-1].path.endswith(f"?sig={SIGNATURE}")


@pytest.mark.parametrize("status", [301, 400, 401, 404, 409, 413])
def test_a_callback_that_is_refused_is_not_repeated_and_fails_nothing(machine: Machine, status: int) -> None:
    machine.archive.answers[CALLBACK] = Answer(status, headers={"Location": "/other"})

    assert machine.run(hello) == 0
    assert len(machine.archive.callbacks) == 1
    assert machine.left == []


def test_a_callback_that_nobody_hears_fails_nothing(machine: Machine) -> None:
    machine.env["CALLBACK_URL"] = f"http://127.0.0.1:1/callback/{TASK}"
    machine.env["CALLBACK_PATIENCE_MS"] = "600"

    assert machine.run(hello) == 0
    assert len(machine.stored) == 1


# --------------------------------------------------------------------------------------------- somebody's own program


def test_metrics_are_those_of_the_program_with_time_and_memory(machine: Machine) -> None:
    assert machine.run(hello) == 0
    assert machine.callback["metrics"] | {"total_time_ms": 0, "peak_memory_mb": 0} == {
        "total_time_ms": 0, "entities_exported": 1, "peak_memory_mb": 0,
    }  # fmt: skip
    assert machine.stored == {f"exports/{TASK}/hello.txt": b"hello"}


def test_a_program_may_be_a_coroutine(machine: Machine) -> None:
    async def later(job: Job) -> dict[str, int]:
        return hello(job)

    assert machine.run(later) == 0
    assert machine.callback["metrics"]["entities_exported"] == 1


def test_an_error_of_the_program_is_told_without_its_secrets(machine: Machine) -> None:
    machine.env |= {"R2_ACCESS_KEY_ID": "AKIAPUBLICISH", "R2_SECRET_ACCESS_KEY": SECRET, "R2_ACCOUNT_ID": "account"}

    def broken(job: Job) -> None:
        hello(job)
        raise RuntimeError(f"no luck with {SECRET} and {SIGNATURE}")

    assert machine.run(broken) == 1
    assert machine.callback["error"] == "RuntimeError: no luck with *** and ***"
    assert machine.left == []


def refuse(job: Job) -> None:
    raise ExportError("not today")


def make_two(job: Job) -> None:
    hello(job)
    hello(job)


def name_badly(job: Job) -> None:
    job.output("../x")


def leave(job: Job) -> None:
    sys.exit(0)


def remove(job: Job) -> None:
    job.output("x").path.unlink()


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (refuse, "not today"),
        (lambda job: None, "the program made no output"),
        (make_two, "a task can have only one output"),
        (name_badly, "'../x' is not a valid file name"),
        (leave, "SystemExit: 0"),
        (remove, "FileNotFoundError"),
        (lambda job: 1 / 0, "ZeroDivisionError: division by zero"),
    ],
    ids=["refuses", "makes nothing", "makes two", "name", "leaves", "removes", "breaks"],
)
def test_a_program_that_does_not_do_its_part_fails(machine: Machine, program: Any, why: str) -> None:
    assert machine.run(program) == 1
    assert why in machine.callback["error"]
    assert machine.stored == {}
    assert machine.left == []


@pytest.mark.parametrize(
    ("metrics", "why"),
    [
        ({"a": object()}, "the metrics of the program are not JSON"),
        (7, "metrics must be a JSON object"),
        ("text", "metrics must be a JSON object"),
        ({"a": "x" * 20_000}, "at most 16384 bytes"),
        ({"a": "\ud800"}, "the metrics of the program are not JSON"),
    ],
)
def test_metrics_that_cannot_be_told_fail_before_anything_is_stored(machine: Machine, metrics: Any, why: str) -> None:
    def odd(job: Job) -> Any:
        hello(job)
        return metrics

    assert machine.run(odd) == 1
    assert why in machine.callback["error"]
    assert machine.stored == {}


def test_an_error_with_characters_that_nobody_should_see_is_told_without_them(machine: Machine) -> None:
    def broken(job: Job) -> None:
        raise ExportError("one\ntwo \ud800 \x00 \x1b[31m red")

    assert machine.run(broken) == 1
    mark = "\N{REPLACEMENT CHARACTER}"
    assert machine.callback["error"] == f"one\ntwo {mark} {mark} {mark}[31m red"


def test_a_long_error_is_cut(machine: Machine) -> None:
    def broken(job: Job) -> None:
        raise ExportError("x" * 1_000_000)

    assert machine.run(broken) == 1
    assert len(machine.callback["error"]) == 4000


def test_a_program_imports_what_it_needs_and_nothing_else() -> None:
    shown = "import sys; from windlass.sdk import machine; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True).stdout.split()

    own = ("windlass.sdk.machine", "windlass.contracts.machine.worker")
    ours = {name for name in loaded if name.startswith("windlass.") and not name.startswith(own)}
    assert ours == {
        "windlass.contracts", "windlass.contracts.machine", "windlass.core", "windlass.core.json_text",
        "windlass.core.text", "windlass.errors", "windlass.net", "windlass.net.backoff", "windlass.net.decode",
        "windlass.net.http", "windlass.net.retry_after", "windlass.net.sigv4", "windlass.sdk",
    }  # fmt: skip
    assert {"asyncio", "lxml", "grpc", "urllib3"}.isdisjoint(loaded)


def test_peak_memory_is_that_of_the_program_and_not_of_who_started_it() -> None:
    ask = "from windlass.contracts.machine.worker.run import peak_mb; print(peak_mb())"
    parent = (
        f"import subprocess, sys; ballast = bytearray(300_000_000); ballast[::4096] = bytes(73243)\n"
        f"subprocess.run([sys.executable, '-c', {ask!r}], check=True)"
    )
    told = subprocess.run([sys.executable, "-c", parent], capture_output=True, text=True, check=True).stdout

    assert int(told) < 150
    assert peak_mb() > int(told) // 10
