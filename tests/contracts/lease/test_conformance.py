"""The cases of the lease contract find what is wrong with a worker, and let good ones pass; in real processes."""

from __future__ import annotations

import json
import sys

import pytest
from tests.kit.conformance import at_once, missed, problems, untested
from tests.shape.source import ROOT

from windlass.cli.commands import run
from windlass.contracts.lease.conformance import KIT, check_worker
from windlass.errors import Invalid
from windlass.testing.conformance.kit import Result

pytestmark = pytest.mark.slow

WORKER = [sys.executable, str(ROOT / "tests/contracts/lease/faulty.py")]
FLAGS = (
    "--server $LEASE_SERVER -q $LEASE_QUEUE --namespace $LEASE_NAMESPACE -c $LEASE_CONCURRENCY "
    "--certificate $LEASE_CERTIFICATE --key $LEASE_KEY --ca $LEASE_CA --state-dir $LEASE_FOLDER"
)
OPERATOR = "conformance=examples.lease_operators:conformance"
WRAPPER = ["sh", "-c", f"cd {ROOT} && exec {sys.executable} -m windlass.wrapper {FLAGS} --function {OPERATOR}"]

# Each fault with the cases that must find it.
FAULTS: dict[str, tuple[int, ...]] = {
    "shows no certificate": (1,),
    "has no name": (2,),
    "completes twice": (3,),
    "tells no reason": (4,),
    "forgets its token": (5,),
    "never heartbeats": (6,),
    "drops events": (7,),
    "drops outputs": (8,),
    "runs what it could not claim": (9, 21),
    "acks at once": (10,),
    "never acks": (10,),
    "ignores a cancel": (11,),
    "completes what was cancelled": (11,),
    "ignores its loss": (12,),
    "reports what it lost": (12,),
    "does not stop its operator": (13, 14),
    "does not repeat task-complete": (15,),
    "does not accept a refusal of task-complete": (16,),
    "fails what was refused": (16,),
    "does not repeat task-claim": (17,),
    "gives up when a heartbeat fails": (18,),
    "does not repeat events": (19,),
    "lets messages go": (20,),
    "gives garbage back": (22,),
    "ends with the first garbage": (22,),
    "refuses unknown fields": (23,),
    "takes too many": (24,),
    "leaves its tasks": (25,),
    "claims while it stops": (25,),
    "trusts anybody": (26,),
    "mixes attempts up": (27,),
}


def test_good_workers_pass_every_case(pace: float) -> None:
    """One with nothing but the standard library, and `windlass wrapper`."""

    def examine(name: str) -> list[Result]:
        command = WRAPPER if name == "wrapper" else WORKER
        return check_worker(command, lease_s=min(2 * pace, 30), timeout_s=30, parallel=8)

    results = at_once(examine, ("plain", "wrapper"), 2)

    assert {name: problems(found) for name, found in results.items() if problems(found)} == {}
    assert all(len(found) == len(KIT.cases) for found in results.values())


def test_every_planted_fault_is_found_by_its_cases() -> None:
    def examine(fault: str) -> list[Result]:
        return check_worker([*WORKER, fault], only=FAULTS[fault], timeout_s=4, parallel=2)

    assert missed(examine, FAULTS, 10) == {}


def test_every_case_has_found_a_fault() -> None:
    assert untested(KIT, FAULTS) == []


def test_the_command_says_which_case_failed_and_what_the_worker_should_have_done(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["conformance", "lease", "--only", "2", "--only", "22"]
    assert run([*command, "--", *WORKER, "gives garbage back"]) == 1
    told = capsys.readouterr().out
    assert run([*command, "--level", "required", "--", *WORKER, "gives garbage back"]) == 0
    capsys.readouterr()
    assert run([*command, "--json", "--", *WORKER, "gives garbage back"]) == 1

    assert "failed 22  hardening  discards a malformed wake-up" in told
    assert "1 of 2 cases failed: 0 required, 1 hardening." in told
    assert [case["passed"] for case in json.loads(capsys.readouterr().out)["cases"]] == [True, False]


def test_what_cannot_be_tried_is_wrong_use() -> None:
    assert run(["conformance", "lease"]) == 2
    assert run(["conformance", "lease", "--only", "1", "--", "/no/such/program"]) == 2
    assert run(["conformance", "lease", "--lease", "0", "--", *WORKER]) == 2
    with pytest.raises(Invalid, match="there is no case 99"):
        check_worker(WORKER, only=[99])
