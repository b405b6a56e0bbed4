"""Schedules on the wire of the registry contract. What they do is the engine's; here are its words for it.

A cron expression of this wire begins with seconds; one of five fields means another thing elsewhere, and is refused.
"""

from __future__ import annotations

from typing import Any

from windlass.contracts.registry.call import Call, missing
from windlass.contracts.registry.words import in_words_of_the_wire
from windlass.core.access import Role
from windlass.core.check import NAME_MAX, check_text
from windlass.core.cron import parse_cron
from windlass.core.error import Invalid, NotFound
from windlass.core.schedule import CATCHUP_DEFAULT, CATCHUP_MAX, Schedule, ScheduleSpec
from windlass.wire import registry as wire
from windlass.wire.protos import kagzi_pb2 as pb

LIST_DEFAULT, LIST_MAX = 100, 500


async def create_schedule(call: Call, request: pb.CreateScheduleRequest) -> pb.CreateScheduleResponse:
    """Its first fire is the first after now. It is enabled unless it is said not to be."""
    namespace = call.may(Role.SUBMITTER, request.namespace_id)
    schedule_id = call.engine.chance.new_id()
    with in_words_of_the_wire():
        spec = ScheduleSpec(
            kind=request.workflow_type,
            queue=request.task_queue,
            cron=_cron(request.cron_expr),
            payload=wire.json_bytes("input", request.input),
            wire=_wire(str(schedule_id), request.context, request.version),
            policy=wire.policy_from(None),
            max_catchup=_catchup(request.max_catchup),
            paused=request.HasField("enabled") and not request.enabled.value,
        )
        await call.engine.access.declare_namespace(namespace)
        made = await call.engine.schedules.create(spec, namespace=namespace, schedule_id=schedule_id)
    return pb.CreateScheduleResponse(schedule=_message(made))


async def get_schedule(call: Call, request: pb.GetScheduleRequest) -> pb.GetScheduleResponse:
    namespace = call.may(Role.VIEWER, request.namespace_id)
    return pb.GetScheduleResponse(schedule=_message(await _seen(call, request.schedule_id, namespace)))


async def list_schedules(call: Call, request: pb.ListSchedulesRequest) -> pb.ListSchedulesResponse:
    """Newest first."""
    namespace = call.may(Role.VIEWER, request.namespace_id)
    limit = LIST_DEFAULT if request.limit <= 0 else min(request.limit, LIST_MAX)
    found = await call.engine.schedules.page(namespace, queue=request.task_queue or None, limit=limit)
    return pb.ListSchedulesResponse(schedules=map(_message, found))


async def update_schedule(call: Call, request: pb.UpdateScheduleRequest) -> pb.UpdateScheduleResponse:
    """Only what is given changes. Another cron begins now; else `next_fire_at` is taken as the next fire."""
    known = await _seen(call, request.schedule_id, call.may(Role.SUBMITTER, request.namespace_id))
    with in_words_of_the_wire():
        changes = _changes(request, known)
        moves = request.HasField("next_fire_at") and "cron" not in changes
        at = wire.instant("next_fire_at", request.next_fire_at) if moves else None
        try:
            after = await call.engine.schedules.update(known.id, changes, next_fire_at=at)
        except NotFound:
            raise missing("schedule", request.schedule_id) from None
    return pb.UpdateScheduleResponse(schedule=_message(after))


async def delete_schedule(call: Call, request: pb.DeleteScheduleRequest) -> pb.Empty:
    """It fires no more. The runs that it has started go on."""
    known = await _seen(call, request.schedule_id, call.may(Role.SUBMITTER, request.namespace_id))
    try:
        await call.engine.schedules.delete(known.id)
    except NotFound:
        raise missing("schedule", request.schedule_id) from None
    return pb.Empty()


async def _seen(call: Call, schedule_id: str, namespace: str) -> Schedule:
    """A schedule that the caller can see. One of another namespace is not there."""
    id_ = wire.read_id("schedule_id", schedule_id, "schedule")
    try:
        known = await call.engine.schedules.get(id_)
    except NotFound:
        raise missing("schedule", schedule_id) from None
    if known.namespace != namespace:
        raise missing("schedule", schedule_id)
    return known


def _changes(request: pb.UpdateScheduleRequest, known: Schedule) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if request.HasField("task_queue"):
        changes["queue"] = request.task_queue.value
    if request.HasField("workflow_type"):
        changes["kind"] = request.workflow_type.value
    if request.HasField("cron_expr"):
        changes["cron"] = _cron(request.cron_expr.value)
    if request.HasField("input"):
        changes["payload"] = wire.json_bytes("input", request.input.value)
    if request.HasField("enabled"):
        changes["paused"] = not request.enabled.value
    if request.HasField("max_catchup"):
        changes["max_catchup"] = _catchup(request.max_catchup.value)
    if request.HasField("context") or request.HasField("version"):
        extra = wire.extra_of(known.wire)
        context = request.context.value if request.HasField("context") else bytes(extra.context)
        version = request.version.value if request.HasField("version") else extra.version
        changes["wire"] = _wire(str(known.id), context, version)
    return changes


def _cron(text: str) -> str:
    if not parse_cron(text).with_seconds:
        raise Invalid(f"must have 6 or 7 fields, the first for seconds: 0 {text}"[:300], field="cron")
    return text


def _catchup(given: int) -> int:
    return CATCHUP_DEFAULT if given == 0 else max(1, min(given, CATCHUP_MAX))


def _wire(schedule_id: str, context: bytes, version: str) -> bytes:
    """A run that it starts is known to its callers by the id of the schedule."""
    if version:
        check_text("version", version, NAME_MAX)
    checked = wire.json_bytes("context", context, empty=b"")
    return wire.wire_of(schedule_id, checked, version or wire.DEFAULT_VERSION, ())


def _message(schedule: Schedule) -> pb.Schedule:
    extra = wire.extra_of(schedule.wire)
    return pb.Schedule(
        schedule_id=str(schedule.id), namespace_id=schedule.namespace, task_queue=schedule.queue,
        workflow_type=schedule.kind, cron_expr=schedule.cron, input=schedule.payload, context=bytes(extra.context),
        enabled=not schedule.paused, max_catchup=schedule.max_catchup, version=extra.version,
        next_fire_at=wire.timestamp(schedule.next_fire_at), last_fired_at=wire.timestamp(schedule.last_fire_at),
    )  # fmt: skip
