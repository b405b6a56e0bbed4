"""The rules of attempts that are sent out: who may say what, when, and what follows."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from tests.kernel.core.given import NOW, queued

from windlass.contracts.callback import rules as callback
from windlass.contracts.callback.delivery import PUSH
from windlass.contracts.callback.rules import Refusal, Scope, SignalCancel, StartAttempt, scope_of
from windlass.core import outgoing as sending
from windlass.core import task as rules
from windlass.core.attempt import AttemptReport, final_state
from windlass.core.failure import Category, Failure
from windlass.core.lease_token import lease_token
from windlass.core.states import State
from windlass.core.task import Outcome, Task
from windlass.errors import Forbidden, LeaseLost, Unauthenticated

HOUR = timedelta(hours=1)
TOKEN, CLAIMED = lease_token(7, "push"), lease_token(7, "pull")


def sent(**changes: Any) -> Task:
    """An attempt that was sent out, and that nobody has taken up."""
    task = queued(**changes)
    return sending.dispatch(task, PUSH, TOKEN, NOW).after


def taken(**changes: Any) -> Task:
    task = sent(**changes)
    return StartAttempt(scope(task), "ada").decide(task, NOW).after


def scope(task: Task, **changes: Any) -> Scope:
    return replace(scope_of(task, NOW, HOUR), **changes)


def finish(task: Task, outcome: Outcome, **fields: Any) -> AttemptReport[Scope]:
    return AttemptReport(scope(task), outcome, worker="ada", **fields)


def refusal_of(error: LeaseLost) -> object:
    return error.details["refusal"]


def test_what_is_sent_out_has_a_lease_of_its_own_no_worker_and_one_effect() -> None:
    made = sending.dispatch(queued(), PUSH, TOKEN, NOW)
    task = made.after

    assert (task.worker, task.lease_id, task.state) == (None, TOKEN, State.RUNNING)
    assert [(e.kind, e.attempt) for e in made.effects] == [("push", 1)]
    assert sending.dispatch(queued(), PUSH, TOKEN, NOW).effects == made.effects  # the same again is the same effect


def test_a_cancel_before_anybody_took_it_up_ends_it_at_once() -> None:
    assert rules.cancel(sent(), "", NOW).after.state is State.CANCELLED
    assert rules.cancel(taken(), "", NOW).after.state is State.RUNNING


def test_silence_is_a_zombie_only_if_there_is_a_worker() -> None:
    unheard, zombie = sending.silent(sent(), NOW, 0.0), sending.silent(taken(), NOW, 0.0)

    assert unheard.after.error is not None
    assert zombie.after.error is not None
    assert (unheard.after.error.reason, [e.what for e in unheard.history]) == ("DISPATCH_TIMEOUT", ["lost"])
    assert (zombie.after.error.reason, [e.what for e in zombie.history]) == ("HEARTBEAT_TIMEOUT", ["zombie", "lost"])
    assert zombie.after.error.category is Category.INFRASTRUCTURE


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"expires_at": NOW - timedelta(seconds=6)}, Unauthenticated),
        ({"not_before": NOW + timedelta(seconds=6)}, Unauthenticated),
        ({"tenant": "other"}, Forbidden),
        ({"workspace": "other"}, Forbidden),
        ({"run_id": TOKEN}, Forbidden),
        ({"attempt": 2}, LeaseLost),
    ],
)
def test_a_token_is_held_against_time_tenant_run_and_attempt(changes: dict[str, Any], error: type[Exception]) -> None:
    task = taken()
    for said in (
        StartAttempt(scope(task, **changes), "ada"),
        AttemptReport(scope(task, **changes), Outcome.SUCCEEDED, worker="ada"),
    ):
        with pytest.raises(error):
            said.decide(task, NOW)


def test_an_attempt_that_was_claimed_by_a_worker_is_nobody_elses() -> None:
    task = queued()
    claimed = rules.claim(task, CLAIMED, "ada", NOW).after

    with pytest.raises(LeaseLost) as found:
        AttemptReport(scope(claimed), Outcome.SUCCEEDED, worker="eve").decide(claimed, NOW)
    assert refusal_of(found.value) is Refusal.ATTEMPT_MISMATCH


@pytest.mark.parametrize(
    ("state", "outcome", "starting", "refusal"),
    [
        (State.SUCCEEDED, Outcome.SUCCEEDED, True, Refusal.TASK_ALREADY_TERMINAL),
        (State.SUCCEEDED, Outcome.SUCCEEDED, False, Refusal.TASK_EXPIRED),
        (State.QUEUED, Outcome.FAILED, True, Refusal.ATTEMPT_ALREADY_COMPLETED),
        (State.QUEUED, Outcome.FAILED, False, Refusal.TASK_EXPIRED),
        (State.QUEUED, Outcome.LOST, True, Refusal.TASK_EXPIRED),
        (State.QUEUED, Outcome.LOST, False, Refusal.TASK_EXPIRED),
        (State.QUEUED, Outcome.TIMED_OUT, True, Refusal.ATTEMPT_ALREADY_COMPLETED),
    ],
)
def test_an_attempt_that_is_over_is_told_why(state: State, outcome: Outcome, starting: bool, refusal: Refusal) -> None:
    with pytest.raises(LeaseLost) as found:
        callback.check_goes_on(replace(taken(), state=state, outcome=outcome), starting=starting)
    assert refusal_of(found.value) is refusal


def test_completed_without_started_names_the_worker() -> None:
    task = sent()
    made = finish(task, Outcome.SUCCEEDED, result=b"1").decide(task, NOW)

    assert (made.after.state, made.after.worker, made.before) == (State.SUCCEEDED, "ada", task)


def test_the_same_again_changes_nothing_and_another_is_refused_with_its_name() -> None:
    task = taken()
    ended = finish(task, Outcome.SUCCEEDED, result=b'{"a":1}').decide(task, NOW).after
    again = finish(ended, Outcome.SUCCEEDED, result=b'{ "a": 1 }').decide(ended, NOW)
    other = finish(ended, Outcome.FAILED).decide(ended, NOW)

    assert (again.changed, again.refusal, again.history) == (False, None, ())
    assert isinstance(other.refusal, LeaseLost)
    assert refusal_of(other.refusal) is Refusal.TASK_ALREADY_TERMINAL
    assert [(entry.what, entry.worker) for entry in other.history] == [("refused", "ada")]


def test_a_failure_waits_for_its_retry_and_counts_as_failed() -> None:
    task = taken()
    made = finish(task, Outcome.FAILED, failure=Failure(Category.USER_CODE, "it broke")).decide(task, NOW)

    assert (made.after.state, final_state(made.after)) == (State.QUEUED, State.FAILED)
    repeated = finish(made.after, Outcome.SUCCEEDED).decide(made.after, NOW)
    assert isinstance(repeated.refusal, LeaseLost)
    assert refusal_of(repeated.refusal) is Refusal.ATTEMPT_ALREADY_COMPLETED


def test_hearing_of_a_cancel_begins_the_grace_once() -> None:
    asked = rules.cancel(taken(), "stop", NOW).after
    told = SignalCancel(asked.id, asked.attempt).decide(asked, NOW).after

    assert told.cancel is not None
    assert told.cancel.signalled_at == NOW
    assert not SignalCancel(told.id, told.attempt).decide(told, NOW + HOUR).changed


def test_a_token_is_renewed_in_the_second_half_of_its_life() -> None:
    task = taken()

    assert not scope(task).half_over(NOW + HOUR / 2)
    assert scope(task).half_over(NOW + HOUR / 2 + timedelta(seconds=1))


@pytest.mark.parametrize(
    ("namespace", "tenant"),
    [
        ("default", ("default", "default")),
        ("acme/prod", ("acme", "prod")),
        ("a/b/c", ("a", "b/c")),
        ("/x", ("/x", "x")),
    ],
)
def test_a_namespace_is_a_tenant_and_a_workspace(namespace: str, tenant: tuple[str, str]) -> None:
    assert callback.tenant_of(namespace) == tenant
