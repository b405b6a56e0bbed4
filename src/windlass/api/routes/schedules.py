"""Schedules: cron expressions that submit tasks. A schedule is named in a path by its id or by its name."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from msgspec.structs import asdict, replace

from windlass.api.framework import cursor
from windlass.api.framework.forms import At, Cursor, In, Key, Limit, Listed, Name, Nothing, Paged, Positive, Timeout
from windlass.api.framework.request import KEY_HEADER
from windlass.api.framework.route import Call, Table
from windlass.api.routes.task_forms import TaskForm, raw
from windlass.api.routes.tasks import list_forms
from windlass.core.access import Role
from windlass.core.cron import LONGEST
from windlass.core.retry import DEFAULT_POLICY, Policy
from windlass.core.schedule import CATCHUP_DEFAULT, CATCHUP_MAX, Overlap, Schedule, ScheduleSpec
from windlass.core.submission import PRIORITY_MAX, PRIORITY_MIN
from windlass.core.validation import COUNT_MAX
from windlass.engine.manage.schedules import PREVIEW_MAX
from windlass.errors import Malformed
from windlass.net.ids import parse_id

table = Table("schedules")

CronText = Annotated[
    str, Meta(min_length=1, max_length=LONGEST, description="5 fields as in crontab, or 6 or 7 with seconds first")
]
Priority = Annotated[int, Meta(ge=PRIORITY_MIN, le=PRIORITY_MAX)]
Catchup = Annotated[int, Meta(ge=0, le=CATCHUP_MAX)]
Losses = Annotated[int, Meta(ge=0, le=COUNT_MAX)]


class RetryLimits(Struct, frozen=True, forbid_unknown_fields=True):
    """The limits of a schedule's tasks. A missing field has its default; null takes the value of the queue."""

    max_attempts: Positive | None = None
    max_losses: Losses | None = None
    timeout_s: Timeout | None = None


