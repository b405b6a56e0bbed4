"""The cases find what is wrong with a worker, each its own, and let a good one pass; all in real processes."""

from __future__ import annotations

import json

import pytest
from tests.contracts.callback.process import ROOT, SECRET, running
from tests.kit.conformance import at_once, missed, problems, untested

from windlass.cli.commands import run
from windlass.contracts.callback.conformance import KIT, check_worker
from windlass.errors import Invalid
from windlass.testing.conformance.kit import Level, Result

pytestmark = pytest.mark.slow

# Each fault with the cases that must find it.
FAULTS: dict[str, tuple[int, ...]] = {
    "never_heartbeats": (13,),
    "says_another_attempt": (5,),
    "completes_twice": (3,),
    "heartbeats_after_the_end": (3,),
    "ignores_cancel": (16,),
    "goes_on_after_410": (18,),
    "goes_on_after_409": (19,),
    "runs_what_it_was_refused": (17, 25),
    "takes_500_for_an_answer_to_started": (21,),
    "does_not_repeat_completed": (22, 23),
    "repeats_what_was_refused": (20,),
    "does_not_wait_as_asked": (22,),
    "gives_up_when_a_heartbeat_fails": (14,),
    "uses_one_token_for_all": (6, 27),
    "keeps_the_first_token": (15,),
    "believes_any_signature": (9, 10, 11, 12),
    "believes_old_pushes": (12,),
    "does_not_read_the_body_as_it_came": (11,),
    "runs_a_duplicate": (24,),
    "answers_after_the_work": (1,),
    "does_not_say_started": (2,),
    "tells_no_category": (4,),
    "refuses_unknown_fields": (7,),
    "ends_with_the_first_garbage": (8,),
    "refuses_a_newer_attempt": (26,),
    "works_on_after_its_stop": (28, 29),
    "reports_the_cancel_and_works_on": (29,),
}


SERVICES = {
    "asgi": ("asgi", "conformance"),
    "fastapi": ("fastapi", "conformance"),
    "starlette": ("starlette", "conformance"),
    "wsgi": ("wsgi", "conformance"),
    "handlers in threads": ("asgi", "in_thread"),
}


def test_every_planted_fault_is_found_by_its_cases() -> None:
    def examine(fault: str) -> list[Result]:
        """On a busy machine a fault may show later than one looks: then one looks for longer."""
        with running("tests/contracts/callback/faulty.py", fault) as worker:
            for interval_ms in (100, 500, 2000):
                results = check_worker(
                    worker.url, SECRET, only=FAULTS[fault], interval_ms=interval_ms, timeout_s=3, parallel=4
                )
                if not any(result.passed for result in results):
                    break
            return results

    assert missed(examine, FAULTS, 9) == {}


def test_services_that_use_the_sdk_pass_every_case(pace: float) -> None:
    """ASGI, FastAPI, Starlette, WSGI, each under a real server; handlers that are async and handlers in threads."""

    def examine(service: str) -> list[Result]:
        server, kind = SERVICES[service]
        with running("tests/contracts/callback/service.py", server) as worker:
            return check_worker(worker.url, SECRET, kind=kind, interval_ms=int(150 * pace), timeout_s=20, parallel=9)

    results = at_once(examine, SERVICES, len(SERVICES))

    assert {service: problems(found) for service, found in results.items() if problems(found)} == {}
    assert all(len(found) == len(KIT.cases) for found in results.values())


def test_every_case_has_found_a_fault() -> None:
    assert untested(KIT, FAULTS) == []


def test_the_worker_of_the_examples_passes_and_is_small(pace: float) -> None:
    with running("examples/callback_worker.py", "0") as worker:
        results = check_worker(worker.url, SECRET, interval_ms=int(100 * pace), timeout_s=20, parallel=8)
    lines = (ROOT / "examples/callback_worker.py").read_text().splitlines()

    assert problems(results) == []
    assert len(lines) < 150
    assert "windlass" not in {line.split()[1].split(".")[0] for line in lines if line.startswith(("import", "from"))}


def command(*arguments: str) -> int:
    return run(["conformance", "callback", "--interval-ms", "100", *arguments])


def test_the_command_says_which_case_failed_and_what_the_worker_should_have_done(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with running("tests/contracts/callback/faulty.py", "believes_old_pushes") as worker:
        assert command("--worker", worker.url, "--secret", SECRET, "--only", "2") == 0
        assert command("--worker", worker.url, "--secret", SECRET, "--only", "2", "--only", "12") == 1
        told = capsys.readouterr().out
        assert command("--worker", worker.url, "--secret", SECRET, "--only", "2", "--only", "12", "--json") == 1

    assert "failed 12  hardening  refuses an old push" in told
    assert "1 of 2 cases failed: 0 required, 1 hardening." in told
    assert "a push that was signed an hour ago was answered with 202" in told
    assert "Refuse a push whose `webhook-timestamp` differs" in told
    answer = json.loads(capsys.readouterr().out)
    assert (answer["passed"], answer["failed"]) == (1, 1)
    assert [(case["number"], case["level"]) for case in answer["cases"]] == [(2, "required"), (12, "hardening")]
    assert answer["levels"] == {"required": {"passed": 1, "failed": 0}, "hardening": {"passed": 0, "failed": 1}}


def test_a_level_decides_which_cases_are_tried_and_so_the_exit_code() -> None:
    with running("tests/contracts/callback/faulty.py", "believes_old_pushes") as worker:
        flags = ("--worker", worker.url, "--secret", SECRET, "--only", "2", "--only", "12")
        assert command(*flags, "--level", "required") == 0
        assert command(*flags, "--level", "hardening") == 1
        assert command(*flags, "--level", "all") == 1

    assert {case.number for case in KIT.select(level=Level.REQUIRED)} | {
        case.number for case in KIT.select(level=Level.HARDENING)
    } == {case.number for case in KIT.cases}


def test_the_command_ends_as_others_do_when_it_is_used_wrongly_or_nobody_is_there() -> None:
    assert command("--worker", "http://127.0.0.1:1/push", "--secret", SECRET) == 3
    assert command("--worker", "http://127.0.0.1:1/push", "--secret", "none") == 2
    assert command("--worker", "nowhere", "--secret", SECRET) == 2
    assert command("--worker", "http://127.0.0.1:1/push", "--secret", SECRET, "--only", "99") == 2


def test_there_is_no_such_case() -> None:
    with pytest.raises(Invalid, match="there is no case 0"):
        check_worker("http://127.0.0.1:1", SECRET, only=[0])
