"""The cases of the machine contract find what is wrong with a program, and let good ones pass; in real processes."""

from __future__ import annotations

import json
import sys

import pytest
from tests.kit.conformance import at_once, missed, problems, untested
from tests.shape.source import ROOT

from windlass.cli.commands import run
from windlass.contracts.machine.conformance import KIT, check_program
from windlass.errors import Invalid
from windlass.testing.conformance.kit import Result

pytestmark = pytest.mark.slow

PROGRAM = [sys.executable, str(ROOT / "tests/contracts/machine/faulty.py")]
FRAME = [sys.executable, str(ROOT / "tests/contracts/machine/conformant.py")]
MODS = [sys.executable, "-m", "windlass.contracts.machine.export.mods"]

# Each fault with the cases that must find it.
FAULTS: dict[str, tuple[int, ...]] = {
    "calls twice": (1,),
    "has keys of its own": (2,),
    "says another size": (3,),
    "names another task": (4,),
    "calls back first": (5,),
    "has no metrics": (6,),
    "has another default": (7,),
    "needs a bucket": (7,),
    "leaves its files": (8,),
    "fails in silence": (9, 11),
    "exits with 0": (9, 13),
    "exits with 2": (9, 13),
    "uploads what failed": (10,),
    "ignores a failed upload": (11,),
    "fails with its callback": (12,),
    "tells its key": (14,),
    "does not sign": (15,),
    "drops the query": (16,),
    "does not repeat its callback": (17,),
    "repeats what was refused": (18,),
    "does not repeat its upload": (19,),
    "tells no wrong environment": (20,),
    "needs options": (21,),
    "ignores SIGTERM": (22,),
    "reads all of it": (23,),
}


def test_good_programs_pass_every_case() -> None:
    """One with nothing but the standard library, one with the frame of the SDK, to a bucket and to a URL."""

    def examine(name: str) -> list[Result]:
        command, store = {"plain": (PROGRAM, "s3"), "frame": (FRAME, "s3"), "frame, url": (FRAME, "url")}[name]
        return check_program(command, store=store, timeout_s=40, parallel=6)  # type: ignore[arg-type]

    results = at_once(examine, ("plain", "frame", "frame, url"), 3)

    assert {name: problems(found) for name, found in results.items() if problems(found)} == {}
    assert all(len(found) == len(KIT.cases) for found in results.values())


def test_the_exporter_of_mods_passes_every_case() -> None:
    assert problems(check_program(MODS, subject="mods", timeout_s=60, parallel=6)) == []


def test_every_planted_fault_is_found_by_its_cases() -> None:
    def examine(fault: str) -> list[Result]:
        return check_program([*PROGRAM, fault], only=FAULTS[fault], timeout_s=10, parallel=2)

    assert missed(examine, FAULTS, 6) == {}


def test_every_case_has_found_a_fault() -> None:
    assert untested(KIT, FAULTS) == []


def test_the_command_says_which_case_failed_and_what_the_program_should_have_done(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["conformance", "machine", "--only", "2", "--only", "16"]
    assert run([*command, "--", *PROGRAM, "drops the query"]) == 1
    told = capsys.readouterr().out
    assert run([*command, "--level", "required", "--", *PROGRAM, "drops the query"]) == 0
    capsys.readouterr()
    assert run([*command, "--json", "--", *PROGRAM, "drops the query"]) == 1

    assert "failed 16  hardening  keeps the query of its callback URL" in told
    assert "1 of 2 cases failed: 0 required, 1 hardening." in told
    assert [case["passed"] for case in json.loads(capsys.readouterr().out)["cases"]] == [True, False]


def test_what_cannot_be_tried_is_wrong_use() -> None:
    assert run(["conformance", "machine"]) == 2
    assert run(["conformance", "machine", "--", "/no/such/program"]) == 2
    assert run(["conformance", "machine", "--program", "pdf", "--", *PROGRAM]) == 2
    with pytest.raises(Invalid, match="there is no case 99"):
        check_program(PROGRAM, only=[99])
    with pytest.raises(Invalid, match="must be any or mods"):
        check_program(PROGRAM, subject="pdf")
