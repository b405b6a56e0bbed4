"""Cancel: who ends at once, who is told, how long the grace is, and that it beats retry."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.kernel.core.given import (
    CRASH,
    FATAL,
    LEASE,
    MISMATCH,
    NOW,
    at,
    blocked,
    cancelled,
    cancelling,
    failed,
    failed_once,
    lost,
    parked,
    queued,
    running,
    skipped,
    sleeping,
    succeeded,
    told,
)

from windlass.core import task as rules
from windlass.core.failure import Category, Failure
from windlass.core.retry import Policy
from windlass.core.states import State, Transition
from windlass.core.task import Outcome, Task
from windlass.errors import Conflict, InvalidState

# --------------------------------------------------------------------------------------------- asking


@pytest.mark.parametrize(
    "waiting",
    [blocked, queued, sleeping, parked, lost, failed_once],
    ids=["blocked", "queued", "sleeping", "parked", "lost", "waits for its retry"],
)
def test_a_task_that_waits_is_cancelled_at_once(waiting: Callable[[], Task]) -> None:
    before = waiting()

    after = rules.cancel(before, "no longer needed", at(1)).after

    assert (after.state, after.finished_at, after.timer_at) == (State.CANCELLED, at(1), None)
    assert after.error == Failure(Category.CANCELLED, "no longer needed", "CANCELLED", retryable=False)
    assert after.cancel is not None
    assert (after.cancel.requested_at, after.cancel.reason) == (at(1), "no longer needed")
    assert after.outcome is before.outcome


def test_a_running_task_is_only_asked() -> None:
    made = rules.cancel(running(), "no longer needed", at(1))

    assert (made.after.state, made.after.outcome, made.after.finished_at) == (State.RUNNING, None, None)
    assert made.after.cancel is not None
    assert (made.after.cancel.requested_at, made.after.cancel.signalled_at) == (at(1), None)
    assert [(entry.what, entry.attempt) for entry in made.history] == [("cancel_requested", 1)]


def test_asking_again_changes_nothing_and_keeps_the_first_reason() -> None:
    task = cancelling()

    again = rules.cancel(task, "another reason", at(9))

    assert again.after is task
    assert not again.history


def test_cancelling_what_is_cancelled_changes_nothing() -> None:
    task = cancelled()

    assert rules.cancel(task, "again", at(9)).after is task
    assert rules.cancel(task, "again", at(9), force=True).after is task


@pytest.mark.parametrize("force", [False, True], ids=["gently", "by force"])
@pytest.mark.parametrize("ended", [succeeded, failed, skipped])
def test_what_has_ended_otherwise_cannot_be_cancelled(ended: Callable[[], Task], force: bool) -> None:
    with pytest.raises(InvalidState):
        rules.cancel(ended(), "too late", at(9), force=force)


@pytest.mark.parametrize("task", [running(), cancelling(), told()], ids=["running", "asked", "told"])
def test_a_forced_cancel_skips_the_grace(task: Task) -> None:
    after = rules.cancel(task, "now", at(1), force=True).after

    assert (after.state, after.finished_at, after.outcome) == (State.CANCELLED, at(1), Outcome.CANCELLED)
    assert after.error is not None
    assert after.error.message == "now"


def test_a_forced_cancel_remembers_when_it_was_first_asked_for() -> None:
    after = rules.cancel(cancelling(), "now", at(9), force=True).after

    assert after.cancel is not None
    assert (after.cancel.requested_at, after.cancel.reason) == (NOW, "no longer needed")


def test_the_worker_of_a_forced_cancel_cannot_complete_any_more() -> None:
    task = rules.cancel(running(), "now", at(1), force=True).after

    made = rules.complete(task, 1, LEASE, b"1", at(2))

    assert made.after is task
    assert isinstance(made.refusal, Conflict)


@pytest.mark.parametrize("message", ["", "I stopped"])
def test_the_holders_report_that_it_stopped_is_acknowledged_when_the_task_is_cancelled_already(message: str) -> None:
    task = rules.cancel(running(), "now", at(1), force=True).after

    made = rules.report_cancelled(task, 1, LEASE, message, at(2))

    assert (made.changed, made.refusal, made.history) == (False, None, ())


def test_a_cancel_without_a_reason_still_has_a_message() -> None:
    after = rules.cancel(queued(), "", at(1)).after

    assert after.error is not None
    assert after.error.message == "cancelled"


# --------------------------------------------------------------------------------------------- the grace


def test_the_grace_begins_when_the_worker_hears_of_the_cancel() -> None:
    task = cancelling(Policy(cancel_grace_s=20))
    assert task.timer_at is None

    made = rules.signal_cancel(task, at(100))

    assert made.after.timer_at == at(120)
    assert made.after.cancel is not None
    assert made.after.cancel.signalled_at == at(100)
    assert [entry.what for entry in made.history] == ["cancel_signalled"]


def test_telling_the_worker_again_does_not_prolong_the_grace() -> None:
    task = told()

    assert rules.signal_cancel(task, at(10)).after is task


@pytest.mark.parametrize("task", [running(), queued(), cancelled(), sleeping()], ids=lambda task: str(task.state))
def test_there_is_nobody_to_tell_without_a_cancel_of_a_running_task(task: Task) -> None:
    assert rules.signal_cancel(task, at(1)).after is task


def test_the_timer_of_a_cancel_does_not_hide_an_earlier_timeout_or_deadline() -> None:
    assert told(Policy(timeout_s=10)).timer_at == at(10)
    assert told(deadline_at=at(15)).timer_at == at(15)
    assert told(Policy(timeout_s=90), deadline_at=at(80)).timer_at == at(30)


def test_still_running_when_the_grace_is_over_fails_with_cancel_timeout() -> None:
    task = told(Policy(cancel_grace_s=30))

    assert rules.elapse(task, at(29.999), 0.0).after is task
    after = rules.elapse(task, at(30), 0.0).after

    assert (after.state, after.outcome, after.finished_at) == (State.FAILED, Outcome.TIMED_OUT, at(30))
    assert after.error is not None
    assert (after.error.category, after.error.reason) == (Category.CANCELLED, "CANCEL_TIMEOUT")


def test_no_grace_at_all_ends_with_the_first_look_at_the_timer() -> None:
    assert rules.elapse(told(Policy(cancel_grace_s=0)), NOW, 0.0).after.state is State.FAILED


def test_a_success_within_the_grace_is_accepted() -> None:
    after = rules.complete(told(), 1, LEASE, b"1", at(29)).after

    assert (after.state, after.result) == (State.SUCCEEDED, b"1")


# --------------------------------------------------------------------------------------------- beats retry

INSTEAD_OF_ANOTHER_TRY: dict[str, Callable[[Task], Transition]] = {
    "a retryable failure": lambda task: rules.fail(task, 1, LEASE, CRASH, at(1), 0.0),
    "a lost lease": lambda task: rules.expire(task, at(1), 0.0),
    "a timeout": lambda task: rules.elapse(task, at(10), 0.0),
    "a release": lambda task: rules.release(task, 1, LEASE, at(1)),
    "a sleep": lambda task: rules.sleep(task, 1, LEASE, at(60), at(1)),
    "a park": lambda task: rules.park(task, 1, LEASE, MISMATCH, at(1)),
    "a report that it stopped": lambda task: rules.report_cancelled(task, 1, LEASE, "stopped", at(1)),
}


@pytest.mark.parametrize("happen", INSTEAD_OF_ANOTHER_TRY.values(), ids=INSTEAD_OF_ANOTHER_TRY)
@pytest.mark.parametrize("asked", [cancelling, told])
def test_after_a_cancel_the_task_is_cancelled_instead_of_going_on(
    asked: Callable[[Policy], Task], happen: Callable[[Task], Transition]
) -> None:
    made = happen(asked(Policy(timeout_s=10)))

    assert (made.after.state, made.after.timer_at, made.refusal) == (State.CANCELLED, None, None)
    assert made.after.finished_at is not None
    assert made.after.outcome is not None


def test_a_failure_for_good_stays_a_failure_after_a_cancel() -> None:
    after = rules.fail(told(), 1, LEASE, FATAL, at(1), 0.0).after

    assert (after.state, after.error) == (State.FAILED, FATAL)


def test_a_retryable_failure_after_a_cancel_keeps_what_went_wrong() -> None:
    assert rules.fail(told(), 1, LEASE, CRASH, at(1), 0.0).after.error == CRASH


def test_a_worker_that_stops_unasked_ends_the_task_without_a_retry() -> None:
    after = rules.report_cancelled(running(), 1, LEASE, "I was stopped", at(1)).after

    assert (after.state, after.outcome, after.failures) == (State.CANCELLED, Outcome.CANCELLED, 0)
    assert after.error == Failure(Category.CANCELLED, "I was stopped", "CANCELLED", retryable=False)


def test_a_worker_that_stops_without_a_word_leaves_the_reason_of_the_cancel() -> None:
    after = rules.report_cancelled(told(), 1, LEASE, "", at(1)).after

    assert after.error is not None
    assert after.error.message == "no longer needed"


def test_a_cancel_that_nobody_heard_ends_as_cancelled_with_the_lease() -> None:
    after = rules.expire(cancelling(), at(60), 0.0).after

    assert (after.state, after.outcome, after.losses) == (State.CANCELLED, Outcome.LOST, 1)
    assert after.error is not None
    assert after.error.message == "no longer needed"
