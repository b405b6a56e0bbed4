"""How many tasks of a queue may start right now."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.kernel.core.given import NOW, at

from windlass.core.queue import (
    OPEN,
    UNLIMITED,
    Admission,
    QueueConfig,
    Rate,
    Usage,
    admit,
    rate_next_at,
    rate_room,
)
from windlass.core.states import Instant

# --------------------------------------------------------------------------------------------- configuration


@pytest.mark.parametrize(
    ("config", "restricted"),
    [
        (QueueConfig(), False),
        (QueueConfig(paused=True), True),
        (QueueConfig(max_running=0), True),
        (QueueConfig(max_running=5), True),
        (QueueConfig(max_running_per_kind={"send": 0}), True),
        (QueueConfig(max_running_per_key=0), True),
        (QueueConfig(rate=Rate(1, 60)), True),
    ],
    ids=["nothing set", "paused", "no slot", "slots", "per kind", "per key", "rate"],
)
def test_a_queue_with_any_limit_needs_its_lock(config: QueueConfig, restricted: bool) -> None:
    assert config.restricted is restricted


# --------------------------------------------------------------------------------------------- admission


@pytest.mark.parametrize(
    ("config", "usage", "wanted", "expected"),
    [
        (QueueConfig(), Usage(), 50, Admission(50)),
        (QueueConfig(paused=True), Usage(), 50, Admission(0, reason="paused")),
        (QueueConfig(max_running=10), Usage(), 50, Admission(10)),
        (QueueConfig(max_running=10), Usage(7), 50, Admission(3)),
        (QueueConfig(max_running=10), Usage(7), 2, Admission(2)),
        (QueueConfig(max_running=10), Usage(10), 50, Admission(0, reason="concurrency_limit")),
        (QueueConfig(max_running=10), Usage(12), 50, Admission(0, reason="concurrency_limit")),
        (QueueConfig(max_running=0), Usage(), 50, Admission(0, reason="concurrency_limit")),
        (QueueConfig(max_running_per_kind={"send": 4}), Usage(1, {"send": 1}), 50, Admission(3)),
        (QueueConfig(max_running_per_kind={"send": 4, "fax": 2}), Usage(), 50, Admission(2)),
        (QueueConfig(max_running_per_kind={"send": 4}), Usage(4, {"send": 4}), 50, Admission(50, ("send",))),
        (QueueConfig(max_running_per_kind={"send": 4}), Usage(6, {"send": 6}), 50, Admission(50, ("send",))),
        (
            QueueConfig(max_running_per_kind={"send": 4, "fax": 2}),
            Usage(5, {"send": 4, "fax": 1}),
            50,
            Admission(1, ("send",)),
        ),
        (QueueConfig(max_running_per_key=2), Usage(), 50, Admission(50, room_per_key=2)),
        (
            QueueConfig(max_running_per_key=2),
            Usage(6, running_by_key={"a": 1, "b": 2, "c": 3}),
            50,
            Admission(50, room_per_key=2, room_by_key={"a": 1, "b": 0, "c": 0}),
        ),
        (QueueConfig(rate=Rate(5, 60)), Usage(starts=((at(-10), 2),)), 50, Admission(3)),
        (QueueConfig(rate=Rate(5, 60)), Usage(starts=((at(-10), 2),)), 1, Admission(1)),
        (
            QueueConfig(rate=Rate(5, 60)),
            Usage(starts=((at(-10), 5),)),
            50,
            Admission(0, reason="rate_limit", next_at=at(50)),
        ),
        (
            QueueConfig(max_running=9, max_running_per_kind={"fax": 4}, rate=Rate(5, 60)),
            Usage(6, {"fax": 2}, starts=((at(-10), 1),)),
            50,
            Admission(2),
        ),
    ],
    ids=[
        "no limits",
        "paused",
        "all slots free",
        "some slots free",
        "fewer wanted than free",
        "no slot free",
        "limit was lowered",
        "no slot at all",
        "room of a kind",
        "smallest room of two kinds",
        "full kind does not hold back the others",
        "kind over its limit",
        "one kind full, one with room",
        "nothing runs per key",
        "room per key",
        "room in the rate",
        "fewer wanted than the rate allows",
        "rate used up",
        "the smallest of all limits",
    ],
)
def test_what_a_claim_may_take(config: QueueConfig, usage: Usage, wanted: int, expected: Admission) -> None:
    assert admit(config, usage, wanted, NOW) == expected


def test_who_wants_nothing_gets_nothing_and_is_not_held_back() -> None:
    assert admit(QueueConfig(max_running=5), Usage(), 0, NOW) == Admission(0)
    assert admit(QueueConfig(), Usage(), 0, NOW) == Admission(0)


def test_pausing_comes_before_every_other_reason() -> None:
    config = QueueConfig(paused=True, max_running=1, rate=Rate(1, 60))

    assert admit(config, Usage(1, starts=((NOW, 1),)), 50, NOW).reason == "paused"


def test_an_open_queue_admits_everything() -> None:
    assert Admission(UNLIMITED) == OPEN


kinds = st.sampled_from(["send", "fax", "call"])
keys = st.sampled_from(["a", "b", "c"])
limits = st.integers(0, 6)
configs = st.builds(
    QueueConfig,
    paused=st.just(False),
    max_running=st.none() | limits,
    max_running_per_kind=st.dictionaries(kinds, limits),
    max_running_per_key=st.none() | limits,
    rate=st.none() | st.builds(Rate, count=st.integers(1, 6), period_s=st.sampled_from([1.0, 60.0])),
)
tasks = st.lists(st.tuples(kinds, keys), max_size=12)


def take(admission: Admission, waiting: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """What the query does with an admission: in line, no full kind, each key within its room, so many in all."""
    taken: list[tuple[str, str]] = []
    rooms: Counter[str] = Counter()
    for kind, key in waiting:
        if len(taken) == admission.total:
            break
        room = admission.room_by_key.get(key, admission.room_per_key)
        if kind not in admission.full_kinds and rooms[key] < room:
            taken.append((kind, key))
            rooms[key] += 1
    return taken


@given(configs, tasks, tasks, st.integers(0, 20), st.integers(0, 6))
def test_an_admission_never_overshoots_a_limit(
    config: QueueConfig, running: list[tuple[str, str]], waiting: list[tuple[str, str]], wanted: int, started: int
) -> None:
    by_kind, by_key = Counter(kind for kind, _ in running), Counter(key for _, key in running)
    usage = Usage(len(running), by_kind, by_key, ((at(-0.5), started),) if started else ())

    taken = take(admit(config, usage, wanted, NOW), waiting)

    now_by_kind = by_kind + Counter(kind for kind, _ in taken)
    now_by_key = by_key + Counter(key for _, key in taken)
    assert len(taken) <= wanted
    if taken and config.max_running is not None:
        assert len(running) + len(taken) <= config.max_running
    if taken and config.rate is not None:
        assert started + len(taken) <= config.rate.count
    for kind, _ in taken:
        assert now_by_kind[kind] <= config.max_running_per_kind.get(kind, UNLIMITED)
    for _, key in taken:
        assert config.max_running_per_key is None or now_by_key[key] <= config.max_running_per_key


@given(configs, tasks, st.integers(1, 20))
def test_nothing_is_held_back_without_a_reason(
    config: QueueConfig, running: list[tuple[str, str]], wanted: int
) -> None:
    usage = Usage(len(running), Counter(kind for kind, _ in running), Counter(key for _, key in running))

    admission = admit(config, usage, wanted, NOW)

    assert (admission.total == 0) is (admission.reason is not None)


# --------------------------------------------------------------------------------------------- rate


@pytest.mark.parametrize(
    ("starts", "room", "next_s"),
    [
        ((), 3, None),
        (((at(-30), 1),), 2, None),
        (((at(-30), 3),), 0, 30),
        (((at(-59), 1), (at(-30), 1), (at(0), 1)), 0, 1),
        (((at(-59), 1), (at(-30), 5)), 0, 30),
        (((at(-60), 3),), 3, None),
        (((at(-59.999999), 3),), 0, 0.000001),
        (((at(-61), 3), (at(0), 1)), 2, None),
        (((at(-59), 1), (at(-58), 1), (at(-57), 1), (at(-1), 2)), 0, 3),
    ],
    ids=[
        "nothing started",
        "one started",
        "all at once",
        "spread",
        "one batch overshot a lowered limit",
        "just left the window",
        "about to leave the window",
        "old starts do not count",
        "two must leave",
    ],
)
def test_three_starts_a_minute(starts: tuple[tuple[Instant, int], ...], room: int, next_s: float | None) -> None:
    rate = Rate(3, 60)

    assert rate_room(rate, starts, NOW) == room
    assert rate_next_at(rate, starts, NOW) == (None if next_s is None else at(next_s))


def test_without_a_rate_there_is_always_room() -> None:
    assert rate_room(None, ((NOW, 10**9),), NOW) == UNLIMITED
    assert rate_next_at(None, ((NOW, 10**9),), NOW) is None


rates = st.builds(Rate, count=st.integers(1, 8), period_s=st.sampled_from([0.5, 1.0, 7.25, 60.0]))
pauses = st.floats(0, 60).map(lambda seconds: timedelta(seconds=seconds))


@given(rates, st.lists(st.tuples(pauses, st.integers(1, 10)), max_size=30))
def test_no_window_ever_holds_more_starts_than_the_rate_when_starts_follow_the_room(
    rate: Rate, wishes: list[tuple[timedelta, int]]
) -> None:
    now = NOW
    starts: tuple[tuple[Instant, int], ...] = ()
    for pause, wanted in wishes:
        now += pause
        if count := min(wanted, rate_room(rate, starts, now)):
            starts = (*starts, (now, count))

    period = timedelta(seconds=rate.period_s)
    for end, _ in starts:
        assert sum(count for start, count in starts if end - period < start <= end) <= rate.count


@given(rates, st.lists(st.tuples(pauses, st.integers(1, 10)), min_size=1, max_size=12))
def test_the_next_start_is_the_first_moment_with_room(rate: Rate, ages: list[tuple[timedelta, int]]) -> None:
    starts = tuple(sorted((NOW - age, count) for age, count in ages))
    assume(rate_room(rate, starts, NOW) == 0)

    next_at = rate_next_at(rate, starts, NOW)

    assert next_at is not None
    assert next_at > NOW
    assert rate_room(rate, starts, next_at) > 0
    assert rate_room(rate, starts, next_at - timedelta(microseconds=1)) == 0


@given(rates, st.lists(st.tuples(pauses, st.integers(1, 10)), max_size=12))
def test_there_is_a_next_start_only_while_there_is_no_room(rate: Rate, ages: list[tuple[timedelta, int]]) -> None:
    starts = tuple(sorted((NOW - age, count) for age, count in ages))

    assert (rate_next_at(rate, starts, NOW) is None) is (rate_room(rate, starts, NOW) > 0)
