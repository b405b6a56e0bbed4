"""In which order the lanes of a queue are served, and how many tasks each gives to a batch."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.core.fairness import FIRST_LANE, Lane, LanePick, fitting, share
from windlass.core.queue import OPEN, Admission
from windlass.core.submission import PRIORITY_MAX, PRIORITY_MIN

keys = st.sampled_from(["", "a", "b", "c", "d", "e", "f", "g"])
lanes = st.lists(st.builds(Lane, priority=st.integers(-2, 2), key=keys), unique=True, max_size=12)
limits = st.integers(1, 30)
admissions = st.builds(
    Admission, total=limits, room_per_key=st.integers(0, 30), room_by_key=st.dictionaries(keys, st.integers(0, 5))
)


def of_keys(*names: str, priority: int = 0) -> list[Lane]:
    return [Lane(priority, name) for name in names]


def claimed(picks: list[LanePick], wanted: int) -> Counter[tuple[int, str]]:
    """What the query makes of the picks when every lane has more than enough: lane by lane, `wanted` in all."""
    taken: Counter[tuple[int, str]] = Counter()
    for pick in picks:
        taken[pick.priority, pick.key] += min(pick.take, wanted - taken.total())
    return taken


@pytest.mark.parametrize(
    ("last_key", "order"),
    [("", "abc"), ("a", "bca"), ("b", "cab"), ("c", "abc"), ("bb", "cab"), ("z", "abc")],
)
def test_the_walk_begins_behind_the_key_that_was_served_last(last_key: str, order: str) -> None:
    picks = share(of_keys("c", "a", "b"), 3, OPEN, last_key)

    assert "".join(pick.key for pick in picks) == order


def test_priorities_are_served_in_order_whoever_was_last() -> None:
    picks = share([Lane(5, "a"), Lane(-5, "z"), Lane(0, "m")], 3, OPEN, "b")

    assert [(pick.priority, pick.key) for pick in picks] == [(-5, "z"), (0, "m"), (5, "a")]


@pytest.mark.parametrize(
    ("count", "wanted", "shares"),
    [(1, 10, [10]), (2, 10, [5, 5]), (3, 10, [4, 3, 3]), (3, 4, [2, 1, 1]), (3, 2, [1, 1, 0]), (4, 1, [1, 0, 0, 0])],
)
def test_backlogged_keys_get_equal_shares_of_one_batch(count: int, wanted: int, shares: list[int]) -> None:
    names = "abcdef"[:count]

    taken = claimed(share(of_keys(*names), wanted, OPEN, ""), wanted)

    assert [taken[0, name] for name in names] == shares


def test_every_lane_is_asked_since_those_ahead_may_hold_nothing_that_is_due() -> None:
    assert [pick.take for pick in share(of_keys("a", "b", "c"), 1, OPEN, "")] == [1, 1, 1]


def test_a_key_without_room_is_left_out_and_the_others_share() -> None:
    admission = Admission(10, room_per_key=8, room_by_key={"a": 0, "b": 2})

    picks = share(of_keys("a", "b", "c"), 10, admission, "")

    assert [(pick.key, pick.take) for pick in picks] == [("b", 2), ("c", 5)]


def test_tasks_without_a_key_share_a_lane_but_not_a_limit() -> None:
    admission = Admission(10, room_per_key=1, room_by_key={"": 0})

    assert [(pick.key, pick.take) for pick in share(of_keys("", "a"), 10, admission, "z")] == [("", 5), ("a", 1)]


def test_no_lanes_give_nothing() -> None:
    assert share([], 10, OPEN, "") == []


def test_the_first_lane_lies_before_every_lane_there_can_be() -> None:
    assert Lane(PRIORITY_MIN, "") > FIRST_LANE
    assert Lane(PRIORITY_MAX, "a") > FIRST_LANE


@given(lanes, limits, admissions, keys)
def test_every_lane_with_room_is_asked_once_and_never_for_more_than_its_room(
    of_queue: list[Lane], wanted: int, admission: Admission, last_key: str
) -> None:
    picks = share(of_queue, wanted, admission, last_key)

    rooms = {
        lane: admission.total if lane.key == "" else admission.room_by_key.get(lane.key, admission.room_per_key)
        for lane in of_queue
    }
    assert sorted(Lane(pick.priority, pick.key) for pick in picks) == sorted(lane for lane in rooms if rooms[lane] > 0)
    for pick in picks:
        assert 1 <= pick.take <= min(wanted, rooms[Lane(pick.priority, pick.key)])
    assert [pick.priority for pick in picks] == sorted(pick.priority for pick in picks)


@given(st.integers(1, 8), limits, keys)
def test_no_backlogged_key_gets_two_more_than_another(count: int, wanted: int, last_key: str) -> None:
    names = "abcdefgh"[:count]

    taken = claimed(share(of_keys(*names), wanted, OPEN, last_key), wanted)

    shares = [taken[0, name] for name in names]
    assert sum(shares) == wanted
    assert max(shares) - min(shares) <= 1


def found(picks: list[LanePick], waiting: Counter[Lane], wanted: int) -> list[Lane]:
    """What the query finds where so many tasks wait in each lane."""
    lanes = [Lane(pick.priority, pick.key) for pick in picks]
    return [
        lane for pick, lane in zip(picks, lanes, strict=True) for _ in range(min(pick.take, waiting[lane]))
    ][:wanted]  # fmt: skip


@pytest.mark.parametrize(
    ("waiting", "wanted", "kept"),
    [
        pytest.param({Lane(0, "a"): 9, Lane(0, "b"): 1, Lane(1, "c"): 9}, 8, [(0, "a")] * 4 + [(0, "b")], id="backlog"),
        pytest.param({Lane(0, "a"): 1, Lane(0, "b"): 1, Lane(1, "c"): 9}, 6, [(0, "a"), (0, "b"), *[(1, "c")] * 4],
                     id="no backlog"),
        pytest.param({Lane(0, "a"): 9}, 4, [(0, "a")] * 4, id="one lane"),
        pytest.param({}, 4, [], id="nothing"),
    ],
)  # fmt: skip
def test_no_lower_priority_is_claimed_while_a_higher_one_may_have_more(
    waiting: dict[Lane, int], wanted: int, kept: list[tuple[int, str]]
) -> None:
    picks = share(list(waiting), wanted, OPEN, "")
    lanes = found(picks, Counter(waiting), wanted)

    assert [(lanes[i].priority, lanes[i].key) for i in fitting(lanes, picks, OPEN)] == kept


@given(lanes, limits, admissions, keys, st.lists(st.integers(0, 9), min_size=12, max_size=12))
def test_whatever_waits_no_key_gets_more_than_its_room(
    of_queue: list[Lane], wanted: int, admission: Admission, last_key: str, counts: list[int]
) -> None:
    waiting = Counter(dict(zip(of_queue, counts, strict=False)))
    picks = share(of_queue, wanted, admission, last_key)
    lanes = found(picks, waiting, wanted)
    kept = [lanes[i] for i in fitting(lanes, picks, admission)]

    for key, count in Counter(lane.key for lane in kept if lane.key).items():
        assert count <= admission.room_by_key.get(key, admission.room_per_key)
    assert bool(kept) == bool(lanes), "what could be claimed is not all left"
