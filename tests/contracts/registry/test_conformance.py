"""The cases of the registry contract find what is wrong with a worker, and let a good one pass; in real processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.command import WINDLASS
from tests.kit.conformance import at_once, missed, problems, untested
from tests.kit.processes import gone
from tests.kit.work import until
from tests.shape.source import ROOT

from windlass.cli.commands import run
from windlass.contracts.registry.conformance import KIT, check_worker
from windlass.errors import Invalid
from windlass.testing.conformance.kit import Result

pytestmark = pytest.mark.slow

CONFORMANT = "tests.contracts.registry.conformant"
WORKER = [sys.executable, str(ROOT / "tests/contracts/registry/faulty.py")]

# Each fault with the cases that must find it.
FAULTS: dict[str, tuple[int, ...]] = {
    "registers some types": (1,),
    "says not where": (2,),
    "polls without types": (3,),
    "has an interval of its own": (4,),
    "counts nothing": (5, 6),
    "ignores drain": (7,),
    "ignores SIGTERM": (8,),
    "leaves its runs": (7, 8),
    "does not deregister": (7, 8),
    "polls while it stops": (9,),
    "completes twice": (10,),
    "fails without a reason": (11,),
    "runs too many": (12,),
    "does not complete steps": (13,),
    "repeats steps": (14,),
    "hides failed steps": (15,),
    "completes what sleeps": (16,),
    "sleeps for another time": (16,),
    "sleeps in its process": (16,),
    "sleeps again": (17,),
    "is silent while it drains": (18,),
    "gives up when an answer is lost": (19, 20, 21),
    "polls without pauses": (22,),
    "ends when a heartbeat fails": (23,),
    "never registers again": (24,),
    "believes that it is accepted": (25,),
    "fails a run that was cancelled": (26,),
    "fails what was refused": (27,),
    "goes on after a failed step": (28,),
    "sends no token": (29,),
    "shows no key": (30,),
    "ends with bad input": (31,),
    "sends nothing for null": (32,),
    "mixes attempts up": (33,),
}


def test_a_good_worker_passes_every_case(pace: float) -> None:
    results = check_worker(WORKER, heartbeat_s=int(pace), timeout_s=20, parallel=12)

    assert problems(results) == []
    assert len(results) == len(KIT.cases)


def test_the_worker_of_the_library_and_that_without_it_pass_every_case(pace: float) -> None:
    """`windlass.registry`, and the plain gRPC of the examples."""

    def examine(program: str) -> list[Result]:
        return check_worker([sys.executable, *program.split()], heartbeat_s=int(pace), timeout_s=20, parallel=6)

    results = at_once(examine, (str(ROOT / "examples/registry_conformance.py"), f"-m {CONFORMANT}"), 1)

    assert {program: problems(found) for program, found in results.items() if problems(found)} == {}


def test_every_planted_fault_is_found_by_its_cases() -> None:
    def examine(fault: str) -> list[Result]:
        return check_worker([*WORKER, fault], only=FAULTS[fault], timeout_s=3, parallel=3)

    assert missed(examine, FAULTS, 12) == {}


def test_every_case_has_found_a_fault() -> None:
    assert untested(KIT, FAULTS) == []


def test_the_command_says_which_case_failed_and_what_the_worker_should_have_done(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["conformance", "registry", "--only", "2", "--only", "30", "--patience", "5"]
    assert run([*command, "--", *WORKER, "shows no key"]) == 1
    told = capsys.readouterr().out
    assert run([*command, "--level", "required", "--", *WORKER, "shows no key"]) == 0
    capsys.readouterr()
    assert run([*command, "--json", "--", *WORKER, "shows no key"]) == 1

    assert "failed 30  hardening  sends its key" in told
    assert "1 of 2 cases failed: 0 required, 1 hardening." in told
    assert [case["passed"] for case in json.loads(capsys.readouterr().out)["cases"]] == [True, False]


def test_a_program_that_cannot_be_started_is_wrong_use() -> None:
    assert run(["conformance", "registry"]) == 2
    assert run(["conformance", "registry", "--", "/no/such/program"]) == 2
    with pytest.raises(Invalid, match="there is no case 99"):
        check_worker(WORKER, only=[99])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
async def test_a_check_that_is_stopped_leaves_no_worker_behind(number: signal.Signals, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    worker = ["sh", "-c", f"echo $$ > {file}.new; mv {file}.new {file}; exec sleep 600"]
    check = subprocess.Popen(  # noqa: ASYNC220
        [str(WINDLASS), "conformance", "registry", "--patience", "3", "--", *worker],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        await until(file.exists)
        check.send_signal(number)
        _, told = check.communicate(timeout=45)
    finally:
        check.kill()

    assert check.returncode == 130
    assert b"Traceback" not in told
    await gone(int(file.read_text()))
