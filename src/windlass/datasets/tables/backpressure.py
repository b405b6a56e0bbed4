"""Jobs in PostgreSQL as backpressure sees them: how many of their tasks wait, and which are held."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple
from uuid import UUID

import msgspec

import windlass.datasets.tables.jobs  # noqa: F401  # the parts of its queries
from windlass.datasets.rules.backpressure import QueueLimits
from windlass.datasets.rules.dag import Job
from windlass.datasets.rules.job import queue_limits
from windlass.store.queries import register_queries
from windlass.store.table import Table

register_queries(__package__, "backpressure.sql")

_decode_job = msgspec.json.Decoder(Job).decode


class Pressure(NamedTuple):
    """A job of a live deployment: its tasks that wait, and the job by which it is held."""

    job_id: UUID
    namespace: str
    dag: str
    name: str
    job: Job
    held: bool
    held_by: str | None
    depth: int
    age_s: float | None
    behind: bool

    @property
    def label(self) -> str:
        """How people name it."""
        return f"{self.dag}/{self.name}"

    @property
    def limits(self) -> QueueLimits:
        return queue_limits(self.job)

    @property
    def was_slow(self) -> bool:
        """Whether it is held because of its own tasks."""
        return self.held and self.held_by == self.label


class BackpressureTable(Table):
    """Jobs and what holds them, within a transaction."""

    async def has_limits(self) -> bool:
        found: bool = await self.session.fetchval("has_limits")
        return found

    async def jobs(self, jobs: Collection[UUID] | None = None) -> list[Pressure]:
        rows = await self.session.fetch("job_pressure", None if jobs is None else list(jobs))
        return [
            Pressure(id_, namespace, dag, name, _decode_job(job), *rest)
            for id_, namespace, dag, name, job, *rest in rows
        ]

    async def triggers(self) -> list[tuple[UUID, UUID]]:
        return [(row[0], row[1]) for row in await self.session.fetch("job_triggers")]

    async def hold(self, jobs: Mapping[UUID, str]) -> None:
        if jobs:
            await self.session.fetch("hold_jobs", list(jobs), list(jobs.values()))

    async def release(self, jobs: Collection[UUID]) -> None:
        if jobs:
            await self.session.fetch("release_jobs", list(jobs))

    async def release_left(self) -> None:
        await self.session.fetch("release_left_jobs")

    async def is_task_of_held_job(self, task_id: UUID) -> bool:
        found: bool = await self.session.fetchval("is_task_of_held_job", task_id)
        return found
