"""What all conformance kits share: which cases are tried, what counts as a failure, and how it is reported."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from windlass.core.error import Invalid
from windlass.testing.conformance import Broken, Kit, Level, Result


def kit() -> Kit[dict[str, int]]:
    made = Kit[dict[str, int]]("example", breaks=(ConnectionError,))

    @made.required("is good", "Be good.")
    def good(_trial: dict[str, int]) -> None:
        pass

    @made.hardening("is not bad", "Do not be bad.")
    def bad(_trial: dict[str, int]) -> None:
        raise Broken("it was bad")

    @made.hardening("is there", "Be there.")
    def breaks(_trial: dict[str, int]) -> None:
        raise ConnectionResetError("gone")

    @made.required("has a count", "Have a count.")
    def odd(trial: dict[str, int]) -> None:
        assert trial["count"]

    return made


def run(made: Kit[dict[str, int]], parallel: int = 1, **chosen: object) -> list[Result]:
    return made.run(made.select(**chosen), lambda: nullcontext({}), parallel=parallel)  # type: ignore[arg-type]


@pytest.mark.parametrize("parallel", [1, 4])
def test_each_case_passes_or_says_what_was_wrong_in_the_order_of_its_number(parallel: int) -> None:
    results = run(kit(), parallel)

    assert [(result.number, result.passed) for result in results] == [(1, True), (2, False), (3, False), (4, False)]
    assert [result.problem for result in results[:3]] == [
        "", "it was bad", "the connection to the worker broke: ConnectionResetError: gone",
    ]  # fmt: skip


def test_a_worker_that_surprises_a_case_has_failed_it_and_the_others_go_on() -> None:
    assert run(kit())[3].problem == "the case cannot make sense of what the worker did: KeyError: 'count'"


def test_cases_are_chosen_by_number_and_by_level() -> None:
    assert [result.number for result in run(kit(), only=[4, 2])] == [2, 4]
    assert [result.number for result in run(kit(), level=Level.REQUIRED)] == [1, 4]
    assert [result.number for result in run(kit(), only=[2, 4], level=Level.REQUIRED)] == [4]
    with pytest.raises(Invalid, match="there is no case 5: they are 1 to 4"):
        kit().select(only=[5])
    with pytest.raises(Invalid, match="parallel"):
        run(kit(), parallel=0)


def test_a_worker_that_cannot_be_started_is_no_failed_case() -> None:
    made = Kit[None]("example")

    @made.required("is good", "Be good.")
    def good(_trial: None) -> None:
        raise Invalid("cannot be started", field="command")

    with pytest.raises(Invalid, match="cannot be started"):
        made.run(made.cases, nullcontext)
