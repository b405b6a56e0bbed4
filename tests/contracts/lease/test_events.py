"""Events and batches: recorded with the check of the fence, on their way by the outbox, and each once."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest
from tests.contracts.lease.world import DATASET, OTHER_DATASET, SCRATCH, VERSION, World, at_cursor, nobody, of_partition
from tests.kit.world import ok, refused

from windlass import State
from windlass.datasets.read import Datasets
from windlass.datasets.router import Router
from windlass.datasets.rules.events import BUFFER, ROUTE

pytestmark = pytest.mark.slow


async def test_single_partitioned_and_batched_events_are_recorded_and_go_through_the_outbox(world: World) -> None:
    holder = await world.writing()

    assert ok(await holder.events(at_cursor(1))) == {"status": "Accepted", "accepted": 1}
    assert ok(await holder.events(of_partition(1000000, 1010000)))["accepted"] == 1
    assert ok(await holder.events(at_cursor(2), at_cursor(3)))["accepted"] == 2

    told = (await Datasets(world.engine.store).events(holder.task_id)).items
    assert [(one.cursor, one.partition_key, one.first, one.last) for one in told if one.cursor is None] == [
        (None, "1000000-1010000", 1000000, 1010000)
    ]
    assert {one.cursor for one in told} == {1, 2, 3, None}
    assert {(one.attempt, one.declared, one.routed_at) for one in told} == {(1, True, None)}
    assert {body["event_id"] for body in await world.outbox(ROUTE)} == {str(one.id) for one in told}
    assert (await holder.task()).state is State.RUNNING


async def test_the_outbox_drains_and_the_events_stay(world: World) -> None:
    holder = await world.writing()
    ok(await holder.events(at_cursor(1), at_cursor(2)))
    ok(await holder.publish())

    await world.engine.loops.effects_tick()
    await world.engine.service(Router).route_tick()

    assert await world.outbox(ROUTE) == await world.outbox(BUFFER) == []
    told = (await Datasets(world.engine.store).events(holder.task_id)).items
    assert [(one.routing, one.routed_at) for one in told] == [("no_consumer", await world.clock.now())] * 2
    [batch] = (await Datasets(world.engine.store).publishes(holder.task_id)).items
    assert batch.queued_at == await world.clock.now()


async def test_the_same_event_again_is_one_also_in_another_attempt_and_with_the_end(world: World) -> None:
    first = await world.writing()
    ok(await first.events(at_cursor(1), at_cursor(1)))
    ok(await first.events(at_cursor(1)))
    await world.engine.service(Router).route_tick()
    await world.expire()
    await world.clock.advance(600)
    second = await world.hold(first.task_id)

    ok(await second.events(at_cursor(1)))
    ok(await second.complete(events=[at_cursor(1), at_cursor(2)]))

    told = (await Datasets(world.engine.store).events(first.task_id)).items
    assert [(one.cursor, one.attempt) for one in told] == [(1, 1), (2, 2)]
    assert len(await world.outbox(ROUTE)) == 1  # of the second event: the first was carried out


async def test_the_same_event_many_times_at_once_is_one(world: World) -> None:
    holder = await world.writing()

    told = await asyncio.gather(*(holder.events(at_cursor(7)) for _ in range(20)))

    assert {answer.status_code for answer in told} == {200}
    assert len(await world.outbox(ROUTE)) == 1


async def test_a_repeat_of_what_was_accepted_is_answered_also_when_the_lease_is_over(world: World) -> None:
    holder = await world.writing()
    ok(await holder.events(at_cursor()))
    published = ok(await holder.publish())
    ok(await holder.complete())

    ok(await holder.events(at_cursor()))
    assert ok(await holder.publish()) == published
    refused(await holder.events(at_cursor(99)), 409, "stale_lease")
    refused(await holder.publish(batch_uri=holder.batch_uri("more.jsonl")), 409, "stale_lease")


async def test_events_of_datasets_that_were_not_declared_are_kept_for_audit_only(world: World) -> None:
    holder = await world.writing()
    old_version = {**at_cursor(5), "dataset_version": nobody()}

    ok(await holder.events(at_cursor(1, OTHER_DATASET), old_version))

    told = (await Datasets(world.engine.store).events(holder.task_id)).items
    assert [one.declared for one in told] == [False, False]
    assert await world.outbox(ROUTE) == []


async def test_producer_and_caller_stand_with_each_record(world: World) -> None:
    holder = await world.writing()
    ok(await holder.events(at_cursor()))
    ok(await holder.publish())
    [claimed] = await world.entries(holder.task_id, "claimed")

    [event] = (await Datasets(world.engine.store).events(holder.task_id)).items
    [batch] = (await Datasets(world.engine.store).publishes(holder.task_id)).items

    for one in (event, batch):
        assert (one.task_id, one.attempt, one.namespace) == (holder.task_id, 1, "default")
        assert one.caller == claimed.detail["caller"]["fingerprint"]


# --------------------------------------------------------------------------------------------- batches


async def test_a_batch_is_recorded_and_its_message_goes_through_the_outbox(world: World) -> None:
    holder = await world.writing()

    told = ok(await holder.publish())

    [batch] = (await Datasets(world.engine.store).publishes(holder.task_id)).items
    assert told == {"status": "Accepted", "publish_id": str(batch.id)}
    assert (batch.batch_uri, batch.record_count, batch.queued_at) == (holder.batch_uri(), 1000, None)
    [message] = await world.outbox(BUFFER)
    assert message == {
        "kind": "buffer_batch",
        "publish_id": str(batch.id),
        "org_id": "default",
        "dataset_uuid": str(DATASET),
        "dataset_version": str(VERSION),
        "batch_uri": holder.batch_uri(),
        "record_count": 1000,
        "producer": {"task_id": str(holder.task_id), "attempt": 1},
    }


async def test_a_duplicate_batch_is_one_and_one_that_says_otherwise_is_a_conflict(world: World) -> None:
    holder = await world.writing()
    first = ok(await holder.publish())
    before = await world.rows()

    assert ok(await holder.publish()) == first
    refused(await holder.publish(record_count=999), 409, "conflict")

    assert await world.rows() == before
    ok(await holder.publish(batch_uri=holder.batch_uri("second.jsonl")))
    assert len(await world.outbox(BUFFER)) == 2


async def test_the_scratch_folder_of_the_attempt_is_its_own_too(world: World) -> None:
    holder = await world.writing()

    ok(await holder.publish(batch_uri=holder.reply["scratch_uri"] + "deep/batch.jsonl"))


async def test_a_batch_outside_of_what_the_task_may_write_is_refused(world: World) -> None:
    holder = await world.writing()
    other = f"{SCRATCH}/buffers/{DATASET}/{nobody()}/1/batch.jsonl"
    before = await world.rows()

    for field, body in [
        ("dataset_uuid", {"dataset_uuid": str(OTHER_DATASET)}),
        ("dataset_version", {"dataset_version": nobody()}),
        ("batch_uri", {"batch_uri": other}),
        ("batch_uri", {"batch_uri": holder.batch_uri().replace("/1/", "/2/")}),
        ("batch_uri", {"batch_uri": holder.batch_uri().replace("s3://trace-scratch", "s3://trace-scratch-evil")}),
        ("batch_uri", {"batch_uri": holder.batch_uri("../../x/batch.jsonl")}),
        ("batch_uri", {"batch_uri": holder.batch_uri("a//b")}),
        ("batch_uri", {"batch_uri": holder.batch_uri("")}),
        ("batch_uri", {"batch_uri": holder.batch_uri("./a")}),
    ]:
        assert refused(await holder.publish(**body), 403, "not_allowed")["field"] == field

    assert await world.rows() == before


async def test_a_task_that_declared_nothing_may_publish_nothing(world: World) -> None:
    for wire in (None, {"outputs": []}, {"outputs": "all"}, {"outputs": [{"dataset_uuid": "x"}]}):
        holder = await world.held(wire=wire)
        refused(await holder.publish(), 403, "not_allowed")


# --------------------------------------------------------------------------------------------- together or not at all


@pytest.mark.parametrize("route", ["events", "buffer-publish", "task-complete"])
async def test_records_and_outbox_are_written_together_or_not_at_all(world: World, route: str) -> None:
    holder = await world.writing()
    before = await world.rows("event", "publish", "outbox", "task")
    async with world.engine.store.begin() as tx:  # so that the last of what is written fails
        table = "publish" if route == "buffer-publish" else "event"
        await tx.session.connection.execute(
            f"alter table windlass.{table} add constraint broken check (false) not valid"
        )

    body: dict[str, Any] = {
        "events": {"events": [at_cursor()]},
        "task-complete": {"status": "Completed", "events": [at_cursor()]},
        "buffer-publish": {
            "dataset_uuid": str(DATASET), "dataset_version": str(VERSION), "record_count": 1,
            "batch_uri": holder.batch_uri(),
        },
    }[route]  # fmt: skip
    answer = await holder.say(route, **body)

    assert answer.status_code == 500
    assert "check" not in answer.text
    assert await world.rows("event", "publish", "outbox", "task") == before


async def test_events_wait_for_the_fence_and_not_beside_it(world: World) -> None:
    """While somebody decides about the task, nothing is recorded of it."""
    holder = await world.writing()
    async with world.engine.store.begin() as tx:
        tasks, _ = await tx.tasks.load_tasks([holder.task_id])
        telling = asyncio.create_task(holder.events(at_cursor()))
        await asyncio.wait([telling], timeout=0.2)
        assert not telling.done()
        await tx.session.connection.execute("update windlass.task set attempt = 2, lease_id = $1", UUID(int=5))
        assert tasks

    refused(await telling, 409, "stale_lease")
    assert await world.rows("event") == [[]]