class NewSchedule(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A schedule to create. The default namespace is that of the key. Without a name, refer to it by its id."""

    kind: Name
    cron: CronText
    name: Name | None = None
    timezone: Name = "UTC"
    queue: Name = "default"
    payload: Raw | UnsetType = UNSET
    priority: Priority = 0
    concurrency_key: Key | None = None
    retry: RetryLimits | None = None
    overlap: Overlap = Overlap.ALLOW
    max_catchup: Catchup = CATCHUP_DEFAULT
    paused: bool = False
    namespace: Name | None = None


class ScheduleChange(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The changes of a schedule. Fields that are left out keep their value. A new cron or zone applies from now."""

    kind: Name | UnsetType = UNSET
    cron: CronText | UnsetType = UNSET
    name: Name | UnsetType | None = UNSET
    timezone: Name | UnsetType = UNSET
    queue: Name | UnsetType = UNSET
    payload: Raw | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    concurrency_key: Key | UnsetType | None = UNSET
    retry: RetryLimits | UnsetType | None = UNSET
    overlap: Overlap | UnsetType = UNSET
    max_catchup: Catchup | UnsetType = UNSET
    paused: bool | UnsetType = UNSET
    next_fire_at: At | UnsetType = UNSET


class ScheduleForm(Struct, frozen=True, kw_only=True):
    """A schedule. `app` is the app whose code declares it; `problem` is the reason why it cannot fire now."""

    id: UUID
    name: str | None
    namespace: str
    kind: str
    cron: str
    timezone: str
    queue: str
    payload: Raw
    priority: int
    concurrency_key: str | None
    retry: RetryLimits | None
    overlap: Overlap
    max_catchup: int
    paused: bool
    next_fire_at: datetime | None
    last_fire_at: datetime | None
    last_task_id: UUID | None
    fired: int
    skipped: int
    problem: str | None
    app: str | None
    created_at: datetime
    updated_at: datetime


class TriggeredForm(Struct, frozen=True):
    """The task that was submitted."""

    schedule_id: UUID
    task_id: UUID


class PreviewForm(Struct, frozen=True):
    """The next fires, in UTC and in local time of the zone."""

    cron: str
    timezone: str
    fires: list[datetime]
    local: list[datetime]


class PreviewQuery(In, frozen=True, forbid_unknown_fields=True):
    """The number of fires, and the instant after which they are. Default: now."""

    count: Annotated[int, Meta(ge=1, le=PREVIEW_MAX)] = 10
    after: At | None = None


class CronQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """A cron expression, of a schedule or not."""

    cron: CronText
    timezone: Name = "UTC"
    count: Annotated[int, Meta(ge=1, le=PREVIEW_MAX)] = 10
    after: At | None = None


class SchedulePage(Paged, frozen=True, forbid_unknown_fields=True):
    """A page of the schedules of a namespace, or of one queue in it."""

    queue: Name | None = None


class ScheduleTaskPage(In, frozen=True, forbid_unknown_fields=True):
    """A page of a schedule's tasks."""

    after: Cursor | None = None
    limit: Limit = 50


@table.add("POST", "/api/v1/schedules", Role.SUBMITTER, status=201, headers=(KEY_HEADER,))
async def create_schedule(call: Call[None, NewSchedule]) -> ScheduleForm:
    """Create a schedule. A repeated Idempotency-Key, or the same name and content, returns the same schedule."""
    order = call.body
    namespace = call.namespace(order.namespace)
    fields = {name: value for name, value in _given(order).items() if name != "namespace"}
    await call.engine.keys.declare_namespace(namespace)
    made = await call.engine.schedules.create(ScheduleSpec(**fields), namespace=namespace, key=call.key)
    return _form(made)


@table.add("GET", "/api/v1/schedules", Role.VIEWER)
async def list_schedules(call: Call[SchedulePage, None]) -> Listed[ScheduleForm]:
    """List schedules, newest first."""
    query = call.query
    found = await call.engine.schedules.page(
        call.namespace(query.namespace), queue=query.queue, after=cursor.to_position(query.after), limit=query.limit + 1
    )
    page, more = cursor.page_of(found, query.limit, lambda schedule: (schedule.created_at, schedule.id))
    return Listed([_form(schedule) for schedule in page], more)


@table.add("GET", "/api/v1/schedules/{schedule}", Role.VIEWER)
async def get_schedule(call: Call[In, None]) -> ScheduleForm:
    """Get a schedule."""
    return _form(await _find(call))


@table.add("PATCH", "/api/v1/schedules/{schedule}", Role.SUBMITTER)
async def update_schedule(call: Call[In, ScheduleChange]) -> ScheduleForm:
    """Update the given fields of a schedule. With `next_fire_at` it fires next at that time, whatever its cron
    expression says, and fires before that time are skipped."""
    known, changes = await _find(call), _given(call.body)
    next_fire_at = changes.pop("next_fire_at", None)
    return _form(await call.engine.schedules.update(known.id, changes, next_fire_at=next_fire_at))


@table.add("DELETE", "/api/v1/schedules/{schedule}", Role.SUBMITTER)
async def delete_schedule(call: Call[In, None]) -> ScheduleForm:
    """Delete a schedule. The tasks that it submitted stay."""
    return _form(await call.engine.schedules.delete((await _find(call)).id))


@table.add("POST", "/api/v1/schedules/{schedule}/pause", Role.SUBMITTER)
async def pause_schedule(call: Call[In, Nothing]) -> ScheduleForm:
    """Pause a schedule. It does not fire until it is resumed."""
    return _form(await call.engine.schedules.pause((await _find(call)).id))


@table.add("POST", "/api/v1/schedules/{schedule}/resume", Role.SUBMITTER)
async def resume_schedule(call: Call[In, Nothing]) -> ScheduleForm:
    """Resume a schedule. The newest `max_catchup` of its missed fires are submitted."""
    return _form(await call.engine.schedules.resume((await _find(call)).id))


@table.add("POST", "/api/v1/schedules/{schedule}/trigger", Role.SUBMITTER, status=201, headers=(KEY_HEADER,))
async def trigger_schedule(call: Call[In, Nothing]) -> TriggeredForm:
    """Submit the task of a schedule now, in addition to its fires."""
    known = await _find(call)
    return TriggeredForm(known.id, await call.engine.schedules.trigger(known.id, key=call.key))


@table.add("GET", "/api/v1/schedules/{schedule}/preview", Role.VIEWER)
async def preview_schedule(call: Call[PreviewQuery, None]) -> PreviewForm:
    """Show the next fires of a schedule, even if it is paused."""
    known = await _find(call)
    fires = await call.engine.schedules.preview(known.id, call.query.count, after=call.query.after)
    return _preview_form(call, known.cron, known.timezone, fires)


@table.add("GET", "/api/v1/schedules/{schedule}/tasks", Role.VIEWER)
async def list_schedule_tasks(call: Call[ScheduleTaskPage, None]) -> Listed[TaskForm]:
    """List the tasks that a schedule submitted, newest first."""
    known, limit = await _find(call), call.query.limit
    found = await call.engine.schedules.task_page(known.id, after=cursor.to_position(call.query.after), limit=limit + 1)
    page, more = cursor.page_of(found, limit, lambda position: position)
    return Listed(await list_forms(call, await call.engine.tasks.get_many([id_ for _, id_ in page])), more)


@table.add("GET", "/api/v1/cron", Role.VIEWER)
async def preview_cron(call: Call[CronQuery, None]) -> PreviewForm:
    """Show when a cron expression would fire."""
    cron, timezone = call.query.cron, call.query.timezone
    fires = await call.engine.schedules.preview_cron(cron, timezone, call.query.count, after=call.query.after)
    return _preview_form(call, cron, timezone, fires)


def _preview_form(call: Call[Any, None], cron: str, timezone: str, fires: list[datetime]) -> PreviewForm:
    return PreviewForm(cron, timezone, fires, call.engine.schedules.local(fires, timezone))


async def _find(call: Call[Any, Any]) -> Schedule:
    """Find a schedule by its id, in a namespace that the key reaches, or else by its name."""
    text = call.path["schedule"]
    if len(text) > 200:
        raise Malformed("is neither the id nor the name of a schedule", field="schedule")
    namespace = call.namespace(call.query.namespace)
    id_ = parse_id("schedule", text) if "-" in text or text.startswith("schedule_") else None
    schedule = await call.engine.schedules.get(id_ or text, namespace=namespace)
    call.reach(schedule.namespace)
    return schedule


def _given(order: NewSchedule | ScheduleChange) -> dict[str, Any]:
    """The fields of the request that are set, as the engine names them."""
    fields = {name: value for name, value in asdict(order).items() if value is not UNSET}
    if "payload" in fields:
        fields["payload"] = bytes(fields["payload"])
    if "concurrency_key" in fields:
        fields["concurrency_key"] = fields["concurrency_key"] or ""
    if "retry" in fields:
        fields["policy"] = _policy(fields.pop("retry"))
    return fields


def _policy(limits: RetryLimits | None) -> Policy | None:
    if limits is None:
        return None
    fields = {name: value for name, value in asdict(limits).items() if value is not None}
    return replace(DEFAULT_POLICY, **fields) if fields else None


def _form(schedule: Schedule) -> ScheduleForm:
    policy = schedule.policy
    limits = None if policy is None else RetryLimits(policy.max_attempts, policy.max_losses, policy.timeout_s)
    s = schedule
    return ScheduleForm(
        id=s.id, name=s.name, namespace=s.namespace, kind=s.kind, cron=s.cron, timezone=s.timezone, queue=s.queue,
        payload=raw(s.payload), priority=s.priority, concurrency_key=s.concurrency_key or None, retry=limits,
        overlap=s.overlap, max_catchup=s.max_catchup, paused=s.paused, next_fire_at=s.next_fire_at,
        last_fire_at=s.last_fire_at, last_task_id=s.last_task_id, fired=s.fired, skipped=s.skipped, problem=s.problem,
        app=s.app, created_at=s.created_at, updated_at=s.updated_at,
    )  # fmt: skip
