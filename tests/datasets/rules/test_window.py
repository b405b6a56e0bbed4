"""Windows of a consumer, one by one and through any sequence of events, failures and retries."""

from __future__ import annotations

from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.datasets.rules.window import CursorTask, Window, blocker, owed, raised, reached, wakes, widen, window

INPUT, OTHER = UUID(int=100), UUID(int=101)


@pytest.mark.parametrize(
    ("stored", "cursor", "expected"),
    [
        (None, 5, Window(None, 5)),
        (None, -5, Window(None, -5)),
        (3, 5, Window(3, 5)),
        (5, 5, None),
        (7, 5, None),
        (0, 0, None),
    ],
)
def test_a_window_reaches_from_the_stored_cursor_to_that_of_the_task(
    stored: int | None, cursor: int, expected: Window | None
) -> None:
    assert window(stored, cursor) == expected


@pytest.mark.parametrize(("cursor", "high_water", "to"), [(5, None, 5), (5, 9, 9), (5, 4, 5), (5, 5, 5)])
def test_a_window_that_coalesces_ends_at_the_high_water_and_is_fixed_once_for_an_attempt(
    cursor: int, high_water: int | None, to: int
) -> None:
    version, other = str(INPUT), str(OTHER)
    inputs = [{"mode": "cursor", "dataset_version": version, "cursor_to": cursor},
              {"mode": "snapshot", "dataset_version": other}]  # fmt: skip
    fields = {"window": {"dataset_version": version, "cursor": cursor, "coalesce": True}, "inputs": inputs}

    assert widen(fields, "a/1", high_water)
    assert not widen(fields, "a/1", 1000), "a repeated claim of the same attempt"

    assert fields["window"]["cursor"] == inputs[0]["cursor_to"] == to  # type: ignore[call-overload]
    assert "cursor_to" not in inputs[1]
    assert widen(fields, "a/2", 1000)
    assert inputs[0]["cursor_to"] == 1000


@pytest.mark.parametrize(("stored", "to", "expected"), [(None, 5, 5), (3, 5, 5), (9, 5, 9)])
def test_a_completion_never_moves_the_cursor_back(stored: int | None, to: int, expected: int) -> None:
    assert reached(stored, Window(stored, to)) == expected


@pytest.mark.parametrize(
    ("high_water", "cursor", "woken", "after"),
    [(None, 5, True, 5), (5, 6, True, 6), (5, 5, True, 5), (5, 4, False, 5), (0, -1, False, 0)],
)
def test_an_event_below_the_high_water_wakes_nobody(
    high_water: int | None, cursor: int, woken: bool, after: int
) -> None:
    assert wakes(high_water, cursor) is woken
    assert raised(high_water, cursor) == after


@pytest.mark.parametrize(
    ("stored", "high_water", "expected"), [(None, None, None), (None, 0, 0), (3, None, None), (3, 5, 5), (5, 5, None)]
)
def test_what_is_owed_reaches_to_the_high_water(
    stored: int | None, high_water: int | None, expected: int | None
) -> None:
    assert owed(stored, high_water) == expected


def task(number: int, cursor: int, running: bool = False, dataset_version: UUID = INPUT) -> CursorTask:
    return CursorTask(UUID(int=number), dataset_version, cursor, running)


@pytest.mark.parametrize(
    ("others", "by"),
    [
        ([], None),
        ([task(2, 20)], None),
        ([task(2, 5)], 2),
        ([task(2, 5), task(3, 4)], 3),
        ([task(2, 10)], None),  # the same cursor: the smaller id
        ([task(0, 10)], 0),
        ([task(2, 20, running=True)], 2),
        ([task(2, 4), task(3, 20, running=True)], 3),
        ([task(2, 5, dataset_version=OTHER)], None),
        ([task(2, 5, running=True, dataset_version=OTHER)], 2),
        ([task(1, 10)], None),  # itself
    ],
)
def test_the_smallest_cursor_goes_first_and_one_runs_at_a_time(others: list[CursorTask], by: int | None) -> None:
    found = blocker(task(1, 10), others)

    assert (None if found is None else found.task_id.int) == by


