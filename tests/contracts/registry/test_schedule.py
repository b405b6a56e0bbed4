"""Schedules over the wire: made, listed, changed in part, deleted; and their runs reach the workers of the wire."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from google.protobuf.wrappers_pb2 import BoolValue, BytesValue, Int32Value, StringValue
from tests.contracts.registry.client import Client, Refused

from windlass import Engine
from windlass.contracts.registry.wire import kagzi_pb2 as pb
from windlass.core.schedule import ScheduleSpec
from windlass.testing.clock import VirtualClock

pytestmark = pytest.mark.slow


async def create(client: Client, **fields: Any) -> pb.Schedule:
    order = {"task_queue": "billing", "workflow_type": "invoice", "cron_expr": "0 * * * * *", **fields}
    made: pb.Schedule = (await client.CreateSchedule(**order)).schedule
    return made


async def test_a_schedule_is_told_with_all_that_was_given(still_client: Client, clock: VirtualClock) -> None:
    made = await create(
        still_client, namespace_id="shop", input=b'{"n": 1}', context=b'{"tenant": "acme"}', version="3",
        enabled=BoolValue(value=False), max_catchup=7, cron_expr="0 0 9 ? * 2-6 *",
    )  # fmt: skip
    assert (made.namespace_id, made.task_queue, made.workflow_type) == ("shop", "billing", "invoice")
    assert (made.cron_expr, made.max_catchup, made.version, made.enabled) == ("0 0 9 ? * 2-6 *", 7, "3", False)
    assert (json.loads(made.input), json.loads(made.context)) == ({"n": 1}, {"tenant": "acme"})
    next_fire = made.next_fire_at.ToDatetime(tzinfo=UTC)
    assert next_fire > await clock.now()
    assert (next_fire.weekday() < 5, next_fire.hour) == (True, 9)
    assert not made.HasField("last_fired_at")
    got = (await still_client.GetSchedule(schedule_id=made.schedule_id, namespace_id="shop")).schedule
    assert got == made


async def test_defaults_are_filled_in(still_client: Client) -> None:
    made = await create(still_client)
    assert (made.namespace_id, made.enabled, made.max_catchup, made.version) == ("default", True, 100, "1")
    assert (made.input, made.context) == (b"null", b"")
    for given, kept in ((-5, 1), (20_000, 10_000), (1, 1)):
        assert (await create(still_client, max_catchup=given)).max_catchup == kept


async def test_lists_are_newest_first_by_queue_and_limit(still_client: Client) -> None:
    made = {(await create(still_client, task_queue=queue)).schedule_id for queue in ("a", "b", "a")}
    await create(still_client, namespace_id="other")
    everything = (await still_client.ListSchedules()).schedules
    assert [s.schedule_id for s in everything] == sorted(made, reverse=True)
    assert len((await still_client.ListSchedules(task_queue="a")).schedules) == 2
    assert len((await still_client.ListSchedules(limit=1)).schedules) == 1
    assert (await still_client.ListSchedules(task_queue="none")).schedules == []


async def test_an_update_changes_only_what_is_given(still_client: Client, clock: VirtualClock) -> None:
    made = await create(still_client, input=b"1", context=b"[1]", version="2")

    async def update(**fields: Any) -> pb.Schedule:
        changed: pb.Schedule = (await still_client.UpdateSchedule(schedule_id=made.schedule_id, **fields)).schedule
        return changed

    assert await update() == made
    changed = await update(input=BytesValue(value=b"2"), max_catchup=Int32Value(value=3))
    assert (changed.input, changed.max_catchup, changed.context, changed.version) == (b"2", 3, b"[1]", "2")
    assert changed.next_fire_at == made.next_fire_at
    changed = await update(version=StringValue(value="9"), task_queue=StringValue(value="q"))
    assert (changed.version, changed.context, changed.task_queue) == ("9", b"[1]", "q")
    later = Timestamp()
    later.FromDatetime(datetime(2090, 1, 1, 0, 0, 30, tzinfo=UTC))
    assert (await update(next_fire_at=later)).next_fire_at == later
    changed = await update(cron_expr=StringValue(value="@yearly"), enabled=BoolValue(value=False))
    assert (changed.cron_expr, changed.enabled) == ("@yearly", False)
    changed = await update(context=BytesValue(value=b""), workflow_type=StringValue(value="other"))
    assert (changed.context, changed.workflow_type) == (b"", "other")


async def test_the_next_fire_is_taken_as_given(still_client: Client, engine: Engine, clock: VirtualClock) -> None:
    made = await create(still_client, cron_expr="0 0 3 1 1 ?")
    now = await clock.now()
    at = now + timedelta(seconds=90, milliseconds=250)
    given = Timestamp()
    given.FromDatetime(at)
    changed = (await still_client.UpdateSchedule(schedule_id=made.schedule_id, next_fire_at=given)).schedule
    assert changed.next_fire_at == given
    assert (await still_client.GetSchedule(schedule_id=made.schedule_id)).schedule == changed

    await clock.advance(90.0)
    assert await engine.loops.schedule_tick() == 0
    await clock.advance(0.5)
    assert await engine.loops.schedule_tick() == 1

    [run] = (await still_client.ListWorkflowRuns()).workflow_runs
    view = await engine.tasks.get(UUID(run.run_id))
    assert view.idempotency_key == f"schedule:{made.schedule_id}:{at.isoformat()}"
    fired = (await still_client.GetSchedule(schedule_id=made.schedule_id)).schedule
    assert (fired.last_fired_at, fired.next_fire_at) == (given, made.next_fire_at)

    given.FromDatetime(now)
    await still_client.UpdateSchedule(schedule_id=made.schedule_id, next_fire_at=given)
    assert await engine.loops.schedule_tick() == 1  # one in the past is due at once
    assert len((await still_client.ListWorkflowRuns()).workflow_runs) == 2


async def test_enabling_catches_up_from_the_last_fire_within_max_catchup(
    still_client: Client, engine: Engine, clock: VirtualClock
) -> None:
    made = await create(still_client, max_catchup=2)
    runs = lambda: still_client.ListWorkflowRuns(page_size=100)  # noqa: E731

    async def enable(enabled: bool) -> None:
        await still_client.UpdateSchedule(schedule_id=made.schedule_id, enabled=BoolValue(value=enabled))

    async def live(minutes: int) -> int:
        for _ in range(minutes * 4):
            await clock.advance(15)
            await engine.loops.schedule_tick()
        return len((await runs()).workflow_runs)

    assert await live(1) == 1
    await enable(False)
    assert await live(10) == 1
    await enable(True)
    while await engine.loops.schedule_tick():
        pass
    assert len((await runs()).workflow_runs) == 3
    assert await live(1) == 4


async def test_a_fire_is_a_run_like_any_other(still_client: Client, engine: Engine, clock: VirtualClock) -> None:
    made = await create(still_client, input=b'{"n": 1}', context=b'{"tenant": "acme"}', version="3")
    fire_at = made.next_fire_at.ToDatetime(tzinfo=UTC)
    await clock.advance((fire_at - await clock.now()).total_seconds())
    assert await engine.loops.schedule_tick() == 1
    [run] = (await still_client.ListWorkflowRuns()).workflow_runs
    assert (run.business_id, run.workflow_type, run.task_queue) == (made.schedule_id, "invoice", "billing")
    assert (json.loads(run.input), json.loads(run.context), run.version) == ({"n": 1}, {"tenant": "acme"}, "3")
    view = await engine.tasks.get(UUID(run.run_id))
    assert view.idempotency_key == f"schedule:{made.schedule_id}:{fire_at.isoformat()}"
    assert view.idempotency_key.endswith("+00:00")
    assert (view.task.policy.max_attempts, view.task.policy.max_losses) == (5, 5)
    fired = (await still_client.GetSchedule(schedule_id=made.schedule_id)).schedule
    assert fired.last_fired_at == made.next_fire_at
    assert fired.next_fire_at.ToDatetime(tzinfo=UTC) == fire_at + timedelta(minutes=1)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"cron_expr": ""}, "cron_expr"),
        ({"cron_expr": "* * * * *"}, "6 or 7 fields"),
        ({"cron_expr": "0 0 0 30 2 ?"}, "never fires"),
        ({"cron_expr": "0 0 0 1 1 ? 2020"}, "has no fire in the future"),
        ({"task_queue": ""}, "task_queue"),
        ({"workflow_type": ""}, "workflow_type"),
        ({"input": b"{"}, "input"),
        ({"context": b"{"}, "context"),
        ({"namespace_id": "\x01"}, "namespace_id"),
    ],
)
async def test_what_cannot_be_is_refused(still_client: Client, fields: dict[str, Any], says: str) -> None:
    with Refused("INVALID_ARGUMENT", "INVALID_ARGUMENT") as refused:
        await create(still_client, **fields)
    assert says in refused.detail.message
    assert (await still_client.ListSchedules()).schedules == []


async def test_a_schedule_that_is_not_there_is_told(still_client: Client) -> None:
    made = await create(still_client, namespace_id="shop")
    await still_client.DeleteSchedule(schedule_id=made.schedule_id, namespace_id="shop")
    other = await create(still_client, namespace_id="shop")
    for ask in (still_client.GetSchedule, still_client.UpdateSchedule, still_client.DeleteSchedule):
        for schedule_id, namespace_id in ((made.schedule_id, "shop"), (str(uuid4()), ""), (other.schedule_id, "else")):
            with Refused("NOT_FOUND", "NOT_FOUND") as refused:
                await ask(schedule_id=schedule_id, namespace_id=namespace_id)
            assert (refused.detail.subject, refused.detail.subject_id) == ("schedule", schedule_id)
        with Refused("INVALID_ARGUMENT", "INVALID_ARGUMENT"):
            await ask(schedule_id="x")


async def test_a_schedule_of_another_door_is_seen_and_what_code_declares_is_left_alone(
    still_client: Client, engine: Engine
) -> None:
    await engine.schedules.declare("shop", [ScheduleSpec(kind="x", cron="0 9 * * MON", name="weekly")])
    [seen] = (await still_client.ListSchedules()).schedules
    assert (seen.cron_expr, seen.workflow_type) == ("0 9 * * MON", "x")
    with Refused("FAILED_PRECONDITION", "PRECONDITION_FAILED") as refused:
        await still_client.DeleteSchedule(schedule_id=seen.schedule_id)
    assert "shop" in refused.detail.message
