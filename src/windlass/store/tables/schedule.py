"""Schedules: locks, writes and lists them. The rules of `core` decide what is written, under the locks taken here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

from windlass.core.position import NOWHERE, Position
from windlass.core.schedule import OpenTask, Outage, Schedule, Scheduler
from windlass.store import records
from windlass.store.records import Row
from windlass.store.table import Table


class ScheduleTable(Table):
    """Schedules within a transaction."""

    async def insert(self, s: Schedule, request_key: str | None = None) -> bool:
        """Returns False if a schedule with this id, name or request key exists."""
        rows = await self.session.fetch(
            "insert_schedule", s.id, s.namespace, s.name, s.app, s.kind, s.queue, s.cron, s.timezone, s.payload,
            s.priority, s.concurrency_key, records.as_json(s.policy), s.wire, s.overlap.value, s.max_catchup, s.paused,
            s.settled_at, s.next_fire_at, s.created_at, s.updated_at, s.declared_at, request_key, s.job_id,
        )  # fmt: skip
        return bool(rows)

    async def find(self, schedule_id: UUID | None, namespace: str = "", name: str = "") -> Schedule | None:
        return _one(await self.session.fetch("find_schedule", schedule_id, namespace, name))

    async def find_request(self, namespace: str, request_key: str) -> Schedule | None:
        return _one(await self.session.fetch("find_request", namespace, request_key))

    async def lock(self, schedule_id: UUID) -> Schedule | None:
        return _one(await self.session.fetch("lock_schedule", schedule_id))

    async def lock_declared(self, namespace: str, app: str, names: Sequence[str]) -> list[Schedule]:
        rows = await self.session.fetch("lock_declared_schedules", namespace, app, names)
        return [records.schedule_from(row) for row in rows]

    async def page(self, namespace: str, queue: str | None, after: Position | None, limit: int) -> list[Schedule]:
        rows = await self.session.fetch("list_schedules", namespace, *(after or NOWHERE), queue, limit)
        return [records.schedule_from(row) for row in rows]

    async def lock_due(self, limit: int) -> tuple[list[Schedule], datetime | None]:
        """With no row there is no time either."""
        return _with_time(await self.session.fetch("lock_due_schedules", limit))

    async def lock_due_one(self, schedule_id: UUID) -> tuple[list[Schedule], datetime | None]:
        return _with_time(await self.session.fetch("lock_due_schedule", schedule_id))

    async def update(self, s: Schedule) -> None:
        await self.session.fetch(
            "update_schedule", s.id, s.name, s.kind, s.queue, s.cron, s.timezone, s.payload, s.priority,
            s.concurrency_key, records.as_json(s.policy), s.wire, s.overlap.value, s.max_catchup, s.paused,
            s.settled_at, s.next_fire_at, s.problem, s.updated_at, s.declared_at, s.extra_fire_at, s.job_id,
        )  # fmt: skip

    async def settle(self, schedules: Sequence[Schedule]) -> None:
        rows = [
            (s.id, s.settled_at, s.next_fire_at, s.last_fire_at, s.last_task_id, s.fired, s.skipped, s.problem,
             s.extra_fire_at)
            for s in schedules
        ]  # fmt: skip
        if rows:
            await self.session.fetch("settle_schedules", *zip(*rows, strict=True))

    async def delete(self, ids: Iterable[UUID]) -> int:
        return len(await self.session.fetch("delete_schedules", list(ids)))

    async def touch_declared(self, ids: Iterable[UUID]) -> None:
        await self.session.fetch("touch_declared_schedules", list(ids))

    async def open_tasks(self, ids: Iterable[UUID]) -> dict[UUID, list[OpenTask]]:
        """The tasks that have not ended, by schedule."""
        found: dict[UUID, list[OpenTask]] = {}
        for schedule_id, task_id, grouped in await self.session.fetch("open_schedule_tasks", list(ids)):
            found.setdefault(schedule_id, []).append(OpenTask(task_id, grouped))
        return found

    async def task_page(self, schedule_id: UUID, after: Position | None, limit: int) -> Sequence[Position]:
        rows = await self.session.fetch("list_schedule_tasks", schedule_id, *(after or NOWHERE), limit)
        return [(row[0], row[1]) for row in rows]

    # ----------------------------------------------------------------------------------------- the scheduler

    async def scheduler(self) -> tuple[Scheduler, datetime, datetime | None]:
        """The state of the scheduler, the time, and when the next schedule is due."""
        [[ticked_at, outages, now, due_at]] = await self.session.fetch("scheduler")
        return Scheduler(ticked_at, records.outages_from(outages)), now, due_at

    async def lock_scheduler(self) -> Scheduler:
        [[ticked_at, outages]] = await self.session.fetch("lock_scheduler")
        return Scheduler(ticked_at, records.outages_from(outages))

    async def outages(self) -> tuple[Outage, ...]:
        return records.outages_from(await self.session.fetchval("outages"))

    async def touch_scheduler(self, now: datetime, every_s: float) -> None:
        await self.session.fetch("touch_scheduler", now, every_s)

    async def put_scheduler(self, scheduler: Scheduler) -> None:
        await self.session.fetch("put_scheduler", scheduler.ticked_at, records.as_json(scheduler.outages))


def _one(rows: Sequence[Row]) -> Schedule | None:
    return records.schedule_from(rows[0]) if rows else None


def _with_time(rows: Sequence[Row]) -> tuple[list[Schedule], datetime | None]:
    return [records.schedule_from(row) for row in rows], rows[0][-1] if rows else None
