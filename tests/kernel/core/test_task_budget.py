"""The three counters, what each of them ends, and when the next try comes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

import pytest
from tests.kernel.core.given import CRASH, LEASE, NOW, at, failed_once, lost, queued, running, sleeping

from windlass.core import task as rules
from windlass.core.failure import Category, Failure
from windlass.core.retry import Policy
from windlass.core.states import State, Transition, Verb
from windlass.core.task import Outcome, Task


def fail(task: Task, failure: Failure, jitter: float = 0.0) -> Task:
    return rules.fail(task, task.attempt, LEASE, failure, NOW, jitter).after


def claim(task: Task) -> Task:
    return rules.claim(task, LEASE, "ada", NOW).after


# --------------------------------------------------------------------------------------------- by category


@pytest.mark.parametrize(
    ("category", "retryable", "state"),
    [
        (Category.USER_CODE, None, State.QUEUED),
        (Category.INFRASTRUCTURE, None, State.QUEUED),
        (Category.TIMEOUT, None, State.QUEUED),
        (Category.DATA_QUALITY, None, State.FAILED),
        (Category.CONFIGURATION, None, State.FAILED),
        (Category.CANCELLED, None, State.CANCELLED),
        (Category.USER_CODE, False, State.FAILED),
        (Category.INFRASTRUCTURE, False, State.FAILED),
        (Category.TIMEOUT, False, State.FAILED),
        (Category.DATA_QUALITY, True, State.QUEUED),
        (Category.CONFIGURATION, True, State.QUEUED),
        (Category.CANCELLED, True, State.CANCELLED),
    ],
)
def test_category_and_an_explicit_retryable_decide_what_follows_a_failure(
    category: Category, retryable: bool | None, state: State
) -> None:
    assert fail(running(), Failure(category, "no", retryable=retryable)).state is state


def test_a_retry_waits_for_its_delay_and_keeps_the_error_in_sight() -> None:
    made = rules.fail(running(Policy(retry_delay_s=8)), 1, LEASE, CRASH, NOW, 0.5)

    assert made.verb is Verb.RETRY
    assert made.after.available_at == at(8 * 1.1)
    assert made.after.error == CRASH
    assert made.history[0].detail is not None
    assert made.history[0].detail["retry_at"] == at(8 * 1.1)


@pytest.mark.parametrize(("failures", "delay_s"), [(0, 1), (1, 2), (2, 4), (3, 5)])
def test_each_failure_lengthens_the_wait_up_to_the_longest(failures: int, delay_s: float) -> None:
    policy = Policy(max_attempts=9, retry_delay_s=1, retry_factor=2, retry_delay_max_s=5)

    assert fail(running(policy, failures=failures), CRASH).available_at == at(delay_s)


@pytest.mark.parametrize(("jitter", "delay_s"), [(0.0, 60), (0.5, 66)])
def test_a_worker_may_name_the_delay_itself(jitter: float, delay_s: float) -> None:
    asked = Failure(Category.INFRASTRUCTURE, "busy", retry_after_s=60)

    assert fail(running(), asked, jitter).available_at == at(delay_s)


def test_naming_a_delay_does_not_make_a_failure_worth_another_try() -> None:
    assert fail(running(), Failure(Category.DATA_QUALITY, "bad row", retry_after_s=60)).state is State.FAILED


# --------------------------------------------------------------------------------------------- three counters


def test_attempt_counts_claims_failures_count_failures_and_losses_count_losses() -> None:
    task = claim(failed_once())
    assert (task.attempt, task.failures, task.losses) == (2, 1, 0)

    task = claim(rules.expire(task, NOW, 0.0).after)
    assert (task.attempt, task.failures, task.losses) == (3, 1, 1)

    task = claim(rules.wake(rules.sleep(task, 3, LEASE, None, NOW).after, NOW).after)
    assert (task.attempt, task.failures, task.losses) == (4, 1, 1)

    task = claim(rules.release(task, 4, LEASE, NOW).after)
    assert (task.attempt, task.failures, task.losses) == (5, 1, 1)

    task = rules.complete(task, 5, LEASE, None, NOW).after
    assert (task.attempt, task.failures, task.losses) == (5, 1, 1)


@pytest.mark.parametrize("budget", [1, 2, 5])
def test_the_failure_that_reaches_max_attempts_ends_the_task(budget: int) -> None:
    task, states = queued(Policy(max_attempts=budget)), []

    while not task.terminal:
        task = fail(claim(task), CRASH)
        states.append(task.state)

    assert states == [State.QUEUED] * (budget - 1) + [State.FAILED]
    assert (task.failures, task.losses, task.error) == (budget, 0, CRASH)


@pytest.mark.parametrize(("budget", "losses"), [(0, 1), (1, 1), (2, 2), (3, 3)])
def test_the_loss_that_reaches_max_losses_ends_the_task_as_a_poison_pill(budget: int, losses: int) -> None:
    task, states = queued(Policy(max_losses=budget)), []

    while not task.terminal:
        task = rules.expire(claim(task), NOW, 0.0).after
        states.append(task.state)

    assert states == [State.QUEUED] * (losses - 1) + [State.FAILED]
    assert (task.failures, task.losses, task.outcome) == (0, losses, Outcome.LOST)
    assert task.error is not None
    assert (task.error.category, task.error.reason) == (Category.INFRASTRUCTURE, "LEASE_EXPIRED")


def test_losses_do_not_use_up_the_attempts() -> None:
    task = claim(lost(Policy(max_attempts=2, max_losses=9), losses=7))

    assert fail(task, CRASH).state is State.QUEUED


def test_failures_do_not_use_up_the_losses() -> None:
    task = running(Policy(max_attempts=9, max_losses=2), failures=7)

    assert rules.expire(task, NOW, 0.0).after.state is State.QUEUED


def test_a_thousand_sleeps_use_no_budget() -> None:
    task = queued(Policy(max_attempts=1, max_losses=1))

    for _ in range(1000):
        task = claim(task)
        task = rules.wake(rules.sleep(task, task.attempt, LEASE, None, NOW).after, NOW).after

    assert (task.attempt, task.failures, task.losses) == (1000, 0, 0)
    assert rules.complete(claim(task), 1001, LEASE, None, NOW).after.state is State.SUCCEEDED


@pytest.mark.parametrize("losses", [0, 1, 2])
def test_a_lost_attempt_is_retried_after_the_delay_of_its_losses(losses: int) -> None:
    policy = Policy(max_losses=9, retry_delay_s=1, retry_factor=3)

    made = rules.expire(running(policy, losses=losses, failures=4), at(100), 0.0)

    assert made.after.available_at == at(100 + 3**losses)


def test_a_loss_says_who_was_lost_and_when_the_retry_comes() -> None:
    made = rules.expire(running(), at(40), 0.0, reason="HEARTBEAT_TIMEOUT")

    (entry,) = made.history
    assert (entry.what, entry.attempt, entry.worker) == ("lost", 1, "ada")
    assert entry.detail is not None
    assert (entry.detail["reason"], entry.detail["retry_at"]) == ("HEARTBEAT_TIMEOUT", at(41))


def test_only_a_running_task_can_lose_its_lease() -> None:
    with pytest.raises(AssertionError):
        rules.expire(sleeping(), NOW, 0.0)


# --------------------------------------------------------------------------------------------- release


def test_a_released_task_is_available_at_once_and_has_used_nothing() -> None:
    made = rules.release(running(Policy(max_attempts=1, max_losses=0)), 1, LEASE, at(7))

    after = made.after
    assert (after.state, after.available_at, after.outcome) == (State.QUEUED, at(7), Outcome.RELEASED)
    assert (after.attempt, after.failures, after.losses) == (1, 0, 0)


def test_a_release_keeps_the_error_of_the_try_before() -> None:
    task = claim(failed_once())

    assert rules.release(task, 2, LEASE, NOW).after.error == CRASH


def test_a_retry_is_never_due_before_the_promised_delay() -> None:
    after = fail(running(Policy(retry_delay_s=2)), CRASH, jitter=0.999)

    assert timedelta(seconds=2) <= after.available_at - NOW <= timedelta(seconds=2.4)


# ------------------------------------------------------------------------------------------------- the job of a DAG


@pytest.mark.parametrize(
    "end",
    [
        lambda task: rules.complete(task, 1, LEASE, b"1", NOW),
        lambda task: rules.fail(task, 1, LEASE, Failure(Category.USER_CODE, "no", retryable=False), NOW, 0.0),
        lambda task: rules.report_cancelled(task, 1, LEASE, "stopped", NOW),
    ],
)
def test_every_end_of_a_task_moves_its_job_on(end: Callable[[Task], Transition]) -> None:
    job = UUID(int=7)

    [effect] = end(running(job_id=job)).effects

    assert (effect.kind, effect.body) == (rules.JOB, {"job_id": str(job)})


def test_an_attempt_that_is_retried_does_not_move_its_job_on() -> None:
    failure = Failure(Category.USER_CODE, "once")

    assert rules.fail(running(job_id=UUID(int=7)), 1, LEASE, failure, NOW, 0.0).effects == ()


# --------------------------------------------------------------------------------------------- without a budget


UNLIMITED = Policy(max_attempts=1, max_losses=0, unlimited=True)


@pytest.mark.parametrize("category", [each for each in Category if each is not Category.CANCELLED])
@pytest.mark.parametrize("retryable", [None, True, False])
def test_no_failure_ends_a_task_without_a_budget(category: Category, retryable: bool | None) -> None:
    failed = fail(running(UNLIMITED, failures=1000), Failure(category, "no", retryable=retryable))

    assert failed.state is State.QUEUED


@pytest.mark.parametrize("as_failure", [True, False])
def test_no_loss_ends_a_task_without_a_budget(as_failure: bool) -> None:
    expired = rules.expire(running(UNLIMITED, losses=1000), NOW, 0.0, as_failure=as_failure)

    assert expired.after.state is State.QUEUED


def test_a_cancel_ends_a_task_without_a_budget() -> None:
    cancelled = rules.cancel(running(UNLIMITED), "stop", NOW).after

    assert fail(cancelled, CRASH).state is State.CANCELLED
