"""Schedules: what they submit, when they fire, and which missed fires are caught up.

A fire at or before `settled_at` is settled: submitted, skipped, or too old to be caught up. `settled_at` only moves
forward, under the lock of the schedule, so that no fire is settled twice, whatever the clock does.

`max_catchup` bounds the fires that were missed while no server ticked (an outage, however short) or while the schedule
was paused. A fire that is late because a server was busy is never skipped. Time and time zones are arguments.

A person may set the next fire. That instant is stored as `extra_fire_at`, since the cron may not name it. It is never
after `settled_at`, so that it is the oldest of all fires that are not settled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from typing import Any
from uuid import UUID

import msgspec
from msgspec.structs import replace

from windlass.core.cron import Cron, parse_cron
from windlass.core.cron_times import first_fires, newest_fires, next_fire
from windlass.core.retry import DEFAULT_POLICY, Policy
from windlass.core.states import Instant
from windlass.core.submission import Submission, check_submission
from windlass.core.validation import check_count, check_name, check_type
from windlass.core.wall_time import SECOND
from windlass.errors import Invalid, InvalidState

CATCHUP_DEFAULT, CATCHUP_MAX = 100, 10_000
OUTAGES_KEPT = 20
WAITED_FOR_MAX = 20
BROKEN_DELAY = timedelta(minutes=1)
MOMENT = timedelta(microseconds=1)


class Overlap(StrEnum):
    """What a fire does when a task of an earlier one has not ended."""

    ALLOW = "allow"  # submit, and let both run
    SKIP = "skip"  # skip the fire
    QUEUE = "queue"  # submit, and wait until the earlier task has ended
    CANCEL = "cancel"  # cancel the earlier task, and wait until it has ended


class ScheduleSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a schedule: which task, and when. Without a policy, the task gets that of its kind or queue."""

    kind: str
    cron: str
    name: str | None = None
    timezone: str = "UTC"
    queue: str = "default"
    payload: bytes = b"null"
    priority: int = 0
    concurrency_key: str = ""
    policy: Policy | None = None
    wire: bytes | None = None
    overlap: Overlap = Overlap.ALLOW
    max_catchup: int = CATCHUP_DEFAULT
    paused: bool = False
    job_id: UUID | None = None  # the job of a DAG that its tasks run


SPEC_FIELDS = ScheduleSpec.__struct_fields__


class Schedule(ScheduleSpec, frozen=True, kw_only=True):
    """A stored schedule. `app` is the app whose code declares it, last at `declared_at`."""

    id: UUID
    namespace: str
    settled_at: Instant
    next_fire_at: Instant | None
    created_at: Instant
    updated_at: Instant
    last_fire_at: Instant | None = None
    last_task_id: UUID | None = None
    fired: int = 0
    skipped: int = 0
    problem: str | None = None
    app: str | None = None
    declared_at: Instant | None = None
    extra_fire_at: Instant | None = None

    @property
    def spec(self) -> ScheduleSpec:
        return ScheduleSpec(**{field: getattr(self, field) for field in SPEC_FIELDS})


class Outage(msgspec.Struct, frozen=True):
    """A time in which no server ticked."""

    from_at: Instant
    to_at: Instant


class Scheduler(msgspec.Struct, frozen=True):
    """What all servers share: when one of them last ticked, and the outages before."""

    ticked_at: Instant
    outages: tuple[Outage, ...] = ()


class Fire(msgspec.Struct, frozen=True):
    """A fire to settle. Without a task it is skipped; its task waits for the tasks in `after`."""

    at: Instant
    task_id: UUID | None
    after: tuple[UUID, ...] = ()


class OpenTask(msgspec.Struct, frozen=True):
    """A task of an earlier fire that has not ended. A fire can wait only for a task in the schedule's run (`grouped`),
    not for one that was submitted before the schedule's overlap was set to wait."""

    id: UUID
    grouped: bool = True


def fire_key(schedule_id: UUID, fire_at: Instant) -> str:
    """The idempotency key of a fire, the same on every server."""
    return f"schedule:{schedule_id}:{fire_at.astimezone(UTC).isoformat()}"


def fired_at_of(key: str) -> Instant | None:
    """The time of the fire that a key names; None if it is not the key of one."""
    word, _, rest = key.partition(":")
    at = rest.partition(":")[2]
    return datetime.fromisoformat(at) if word == "schedule" and not at.startswith("manual:") else None


# --------------------------------------------------------------------------------------------- what people do


def check_spec(spec: ScheduleSpec) -> Cron:
    """Raise Invalid naming the first field that cannot be accepted. Does not check that the time zone exists."""
    check_type("schedule", spec, ScheduleSpec)
    if spec.name is not None:
        check_name("name", spec.name)
    check_name("timezone", spec.timezone)
    check_type("overlap", spec.overlap, Overlap)
    check_count("max_catchup", spec.max_catchup, most=CATCHUP_MAX)
    check_type("paused", spec.paused, bool)
    check_submission(_submission(spec, "default"))
    return parse_cron(spec.cron)