def test_of_all_that_wait_exactly_one_of_each_input_may_begin() -> None:
    waiting = [task(number, cursor) for number, cursor in enumerate([5, 3, 3, 9])]

    assert [each.task_id.int for each in waiting if blocker(each, waiting) is None] == [1]


class Consumer:
    """A consumer, its tasks, and what of the input its accepted completions have read."""

    def __init__(self, coalesce: bool) -> None:
        self.coalesce = coalesce
        self.stored: int | None = None
        self.high_water: int | None = None
        self.tasks: dict[int, CursorTask] = {}  # by cursor, as the dedupe key makes them
        self.ended: dict[int, CursorTask] = {}
        self.open: dict[UUID, Window] = {}
        self.read: list[Window] = []

    def event(self, cursor: int) -> None:
        if wakes(self.high_water, cursor) and cursor not in {**self.tasks, **self.ended}:
            self.tasks[cursor] = task(len(self.tasks) + len(self.ended), cursor)
        self.high_water = raised(self.high_water, cursor)

    def begin(self, pick: int) -> None:
        """Any task is tried; the rule says which may begin."""
        ready = [
            each for each in self.tasks.values() if blocker(each, self.tasks.values()) is None and not each.running
        ]
        if not ready:
            return
        chosen = ready[pick % len(ready)]
        found = window(self.stored, raised(self.high_water, chosen.cursor) if self.coalesce else chosen.cursor)
        if found is None:
            self.ended[chosen.cursor] = self.tasks.pop(chosen.cursor)
            return
        self.tasks[chosen.cursor] = task(chosen.task_id.int, chosen.cursor, running=True)
        self.open[chosen.task_id] = found

    def finish(self, outcome: str) -> None:
        running = [each for each in self.tasks.values() if each.running]
        if not running:
            return
        (current,) = running
        found = self.open.pop(current.task_id)
        if outcome == "retry":  # of a failure, a timeout or a lost worker: the next attempt gets a window of its own
            self.tasks[current.cursor] = task(current.task_id.int, current.cursor)
            return
        self.ended[current.cursor] = self.tasks.pop(current.cursor)
        if outcome == "complete":
            self.stored = reached(self.stored, found)
            self.read.append(found)

    def retry_by_hand(self, pick: int) -> None:
        if self.ended:
            cursor = sorted(self.ended)[pick % len(self.ended)]
            again = self.ended.pop(cursor)
            self.tasks[cursor] = task(again.task_id.int, cursor)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("event"), st.integers(0, 30)),
        st.tuples(st.just("begin"), st.integers(0, 5)),
        st.tuples(st.just("finish"), st.sampled_from(["complete", "retry", "fail"])),
        st.tuples(st.just("retry_by_hand"), st.integers(0, 5)),
    ),
    max_size=60,
)


@given(steps=STEPS, coalesce=st.booleans())
@settings(deadline=None, max_examples=400)
def test_windows_are_disjoint_and_gapless_and_in_the_end_all_is_read(
    steps: list[tuple[str, object]], coalesce: bool
) -> None:
    consumer = Consumer(coalesce)
    for verb, argument in steps:
        getattr(consumer, verb)(argument)
        assert len(consumer.open) <= 1

    if (cursor := owed(consumer.stored, consumer.high_water)) is not None:  # what is owed gets a task again
        consumer.ended.pop(cursor, None)
        consumer.tasks.setdefault(cursor, task(1000, cursor))
    while consumer.tasks:
        consumer.begin(0)
        consumer.finish("complete")

    assert all(one.to == other.after for one, other in pairwise(consumer.read))
    assert all(each.after is None or each.after < each.to for each in consumer.read)
    assert [each.after for each in consumer.read[:1]] == [None] * bool(consumer.read)
    assert consumer.stored == consumer.high_water
