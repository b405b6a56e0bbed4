"""The status of a partition, and pages made from several lists."""

from __future__ import annotations

import itertools
import random

import pytest

from windlass.core.states import State
from windlass.datasets.rules.partition import Key, Range
from windlass.datasets.rules.status import (
    BEGIN,
    Found,
    PartitionStatus,
    PartitionView,
    Place,
    has_key,
    merge_page,
    status_of,
)


@pytest.mark.parametrize(
    ("committed", "stale", "task", "expected", "status"),
    [
        (True, False, None, True, "committed"),
        (True, False, State.RUNNING, True, "committed"),
        (True, True, None, True, "stale"),
        (True, True, State.SUCCEEDED, True, "stale"),
        (True, True, State.CANCELLED, True, "stale"),
        (True, True, State.RUNNING, True, "running"),
        (True, True, State.BLOCKED, True, "running"),
        (True, True, State.FAILED, True, "failed"),
        (False, False, State.QUEUED, False, "running"),
        (False, False, State.SLEEPING, False, "running"),
        (False, False, State.PARKED, False, "running"),
        (False, False, State.FAILED, False, "failed"),
        (False, False, State.CANCELLED, True, "missing"),
        (False, False, State.SKIPPED, False, None),
        (False, False, State.SUCCEEDED, True, "missing"),
        (False, False, None, True, "missing"),
        (False, False, None, False, None),
    ],
)
def test_the_status_follows_from_commit_task_and_scheme(
    committed: bool, stale: bool, task: State | None, expected: bool, status: str | None
) -> None:
    assert status_of(committed, stale, task, expected) == status


def test_a_scheme_has_its_own_keys_only() -> None:
    assert has_key(Range(100), "100-199")
    assert not has_key(Range(100), "100-149")
    assert not has_key(Range(100), "b")
    assert has_key(Key(), "b")


def test_places_are_in_the_order_of_the_database() -> None:
    ordered = [
        BEGIN,
        Place(-(2**63), "a"),
        Place(-1, "b"),
        Place(0, "a"),
        Place(0, "z"),
        Place(0, "Ä"),
        Place(2**63 - 1, "a"),
        Place(None, "A"),
        Place(None, "a"),
    ]
    orders = [place.order for place in ordered]
    assert all(one < other for one, other in itertools.pairwise(orders))


def view(place: Place) -> PartitionView:
    return PartitionView(place.key, place.first, place.first, PartitionStatus.COMMITTED)


@pytest.mark.parametrize("seed", range(50))
def test_pages_of_several_lists_lose_and_repeat_nothing(seed: int) -> None:
    randomness = random.Random(seed)
    places = [Place(randomness.choice([None, number // 2]), f"k{number}") for number in range(40)]
    places.sort(key=lambda place: place.order)
    lists: list[list[Place]] = [[], [], []]
    for place in places:
        randomness.choice(lists).append(place)
    limit = randomness.randint(1, 6)

    def found(some: list[Place], after: Place) -> Found:
        """A query that looks at a few, and shows some of them."""
        scan = randomness.randint(1, 8)
        rest = [place for place in some if place.order > after.order]
        seen = rest[:scan]
        return Found([view(place) for place in seen], seen[-1] if len(rest) > scan else None)

    pages: list[Place] = []
    after: Place | None = BEGIN
    while after is not None:
        page, end = merge_page([found(some, after) for some in lists], limit)
        assert len(page) <= limit
        pages += [item.place for item in page]
        assert end is None or end.order > after.order
        after = end

    assert pages == places
