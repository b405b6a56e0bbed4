"""Lineage: the ways of data over jobs and datasets."""

from __future__ import annotations

from uuid import UUID

import pytest

from windlass.datasets.rules.lineage import Direction, JobName, Link, lineage, without

RAW, CLEAN, DAILY, SIDE = (UUID(int=number) for number in range(1, 5))
LOAD, TIDY, COUNT = JobName("a", "load"), JobName("a", "tidy"), JobName("b", "count")
LINKS = [
    Link(LOAD, RAW),
    Link(RAW, TIDY),
    Link(TIDY, CLEAN),
    Link(TIDY, SIDE),
    Link(CLEAN, COUNT, "n > 1"),
    Link(COUNT, DAILY),
]


@pytest.mark.parametrize(
    ("start", "direction", "depth", "found"),
    [
        (CLEAN, Direction.UP, 1, {0: 0, 1: 1, 2: 1}),
        (CLEAN, Direction.UP, 2, {0: 1, 1: 1, 2: 1}),
        (CLEAN, Direction.DOWN, 9, {4: 1, 5: 1}),
        (CLEAN, Direction.BOTH, 9, {0: 1, 1: 1, 2: 1, 4: 1, 5: 1}),
        (RAW, Direction.DOWN, 1, {1: 1, 2: 1, 3: 1}),
        (RAW, Direction.UP, 1, {0: 1}),
        (UUID(int=9), Direction.BOTH, 9, {}),
    ],
)
def test_it_passes_as_many_jobs_as_it_may(start: UUID, direction: Direction, depth: int, found: dict[int, int]) -> None:
    expected = {LINKS[place] for place, there in found.items() if there}
    links = lineage(LINKS, start, direction, depth)

    assert set(links) == expected
    assert len(links) == len(expected)


def test_a_circle_ends() -> None:
    links = [Link(RAW, TIDY), Link(TIDY, CLEAN), Link(CLEAN, COUNT), Link(COUNT, RAW)]

    assert set(lineage(links, RAW, Direction.BOTH, 100)) == set(links)


def test_jobs_are_linked_over_a_dataset_that_is_left_out() -> None:
    assert without(LINKS, {CLEAN, SIDE}) == [
        Link(LOAD, RAW),
        Link(RAW, TIDY),
        Link(TIDY, COUNT, "n > 1"),
        Link(COUNT, DAILY),
    ]
    assert without(LINKS, set()) == LINKS
