"""Jobs that always run, in PostgreSQL."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple
from uuid import UUID

import windlass.datasets.tables.jobs  # noqa: F401  # the parts of its queries
from windlass.core.states import State
from windlass.core.task import Outcome
from windlass.datasets.rules.always_on import AlwaysOnTask
from windlass.store.queries import register_queries
from windlass.store.table import Table

register_queries(__package__, "always_on.sql")


class AlwaysOnJob(NamedTuple):
    """A job that always runs, of an active deployment. `waits`: a task of an earlier definition is open."""

    deployment_id: UUID
    job_id: UUID
    paused: bool
    held: bool
    waits: bool
    task: AlwaysOnTask | None


class AlwaysOnTable(Table):
    """Jobs that always run, within a transaction."""

    async def jobs(self, jobs: Collection[UUID] | None = None) -> list[AlwaysOnJob]:
        """Those of active deployments; with `jobs` only those of these."""
        rows = await self.session.fetch("always_on_jobs", None if jobs is None else list(jobs))
        return [
            AlwaysOnJob(deployment_id, job_id, paused, held, waits, None if task[0] is None else _task(*task))
            for deployment_id, job_id, paused, held, waits, *task in rows
        ]

    async def tasks(self, jobs: Collection[UUID]) -> dict[UUID, AlwaysOnTask]:
        """The newest task of each of these jobs that has one."""
        return {row[0]: _task(*row[1:]) for row in await self.session.fetch("always_on_tasks", list(jobs))}

    async def put(self, job_id: UUID, task_id: UUID, deployment_id: UUID) -> None:
        await self.session.fetch("put_always_on_task", job_id, task_id, deployment_id)


def _task(id_: UUID, state: str | None, outcome: str | None, cancel_reason: str | None) -> AlwaysOnTask:
    return AlwaysOnTask(
        id_, None if state is None else State(state), None if outcome is None else Outcome(outcome), cancel_reason
    )
