"""One fence and one judgement for every wire: what each kind of credential is refused for, and in which words."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from msgspec.structs import replace

from windlass.contracts.callback.rules import Refusal, Scope, scope_of
from windlass.contracts.lease.rules import STALE, Caller, LeaseCredential, LeaseReport
from windlass.contracts.machine.rules import MachineCredential, MachineReport
from windlass.contracts.registry.rules import RunCredential
from windlass.core.attempt import LEEWAY, AttemptReport, Credential, Denial, denied, judge
from windlass.core.failure import Category, Failure
from windlass.core.lease_token import lease_token
from windlass.core.states import State, Verb
from windlass.core.task import Outcome, Task
from windlass.errors import Conflict, Forbidden, InvalidState, LeaseLost, NotFound, Unauthenticated, WindlassError

NOW, HOUR = datetime(2026, 1, 1, tzinfo=UTC), timedelta(hours=1)
ID, OTHER_ID = UUID(int=7), UUID(int=8)
CALLER = Caller("CN=wrapper", "ab" * 32, namespaces=("acme",))
FAILURE = Failure(Category.USER_CODE, "boom", retryable=True)


def running(delivery: str, **changes: Any) -> Task:
    task = Task(
        ID, "acme", "q", "k", State.RUNNING, NOW, attempt=2, lease_id=lease_token(5, delivery), worker="ada",
        started_at=NOW,
    )  # fmt: skip
    return replace(task, **changes)


def scope(task: Task) -> Scope:
    return scope_of(task, NOW, HOUR)


def lease(task: Task) -> LeaseCredential:
    return LeaseCredential(task.id, attempt=task.attempt, token=task.lease_id, caller=CALLER)


def signature(task: Task) -> MachineCredential:
    return MachineCredential(task.id, task.attempt)


def run(task: Task) -> RunCredential:
    return RunCredential(task.id, task.attempt, task.lease_id, worker=task.worker, namespace=task.namespace)


DELIVERIES: dict[Callable[[Task], Credential], str] = {
    scope: "push", lease: "wakeup", signature: "machine", run: "pull",
}  # fmt: skip
KINDS = list(DELIVERIES)
NEWER: dict[str, Any] = {"attempt": 3, "lease_id": lease_token(6, "push")}

# What each kind of credential is shown for, after which change of the task or of the credential, and the refusal.
REFUSALS: list[tuple[Callable[[Task], Credential], dict[str, Any], dict[str, Any], type[WindlassError], Denial]] = [
    (scope, {}, {"expires_at": NOW - 2 * LEEWAY}, Unauthenticated, Denial.EXPIRED),
    (scope, {}, {"not_before": NOW + 2 * LEEWAY}, Unauthenticated, Denial.NOT_YET_VALID),
    (scope, {"namespace": "other"}, {}, Forbidden, Denial.OTHER_NAMESPACE),
    (scope, {"run_id": OTHER_ID}, {}, Forbidden, Denial.OTHER_NAMESPACE),
    (scope, {"attempt": 0, "lease_id": None}, {}, LeaseLost, Denial.NOT_STARTED),
    (scope, {"attempt": 3}, {}, LeaseLost, Denial.OTHER_ATTEMPT),
    (scope, {}, {"body_attempt": 3}, LeaseLost, Denial.OTHER_ATTEMPT),
    (scope, {"lease_id": lease_token(5, "wakeup")}, {}, LeaseLost, Denial.OTHER_DELIVERY),
    (lease, {"namespace": "other"}, {}, NotFound, Denial.OTHER_NAMESPACE),
    (lease, {"attempt": 0, "lease_id": None}, {}, LeaseLost, Denial.NOT_STARTED),
    (lease, {"attempt": 3}, {}, LeaseLost, Denial.OTHER_ATTEMPT),
    (lease, {"lease_id": lease_token(5, "push")}, {"token": lease_token(5, "push")}, LeaseLost, Denial.OTHER_DELIVERY),
    (lease, {}, {"token": lease_token(6, "wakeup")}, LeaseLost, Denial.OTHER_TOKEN),
    (lease, {}, {"token": None}, LeaseLost, Denial.OTHER_TOKEN),
    (signature, {"attempt": 0, "lease_id": None}, {}, LeaseLost, Denial.NOT_STARTED),
    (signature, {"attempt": 3}, {}, LeaseLost, Denial.OTHER_ATTEMPT),
    (signature, {"lease_id": lease_token(5, "pull")}, {}, LeaseLost, Denial.OTHER_DELIVERY),
    (run, {"namespace": "other"}, {}, NotFound, Denial.OTHER_NAMESPACE),
    (run, {"attempt": 0, "lease_id": None}, {}, InvalidState, Denial.NOT_STARTED),
    (run, {"attempt": 3}, {}, LeaseLost, Denial.OTHER_ATTEMPT),
    (run, {"lease_id": lease_token(5, "push")}, {}, LeaseLost, Denial.OTHER_DELIVERY),
    (run, {}, {"token": lease_token(6, "pull")}, LeaseLost, Denial.OTHER_TOKEN),
    (run, {}, {"worker": "eve"}, LeaseLost, Denial.OTHER_WORKER),
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_credential_speaks_for_its_own_attempt(kind: Callable[[Task], Credential]) -> None:
    task = running(DELIVERIES[kind])
    kind(task).check(task, NOW)


@pytest.mark.parametrize(("kind", "of_task", "shown", "error", "denial"), REFUSALS)
def test_what_is_wrong_with_a_credential_is_refused_in_the_words_of_its_wire(
    kind: Callable[[Task], Credential],
    of_task: dict[str, Any],
    shown: dict[str, Any],
    error: type[WindlassError],
    denial: Denial,
) -> None:
    task = running(DELIVERIES[kind])
    credential, changed = replace(kind(task), **shown), replace(task, **of_task)

    assert credential.denial(changed, NOW) is denial
    with pytest.raises(error) as refusal:
        credential.check(changed, NOW)
    assert type(refusal.value) is error


def test_a_worker_that_names_nothing_speaks_for_the_current_attempt_of_a_polled_run() -> None:
    RunCredential(ID).check(running("pull"), NOW)
    with pytest.raises(LeaseLost):
        RunCredential(ID).check(running("push"), NOW)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("denial", list(Denial))
def test_each_wire_has_an_error_for_each_denial(kind: Callable[[Task], Credential], denial: Denial) -> None:
    task = running(DELIVERIES[kind])
    assert isinstance(kind(task).error(denial, task), WindlassError)
    assert isinstance(denied(denial, task, 1), WindlassError)


def test_the_refusals_of_callbacks_and_leases_carry_what_their_wires_tell() -> None:
    pushed, held = running("push"), running("wakeup")
    stale = lease(held).error(Denial.OTHER_TOKEN, held).details
    assert (stale["refusal"], stale["state"], stale["current_attempt"]) == (STALE, State.RUNNING, 2)
    superseded = replace(scope(pushed), body_attempt=9).error(Denial.OTHER_ATTEMPT, pushed).details
    assert superseded["refusal"] is Refusal.ATTEMPT_MISMATCH
    assert (superseded["expected_attempt"], superseded["received_attempt"]) == (2, 9)


# --------------------------------------------------------------------------------------------- reports

REPORTS: dict[Callable[[Task], Credential], type[AttemptReport[Any]]] = {
    scope: AttemptReport, lease: LeaseReport, signature: MachineReport,
}  # fmt: skip


def report(kind: Callable[[Task], Credential], task: Task, outcome: Outcome, **fields: Any) -> AttemptReport[Any]:
    return REPORTS[kind](kind(task), outcome, **fields)


@pytest.mark.parametrize("kind", list(REPORTS))
def test_the_same_report_again_changes_nothing(kind: Callable[[Task], Credential]) -> None:
    task = running(DELIVERIES[kind])
    for outcome, fields in (
        (Outcome.SUCCEEDED, {"result": b'{"a":1,"b":2}'}),
        (Outcome.FAILED, {"failure": FAILURE}),
        (Outcome.CANCELLED, {}),
    ):
        first = report(kind, task, outcome, **fields)
        ended = first.decide(task, NOW)
        again = first.decide(ended.after, NOW)

        assert (ended.changed, ended.history[-1].what) == (True, "reported")
        assert (again.changed, again.refusal, again.history) == (False, None, ())


@pytest.mark.parametrize("kind", list(REPORTS))
def test_the_same_result_in_another_spelling_is_the_same_report(kind: Callable[[Task], Credential]) -> None:
    task = running(DELIVERIES[kind])
    ended = report(kind, task, Outcome.SUCCEEDED, result=b'{"a":1,"b":2}').decide(task, NOW).after
    again = report(kind, ended, Outcome.SUCCEEDED, result=b'{ "b": 2, "a": 1 }').decide(ended, NOW)
    assert (again.changed, again.refusal) == (False, None)


@pytest.mark.parametrize("kind", list(REPORTS))
def test_another_report_of_an_attempt_that_ended_is_refused_and_kept(kind: Callable[[Task], Credential]) -> None:
    task = running(DELIVERIES[kind])
    ended = report(kind, task, Outcome.SUCCEEDED, result=b"1").decide(task, NOW).after
    other = report(kind, ended, Outcome.FAILED, failure=FAILURE, worker="eve").decide(ended, NOW)

    assert isinstance(other.refusal, LeaseLost if kind is scope else Conflict)
    assert not other.changed
    assert [(line.what, line.worker) for line in other.history] == [("refused", "eve")]


@pytest.mark.parametrize("kind", list(REPORTS))
def test_a_lost_attempt_may_report_until_a_newer_one_begins(kind: Callable[[Task], Credential]) -> None:
    task = running(DELIVERIES[kind])
    lost = replace(task, state=State.QUEUED, outcome=Outcome.LOST, losses=1)
    late = report(kind, task, Outcome.SUCCEEDED, result=b"1")

    assert late.decide(lost, NOW).after.state is State.SUCCEEDED
    with pytest.raises(LeaseLost):
        late.decide(replace(task, **NEWER), NOW)


@pytest.mark.parametrize("kind", list(REPORTS))
def test_the_first_report_of_an_attempt_without_a_worker_names_it(kind: Callable[[Task], Credential]) -> None:
    task = running(DELIVERIES[kind], worker=None)
    ended = report(kind, task, Outcome.SUCCEEDED, result=b"1", worker="bob").decide(task, NOW)
    assert (ended.before, ended.after.worker, ended.history[-1].worker) == (task, "bob", "bob")
    assert ended.verb is Verb.NOTE  # the one that writes the name of the worker


def test_a_report_keeps_the_time_of_its_worker_and_how_far_its_clock_is_off() -> None:
    task = running("push")
    for off, skew in ((HOUR, 3600.0), (timedelta(seconds=1), None)):
        made = report(scope, task, Outcome.SUCCEEDED, result=b"1", worker_time=NOW + off).decide(task, NOW)
        detail = made.history[-1].detail or {}
        assert (detail["worker_time"], detail.get("clock_skew_s")) == (NOW + off, skew)


def test_a_released_attempt_uses_no_budget() -> None:
    after = judge(running("push"), Outcome.FAILED, None, FAILURE, NOW, 0.0, released=True).after
    assert (after.state, after.outcome, after.failures) == (State.QUEUED, Outcome.RELEASED, 0)


def test_a_failure_without_a_reason_says_so() -> None:
    after = judge(running("push"), Outcome.FAILED, None, None, NOW, 0.0).after
    assert after.error is not None
    assert msgspec.to_builtins(after.error.category) == "USER_CODE"
    assert after.error.message == "the worker did not say why"
