"""What the end of one task means for those that wait for it."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernel.core.given import (
    NOW,
    RUN_ID,
    TASK_ID,
    TERMINAL,
    at,
    blocked,
    parked,
    queued,
    running,
    sleeping,
)

from windlass.core.failure import Category
from windlass.core.run import Edge, settle
from windlass.core.states import TERMINAL as TERMINAL_STATES
from windlass.core.states import State, Verb
from windlass.core.task import Task

OK, FAILED, CANCELLED, SKIPPED = State.SUCCEEDED, State.FAILED, State.CANCELLED, State.SKIPPED


def edges(*states: State, any_outcome: bool = False) -> list[Edge]:
    return [Edge(TASK_ID, UUID(int=100 + n), state, any_outcome) for n, state in enumerate(states)]


@pytest.mark.parametrize(
    ("ended", "still_open", "state"),
    [
        ([], 0, State.QUEUED),
        ([], 2, State.BLOCKED),
        ([OK], 0, State.QUEUED),
        ([OK], 1, State.BLOCKED),
        ([OK, OK], 0, State.QUEUED),
        ([FAILED], 0, SKIPPED),
        ([FAILED], 9, SKIPPED),
        ([SKIPPED], 0, SKIPPED),
        ([CANCELLED], 0, CANCELLED),
        ([CANCELLED], 9, CANCELLED),
        ([OK, FAILED], 0, SKIPPED),
        ([FAILED, CANCELLED], 0, SKIPPED),
        ([CANCELLED, FAILED], 0, CANCELLED),
    ],
)
def test_a_task_that_needs_success_goes_on_waits_or_gives_up(ended: list[State], still_open: int, state: State) -> None:
    assert settle(blocked(), edges(*ended), still_open, NOW).after.state is state


@pytest.mark.parametrize("outcome", sorted(TERMINAL_STATES))
@pytest.mark.parametrize(("still_open", "state"), [(0, State.QUEUED), (1, State.BLOCKED)])
def test_a_task_that_needs_only_the_end_waits_for_all_of_them_however_they_end(
    outcome: State, still_open: int, state: State
) -> None:
    assert settle(blocked(), edges(OK, outcome, any_outcome=True), still_open, NOW).after.state is state


def test_an_edge_that_needs_success_decides_beside_one_that_does_not() -> None:
    mixed = [*edges(FAILED, any_outcome=True), *edges(CANCELLED)]

    assert settle(blocked(), mixed, 0, NOW).after.state is CANCELLED


@pytest.mark.parametrize("size", [0, 1, 10_000])
def test_a_fan_in_is_exact(size: int) -> None:
    done = edges(*[OK] * size)

    assert settle(blocked(), done, 0, NOW).verb is Verb.UNBLOCK
    if size:
        assert not settle(blocked(), done[1:], 1, NOW).changed


@pytest.mark.parametrize(("available_s", "due_s"), [(-60, 0), (60, 60)])
def test_an_unblocked_task_still_keeps_its_delay(available_s: float, due_s: float) -> None:
    task = blocked(available_at=at(available_s), deadline_at=at(99))

    after = settle(task, edges(OK), 0, NOW).after

    assert (after.available_at, after.timer_at) == (at(due_s), at(99))


@pytest.mark.parametrize(
    "elsewhere",
    [queued, running, sleeping, parked, *TERMINAL.values()],
    ids=["queued", "running", "sleeping", "parked", *TERMINAL],
)
@pytest.mark.parametrize("outcome", sorted(TERMINAL_STATES))
def test_a_task_that_does_not_wait_any_more_is_left_alone(elsewhere: Callable[[], Task], outcome: State) -> None:
    task = elsewhere()

    made = settle(task, edges(outcome), 0, NOW)

    assert made.after is task
    assert not made.history
    assert not made.effects


@pytest.mark.parametrize(
    ("outcome", "verb", "reason", "message"),
    [
        (FAILED, Verb.SKIP, "UPSTREAM_NOT_SUCCEEDED", "failed"),
        (SKIPPED, Verb.SKIP, "UPSTREAM_NOT_SUCCEEDED", "was skipped"),
        (CANCELLED, Verb.CANCEL, "UPSTREAM_CANCELLED", "was cancelled"),
    ],
)
def test_who_gives_up_says_because_of_whom(outcome: State, verb: Verb, reason: str, message: str) -> None:
    made = settle(blocked(), edges(outcome), 3, at(4))

    error = made.after.error
    assert error is not None
    assert (made.verb, error.category, error.reason, error.may_retry) == (verb, Category.CANCELLED, reason, False)
    assert error.message == f"task {UUID(int=100)}, which this one waits for, {message}"
    assert (made.after.finished_at, made.after.timer_at, made.after.attempt, made.after.outcome) == (
        at(4),
        None,
        0,
        None,
    )


@pytest.mark.parametrize("outcome", [FAILED, CANCELLED, SKIPPED])
def test_giving_up_settles_the_next_ones_in_turn(outcome: State) -> None:
    (effect,) = settle(blocked(has_dependents=True), edges(outcome), 0, NOW).effects

    assert (effect.kind, effect.task_id, effect.body) == ("settle", TASK_ID, {"run_id": str(RUN_ID)})
    assert settle(blocked(), edges(outcome), 0, NOW).effects == ()


def test_being_unblocked_settles_nothing() -> None:
    assert settle(blocked(has_dependents=True), edges(OK), 0, NOW).effects == ()


@given(st.lists(st.sampled_from([OK, FAILED, CANCELLED, SKIPPED]), max_size=8), st.data())
def test_in_whatever_order_upstream_tasks_end_the_task_moves_once(states: list[State], data: st.DataObject) -> None:
    """Settled after each end with all that has ended so far, as two engines would, in any batches."""
    every = data.draw(st.permutations(edges(*states)))
    task, moves = blocked(), []
    for done in range(len(every) + 1):
        made = settle(task, every[:done], len(every) - done, NOW)
        moves += [made.verb] * made.changed
        task = made.after

    broken = [edge.upstream_state for edge in every if edge.upstream_state is not OK]
    assert len(moves) == 1
    assert task.state is (State.QUEUED if not broken else CANCELLED if broken[0] is CANCELLED else SKIPPED)
