"""When a job is held and let go, and which jobs wait with it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.datasets.rules.backpressure import QueueLimits, held, with_upstream

DEEP, OLD, BOTH = QueueLimits(10), QueueLimits(None, 60), QueueLimits(10, 60)
HALF = QueueLimits(10, 60, halved=True)


@pytest.mark.parametrize(
    ("limits", "depth", "age_s", "was_held", "is_held"),
    [
        (DEEP, 9, None, False, False),
        (DEEP, 10, None, False, True),
        (DEEP, 9, None, True, True),
        (DEEP, 8, None, True, False),
        (DEEP, 8, None, False, False),
        (QueueLimits(1), 1, None, False, True),
        (QueueLimits(1), 1, None, True, True),
        (QueueLimits(1), 0, None, True, False),
        (QueueLimits(3), 2, None, True, False),  # 2 is below 2.4
        (OLD, 10**6, 59.9, False, False),
        (OLD, 1, 60, False, True),
        (OLD, 1, 60, True, True),
        (OLD, 1, 59.9, True, False),
        (BOTH, 1, 60, False, True),
        (BOTH, 10, 0, False, True),
        (BOTH, 9, 1, True, True),
        (BOTH, 8, 60, True, True),
        (BOTH, 8, 59, True, False),
        (HALF, 4, 0, False, False),
        (HALF, 5, 0, False, True),
        (HALF, 5, 0, True, True),
        (HALF, 4, 0, True, False),
        (HALF, 0, 29, False, False),
        (HALF, 1, 30, False, True),
        (QueueLimits(1, halved=True), 1, None, False, True),
        (QueueLimits(1, halved=True), 0, None, False, False),
        (QueueLimits(), 10**9, 10**9, True, False),
        (QueueLimits(10, 0), 1, 0.0, False, True),
        (QueueLimits(10, 0), 0, None, True, False),
    ],
)
def test_a_job_is_held_at_its_limit_and_let_go_well_below(
    limits: QueueLimits, depth: int, age_s: float | None, was_held: bool, is_held: bool
) -> None:
    assert held(depth, age_s, limits, was_held) is is_held


@given(most=st.integers(1, 1000), depth=st.integers(0, 2000), halved=st.booleans())
@settings(deadline=None)
def test_a_job_that_is_let_go_is_not_held_again_at_once(most: int, depth: int, halved: bool) -> None:
    limits = QueueLimits(most, halved=halved)

    if not held(depth, None, limits, was_held=True):
        assert not held(depth, None, limits, was_held=False)
    assert not held(0, None, limits, was_held=True)
    assert held(most, None, limits, was_held=False)


CHAIN = [("tick", "fetch"), ("fetch", "clean"), ("clean", "report")]
FORK = [*CHAIN, ("clean", "alert")]


@pytest.mark.parametrize(
    ("edges", "slow", "expected"),
    [
        (CHAIN, "", ""),
        (CHAIN, "report", "report clean fetch tick"),
        (CHAIN, "fetch", "fetch tick"),
        (CHAIN, "tick", "tick"),
        (FORK, "report", "report"),
        (FORK, "alert report", "alert report clean fetch tick"),
        (FORK, "clean", "clean fetch tick"),
        ([*FORK, ("fetch", "archive")], "alert report", "alert report clean"),
        ([("a", "c"), ("b", "c")], "c", "a b c"),
        ([("a", "c"), ("b", "c"), ("b", "d")], "c", "a c"),
        ([("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")], "d", "a b c d"),
        ([("a", "b"), ("a", "b")], "b", "a b"),
        ([("a", "b")], "x", "x"),
    ],
)
def test_a_job_waits_if_all_that_it_triggers_are_held(edges: list[tuple[str, str]], slow: str, expected: str) -> None:
    held_by = with_upstream(slow.split(), edges)

    assert held_by.keys() == set(expected.split())
    assert {held_by[job] for job in slow.split()} == set(slow.split()) == set(held_by.values())


GRAPHS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)).filter(lambda pair: pair[0] < pair[1]), max_size=15)


@given(edges=GRAPHS, slow=st.sets(st.integers(0, 7)))
@settings(deadline=None)
def test_the_jobs_that_wait_are_the_fixed_point_of_the_rule(edges: list[tuple[int, int]], slow: set[int]) -> None:
    expected = set(slow)
    for writer in range(7, -1, -1):
        readers = {reader for one, reader in edges if one == writer}
        if readers and readers <= expected:
            expected.add(writer)

    assert with_upstream(slow, edges).keys() == expected
