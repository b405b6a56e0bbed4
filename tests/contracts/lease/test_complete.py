"""How attempts end: success, failure, cancel, late, twice, and otherwise than before."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from tests.contracts.lease.world import (
    DATASET,
    LEASE_S,
    SCRATCH,
    VERSION,
    Holder,
    World,
    at_cursor,
    client,
    nobody,
    of_partition,
)
from tests.kit.world import ok, refused

from windlass import Category, State
from windlass.contracts.callback.delivery import PUSH, Push
from windlass.core.delivery import RetryForm
from windlass.core.ids import derived_id
from windlass.core.queue import QueueConfig
from windlass.core.retry import Policy
from windlass.datasets.rules.events import ROUTE

pytestmark = pytest.mark.slow

OUTPUTS: list[dict[str, Any]] = [
    {"output_index": 0, "dataset_uuid": str(DATASET), "dataset_version": str(VERSION),
     "location": f"postgres_table:dataset_{DATASET}", "cursor": 12345, "row_count": 1000},
    {"output_index": 1, "dataset_uuid": str(UUID(int=0xD9)), "dataset_version": str(VERSION),
     "location": "s3://b/k", "cursor": 12345, "row_count": 20000},
]  # fmt: skip


async def test_the_body_of_the_document_is_accepted_and_its_outputs_and_events_are_committed(world: World) -> None:
    holder = await world.writing()

    told = ok(await holder.complete(events=[at_cursor()], outputs=OUTPUTS, error_message=None))

    assert told == {"status": "Completed"}
    task = await holder.task()
    assert task.state is State.SUCCEEDED
    assert task.result is not None
    assert msgspec.json.decode(task.result) == {"outputs": OUTPUTS}
    [events] = await world.rows("event")
    assert len(events) == 2, "one for each dataset: the event and the output of the first are the same"
    assert len(await world.outbox(ROUTE)) == 1, "the second dataset is not among the outputs of the task"


async def test_a_result_of_its_own_may_be_given(world: World) -> None:
    holder = await world.held()

    ok(await holder.complete(result={"sum": 3}, outputs=OUTPUTS))

    assert (await holder.task()).result == b'{"sum":3}'
    [report] = await world.entries(holder.task_id, "reported")
    assert report.detail["outputs"] == OUTPUTS


async def test_a_completion_at_once_writes_what_the_rule_says(world: World) -> None:
    """One that somebody waits for goes the way of load, decide, apply."""
    at_once, by_rule = await world.held(), await world.held()
    async with world.engine.store.begin() as tx:
        await tx.tasks.await_task(by_rule.task_id)
    for holder in (at_once, by_rule):
        ok(await holder.complete(outputs=OUTPUTS))

    kept = []
    for holder in (at_once, by_rule):
        task = dict((await holder.task()).__rich_repr__())
        kept.append({name: value for name, value in task.items() if name not in ("id", "lease_id", "awaited")})
        [entry] = await world.entries(holder.task_id, "reported")
        kept[-1]["entry"] = (entry.at, entry.attempt, entry.worker, entry.detail)
    assert kept[0] == kept[1]


async def test_a_failure_is_tried_again_with_a_delay_of_the_engine(world: World) -> None:
    await world.queue(retry=RetryForm(max_attempts=3, initial_ms=30_000, multiplier=2))
    holder = await world.held()

    assert ok(await holder.complete("Failed", error_message="it broke")) == {"status": "Failed"}

    task = await holder.task()
    assert (task.state, task.failures) == (State.QUEUED, 1)
    assert task.error is not None
    assert (task.error.message, task.error.category) == ("it broke", Category.USER_CODE)
    now = await world.clock.now()
    assert timedelta(seconds=30) <= task.available_at - now < timedelta(seconds=37)
    waiting = await world.claim(holder.task_id)
    assert (waiting["reason"], waiting["detail"]) == ("AlreadyRunning", "NotReady")


async def test_the_failure_that_reaches_the_most_allowed_ends_the_task(world: World) -> None:
    await world.queue(retry=RetryForm(max_attempts=2, initial_ms=1))
    holder = await world.held()
    ok(await holder.complete("Failed", error_message="first"))
    await world.clock.advance(1)
    holder = await world.hold(holder.task_id)

    ok(await holder.complete("Failed", error_message="second"))

    assert (await holder.task()).state is State.FAILED


async def test_more_may_be_said_of_a_failure(world: World) -> None:
    holder = await world.held()
    error = {"category": "DATA_QUALITY", "reason": "BAD_ROWS", "stack_trace": "line 1", "retryable": False}

    ok(await holder.complete("Failed", error_message="rows are bad", error=error))

    task = await holder.task()
    assert task.state is State.FAILED
    assert task.error is not None
    assert (task.error.category, task.error.reason, task.error.trace) == (Category.DATA_QUALITY, "BAD_ROWS", "line 1")


# --------------------------------------------------------------------------------------------- twice, otherwise, late


@pytest.mark.parametrize(
    ("status", "body"),
    [
        ("Completed", {}),
        ("Completed", {"events": [at_cursor()], "outputs": OUTPUTS}),
        ("Failed", {"error_message": "it broke"}),
        ("Canceled", {}),
    ],
    ids=["plain", "with events", "failed", "canceled"],
)
async def test_the_same_report_again_gets_the_same_answer_and_changes_nothing(
    world: World, status: str, body: dict[str, Any]
) -> None:
    holder = await world.writing()
    first = await holder.complete(status, **body)
    before = await world.rows()

    again = await holder.complete(status, **body)

    assert (again.status_code, again.json()) == (first.status_code, first.json()) == (200, {"status": status})
    assert await world.rows() == before


async def test_the_same_result_in_another_spelling_is_the_same(world: World) -> None:
    holder = await world.held()
    first = b'{"status": "Completed", "result": {"a": 1, "b": 2}, '
    again = b'{"status": "Completed", "result": {"b":2,"a":1}, '
    rest = msgspec.json.encode(holder.fence)[1:]
    ok(await world.http.post("/internal/task-complete", content=first + rest))

    ok(await world.http.post("/internal/task-complete", content=again + rest))
    refused(await holder.complete(result={"a": 1}), 409, "conflict")


async def test_the_same_report_many_times_at_once_is_one(world: World) -> None:
    holder = await world.writing()

    told = await asyncio.gather(*(holder.complete(events=[at_cursor()], outputs=OUTPUTS) for _ in range(20)))

    assert {answer.status_code for answer in told} == {200}
    assert len(await world.entries(holder.task_id, "reported")) == 1
    assert len(await world.outbox(ROUTE)) == 1


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (("Completed", {}), ("Failed", {"error_message": "no"})),
        (("Completed", {}), ("Completed", {"outputs": OUTPUTS})),
        (("Completed", {}), ("Completed", {"events": [at_cursor()]})),
        (("Failed", {"error_message": "no"}), ("Completed", {})),
        (("Failed", {"error_message": "no"}), ("Failed", {"error_message": "yes"})),
    ],
)
async def test_another_report_is_a_conflict_and_kept_for_audit(
    world: World, first: tuple[str, dict[str, Any]], then: tuple[str, dict[str, Any]]
) -> None:
    holder = await world.writing()
    ok(await holder.complete(first[0], **first[1]))
    before, events = await holder.task(), await world.rows("event", "outbox")

    told = refused(await holder.complete(then[0], **then[1]), 409, "conflict")

    assert told["current_attempt"] == 1
    assert await holder.task() == before
    assert await world.rows("event", "outbox") == events
    [audit] = await world.entries(holder.task_id, "refused")
    assert audit.detail["caller"]["subject"].endswith("CN=wrapper-1")


async def test_a_late_reply_is_accepted_until_a_newer_attempt_begins(world: World) -> None:
    holder = await world.writing()
    await world.expire()
    assert (await holder.task()).state is State.QUEUED

    ok(await holder.complete(events=[at_cursor()]))

    assert (await holder.task()).state is State.SUCCEEDED
    assert len(await world.outbox(ROUTE)) == 1


async def test_a_late_reply_is_accepted_also_when_the_attempt_had_timed_out(world: World) -> None:
    holder = await world.held(policy=Policy(timeout_s=30.0))
    await world.clock.advance(30)
    await world.engine.loops.timer_tick()
    assert (await holder.task()).state is State.QUEUED
    refused(await holder.heartbeat(), 409, "stale_lease")

    assert ok(await holder.complete()) == {"status": "Completed"}

    assert (await holder.task()).state is State.SUCCEEDED


async def test_a_reply_before_anybody_noticed_that_the_lease_is_over_is_accepted(world: World) -> None:
    holder = await world.held()
    await world.clock.advance(LEASE_S + 10)

    ok(await holder.complete())

    await world.expire(0)
    assert (await holder.task()).state is State.SUCCEEDED


async def test_events_and_batches_need_a_live_lease_where_a_report_does_not(world: World) -> None:
    holder = await world.writing()
    await world.clock.advance(LEASE_S)
    before = await world.rows()

    refused(await holder.events(at_cursor()), 409, "stale_lease")
    refused(await holder.publish(), 409, "stale_lease")

    assert await world.rows() == before


# --------------------------------------------------------------------------------------------- cancel


async def test_a_running_task_is_told_of_a_cancel_by_its_heartbeat_and_may_report_it(world: World) -> None:
    holder = await world.held()
    await world.engine.cancel(holder.task_id, "rollback of version 3")

    told = ok(await holder.heartbeat())

    assert (told["status"], told["cancel_reason"]) == ("Canceled", "rollback of version 3")
    task = await holder.task()
    assert task.cancel is not None
    assert task.cancel.signalled_at == await world.clock.now()
    assert ok(await holder.complete("Canceled")) == {"status": "Canceled"}
    assert (await holder.task()).state is State.CANCELLED


async def test_completed_within_the_grace_is_accepted_and_later_it_is_a_conflict(world: World) -> None:
    first, second = await world.held(), await world.held()
    for holder in (first, second):
        await world.engine.cancel(holder.task_id)
        ok(await holder.heartbeat())

    ok(await first.complete())
    await world.clock.advance(31)
    await world.engine.loops.timer_tick()

    assert (await first.task()).state is State.SUCCEEDED
    assert (await second.task()).state is State.FAILED
    assert refused(await second.complete(), 409, "conflict")["task_status"] == "Failed"


async def test_a_retryable_failure_after_a_cancel_ends_as_canceled(world: World) -> None:
    holder = await world.held()
    await world.engine.cancel(holder.task_id)

    assert ok(await holder.complete("Failed", error_message="interrupted")) == {"status": "Canceled"}


async def test_the_holder_of_a_task_that_was_cancelled_by_force_is_acknowledged(world: World) -> None:
    holder = await world.held()
    await world.engine.cancel(holder.task_id, force=True)
    before = await world.rows()

    assert refused(await holder.heartbeat(), 409, "stale_lease")["task_status"] == "Canceled"
    assert ok(await holder.complete("Canceled")) == {"status": "Canceled"}

    assert await world.rows() == before


@pytest.mark.parametrize("fence", [{}, {"attempt": None, "lease_token": None}, {"attempt": 1, "lease_token": nobody()}])
async def test_a_cancel_that_is_reported_without_a_lease_is_answered_and_changes_nothing(
    world: World, fence: dict[str, Any]
) -> None:
    queued = await world.submit()
    await world.engine.cancel(queued)
    holder = await world.held()
    await world.engine.cancel(holder.task_id)
    before = await world.rows()

    for task_id in (queued, holder.task_id):
        answer = await world.post("task-complete", {"task_id": str(task_id), "status": "Canceled", **fence})
        assert ok(answer) == {"status": "Canceled"}

    assert await world.rows() == before


async def test_a_cancel_that_nobody_asked_for_and_without_a_lease_is_refused(world: World) -> None:
    holder = await world.held()

    answer = await world.post("task-complete", {"task_id": str(holder.task_id), "status": "Canceled"})

    refused(answer, 409, "stale_lease")
    assert (await holder.task()).state is State.RUNNING


async def test_a_holder_that_vanishes_after_a_cancel_ends_it(world: World) -> None:
    holder = await world.held()
    await world.engine.cancel(holder.task_id)

    await world.expire()

    assert (await holder.task()).state is State.CANCELLED


@pytest.mark.parametrize("status", ["Failed", "Canceled"])
async def test_outputs_and_events_of_what_did_not_succeed_are_kept_for_audit_and_not_committed(
    world: World, status: str
) -> None:
    holder = await world.writing()
    nonsense = {**at_cursor(), "partition_key": "both"}

    told = ok(await holder.complete(status, error_message="it broke", events=[at_cursor(), nonsense], outputs=OUTPUTS))

    assert told == {"status": status}
    assert await world.rows("event") == [[]]
    [report] = await world.entries(holder.task_id, "reported")
    assert report.detail["outputs"] == OUTPUTS
    assert [event["cursor"] for event in report.detail["events"]] == [12345, 12345]


async def test_an_event_of_a_failed_attempt_is_committed_by_the_next(world: World) -> None:
    await world.queue(retry=RetryForm(max_attempts=3, initial_ms=0))
    holder = await world.writing()
    ok(await holder.complete("Failed", error_message="it broke", events=[at_cursor()]))
    again = await world.hold(holder.task_id)
    ok(await again.complete(events=[at_cursor()]))
    [events] = await world.rows("event")
    assert len(events) == 1


async def test_no_events_are_fine(world: World) -> None:
    holder = await world.writing()
    assert ok(await holder.events())["accepted"] == 0
    ok(await holder.complete(events=[], outputs=[]))


async def test_a_failure_whose_text_holds_half_a_character_is_recorded(world: World) -> None:
    holder = await world.held()
    fence = json.dumps(holder.fence)[:-1].encode()
    body = fence + rb', "status": "Failed", "error_message": "caf\udce9", "error": {"retryable": false}}'
    answer = await world.http.post("/internal/task-complete", content=body)
    assert ok(answer) == {"status": "Failed"}
    error = (await holder.task()).error
    assert error is not None
    assert error.message == "caf\ufffd"


# --------------------------------------------------------------------------------------------- bad bodies


def _bad_bodies() -> list[tuple[str, bytes | dict[str, Any]]]:
    event = at_cursor()
    return [
        ("task-claim", b""),
        ("task-claim", b"{"),
        ("task-claim", b"[]"),
        ("task-claim", b"null"),
        ("task-claim", b'{"task_id": "\xff", "worker_id": "w"}'),
        ("task-claim", b"[" * 100_000),
        ("task-claim", {"task_id": None}),
        ("task-claim", {"task_id": "not an id"}),
        ("task-claim", {"task_id": 7}),
        ("task-claim", {"worker_id": None}),
        ("task-claim", {"worker_id": ""}),
        ("task-claim", {"worker_id": "a\x00b"}),
        ("task-claim", {"worker_id": "x" * 201}),
        ("heartbeat", {"attempt": None}),
        ("heartbeat", {"attempt": 0}),
        ("heartbeat", {"attempt": -1}),
        ("heartbeat", {"attempt": 2**31}),
        ("heartbeat", {"attempt": 1.5}),
        ("heartbeat", {"attempt": "1"}),
        ("heartbeat", {"lease_token": "token"}),
        ("heartbeat", {"lease_token": None}),
        ("task-complete", {"status": None}),
        ("task-complete", {"status": "completed"}),
        ("task-complete", {"status": "Done"}),
        ("task-complete", {"status": "Completed", "attempt": None}),
        ("task-complete", {"status": "Failed", "lease_token": None}),
        ("task-complete", {"status": "Completed", "events": {}}),
        ("task-complete", {"status": "Completed", "attempt": 0}),
        ("task-complete", {"status": "Failed", "attempt": 0}),
        ("events", {"attempt": 0}),
        ("buffer-publish", {"attempt": 0}),
        ("task-complete", {"status": "Completed", "outputs": [{"dataset_uuid": 1}]}),
        ("task-complete", {"status": "Completed", "outputs": [{**OUTPUTS[0], "row_count": -1}]}),
        ("task-complete", {"status": "Failed", "error": {"category": "NOBODY"}}),
        ("task-complete", {"status": "Failed", "error_message": 7}),
        ("events", {"events": None}),
        ("events", {"events": [None]}),
        ("events", {"events": [{**event, "dataset_uuid": "x"}]}),
        ("events", {"events": [{**event, "dataset_version": None}]}),
        ("events", {"events": [{**event, "cursor": "12"}]}),
        ("events", {"events": [{**event, "cursor": 2**63}]}),
        ("events", {"events": [{**event, "cursor": 1.5}]}),
        ("events", {"events": [{**event, "cursor": None}]}),
        ("events", {"events": [{**event, "partition_key": "1-2"}]}),
        ("events", {"events": [{**of_partition(1, 2), "partition_key": "1-3"}]}),
        ("events", {"events": [of_partition(3, 2)]}),
        ("events", {"events": [{**of_partition(1, 2), "end": None}]}),
        ("events", {"events": [{**of_partition(1, 2), "partition_key": "a\x00"}]}),
        ("events", {"events": [{**event, "cursor": None, "partition_key": ""}]}),
        ("buffer-publish", {"dataset_uuid": None}),
        ("buffer-publish", {"record_count": -1}),
        ("buffer-publish", {"record_count": 2**63}),
        ("buffer-publish", {"record_count": None}),
        ("buffer-publish", {"batch_uri": ""}),
        ("buffer-publish", {"batch_uri": "batch.jsonl"}),
        ("buffer-publish", {"batch_uri": "s3://bucket/a b"}),
        ("buffer-publish", {"batch_uri": "s3://bucket/a%2e%2e/b"}),
        ("buffer-publish", {"batch_uri": "s3://bucket/a\\b"}),
        ("buffer-publish", {"batch_uri": "s3://bucket/" + "x" * 2000}),
    ]


async def _send(holder: Holder, route: str, body: bytes | dict[str, Any]) -> Any:
    if isinstance(body, bytes):
        return await holder.world.http.post(f"/internal/{route}", content=body)
    full: dict[str, Any] = {
        **holder.fence, "worker_id": "w", "dataset_uuid": str(DATASET), "dataset_version": str(VERSION),
        "batch_uri": holder.batch_uri(), "record_count": 1, **body,
    }  # fmt: skip
    return await holder.world.post(route, full)


async def test_bad_bodies_are_400_and_nothing_is_written(world: World) -> None:
    holder = await world.writing()
    before = await world.rows()

    for route, body in _bad_bodies():
        answer = await _send(holder, route, body)
        assert answer.status_code == 400, (route, body, answer.status_code, answer.text)
        refused(answer, 400, "invalid_argument")

    assert await world.rows() == before


async def test_the_field_that_is_wrong_is_named(world: World) -> None:
    holder = await world.writing()

    for route, body, field in [
        ("task-claim", {"task_id": "not an id"}, "task_id"),
        ("heartbeat", {"attempt": 0}, "attempt"),
        ("events", {"events": [at_cursor(), {**at_cursor(), "cursor": None}]}, "events[1]"),
        ("buffer-publish", {"batch_uri": "x"}, "batch_uri"),
        ("task-complete", {"status": "Done"}, "status"),
    ]:
        assert refused(await _send(holder, route, body), 400, "invalid_argument")["field"] == field


async def test_a_body_over_two_mebibytes_is_413(world: World) -> None:
    holder = await world.held()
    large = {"error_message": "x" * (2 * 1024 * 1024)}

    refused(await holder.complete("Failed", **large), 413, "payload_too_large")

    async def in_parts() -> Any:
        for _ in range(40):
            yield b"x" * 65536

    refused(await world.http.post("/internal/task-complete", content=in_parts()), 413, "payload_too_large")
    assert (await holder.task()).state is State.RUNNING


async def test_unknown_fields_are_ignored_and_hostile_text_is_kept_as_it_can_be(world: World) -> None:
    holder = await world.held()

    ok(await holder.complete("Failed", error_message="nul \x00 in it", capability="x", kind="task_complete"))

    task = await holder.task()
    assert task.error is not None
    assert task.error.message == "nul � in it"


async def test_other_paths_and_methods_are_refused_in_the_same_words(world: World) -> None:
    refused(await world.http.get("/internal/task-claim"), 405, "method_not_allowed")
    refused(await world.http.post("/internal/task-fetch"), 405, "method_not_allowed")
    refused(await world.http.get("/internal/task-fetch"), 400, "invalid_argument")
    refused(await world.http.get("/internal/task-fetch?task_id=a&task_id=b"), 400, "invalid_argument")
    refused(await world.http.get("/internal/task-fetch?task_id=x"), 400, "invalid_argument")
    for path in ("/", "/internal", "/internal/", "/internal/other", "/api/v1/tasks"):
        refused(await world.http.get(path), 404, "not_found")


FENCED = [
    ("heartbeat", {}),
    ("events", {"events": [{"dataset_uuid": str(DATASET), "dataset_version": str(VERSION), "cursor": 1}]}),
    ("buffer-publish", {"dataset_uuid": str(DATASET), "dataset_version": str(VERSION), "record_count": 1,
                        "batch_uri": f"{SCRATCH}/x"}),
    ("task-complete", {"status": "Completed"}),
    ("task-complete", {"status": "Failed", "error_message": "forged"}),
    ("task-complete", {"status": "Canceled"}),
]  # fmt: skip


@pytest.mark.parametrize(("route", "body"), FENCED, ids=[f"{route}-{i}" for i, (route, _) in enumerate(FENCED)])
async def test_a_certificate_of_another_namespace_says_nothing_with_a_token_that_it_has(
    world: World, route: str, body: dict[str, Any]
) -> None:
    holder = await world.writing()
    before = await world.rows()

    async with client(world.url, world.tls_files, world.tls_files.bound) as http:
        refused(await holder.say(route, http, **body), 404, "task_not_found")

    assert await world.rows() == before


@pytest.mark.parametrize(
    ("route", "body"), FENCED[:-1], ids=[f"{route}-{i}" for i, (route, _) in enumerate(FENCED[:-1])]
)
@pytest.mark.parametrize("how", ["computed", "true"])
async def test_an_attempt_that_was_pushed_is_not_reported_here(
    world: World, route: str, body: dict[str, Any], how: str
) -> None:
    async def nowhere(_: Any) -> None: ...

    await world.engine.queues.put("out", delivery=Push(url="https://example.com/").checked(), limits=QueueConfig())
    world.engine.parts.effects[PUSH] = nowhere
    world.engine.parts.outgoing.dispatcher.mark(None)
    task_id = await world.submit(queue="out")
    await world.engine.parts.outgoing.dispatch_tick()
    pushed = await world.task(task_id)
    token = derived_id("attempt", task_id, 1) if how == "computed" else pushed.lease_id
    before = await world.rows()

    fence = {"task_id": str(task_id), "attempt": 1, "lease_token": str(token)}
    refused(await world.post(route, fence | body), 409, "stale_lease")

    assert pushed.attempt == 1
    assert await world.rows() == before