def create(
    spec: ScheduleSpec, schedule_id: UUID, namespace: str, zone: tzinfo, now: Instant, *, app: str | None = None
) -> Schedule:
    """A new schedule. Its first fire is the first after now."""
    cron = check_spec(spec)
    fields = {field: getattr(spec, field) for field in SPEC_FIELDS}
    return Schedule(
        **fields, id=schedule_id, namespace=namespace, settled_at=now, next_fire_at=_first(cron, zone, now),
        created_at=now, updated_at=now, app=app, declared_at=None if app is None else now,
    )  # fmt: skip


def change(schedule: Schedule, changes: Mapping[str, Any], zone: tzinfo, now: Instant) -> Schedule:
    """Change the given fields. Another cron or zone applies from now; none of its earlier fires are caught up."""
    unknown = changes.keys() - set(SPEC_FIELDS)
    if unknown:
        raise Invalid("is not a field of a schedule", field=min(unknown))
    paused = changes.get("paused", schedule.paused)
    check_type("paused", paused, bool)
    after = replace(schedule, **{**changes, "paused": schedule.paused}, updated_at=now)
    cron = check_spec(after)
    if (after.cron, after.timezone) != (schedule.cron, schedule.timezone):
        begin = max(schedule.settled_at, now)
        first = _first(cron, zone, begin)
        after = replace(after, settled_at=begin, next_fire_at=first, extra_fire_at=None, problem=None)
    if paused == after.paused:
        return after
    return pause(after, now) if paused else resume(after, zone, now)


def fire_next_at(schedule: Schedule, at: Instant, now: Instant) -> Schedule:
    """Set the next fire, whatever the cron says; an instant in the past is due now. Fires of the cron up to it are
    skipped, and settled fires stay settled."""
    settled_at = max(schedule.settled_at, at)
    return replace(schedule, settled_at=settled_at, next_fire_at=at, extra_fire_at=at, updated_at=now)


def pause(schedule: Schedule, now: Instant) -> Schedule:
    return schedule if schedule.paused else replace(schedule, paused=True, updated_at=now)


def resume(schedule: Schedule, zone: tzinfo, now: Instant) -> Schedule:
    """Fire again. The newest `max_catchup` of the missed fires are caught up."""
    if not schedule.paused:
        return schedule
    line, settled_at, extra = Line(schedule, zone), schedule.settled_at, schedule.extra_fire_at
    kept = line.newest(line.begin_at, now, schedule.max_catchup)
    if len(kept) == schedule.max_catchup and extra not in kept:
        settled_at = max(settled_at, kept[0] - SECOND if kept else now)
        extra = None if extra is not None and extra <= now else extra
    first = extra or next_fire(line.cron, zone, settled_at)
    return replace(
        schedule, paused=False, settled_at=settled_at, next_fire_at=first, extra_fire_at=extra, updated_at=now
    )


def check_free(schedule: Schedule, now: Instant, silence: timedelta) -> None:
    """Raise InvalidState while a worker declares this schedule: it has to be changed in the code."""
    if schedule.app is not None and schedule.declared_at is not None and schedule.declared_at > now - silence:
        raise InvalidState(
            f"the app {schedule.app} declares this schedule: change it in the code, or pause it", app=schedule.app
        )


def _first(cron: Cron, zone: tzinfo, after: Instant) -> Instant:
    first = next_fire(cron, zone, after)
    if first is None:
        raise Invalid(f"has no fire in the future: {cron.text!r}", field="cron")
    return first


# --------------------------------------------------------------------------------------------- what the engine does


def give_sign(scheduler: Scheduler, now: Instant, silence: timedelta, alive_at: Instant | None = None) -> Scheduler:
    """A server ticks. If none ticked for `silence`, that was an outage. `alive_at` is when this server last ticked,
    which it may not have recorded."""
    if now <= scheduler.ticked_at:  # the clock was set back: wait for it
        return scheduler
    outages = scheduler.outages
    last_at = scheduler.ticked_at if alive_at is None else max(alive_at, scheduler.ticked_at)
    if now - last_at > silence:
        outages = (*outages, Outage(last_at, now))[-OUTAGES_KEPT:]
    return Scheduler(now, outages)


