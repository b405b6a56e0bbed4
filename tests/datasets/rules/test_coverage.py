"""Sets of spans against sets of numbers."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.datasets.rules.coverage import Coverage, complete, coverage, merge, overlap, subtract
from windlass.datasets.rules.partition import BIGINT_MAX, BIGINT_MIN, Range, Span, Time


def spans(*pairs: tuple[int, int]) -> list[Span]:
    return [Span(*pair) for pair in pairs]


@pytest.mark.parametrize(
    ("given_", "merged"),
    [
        ([], []),
        ([(0, 9)], [(0, 9)]),
        ([(10, 19), (0, 9)], [(0, 19)]),
        ([(0, 9), (11, 19)], [(0, 9), (11, 19)]),
        ([(0, 9), (5, 7), (9, 12)], [(0, 12)]),
        ([(BIGINT_MIN, 0), (1, BIGINT_MAX)], [(BIGINT_MIN, BIGINT_MAX)]),
    ],
)
def test_spans_that_touch_are_merged(given_: list[tuple[int, int]], merged: list[tuple[int, int]]) -> None:
    assert merge(spans(*given_)) == merged


def test_coverage_says_of_each_number_what_it_is() -> None:
    found = coverage(spans((0, 999), (1000, 1999), (4000, 4999)), spans((3000, 3999), (1000, 1999)), spans((0, 5999)))

    assert found == Coverage(
        committed=spans((0, 1999), (4000, 4999)), missing=spans((2000, 2999), (5000, 5999)), failed=spans((3000, 3999))
    )


def test_an_output_partition_is_complete_when_all_of_its_range_is_committed() -> None:
    committed = spans((0, 99), (100, 199), (250, 499), (500, 520))

    assert [run.span for run in complete(Range(100), committed)] == [(0, 199), (300, 499)]
    assert [run.span for run in complete(Range(50), committed)] == [(0, 199), (250, 499)]
    assert [run.span for run in complete(Range(1000), committed)] == []
    assert [list(run.keys()) for run in complete(Range(150), committed)] == [["0-149"], ["300-449"]]


def test_a_day_is_complete_with_all_of_its_hours() -> None:
    hours, days = Time("1h"), Time("1d")
    committed = [hours.span(f"2026-01-31T{hour:02}") for hour in range(24)]

    assert [list(run.keys()) for run in complete(days, committed)] == [["2026-01-31"]]
    assert complete(days, committed[1:]) == []
    assert [run.count for run in complete(hours, [days.span("2026-01-31")])] == [24]


@pytest.mark.parametrize(
    ("span", "found"),
    [
        ((0, 9), None),
        ((0, 10), (10, 19)),
        ((19, 25), (10, 19)),
        ((20, 29), None),
        ((12, 13), (10, 19)),
        ((0, 99), (10, 19)),
    ],
)
def test_an_overlap_is_found(span: tuple[int, int], found: tuple[int, int] | None) -> None:
    assert overlap(Span(*span), spans((10, 19), (30, 39))) == found


SPANS = st.lists(
    st.tuples(st.integers(-30, 30), st.integers(0, 9)).map(lambda pair: Span(pair[0], sum(pair))), max_size=8
)


def numbers(of: Iterable[Span]) -> set[int]:
    return {number for first, last in of for number in range(first, last + 1)}


def is_set(of: list[Span]) -> bool:
    return all(one.last + 1 < other.first for one, other in itertools.pairwise(of)) and all(a <= b for a, b in of)


@given(some=SPANS, others=SPANS)
@settings(deadline=None)
def test_sets_of_spans_are_sets_of_numbers(some: list[Span], others: list[Span]) -> None:
    left = subtract(merge(some), merge(others))

    assert is_set(merge(some))
    assert numbers(merge(some)) == numbers(some)
    assert is_set(left)
    assert numbers(left) == numbers(some) - numbers(others)
    for span in some:
        assert (overlap(span, others) is not None) == bool(numbers([span]) & numbers(others))


@given(committed=SPANS, failed=SPANS, within=SPANS)
@settings(deadline=None)
def test_each_number_is_committed_missing_or_failed(
    committed: list[Span], failed: list[Span], within: list[Span]
) -> None:
    found = coverage(committed, failed, within)
    parts = [numbers(part) for part in (found.committed, found.missing, found.failed)]

    assert sum(map(len, parts)) == len(set().union(*parts))
    assert set().union(*parts) == numbers(committed) | numbers(failed) | numbers(within)
    assert parts[0] == numbers(committed)
    assert all(map(is_set, (found.committed, found.missing, found.failed)))


@given(committed=SPANS, size=st.integers(1, 7), start=st.integers(-20, 5))
@settings(deadline=None)
def test_a_partition_is_complete_if_none_of_its_numbers_is_missing(
    committed: list[Span], size: int, start: int
) -> None:
    scheme = Range(size, start)
    there = numbers(committed)
    whole = [first for first in range(start, 50, size) if set(range(first, first + size)) <= there]

    assert [span.first for run in complete(scheme, committed) for _, span in run.partitions()] == whole
