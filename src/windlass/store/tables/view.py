"""Reads for people and for monitoring: tasks, lists, counts, timelines, why a task waits, gauges. Takes no locks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from windlass.core.delivery import QueueSettings
from windlass.core.lease import Lease
from windlass.core.position import NOWHERE, Position
from windlass.core.queue import QueueConfig, QueueName, Usage
from windlass.core.states import Entry, State
from windlass.core.step import Step
from windlass.core.task import Task
from windlass.store import records
from windlass.store.table import Table
from windlass.store.tables.queue import QueueTable


class TaskRow(msgspec.Struct, frozen=True):
    """A task in a list, with its submission; a payload that is too long for a list is None."""

    task: Task
    created_at: datetime
    payload: bytes | None
    requires: tuple[str, ...]
    idempotency_key: str | None
    wire: bytes | None = None
    replay_of: UUID | None = None
    schedule_id: UUID | None = None


class TaskView(TaskRow, frozen=True):
    """A task with its submission."""

    payload: bytes


class Created(msgspec.Struct, frozen=True):
    """When tasks were submitted: from `since` on, and before `before`. None sets no limit."""

    since: datetime | None = None
    before: datetime | None = None


ALWAYS = Created()
LISTED_PAYLOAD_MAX_BYTES = 64 * 1024


class EffectView(msgspec.Struct, frozen=True):
    """An effect in the outbox. One with `dead_at` was given up: a dead effect."""

    id: UUID
    kind: str
    namespace: str
    task_id: UUID
    attempt: int
    tries: int
    created_at: datetime
    available_at: datetime
    dead_at: datetime | None
    error: str | None


class QueueGauge(msgspec.Struct, frozen=True):
    """Tasks of all namespaces in one queue and one state; `oldest_s` is for how long the oldest has been due."""

    queue: str
    state: str
    depth: int
    oldest_s: float


class GaugeView(Table):
    """Gauges for monitoring."""

    async def queue_gauges(self) -> tuple[QueueGauge, ...]:
        return tuple(QueueGauge(*row) for row in await self.session.fetch("queue_gauges"))

    async def worker_gauges(self) -> dict[str, int]:
        return {row[0]: row[1] for row in await self.session.fetch("worker_gauges")}

    async def dead_letter_gauges(self, queues_max: int) -> dict[str, int]:
        return {row[0]: row[1] for row in await self.session.fetch("dead_letter_gauges", queues_max)}

    async def schedule_lag(self) -> float:
        return float(await self.session.fetchval("schedule_lag"))


class Views(Table):
    """Read views within one transaction."""

    async def now(self) -> datetime:
        now: datetime = await self.session.fetchval("now")
        return now

    async def get_task(self, task_id: UUID) -> TaskView | None:
        rows = await self.session.fetch("get_task", task_id)
        return TaskView(*_viewed(rows[0])) if rows else None

    async def get_tasks(self, task_ids: Sequence[UUID]) -> list[TaskView]:
        return [TaskView(*_viewed(row)) for row in await self.session.fetch("get_tasks", task_ids)]

    async def task_namespaces(self, ids: Sequence[UUID]) -> dict[UUID, str]:
        return {row[0]: row[1] for row in await self.session.fetch("task_namespaces", ids)}

    async def task_results(self, ids: Sequence[UUID], namespace: str | None) -> dict[UUID, bytes]:
        return {row[0]: row[1] for row in await self.session.fetch("task_results", ids, namespace)}

    async def list_tasks(
        self,
        namespace: str,
        *,
        after: Position | None,
        states: Sequence[State] | None,
        queue: str | None,
        kind: str | None,
        run_id: UUID | None,
        limit: int,
        created: Created = ALWAYS,
    ) -> list[TaskRow]:
        rows = await self.session.fetch(
            "list_tasks", namespace, *(after or NOWHERE), states, queue, kind, run_id, limit, created.since,
            created.before, LISTED_PAYLOAD_MAX_BYTES,
        )  # fmt: skip
        return [TaskRow(*_viewed(row)) for row in rows]

    async def count_unfinished(self, namespace: str) -> dict[str, dict[State, int]]:
        counts: dict[str, dict[State, int]] = {}
        for queue, state, count in await self.session.fetch("count_unfinished", namespace):
            counts.setdefault(queue, {})[State(state)] = count
        return counts

    async def count_tasks(self, namespace: str) -> dict[State, int]:
        return {State(row[0]): row[1] for row in await self.session.fetch("count_tasks", namespace)}

    async def run_counts(self, run_id: UUID) -> dict[State, int]:
        return (await self.runs_counts([run_id])).get(run_id, {})

    async def get_run(self, run_id: UUID) -> tuple[UUID, str, datetime] | None:
        rows = await self.session.fetch("get_run", run_id)
        return (rows[0][0], rows[0][1], rows[0][2]) if rows else None

    async def list_runs(self, namespace: str, after: Position | None, limit: int) -> list[tuple[UUID, str, datetime]]:
        rows = await self.session.fetch("list_runs", namespace, *(after or NOWHERE), limit)
        return [(row[0], row[1], row[2]) for row in rows]

    async def runs_counts(self, run_ids: Sequence[UUID]) -> dict[UUID, dict[State, int]]:
        counts: dict[UUID, dict[State, int]] = {}
        for run_id, state, count in await self.session.fetch("runs_counts", run_ids):
            counts.setdefault(run_id, {})[State(state)] = count
        return counts

    async def run_of_key(self, namespace: str, key: str) -> UUID | None:
        rows = await self.session.fetch("run_of_key", namespace, key)
        return rows[0][0] if rows else None

    async def lease_loads(self, namespace: str) -> dict[UUID, int]:
        return {row[0]: row[1] for row in await self.session.fetch("lease_loads", namespace)}

    async def list_effects(
        self, namespace: str, dead: bool | None, after: Position | None, limit: int
    ) -> list[EffectView]:
        rows = await self.session.fetch("list_effects", namespace, *(after or NOWHERE), dead, limit)
        return [EffectView(*row) for row in rows]

    async def get_effect(self, effect_id: UUID) -> EffectView | None:
        rows = await self.session.fetch("get_effect", effect_id)
        return EffectView(*rows[0]) if rows else None

    async def task_history(self, task_id: UUID) -> list[Entry]:
        rows = await self.session.fetch("task_history", task_id)
        return [_entry(row) for row in rows]

    async def task_report(self, task_id: UUID) -> Entry | None:
        rows = await self.session.fetch("task_report", task_id)
        return _entry(rows[0]) if rows else None

    async def last_heartbeat(self, task_id: UUID) -> datetime | None:
        rows = await self.session.fetch("last_heartbeat", task_id)
        return rows[0][0] if rows else None

    async def task_steps(self, task_id: UUID) -> list[Step]:
        return [records.step_from(row) for row in await self.session.fetch("task_steps", [task_id])]

    async def waiting_for(self, task_id: UUID) -> list[UUID]:
        return [row[0] for row in await self.session.fetch("waiting_for", task_id)]

    async def capable_workers(self, task: Task, requires: Sequence[str], delivery: str) -> int:
        args = task.namespace, task.queue, task.kind, requires, delivery
        return int(await self.session.fetchval("capable_workers", *args))

    async def has_pending_cancel(self, lease_id: UUID) -> bool:
        return bool(await self.session.fetchval("has_pending_cancel", lease_id))

    async def list_leases(self, namespace: str) -> list[Lease]:
        return [records.lease_from(row) for row in await self.session.fetch("list_leases", namespace)]

    async def queue_settings(self, namespace: str, names: Sequence[str] | None = None) -> dict[str, QueueSettings]:
        return await QueueTable(self.session).get_settings(namespace, names)

    async def queues_delivered(self, types: Sequence[str]) -> dict[QueueName, QueueSettings]:
        return await QueueTable(self.session).queues_delivered(types)

    async def queue_state(self, namespace: str, queue: str) -> tuple[QueueConfig, Usage]:
        queues = QueueTable(self.session)
        config = await queues.get_queue(namespace, queue)
        return config, await queues.queue_usage(namespace, queue, config)


def _entry(row: records.Row) -> Entry:
    task_id, at, attempt, what, worker, detail = row
    return Entry(task_id, at, attempt, what, worker, None if detail is None else msgspec.json.decode(detail))


def _viewed(row: records.Row) -> tuple[Any, ...]:
    """The fields of a TaskRow or TaskView."""
    created_at, payload, requires, *rest = row[records.WIDTH :]
    return records.task_from(row), created_at, payload, tuple(requires or ()), *rest
