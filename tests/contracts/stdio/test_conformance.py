"""`windlass conformance stdio`: good workers pass, and each planted fault is found by the case that is about it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.contracts.stdio.faulty import FAULTS
from tests.contracts.stdio.talk import WORKER
from tests.kit.conformance import untested
from tests.shape.source import ROOT

from windlass.contracts.stdio.conformance import KIT, LANGUAGES, check_worker, read_scripts
from windlass.errors import Invalid
from windlass.stdio import Service, TaskError

pytestmark = pytest.mark.slow

NODE = ["node", str(ROOT / "examples/stdio_node_worker.js")]
PERL = ["perl", str(ROOT / "examples/stdio_shell_worker.pl")]


def problems(command: list[str], language: str = "python") -> dict[int, str]:
    results = check_worker(command, LANGUAGES[language], timeout_s=20)
    assert [result.number for result in results] == list(range(1, len(KIT.cases) + 1))
    return {result.number: result.problem for result in results if not result.passed}


def test_our_worker_passes_every_case() -> None:
    assert problems(WORKER) == {}


def test_the_example_in_another_language_passes_every_case_and_is_short() -> None:
    assert problems(PERL, "sh") == {}
    assert len(Path(PERL[1]).read_text().splitlines()) < 150


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node here")
def test_the_example_for_node_passes_every_case_and_refuses_what_json_does_not_have() -> None:
    assert problems(NODE, "javascript") == {}
    with Service(NODE) as service:
        for script in ("NaN", "({a: [-Infinity]})", "(() => 1)", "({f: () => 1})", "1n", "const a = []; a[0] = a; a"):
            with pytest.raises(TaskError):
                service.task(script).wait_for(30.0)
        with pytest.raises(TaskError, match="exit code 3"):
            service.task("process.exit(3)").wait_for(30.0)
        assert service.task("({sum: x + y})", {"x": 1, "y": 2}).wait_for(30.0).outputs == {"sum": 3}
        assert service.task("Promise.resolve([x])", {"x": "a\ud83d\ude00"}).result(30.0) == ["a\U0001f600"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_by_the_case_that_is_about_it(fault: str) -> None:
    command = [sys.executable, "-m", "tests.contracts.stdio.faulty", fault]
    (result,) = check_worker(command, LANGUAGES["python"], only=[FAULTS[fault]], timeout_s=1.0)

    assert not result.passed
    assert result.problem
    assert result.duty


def test_every_case_has_found_a_fault() -> None:
    assert untested(KIT, {fault: (number,) for fault, number in FAULTS.items()}) == []


def test_the_reference_worker_is_found_to_have_the_defects_that_it_is_known_for() -> None:
    command = [sys.executable, "-c", "import appose.python_worker; appose.python_worker.main()"]
    good = check_worker(command, LANGUAGES["python"], only=[1, 4, 5], timeout_s=20.0)
    bad = check_worker(command, LANGUAGES["python"], only=[11, 15], timeout_s=2.0)

    assert [result.passed for result in good + bad] == [True, True, True, False, False]


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_the_command_says_what_was_expected_and_what_came(as_json: bool) -> None:
    faulty = ["--only", "1", "--", sys.executable, "-m", "tests.contracts.stdio.faulty", "no outputs"]
    command = [sys.executable, "-c", "from windlass.cli import main; main()", "conformance", "stdio"]
    done = subprocess.run(
        [*command, *(["--json"] if as_json else []), *faulty],
        capture_output=True, text=True, check=False, cwd=ROOT, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip

    assert done.returncode == 1
    if as_json:
        assert json.loads(done.stdout)["cases"][0]["problem"]
    else:
        assert "failed" in done.stdout
        assert "`outputs` of a COMPLETION is null" in done.stdout
        assert "1 of 1 cases failed: 1 required, 0 hardening." in done.stdout


def test_a_language_is_known_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(dict.fromkeys(LANGUAGES["sh"].__struct_fields__, "x")))
    assert read_scripts(str(file)).echo == "x"
    file.write_text("{}")
    for wrong in ("cobol", str(file), str(tmp_path / "none.json")):
        with pytest.raises(Invalid):
            read_scripts(wrong)
    with pytest.raises(Invalid, match="cannot be started"):
        check_worker(["/no/such/program"], LANGUAGES["sh"])
    with pytest.raises(Invalid, match="there is no case 99"):
        check_worker(WORKER, LANGUAGES["python"], only=[99])
