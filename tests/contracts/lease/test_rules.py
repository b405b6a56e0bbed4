"""Holders: why a task is not claimed by its id, what counts within a batch, and what their words are held against."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from windlass.contracts.callback.delivery import Push
from windlass.contracts.lease import rules as rules
from windlass.contracts.lease.delivery import LEASE_ATTEMPTS, Invoke, Wakeup
from windlass.contracts.lease.rules import (
    Caller,
    ClaimById,
    Emit,
    LeaseCredential,
    LeaseReport,
    NotClaimed,
    PublishBatch,
)
from windlass.core import outgoing
from windlass.core import task as task_rules
from windlass.core.delivery import PULL, RetryForm, policy_of
from windlass.core.failure import Category, Failure
from windlass.core.lease_token import lease_token
from windlass.core.queue import QueueConfig, Rate, Usage
from windlass.core.retry import Policy
from windlass.core.states import State, Transition, Verb
from windlass.core.task import Outcome, Task
from windlass.datasets.rules.events import (
    BatchReport,
    DatasetContext,
    DatasetEvent,
    EventReport,
    prefixes_of,
    routed,
    scratch_of,
)
from windlass.datasets.rules.writer import Writer, outputs_of
from windlass.errors import Conflict, Forbidden, Invalid, LeaseLost, NotFound

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ID, TOKEN, OTHER = UUID(int=1), lease_token(2, "wakeup"), lease_token(3, "wakeup")
DATASET, VERSION = UUID(int=4), UUID(int=5)
CALLER = Caller("CN=wrapper", "ab" * 32)
QUEUED = Task(ID, "acme", "remote", "job", State.QUEUED, NOW, concurrency_key="key")
HELD = replace(QUEUED, state=State.RUNNING, attempt=1, lease_id=TOKEN, worker="ada", started_at=NOW)
SHOWN = LeaseCredential(ID, attempt=1, token=TOKEN, caller=CALLER)
WAKEUP = Wakeup()
LIVE = DatasetContext({ID: Writer(1, {DATASET: VERSION})})
EVENT = EventReport(DATASET, VERSION, 7)
BATCH = BatchReport(DATASET, VERSION, "s3://b/tasks/x", 10)


@pytest.mark.parametrize(
    ("task", "labelled", "why"),
    [
        (QUEUED, False, None),
        (QUEUED, True, NotClaimed(State.QUEUED, "no_capable_worker")),
        (replace(QUEUED, available_at=NOW + timedelta(seconds=1)), False,
         NotClaimed(State.QUEUED, "scheduled", NOW + timedelta(seconds=1))),
        (HELD, False, NotClaimed(State.RUNNING)),
        (replace(QUEUED, state=State.BLOCKED), False, NotClaimed(State.BLOCKED, "dependency")),
        (replace(QUEUED, state=State.PARKED), False, NotClaimed(State.PARKED, "parked")),
        (replace(QUEUED, state=State.SLEEPING, timer_at=NOW), False, NotClaimed(State.SLEEPING, "sleeping", NOW)),
        *((replace(QUEUED, state=state), False, NotClaimed(state))
          for state in (State.SUCCEEDED, State.FAILED, State.CANCELLED, State.SKIPPED)),
    ],
)  # fmt: skip
def test_why_a_task_cannot_be_claimed_by_its_id(task: Task, labelled: bool, why: NotClaimed | None) -> None:
    assert rules.why_not(task, WAKEUP, labelled, NOW) == why


def written(move: Transition) -> Any:
    return move.writes


def test_only_queues_that_wake_their_workers_give_tasks_by_id() -> None:
    for delivery in (PULL, Push(url="http://x"), Invoke(url="http://x")):
        assert rules.why_not(QUEUED, delivery, False, NOW) == NotClaimed(State.QUEUED, rules.OTHER_DELIVERY)


@pytest.mark.parametrize(
    ("config", "waits_for"),
    [
        (QueueConfig(max_running=2), "concurrency_limit"),
        (QueueConfig(max_running_per_kind={"job": 2}), "concurrency_limit"),
        (QueueConfig(max_running_per_key=2), "concurrency_limit"),
        (QueueConfig(rate=Rate(2, 60.0)), "rate_limit"),
    ],
)
def test_each_claim_of_a_batch_counts_for_the_next(config: QueueConfig, waits_for: str) -> None:
    usage, answers = Usage(), []
    for _ in range(4):
        refused = rules.admits(config, usage, QUEUED, NOW)
        answers.append(None if refused is None else refused.waits_for)
        usage = usage if refused else rules.began(usage, QUEUED, NOW)

    assert answers == [None, None, waits_for, waits_for]


def test_a_paused_queue_admits_nothing_and_one_without_limits_everything() -> None:
    assert rules.admits(QueueConfig(paused=True), Usage(), QUEUED, NOW) == NotClaimed(State.QUEUED, "paused")
    assert rules.admits(QueueConfig(), Usage(running=10**6), QUEUED, NOW) is None


def test_a_claim_is_any_claim_with_a_line_of_who_it_was() -> None:
    move = rules.claim(QUEUED, ClaimById(ID, TOKEN, "ada", CALLER), NOW)

    assert move.verb is Verb.CLAIM
    assert move.after == HELD
    [entry] = move.history
    assert (entry.what, entry.attempt, entry.worker) == ("claimed", 1, "ada")
    assert entry.detail == {"caller": {"subject": "CN=wrapper", "fingerprint": "ab" * 32}}


# --------------------------------------------------------------------------------------------- the fence


@pytest.mark.parametrize(("attempt", "token"), [(2, TOKEN), (1, OTHER), (1, None), (0, None)])
def test_nothing_follows_from_what_somebody_else_says(attempt: int, token: UUID | None) -> None:
    shown = replace(SHOWN, attempt=attempt, token=token)
    for said in (
        LeaseReport(shown, Outcome.SUCCEEDED, b"1"),
        LeaseReport(shown, Outcome.FAILED),
        LeaseReport(shown, Outcome.CANCELLED),
        Emit(shown, (EVENT,)),
        PublishBatch(shown, BATCH, ("s3://b/",)),
    ):
        with pytest.raises(LeaseLost):
            said.decide_with(HELD, LIVE, NOW)


def test_a_task_without_a_token_is_held_by_nobody() -> None:
    with pytest.raises(LeaseLost):
        replace(SHOWN, attempt=0, token=None).check(QUEUED, NOW)


def test_a_report_is_accepted_late_and_data_is_not() -> None:
    lost = replace(HELD, state=State.QUEUED, outcome=Outcome.LOST)
    dead = DatasetContext({ID: Writer(0, {DATASET: VERSION})})

    assert LeaseReport(SHOWN, Outcome.SUCCEEDED, b"1").decide_with(lost, dead, NOW).after.state is State.SUCCEEDED
    for task, context in ((lost, dead), (lost, LIVE), (HELD, dead)):
        with pytest.raises(LeaseLost):
            Emit(SHOWN, (EVENT,)).decide_with(task, context, NOW)
        with pytest.raises(LeaseLost):
            PublishBatch(SHOWN, BATCH, ("s3://b/",)).decide_with(task, context, NOW)


@pytest.mark.parametrize("delivery", ["pull", "push", "machine", "stdio"])
def test_a_token_of_another_delivery_is_dropped_before_it_is_compared(delivery: str) -> None:
    token = lease_token(2, delivery)
    task = replace(HELD, lease_id=token)

    with pytest.raises(LeaseLost):
        LeaseReport(replace(SHOWN, token=token).checked(), Outcome.SUCCEEDED).decide_with(task, LIVE, NOW)
    assert SHOWN.checked() is SHOWN


def test_a_caller_that_is_bound_to_other_namespaces_finds_no_task_whatever_it_holds() -> None:
    stranger = replace(SHOWN, caller=replace(CALLER, namespaces=("other",)))

    for said in (
        LeaseReport(stranger, Outcome.SUCCEEDED),
        LeaseReport(stranger, Outcome.CANCELLED),
        Emit(stranger, (EVENT,)),
        PublishBatch(stranger, BATCH, ("s3://b/",)),
    ):
        with pytest.raises(NotFound):
            said.decide_with(HELD, LIVE, NOW)


def test_silence_of_a_holder_counts_like_a_failure() -> None:
    policy = Policy(max_attempts=2, max_losses=1)
    first = outgoing.silent(replace(HELD, policy=policy), NOW, 0.0).after
    assert (first.state, first.failures, first.losses, first.outcome) == (State.QUEUED, 1, 0, Outcome.LOST)
    assert (first.attempt, first.lease_id) == (1, TOKEN)

    second = outgoing.silent(replace(first, state=State.RUNNING, attempt=2, outcome=None), NOW, 0.0).after

    assert (second.state, second.failures) == (State.FAILED, 2)


@pytest.mark.parametrize("way", ["lost", "timed_out"])
def test_an_attempt_whose_lease_was_lost_and_that_reports_its_failure_later_counts_once(way: str) -> None:
    policy = Policy(max_attempts=2, timeout_s=1.0)
    held = replace(HELD, policy=policy, timer_at=NOW)
    lost = (outgoing.silent(held, NOW, 0.0) if way == "lost" else task_rules.elapse(held, NOW, 0.0)).after
    failed = Failure(Category.USER_CODE, "it crashed")

    late = LeaseReport(SHOWN, Outcome.FAILED, failure=failed).decide_with(lost, LIVE, NOW).after
    done = LeaseReport(SHOWN, Outcome.SUCCEEDED, b"1").decide_with(lost, LIVE, NOW).after
    final = replace(failed, retryable=False)
    ended = LeaseReport(SHOWN, Outcome.FAILED, failure=final).decide_with(lost, LIVE, NOW).after

    assert (lost.failures, late.failures, late.losses, late.state) == (1, 1, 0, State.QUEUED)
    assert (late.outcome, late.error) == (Outcome.FAILED, failed)
    assert (ended.state, ended.failures) == (State.FAILED, 1)
    assert (done.state, done.failures) == (State.SUCCEEDED, 1)


def test_silence_of_what_was_sent_out_is_a_loss_and_of_a_call_with_a_lease_a_failure() -> None:
    away = replace(HELD, lease_id=lease_token(7, "push"))

    assert outgoing.silent(away, NOW, 0.0).after.losses == 1
    assert outgoing.silent(away, NOW, 0.0, as_failure=True).after.failures == 1


def test_queues_with_leases_try_three_times_unless_they_say_otherwise() -> None:
    for delivery in (WAKEUP, Invoke(url="http://x")):
        assert policy_of(None, delivery).max_attempts == LEASE_ATTEMPTS == 3
        assert policy_of(RetryForm(max_attempts=9), delivery).max_attempts == 9
    assert policy_of(None, PULL).max_attempts == 5


# --------------------------------------------------------------------------------------------- events


def test_an_event_is_the_same_in_every_attempt_and_another_in_every_other_respect() -> None:
    same = EVENT.id_of(ID)

    assert same == EventReport(DATASET, VERSION, 7).id_of(ID)
    others = {
        EVENT.id_of(OTHER), EventReport(OTHER, VERSION, 7).id_of(ID), EventReport(DATASET, OTHER, 7).id_of(ID),
        EventReport(DATASET, VERSION, 8).id_of(ID), EventReport(DATASET, VERSION, None, "7").id_of(ID),
    }  # fmt: skip
    assert len(others | {same}) == 6


def test_what_is_recorded_is_not_recorded_again() -> None:
    said = (EVENT, EVENT, EventReport(DATASET, VERSION, 8))
    move = Emit(SHOWN, said).decide_with(HELD, LIVE, NOW)
    assert [event.cursor for event in written(move)] == [7, 8]
    assert len(move.effects) == 2
    known = DatasetContext({ID: Writer(1, {DATASET: VERSION})}, events={EVENT.id_of(ID): None})

    again = Emit(SHOWN, said).decide_with(HELD, known, NOW)

    assert [event.cursor for event in written(again)] == [8]


def test_only_declared_datasets_in_their_version_are_routed() -> None:
    for said in (EventReport(OTHER, VERSION, 1), EventReport(DATASET, OTHER, 1)):
        move = Emit(SHOWN, (said,)).decide_with(HELD, LIVE, NOW)
        assert [event.declared for event in written(move)] == [False]
        assert move.effects == ()


def test_final_events_are_committed_with_a_success_or_a_repeat_with_new_ones_is_refused() -> None:
    finish = LeaseReport(SHOWN, Outcome.SUCCEEDED, b"1", events=(EVENT,))
    done = finish.decide_with(HELD, LIVE, NOW)
    assert [event.id for event in written(done)] == [EVENT.id_of(ID)]
    recorded = DatasetContext({ID: Writer(1, {DATASET: VERSION})}, events={EVENT.id_of(ID): None})

    assert not finish.decide_with(done.after, recorded, NOW).changed
    more = replace(finish, events=(EVENT, EventReport(DATASET, VERSION, 8)))
    refused = more.decide_with(done.after, recorded, NOW)
    assert isinstance(refused.refusal, Conflict)
    assert refused.writes == ()


@pytest.mark.parametrize(
    "event",
    [
        EventReport(DATASET, VERSION),
        EventReport(DATASET, VERSION, 1, "1-2"),
        EventReport(DATASET, VERSION, None, "1-2", 1),
        EventReport(DATASET, VERSION, None, "1-2", 1, 3),
        EventReport(DATASET, VERSION, None, "3-2", 3, 2),
        EventReport(DATASET, VERSION, 1, None, 1, 2),
        EventReport(DATASET, VERSION, None, ""),
        EventReport(DATASET, VERSION, None, "a\x00"),
        EventReport(DATASET, VERSION, None, "x" * 501),
    ],
)
def test_an_event_that_makes_no_sense_is_refused(event: EventReport) -> None:
    with pytest.raises(Invalid, match=r"events\[0\]"):
        replace(event, field="events[0]").check()


def test_effects_have_ids_of_their_own_attempt() -> None:
    event = DatasetEvent.of(HELD, EVENT, True, CALLER.fingerprint, NOW)

    assert routed(event).id != routed(replace(event, attempt=2)).id
    assert routed(event).id == routed(event).id


# --------------------------------------------------------------------------------------------- batches


@pytest.mark.parametrize(
    ("uri", "under"),
    [
        ("s3://b/own/x", True),
        ("s3://b/own/deep/er/x", True),
        ("s3://b/own/", False),
        ("s3://b/own", False),
        ("s3://b/own-evil/x", False),
        ("s3://b/other/x", False),
        ("s3://b/own/../other/x", False),
        ("s3://b/own/./x", False),
        ("s3://b/own//x", False),
        ("s3://b/own/x/", False),
        ("S3://b/own/x", False),
        ("x/s3://b/own/x", False),
    ],
)
def test_a_batch_lies_in_a_folder_or_not(uri: str, under: bool) -> None:
    assert BatchReport(DATASET, VERSION, uri, 1).is_under(["s3://b/own/"]) is under


def test_the_folders_of_an_attempt_are_those_of_no_other() -> None:
    prefixes = prefixes_of("s3://b/", DATASET, ID, 1)

    assert prefixes == (f"s3://b/buffers/{DATASET}/{ID}/1/", f"s3://b/tasks/{ID}/1/")
    assert not BatchReport(DATASET, VERSION, scratch_of("s3://b", ID, 11) + "x", 1).is_under(prefixes)


def test_a_batch_is_published_once_and_not_otherwise_than_before() -> None:
    publish = PublishBatch(SHOWN, BATCH, ("s3://b/",))
    [record] = written(publish.decide_with(HELD, LIVE, NOW))
    known = DatasetContext({ID: Writer(1, {DATASET: VERSION})}, publishes={record.id: (VERSION, 10)})

    assert publish.decide_with(HELD, known, NOW).writes == ()
    with pytest.raises(Conflict):
        replace(publish, batch=replace(BATCH, record_count=11)).decide_with(HELD, known, NOW)
    with pytest.raises(Forbidden):
        publish.decide_with(HELD, DatasetContext({ID: Writer(1, {})}), NOW)


@pytest.mark.parametrize("wire", [None, b"{}", b"[]", b'{"outputs": 1}', b'{"outputs": [{"dataset_uuid": "x"}]}'])
def test_outputs_that_cannot_be_read_allow_nothing(wire: bytes | None) -> None:
    assert outputs_of(wire) == {}
