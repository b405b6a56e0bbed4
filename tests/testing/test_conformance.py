"""What all conformance kits share: which cases are tried, what counts as a failure, and how it is reported."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from windlass.errors import Invalid
from windlass.testing.conformance.kit import Broken, Kit, Level, Result


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
    assert run(kit())[3].problem == "the case cannot read what the worker sent: KeyError: 'count'"


def test_cases_are_chosen_by_number_and_by_level() -> None:
    assert [result.number for result in run(kit(), only=[4, 2])] == [2, 4]
    assert [result.number for result in run(kit(), level=Level.REQUIRED)] == [1, 4]
    assert [result.number for result in run(kit(), only=[2, 4], level=Level.REQUIRED)] == [4]
    with pytest.raises(Invalid, match="there is no case 5: they are 1 to 4"):
        kit().select(only=[5])
    with pytest.raises(Invalid, match="parallel"):
        run(kit(), parallel=0)


@pytest.mark.parametrize("end", [Invalid("cannot be started", field="command"), KeyboardInterrupt()], ids=repr)
def test_what_ends_the_check_is_no_failed_case_and_the_cases_after_it_are_not_tried(end: BaseException) -> None:
    made, tried = Kit[None]("example"), list[int]()

    def check(number: int) -> None:
        tried.append(number)
        if number == 2:
            raise end

    for number in range(1, 10):
        made.required(f"is {number}", "Be.")(lambda _, number=number: check(number))  # type: ignore[misc]

    with pytest.raises(type(end)):
        made.run(made.cases, nullcontext)
    assert tried == [1, 2]