class Line:
    """The fires of a schedule that are not settled, in order: the one that a person set, then those of its cron."""

    __slots__ = ("_extra", "_settled_at", "_zone", "begin_at", "cron")

    def __init__(self, schedule: Schedule, zone: tzinfo) -> None:
        self.cron, self._zone, self._settled_at = parse_cron(schedule.cron), zone, schedule.settled_at
        self._extra = schedule.extra_fire_at
        self.begin_at = self._settled_at if self._extra is None else self._extra - MOMENT

    def first(self, after: Instant, count: int, until: Instant) -> list[Instant]:
        """The first `count` fires in (after, until]."""
        head = self._head(after, until)[:count]
        return [*head, *first_fires(self.cron, self._zone, max(after, self._settled_at), count - len(head), until)]

    def newest(self, after: Instant, until: Instant, count: int) -> list[Instant]:
        """The last `count` fires in (after, until], the oldest first."""
        found = newest_fires(self.cron, self._zone, max(after, self._settled_at), until, count)
        return [*self._head(after, until), *found] if len(found) < count else found

    def _head(self, after: Instant, until: Instant) -> list[Instant]:
        return [self._extra] if self._extra is not None and after < self._extra <= until else []


def due_fires(
    schedule: Schedule, zone: tzinfo, now: Instant, outages: Sequence[Outage], most: int
) -> tuple[list[Instant], Instant]:
    """The fires to settle now, at most `most`, oldest first; and the instant up to which all are settled then."""
    line = Line(schedule, zone)
    settled_at = line.begin_at
    fires: list[Instant] = []
    for outage in outages:
        if outage.to_at <= settled_at:
            continue
        fires += line.first(settled_at, most - len(fires), outage.from_at)
        fires += line.newest(max(settled_at, outage.from_at), outage.to_at, schedule.max_catchup)
        if len(fires) > most or (len(fires) == most and fires[-1] < outage.to_at):
            return fires[:most], fires[most - 1]
        settled_at = outage.to_at
    fires += line.first(settled_at, most - len(fires), now)
    return fires, fires[-1] if len(fires) == most else max(settled_at, now)


def plan_fires(
    schedule: Schedule, fires: Sequence[Instant], unended: Sequence[OpenTask], new_ids: Sequence[UUID]
) -> list[Fire]:
    """Decide for each fire whether it submits a task, given the tasks of earlier fires that have not ended."""
    unended = list(unended)
    plan: list[Fire] = []
    for at, task_id in zip(fires, new_ids, strict=True):
        replaced = schedule.overlap is Overlap.CANCEL and at != fires[-1]  # it would be cancelled at once
        if replaced or (schedule.overlap is Overlap.SKIP and unended):
            plan.append(Fire(at, None))
            continue
        waits = schedule.overlap in (Overlap.QUEUE, Overlap.CANCEL)
        before = tuple(task.id for task in unended if task.grouped)[-WAITED_FOR_MAX:]
        plan.append(Fire(at, task_id, before if waits else ()))
        unended.append(OpenTask(task_id))
    return plan


def submission(schedule: Schedule, task_id: UUID, key: str, after: tuple[UUID, ...] = ()) -> Submission:
    """The task of a fire. Tasks that wait for each other are in one run, which has the id of the schedule."""
    grouped = schedule.overlap in (Overlap.QUEUE, Overlap.CANCEL)
    return replace(
        _submission(schedule, schedule.namespace),
        id=task_id, idempotency_key=key, schedule_id=schedule.id, run_id=schedule.id if grouped else None,
        after=after, after_any_outcome=bool(after),
    )  # fmt: skip


def settle(schedule: Schedule, zone: tzinfo, fires: Sequence[Fire], settled_at: Instant) -> Schedule:
    """Record that these fires, and all others up to an instant, are settled."""
    made = [fire for fire in fires if fire.task_id is not None]
    extra = schedule.extra_fire_at
    extra = None if extra is not None and extra <= settled_at else extra
    settled_at = max(schedule.settled_at, settled_at)
    return replace(
        schedule,
        settled_at=settled_at,
        next_fire_at=extra or next_fire(parse_cron(schedule.cron), zone, settled_at),
        extra_fire_at=extra,
        last_fire_at=made[-1].at if made else schedule.last_fire_at,
        last_task_id=made[-1].task_id if made else schedule.last_task_id,
        fired=schedule.fired + len(made),
        skipped=schedule.skipped + len(fires) - len(made),
        problem=None,
    )


def set_aside(schedule: Schedule, problem: str, now: Instant) -> Schedule:
    """The schedule cannot fire now (this server does not know its zone). It is tried again after a while; nothing is
    settled, so no fire is lost."""
    return replace(schedule, next_fire_at=now + BROKEN_DELAY, problem=problem)


def _submission(spec: ScheduleSpec, namespace: str) -> Submission:
    return Submission(
        kind=spec.kind, queue=spec.queue, namespace=namespace, payload=spec.payload, priority=spec.priority,
        concurrency_key=spec.concurrency_key, policy=DEFAULT_POLICY if spec.policy is None else spec.policy,
        wire=spec.wire, job_id=spec.job_id,
    )  # fmt: skip
