"""Calls about schedules: converts between this wire and the schedules of the engine.

A cron expression of this wire starts with seconds. One of five fields has another meaning elsewhere and is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import not_
from typing import Any

from windlass.contracts.registry.server.call import Call, missing, not_found_as
from windlass.contracts.registry.wire import kagzi_pb2 as pb
from windlass.contracts.registry.wire import messages as wire
from windlass.contracts.registry.wire.field_names import wire_field_names
from windlass.core.access import Role
from windlass.core.cron import parse_cron
from windlass.core.schedule import CATCHUP_DEFAULT, CATCHUP_MAX, Schedule, ScheduleSpec
from windlass.core.validation import NAME_MAX, check_text
from windlass.errors import Invalid

LIST_DEFAULT, LIST_MAX = 100, 500


async def create_schedule(call: Call, request: pb.CreateScheduleRequest) -> pb.CreateScheduleResponse:
    """The first fire is the first after now. A schedule is enabled by default."""
    namespace = call.may(Role.SUBMITTER, request.namespace_id)
    schedule_id = call.engine.parts.randomness.new_id()
    with wire_field_names():
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
        await call.engine.keys.declare_namespace(namespace)
        made = await call.engine.schedules.create(spec, namespace=namespace, schedule_id=schedule_id)
    return pb.CreateScheduleResponse(schedule=_message(made))


async def get_schedule(call: Call, request: pb.GetScheduleRequest) -> pb.GetScheduleResponse:
    namespace = call.may(Role.VIEWER, request.namespace_id)
    return pb.GetScheduleResponse(schedule=_message(await _get(call, request.schedule_id, namespace)))


async def list_schedules(call: Call, request: pb.ListSchedulesRequest) -> pb.ListSchedulesResponse:
    """Newest first."""
    namespace = call.may(Role.VIEWER, request.namespace_id)
    limit = LIST_DEFAULT if request.limit <= 0 else min(request.limit, LIST_MAX)
    found = await call.engine.schedules.page(namespace, queue=call.queue_filter(request.task_queue), limit=limit)
    return pb.ListSchedulesResponse(schedules=map(_message, found))


async def update_schedule(call: Call, request: pb.UpdateScheduleRequest) -> pb.UpdateScheduleResponse:
    """Changes only the given fields. A new cron takes effect now; otherwise `next_fire_at` sets the next fire."""
    known = await _get(call, request.schedule_id, call.may(Role.SUBMITTER, request.namespace_id))
    with wire_field_names():
        changes = _changes(request, known)
        moves = request.HasField("next_fire_at") and "cron" not in changes
        at = wire.instant("next_fire_at", request.next_fire_at) if moves else None
        with not_found_as("schedule", request.schedule_id):
            after = await call.engine.schedules.update(known.id, changes, next_fire_at=at)
    return pb.UpdateScheduleResponse(schedule=_message(after))


async def delete_schedule(call: Call, request: pb.DeleteScheduleRequest) -> pb.Empty:
    """The runs that the schedule has started continue."""
    known = await _get(call, request.schedule_id, call.may(Role.SUBMITTER, request.namespace_id))
    with not_found_as("schedule", request.schedule_id):
        await call.engine.schedules.delete(known.id)
    return pb.Empty()


async def _get(call: Call, schedule_id: str, namespace: str) -> Schedule:
    """Raises NotFound for a schedule of another namespace."""
    id_ = wire.read_id("schedule_id", schedule_id, "schedule")
    with not_found_as("schedule", schedule_id):
        known = await call.engine.schedules.get(id_)
    if known.namespace != namespace:
        raise missing("schedule", schedule_id)
    return known


def _changes(request: pb.UpdateScheduleRequest, known: Schedule) -> dict[str, Any]:
    readers: dict[str, tuple[str, Callable[[Any], object]]] = {
        "task_queue": ("queue", str),
        "workflow_type": ("kind", str),
        "cron_expr": ("cron", _cron),
        "input": ("payload", partial(wire.json_bytes, "input")),
        "enabled": ("paused", not_),
        "max_catchup": ("max_catchup", _catchup),
    }
    changes: dict[str, Any] = {
        name: read(getattr(request, field).value) for field, (name, read) in readers.items() if request.HasField(field)
    }
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


def _catchup(count: int) -> int:
    return CATCHUP_DEFAULT if count == 0 else max(1, min(count, CATCHUP_MAX))


def _wire(schedule_id: str, context: bytes, version: str) -> bytes:
    """The id of the schedule is the workflow id of the runs that it starts."""
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
