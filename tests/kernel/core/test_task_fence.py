"""Who may report about a task, until when, and what everybody else hears."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest
from tests.kernel.core.given import (
    CRASH,
    FATAL,
    LEASE,
    MISMATCH,
    NOW,
    OTHER_CRASH,
    OTHER_LEASE,
    RUN_ID,
    TERMINAL,
    at,
    blocked,
    cancelling,
    failed_once,
    lost,
    parked,
    queued,
    running,
    sleeping,
    succeeded,
    told,
)

from windlass.core import task as rules
from windlass.core.retry import Policy
from windlass.core.states import State, Transition
from windlass.core.task import Outcome, Task
from windlass.errors import Conflict, LeaseLost

Report = Callable[[Task, int, UUID], Transition]

REPORTS: dict[str, Report] = {
    "complete": lambda task, attempt, lease: rules.complete(task, attempt, lease, b"42", at(1)),
    "fail": lambda task, attempt, lease: rules.fail(task, attempt, lease, CRASH, at(1), 0.0),
    "fail_for_good": lambda task, attempt, lease: rules.fail(task, attempt, lease, FATAL, at(1), 0.0),
    "report_cancelled": lambda task, attempt, lease: rules.report_cancelled(task, attempt, lease, "stopped", at(1)),
    "sleep": lambda task, attempt, lease: rules.sleep(task, attempt, lease, at(60), at(1)),
    "release": lambda task, attempt, lease: rules.release(task, attempt, lease, at(1)),
    "park": lambda task, attempt, lease: rules.park(task, attempt, lease, MISMATCH, at(1)),
}
each_report = pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)


def test_a_claim_begins_a_new_attempt_with_its_own_lease() -> None:
    first = rules.claim(queued(), LEASE, "ada", at(1)).after
    second = rules.claim(rules.expire(first, at(2), 0.0).after, OTHER_LEASE, "bob", at(3)).after

    assert (first.attempt, first.lease_id, first.worker, first.started_at) == (1, LEASE, "ada", at(1))
    assert (second.attempt, second.lease_id, second.worker, second.started_at) == (2, OTHER_LEASE, "bob", at(3))


def test_a_claim_opens_the_attempt_and_uses_no_budget() -> None:
    before = failed_once()

    after = rules.claim(before, OTHER_LEASE, "bob", at(1)).after

    assert after.outcome is None
    assert (after.failures, after.losses) == (before.failures, before.losses)


@pytest.mark.parametrize(
    "task", [blocked(), running(), sleeping(), parked(), succeeded()], ids=lambda task: str(task.state)
)
def test_only_a_queued_task_can_be_claimed(task: Task) -> None:
    with pytest.raises(AssertionError):
        rules.claim(task, OTHER_LEASE, "bob", NOW)


# --------------------------------------------------------------------------------------------- the fence


@each_report
@pytest.mark.parametrize(
    ("attempt", "lease"),
    [(1, LEASE), (1, OTHER_LEASE), (2, LEASE), (3, OTHER_LEASE), (0, OTHER_LEASE)],
    ids=["older attempt", "older attempt, newer lease", "older lease", "attempt to come", "no attempt"],
)
def test_who_does_not_hold_the_current_attempt_changes_nothing(report: Report, attempt: int, lease: UUID) -> None:
    task = rules.claim(lost(), OTHER_LEASE, "bob", NOW).after

    with pytest.raises(LeaseLost) as lost_it:
        report(task, attempt, lease)

    assert lost_it.value.details == {"task_id": task.id, "attempt": attempt, "current_attempt": 2}


@each_report
@pytest.mark.parametrize("finish", [rules.complete, None], ids=["newer attempt succeeded", "newer attempt is lost"])
def test_a_superseded_attempt_is_refused_whatever_became_of_the_newer_one(report: Report, finish: object) -> None:
    task = rules.claim(lost(), OTHER_LEASE, "bob", NOW).after
    task = rules.complete(task, 2, OTHER_LEASE, b"42", NOW).after if finish else rules.expire(task, NOW, 0.0).after

    with pytest.raises(LeaseLost):
        report(task, 1, LEASE)


@each_report
@pytest.mark.parametrize("task", [queued(), blocked()], ids=["queued", "blocked"])
def test_nobody_holds_a_task_that_was_never_claimed(report: Report, task: Task) -> None:
    with pytest.raises(LeaseLost):
        report(task, 1, LEASE)


# --------------------------------------------------------------------------------------------- late replies


def test_expiry_leaves_attempt_and_lease_on_the_record() -> None:
    task = lost()

    assert (task.state, task.attempt, task.lease_id, task.outcome) == (State.QUEUED, 1, LEASE, Outcome.LOST)


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("complete", State.SUCCEEDED),
        ("fail", State.QUEUED),
        ("fail_for_good", State.FAILED),
        ("report_cancelled", State.CANCELLED),
        ("sleep", State.SLEEPING),
        ("park", State.PARKED),
    ],
)
def test_a_late_reply_is_taken_until_a_newer_attempt_begins(name: str, state: State) -> None:
    made = REPORTS[name](lost(), 1, LEASE)

    assert (made.changed, made.after.state, made.refusal) == (True, state, None)


def test_a_late_release_leaves_the_task_queued_for_its_retry() -> None:
    task = lost()

    made = REPORTS["release"](task, 1, LEASE)

    assert (made.changed, made.refusal, made.after) == (False, None, task)


def test_a_late_failure_counts_as_a_failure_beside_the_loss() -> None:
    after = REPORTS["fail"](lost(), 1, LEASE).after

    assert (after.failures, after.losses, after.outcome) == (1, 1, Outcome.FAILED)


@each_report
@pytest.mark.parametrize("ended", TERMINAL.values(), ids=TERMINAL)
def test_nothing_is_accepted_after_a_terminal_state(report: Report, ended: Callable[[], Task]) -> None:
    task = ended()
    if task.lease_id is None:
        with pytest.raises(LeaseLost):
            report(task, 1, LEASE)
        return
    made = report(task, 1, LEASE)

    assert made.after is task


def test_a_loss_that_ended_the_task_is_not_undone_by_a_late_reply() -> None:
    task = lost(Policy(max_losses=1))

    made = REPORTS["complete"](task, 1, LEASE)

    assert task.state is State.FAILED
    assert made.after is task
    assert isinstance(made.refusal, Conflict)


def test_an_attempt_that_timed_out_may_not_report_any_more() -> None:
    task = rules.elapse(running(Policy(timeout_s=10)), at(10), 0.0).after

    made = REPORTS["complete"](task, 1, LEASE)

    assert task.state is State.QUEUED
    assert made.after is task
    assert isinstance(made.refusal, Conflict)


# --------------------------------------------------------------------------------------------- repeats and conflicts


@each_report
@pytest.mark.parametrize(
    "task",
    [running(), lost(), cancelling(), told(), running(Policy(max_attempts=1))],
    ids=["running", "lost", "cancelling", "told of a cancel", "last attempt"],
)
def test_the_same_report_again_gets_the_same_answer_and_changes_nothing(report: Report, task: Task) -> None:
    first = report(task, 1, LEASE)

    again = report(first.after, 1, LEASE)

    assert (again.after, again.refusal) == (first.after, first.refusal)
    assert not again.changed
    assert not again.history
    assert not again.effects


@each_report
@pytest.mark.parametrize("other", REPORTS.values(), ids=REPORTS)
def test_a_different_report_about_an_attempt_that_has_ended_is_a_conflict(report: Report, other: Report) -> None:
    if report is other:
        return
    first = report(running(), 1, LEASE)

    second = other(first.after, 1, LEASE)

    assert second.after is first.after
    assert isinstance(second.refusal, Conflict)
    assert [(entry.what, entry.attempt, entry.worker) for entry in second.history] == [("refused", 1, "ada")]
    assert not second.effects


@pytest.mark.parametrize(
    "contradict",
    [
        lambda: rules.complete(succeeded(), 1, LEASE, b"43", at(1)),
        lambda: rules.complete(succeeded(), 1, LEASE, None, at(1)),
        lambda: rules.fail(failed_once(), 1, LEASE, OTHER_CRASH, at(1), 0.0),
        lambda: rules.park(parked(), 1, LEASE, CRASH, at(1)),
    ],
    ids=["other result", "no result", "other error", "other reason to park"],
)
def test_the_same_outcome_with_other_content_is_a_conflict(contradict: Callable[[], Transition]) -> None:
    made = contradict()

    assert not made.changed
    assert isinstance(made.refusal, Conflict)
    assert [entry.what for entry in made.history] == ["refused"]


def test_what_was_refused_is_kept_with_what_it_said() -> None:
    (entry,) = rules.fail(succeeded(), 1, LEASE, CRASH, at(1), 0.0).history

    assert (entry.at, entry.attempt, entry.worker) == (at(1), 1, "ada")
    assert entry.detail == {
        "reported": Outcome.FAILED,
        "category": "USER_CODE",
        "reason": "ValueError",
        "error": "it crashed",
        "trace": "line 1",
        "started_at": NOW,
    }


def test_the_time_and_the_jitter_of_a_repeat_do_not_make_it_different() -> None:
    again = rules.fail(failed_once(), 1, LEASE, CRASH, at(99), 0.9)

    assert (again.changed, again.refusal) == (False, None)


def test_a_sleep_that_is_over_still_answers_its_repeat() -> None:
    task = rules.wake(sleeping(until=at(5)), at(5)).after

    again = rules.sleep(task, 1, LEASE, at(5), at(6))

    assert (again.changed, again.refusal) == (False, None)


# --------------------------------------------------------------------------------------------- what a report leaves


def test_a_success_keeps_the_result_and_no_error() -> None:
    task = rules.claim(failed_once(), LEASE, "ada", at(2)).after

    after = rules.complete(task, 2, LEASE, b'"done"', at(3)).after

    assert (after.state, after.outcome, after.result, after.error) == (
        State.SUCCEEDED,
        Outcome.SUCCEEDED,
        b'"done"',
        None,
    )
    assert (after.finished_at, after.timer_at) == (at(3), None)


def test_a_failure_keeps_the_error_and_no_result() -> None:
    after = rules.fail(running(), 1, LEASE, FATAL, at(3), 0.0).after

    assert (after.error, after.result, after.finished_at, after.timer_at) == (FATAL, None, at(3), None)


@pytest.mark.parametrize(
    ("name", "what"), [("fail", "failed"), ("sleep", "slept"), ("release", "released"), ("park", "parked")]
)
def test_an_attempt_that_ends_while_the_task_lives_on_leaves_one_line_of_history(name: str, what: str) -> None:
    made = REPORTS[name](running(), 1, LEASE)

    (entry,) = made.history
    assert (entry.what, entry.task_id, entry.attempt, entry.worker, entry.at) == (
        what,
        made.after.id,
        1,
        "ada",
        at(1),
    )
    assert entry.detail is not None
    assert entry.detail["started_at"] == NOW


@pytest.mark.parametrize("name", ["complete", "fail_for_good", "report_cancelled"])
def test_the_record_itself_is_the_last_line_of_a_history(name: str) -> None:
    made = REPORTS[name](running(), 1, LEASE)

    assert made.after.terminal
    assert made.history == ()


@pytest.mark.parametrize(
    "end",
    [
        lambda task: REPORTS["complete"](task, 1, LEASE),
        lambda task: REPORTS["fail_for_good"](task, 1, LEASE),
        lambda task: REPORTS["report_cancelled"](task, 1, LEASE),
        lambda task: rules.cancel(task, "", at(1), force=True),
    ],
    ids=["complete", "fail", "report_cancelled", "forced cancel"],
)
def test_the_end_of_a_task_settles_those_that_wait_for_it(end: Callable[[Task], Transition]) -> None:
    (effect,) = end(running(run_id=RUN_ID, has_dependents=True)).effects
    (again,) = end(running(run_id=RUN_ID, has_dependents=True)).effects

    assert (effect.kind, effect.body, effect.id) == ("settle", {"run_id": str(RUN_ID)}, again.id)
    assert end(running(run_id=RUN_ID)).effects == ()


@pytest.mark.parametrize("name", ["fail", "sleep", "release", "park"])
def test_a_task_that_lives_on_settles_nothing(name: str) -> None:
    made = REPORTS[name](running(run_id=RUN_ID, has_dependents=True), 1, LEASE)

    assert made.effects == ()
