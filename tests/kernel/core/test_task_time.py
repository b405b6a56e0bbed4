"""Deadlines, timeouts, sleeping and parking: what the engine's clock does to a task."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.kernel.core.given import (
    LEASE,
    MISMATCH,
    NOW,
    TERMINAL,
    at,
    blocked,
    failed_once,
    lost,
    parked,
    queued,
    running,
    sleeping,
    told,
)

from windlass.core import task as rules
from windlass.core.failure import Category
from windlass.core.retry import Policy
from windlass.core.states import Instant, State, Verb
from windlass.core.task import Outcome, Task
from windlass.errors import InvalidState

TIMED = Policy(timeout_s=10)

# --------------------------------------------------------------------------------------------- which timer


@pytest.mark.parametrize(
    ("task", "timer_at"),
    [
        (queued(), None),
        (queued(deadline_at=at(50)), at(50)),
        (running(), None),
        (running(TIMED), at(10)),
        (running(deadline_at=at(50)), at(50)),
        (running(TIMED, deadline_at=at(50)), at(10)),
        (running(TIMED, deadline_at=at(5)), at(5)),
        (lost(TIMED), None),
        (lost(TIMED, deadline_at=at(50)), at(50)),
        (failed_once(TIMED, deadline_at=at(50)), at(50)),
        (sleeping(TIMED), None),
        (sleeping(TIMED, until=at(20)), at(20)),
        (sleeping(TIMED, until=at(20), deadline_at=at(15)), at(15)),
        (sleeping(TIMED, deadline_at=at(50)), at(50)),
        (parked(TIMED), None),
        (parked(TIMED, deadline_at=at(50)), at(50)),
        (told(Policy(cancel_grace_s=7)), at(7)),
    ],
    ids=[
        "queued",
        "queued, deadline",
        "running",
        "running, timeout",
        "running, deadline",
        "running, timeout before deadline",
        "running, deadline before timeout",
        "lost",
        "lost, deadline",
        "failed once, deadline",
        "waits for a signal",
        "sleeps",
        "sleeps past its deadline",
        "waits for a signal, deadline",
        "parked",
        "parked, deadline",
        "told of a cancel",
    ],
)
def test_the_timer_is_the_first_moment_at_which_the_engine_must_look(task: Task, timer_at: Instant | None) -> None:
    assert task.timer_at == timer_at


@pytest.mark.parametrize("ended", TERMINAL.values(), ids=TERMINAL)
def test_no_timer_outlives_the_task(ended: Callable[..., Task]) -> None:
    assert ended(TIMED, deadline_at=at(50)).timer_at is None


def test_each_attempt_has_the_whole_timeout() -> None:
    task = rules.claim(lost(TIMED), LEASE, "ada", at(100)).after

    assert task.timer_at == at(110)


@pytest.mark.parametrize("task", [queued(), running(TIMED), sleeping(until=at(20))], ids=["none", "timeout", "sleep"])
def test_nothing_happens_before_the_timer_rings(task: Task) -> None:
    assert rules.elapse(task, at(9.999999), 0.0).after is task


# --------------------------------------------------------------------------------------------- deadline


@pytest.mark.parametrize(
    "alive",
    [blocked, queued, running, lost, failed_once, sleeping, parked, told],
    ids=["blocked", "queued", "running", "lost", "waits for its retry", "sleeping", "parked", "told of a cancel"],
)
def test_a_deadline_fails_the_task_wherever_it_is(alive: Callable[..., Task]) -> None:
    task = alive(Policy(max_attempts=9), deadline_at=at(5))

    after = rules.elapse(task, at(5), 0.0).after

    assert (after.state, after.finished_at, after.timer_at) == (State.FAILED, at(5), None)
    assert after.error is not None
    assert (after.error.category, after.error.reason) == (Category.TIMEOUT, "DEADLINE_EXCEEDED")


def test_a_deadline_ends_the_attempt_that_runs() -> None:
    assert rules.elapse(running(deadline_at=at(5)), at(5), 0.0).after.outcome is Outcome.TIMED_OUT


@pytest.mark.parametrize(
    ("waiting", "outcome"),
    [(blocked, None), (queued, None), (lost, Outcome.LOST), (failed_once, Outcome.FAILED), (sleeping, Outcome.SLEPT)],
    ids=["blocked", "queued", "lost", "waits for its retry", "sleeping"],
)
def test_a_deadline_of_a_task_that_waits_leaves_the_outcome_of_its_last_attempt(
    waiting: Callable[..., Task], outcome: Outcome | None
) -> None:
    assert rules.elapse(waiting(deadline_at=at(5)), at(5), 0.0).after.outcome is outcome


# --------------------------------------------------------------------------------------------- timeout of an attempt


def test_a_timeout_counts_as_a_failure_and_is_retried() -> None:
    made = rules.elapse(running(TIMED), at(10), 0.0)

    after = made.after
    assert (made.verb, after.state, after.outcome) == (Verb.TIME_OUT, State.QUEUED, Outcome.TIMED_OUT)
    assert (after.failures, after.losses, after.available_at) == (1, 0, at(11))
    assert after.error is not None
    assert (after.error.category, after.error.reason, after.error.message) == (
        Category.TIMEOUT,
        "ATTEMPT_TIMEOUT",
        "no result within 10 s",
    )
    assert [entry.what for entry in made.history] == ["timed_out"]


def test_the_last_timeout_that_the_budget_allows_fails_the_task() -> None:
    after = rules.elapse(running(Policy(timeout_s=10, max_attempts=2), failures=1), at(10), 0.0).after

    assert (after.state, after.failures) == (State.FAILED, 2)


def test_a_timer_that_rings_late_still_times_out() -> None:
    assert rules.elapse(running(TIMED), at(10_000), 0.0).after.available_at == at(10_001)


# --------------------------------------------------------------------------------------------- sleeping


def test_a_sleep_ends_when_its_time_comes() -> None:
    task = sleeping(until=at(20))
    assert (task.state, task.outcome) == (State.SLEEPING, Outcome.SLEPT)

    made = rules.elapse(task, at(21), 0.0)

    assert (made.verb, made.after.state, made.after.available_at) == (Verb.WAKE, State.QUEUED, at(21))
    assert made.after.timer_at is None


def test_a_signal_wakes_before_the_time_comes() -> None:
    made = rules.wake(sleeping(until=at(20), deadline_at=at(50)), at(3))

    assert (made.after.state, made.after.available_at, made.after.timer_at) == (State.QUEUED, at(3), at(50))


def test_a_sleep_into_the_past_ends_with_the_next_look() -> None:
    assert rules.elapse(sleeping(until=at(-5)), NOW, 0.0).after.state is State.QUEUED


def test_the_history_of_a_sleep_says_until_when() -> None:
    (entry,) = rules.sleep(running(), 1, LEASE, at(20), NOW).history

    assert entry.detail == {"until": at(20).isoformat(), "started_at": NOW}


@pytest.mark.parametrize(
    "task", [blocked(), queued(), running(), parked(), *(end() for end in TERMINAL.values())], ids=lambda t: t.state
)
def test_only_who_sleeps_can_be_woken(task: Task) -> None:
    with pytest.raises(InvalidState):
        rules.wake(task, NOW)


# --------------------------------------------------------------------------------------------- parking


def test_a_parked_task_waits_for_a_person() -> None:
    made = rules.park(running(TIMED), 1, LEASE, MISMATCH, at(1))

    assert (made.after.state, made.after.outcome, made.after.error) == (State.PARKED, Outcome.PARKED, MISMATCH)
    assert (made.after.failures, made.after.losses, made.after.timer_at) == (0, 0, None)
    assert rules.elapse(made.after, at(1e6), 0.0).after is made.after


def test_a_resumed_task_is_in_line_again_without_its_error() -> None:
    made = rules.resume(parked(deadline_at=at(50)), at(7))

    assert (made.after.state, made.after.available_at, made.after.error) == (State.QUEUED, at(7), None)
    assert made.after.timer_at == at(50)
    assert [entry.what for entry in made.history] == ["resumed"]


@pytest.mark.parametrize(
    "task", [blocked(), queued(), running(), sleeping(), *(end() for end in TERMINAL.values())], ids=lambda t: t.state
)
def test_only_a_parked_task_can_be_resumed(task: Task) -> None:
    with pytest.raises(InvalidState):
        rules.resume(task, NOW)
