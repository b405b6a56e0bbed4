"""Backfills: what may be selected, pages that lose and repeat nothing, and how a backfill ends."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.datasets.rules.backfill import (
    BEGIN,
    KEYS_MAX,
    BackfillState,
    Chosen,
    Mark,
    Selection,
    Tally,
    bounds,
    check,
    end_state,
    is_there,
    keys_page,
    run_page,
)
from windlass.datasets.rules.dag import Activation, ExecutionStrategy, Job, Runtime, When
from windlass.datasets.rules.partition import BIGINT_MAX, Key, Range, Run, Scheme, Span, Time, keys_between
from windlass.datasets.rules.status import PartitionStatus
from windlass.errors import Invalid


def job(outputs: int = 1, strategy: ExecutionStrategy = ExecutionStrategy.PER_PARTITION) -> Job:
    return Job(
        name="compact", activation=Activation.REACTIVE, runtime=Runtime.ECS_PLATFORM, operator="o", outputs=outputs,
        execution_strategy=strategy,
    )  # fmt: skip


HUNDREDS, DAYS = Range(100), Time("1d", ZoneInfo("Europe/Berlin"), "2026-01-01")
MISSING = Selection(status=(PartitionStatus.MISSING,))


@pytest.mark.parametrize(
    ("selection", "scheme", "field"),
    [
        (Selection(), HUNDREDS, "select"),
        (Selection(keys=("0-99",), start=0, end=99), HUNDREDS, "select"),
        (Selection(keys=("0-99",), status=(PartitionStatus.MISSING,)), HUNDREDS, "select"),
        (Selection(keys=("0-99", "0-99")), HUNDREDS, "select.keys[1]"),
        (Selection(keys=("0-99", "50-149")), HUNDREDS, "select.keys[1]"),
        (Selection(keys=("",)), None, "select.keys[0]"),
        (Selection(keys=("a\x00",)), None, "select.keys[0]"),
        (Selection(keys=("2025-12-31",)), DAYS, "select.keys[0]"),
        (Selection(keys=tuple(map(str, range(KEYS_MAX + 1)))), None, "select.keys"),
        (Selection(start=0), HUNDREDS, "select.end"),
        (Selection(end=0), HUNDREDS, "select.start"),
        (Selection(start=9, end=0), HUNDREDS, "select.end"),
        (Selection(start="a", end=0), HUNDREDS, "select.start"),
        (Selection(start="2026-01-01", end="2026-99-01"), DAYS, "select.end"),
        (Selection(start=0, end=9), Key(), "select.start"),
        (Selection(start="a", end="b"), None, "select.start"),
        (Selection(start=0, end=BIGINT_MAX + 1), None, "select.end"),
        (Selection(start=9, end=0), None, "select.end"),
        (Selection(status=(PartitionStatus.COMMITTED,)), HUNDREDS, "select.status"),
        (Selection(status=(PartitionStatus.MISSING, PartitionStatus.RUNNING)), HUNDREDS, "select.status"),
    ],
)
def test_what_cannot_be_selected_is_refused_with_its_field(
    selection: Selection, scheme: Scheme | None, field: str
) -> None:
    with pytest.raises(Invalid) as refused:
        check(selection, job(), scheme)

    assert refused.value.field == field


@pytest.mark.parametrize(
    ("selection", "scheme"),
    [
        (Selection(keys=("0-99", "100-199")), HUNDREDS),
        (Selection(keys=("anything",)), None),
        (Selection(keys=("anything",)), Key()),
        (Selection(start=0, end=999), HUNDREDS),
        (Selection(start=0, end=999), None),
        (Selection(start="2026-01-01", end="2026-02-01"), DAYS),
        (MISSING, HUNDREDS),
    ],
)
def test_what_may_be_selected(selection: Selection, scheme: Scheme | None) -> None:
    check(selection, job(), scheme)


def test_only_jobs_that_work_by_partitions_are_backfilled() -> None:
    with pytest.raises(Invalid) as refused:
        check(MISSING, job(strategy=ExecutionStrategy.PER_UPDATE), None)

    assert refused.value.field == "job"


def test_a_job_without_outputs_has_no_status() -> None:
    with pytest.raises(Invalid) as refused:
        check(MISSING, job(outputs=0), None)

    assert refused.value.field == "select.status"


def test_bounds_are_whole_partitions_of_the_scheme_or_numbers_without_one() -> None:
    assert bounds(Selection(start=50, end=350), HUNDREDS) == Run(HUNDREDS, Span(100, 299))
    assert bounds(Selection(start=10, end=50), HUNDREDS) is None
    assert bounds(Selection(start=10, end=50), None) == Span(10, 50)


def pages(take: object, limit: int) -> list[str]:
    found: list[str] = []
    mark: Mark | None = BEGIN
    while mark is not None:
        chosen: Chosen = take(mark, limit)  # type: ignore[operator]
        assert len(chosen.keys) <= limit
        found += chosen.keys
        mark = chosen.mark
    return found


@given(st.lists(st.text(), unique=True, max_size=40), st.integers(1, 15))
def test_pages_of_keys_lose_and_repeat_nothing(keys: list[str], limit: int) -> None:
    assert pages(lambda mark, most: keys_page(keys, mark, most), limit) == keys


@given(st.integers(1, 50), st.integers(-100, 100), st.integers(-200, 200), st.integers(0, 400), st.integers(1, 15))
def test_pages_of_a_run_lose_and_repeat_nothing(size: int, start: int, first: int, width: int, limit: int) -> None:
    run = keys_between(Range(size, start), first, first + width)

    assert pages(lambda mark, most: run_page(run, mark, most), limit) == ([] if run is None else list(run.keys()))


def test_pages_of_days_go_over_the_change_of_clocks() -> None:
    run = keys_between(DAYS, "2026-03-01", "2026-04-30")
    assert run is not None

    found = pages(lambda mark, most: run_page(run, mark, most), 7)

    assert (len(found), found[0], found[-1]) == (61, "2026-03-01", "2026-04-30")


def test_a_page_of_a_run_of_a_trillion_costs_a_page() -> None:
    run = keys_between(Range(1), 0, 10**12)

    chosen = run_page(run, Mark(number=10**11), 3)

    assert chosen.keys == [f"{n}-{n}" for n in range(10**11, 10**11 + 3)]


def test_the_last_partition_of_all_ends_a_run() -> None:
    scheme = Range(2, BIGINT_MAX - 3)
    run = keys_between(scheme, BIGINT_MAX - 3, BIGINT_MAX)

    assert len(pages(lambda mark, most: run_page(run, mark, most), 1)) == 2


@pytest.mark.parametrize(
    ("when", "inputs", "committed", "there"),
    [
        (When.ANY, {0, 1}, {1}, True),
        (When.ANY, {0, 1}, set(), False),
        (When.ANY, {0}, {2}, False),
        (When.ALL, {0, 1}, {1}, False),
        (When.ALL, {0, 1}, {0, 1, 2}, True),
    ],
)
def test_when_the_inputs_of_a_partition_are_there(
    when: When, inputs: set[int], committed: set[int], there: bool
) -> None:
    assert is_there(when, inputs, committed) is there


S = BackfillState


@pytest.mark.parametrize(
    ("state", "selected", "tally", "after"),
    [
        (S.RUNNING, False, Tally(), S.RUNNING),
        (S.RUNNING, True, Tally(unfinished=1), S.RUNNING),
        (S.RUNNING, True, Tally(), S.SUCCEEDED),
        (S.RUNNING, True, Tally(failed=1), S.FAILED),
        (S.RUNNING, True, Tally(failed=1, cancelled=1), S.FAILED),
        (S.RUNNING, True, Tally(cancelled=1), S.CANCELLED),
        (S.CANCELLING, False, Tally(unfinished=1), S.CANCELLING),
        (S.CANCELLING, False, Tally(), S.CANCELLED),
        (S.CANCELLING, True, Tally(failed=1), S.CANCELLED),
        (S.SUCCEEDED, True, Tally(failed=1), S.SUCCEEDED),
        (S.CANCELLED, True, Tally(), S.CANCELLED),
    ],
)
def test_how_a_backfill_ends(state: S, selected: bool, tally: Tally, after: S) -> None:
    assert end_state(state, selected, tally) is after
