"""Jobs of a DAG and their tasks in PostgreSQL, for people."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from uuid import UUID

import msgspec
from msgspec.structs import replace

from windlass.core.position import NOWHERE, Position
from windlass.core.schedule import fired_at_of
from windlass.datasets.rules.owed import fire_task
from windlass.store.queries import register_queries
from windlass.store.table import Table

register_queries(__package__, "job_views.sql")


class TaskOfJob(msgspec.Struct, frozen=True):
    """A task of a job. The trigger, without payload and body, and the inputs are JSON. `dedupe_key` is None for
    replays."""

    task_id: UUID
    state: str
    attempt: int
    dag_version: UUID
    dedupe_key: str | None
    trigger: str
    inputs: str
    created_at: datetime


class JobViewTable(Table):
    """Jobs and their tasks within a transaction."""

    async def job_ids(self, namespace: str, dag: str, job: str) -> list[UUID]:
        return [row[0] for row in await self.session.fetch("job_ids", namespace, dag, job)]

    async def tasks(self, jobs: Collection[UUID], after: Position | None, limit: int) -> list[TaskOfJob]:
        rows = await self.session.fetch("list_job_tasks", list(jobs), *(after or NOWHERE), limit)
        return [_with_fire(TaskOfJob(*row)) for row in rows]


def _with_fire(task: TaskOfJob) -> TaskOfJob:
    """A task of a schedule has the key of its submission, which names the time of the fire."""
    fired_at = None if task.dedupe_key is None else fired_at_of(task.dedupe_key)
    return task if fired_at is None else replace(task, dedupe_key=fire_task(fired_at))
