"""What `why` asks PostgreSQL of a job, its inputs and its tasks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple
from uuid import UUID

import msgspec

from windlass.datasets.rules.dag import Job
from windlass.datasets.rules.why import TaskState
from windlass.store.queries import register_queries
from windlass.store.table import Table

register_queries(__package__, "why.sql")

_decode_job = msgspec.json.Decoder(Job).decode


class JobFacts(NamedTuple):
    """A job of a DAG. `outputs` are the versions that it writes, `held_by` is the job that is too slow."""

    id: UUID
    job: Job
    outputs: Sequence[UUID]
    live: bool
    paused: bool
    held_by: str | None


class Progress(NamedTuple):
    """How far an input is: what is committed, what the result was made from, and what a task was given."""

    newest: int | None
    made: int | None
    given: int | None


class WhyTable(Table):
    """Reads of one job within a transaction."""

    async def job(self, namespace: str, dag: str, job: str) -> JobFacts | None:
        rows = await self.session.fetch("find_job", namespace, dag, job)
        return JobFacts(rows[0][0], _decode_job(rows[0][1]), *rows[0][2:]) if rows else None

    async def labels(self, datasets: Collection[UUID]) -> dict[UUID, str]:
        return {row[0]: row[1] for row in await self.session.fetch("dataset_labels", list(datasets))}

    async def has_partition(self, versions: Collection[UUID], key: str) -> bool:
        found: bool = await self.session.fetchval("has_partition", list(versions), key)
        return found

    async def partition_inputs(
        self, job: JobFacts, key: str, inputs: Sequence[tuple[int, UUID]]
    ) -> dict[int, Progress]:
        """How far inputs (index, version) are with one partition."""
        indexes, versions = [one[0] for one in inputs], [one[1] for one in inputs]
        rows = await self.session.fetch("partition_inputs", job.id, key, indexes, versions, list(job.outputs))
        return {row[0]: Progress(*row[1:]) for row in rows}

    async def cursor_inputs(self, job: JobFacts, inputs: Sequence[tuple[int, UUID]]) -> dict[int, Progress]:
        """How far a job has read its inputs (index, version)."""
        indexes, versions = [one[0] for one in inputs], [one[1] for one in inputs]
        rows = await self.session.fetch("cursor_inputs", job.id, indexes, versions)
        return {row[0]: Progress(*row[1:]) for row in rows}

    async def task(self, task_id: UUID) -> TaskState | None:
        rows = await self.session.fetch("task_state", task_id)
        return TaskState(*rows[0]) if rows else None

    async def newest_task(self, jobs: Collection[UUID]) -> TaskState | None:
        """The task of these jobs that runs, else one that waits, else the newest."""
        rows = await self.session.fetch("newest_task_state", list(jobs)) if jobs else []
        return TaskState(*rows[0]) if rows else None
