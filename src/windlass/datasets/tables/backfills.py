"""Backfills in PostgreSQL: their progress, their tasks, and which partitions they take."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import msgspec
from msgspec.structs import astuple

from windlass.core.position import NOWHERE, Position
from windlass.datasets.rules.backfill import BackfillState, Mark, Selection, Tally
from windlass.datasets.rules.owed import Partition
from windlass.datasets.rules.partition import Span
from windlass.datasets.tables.jobs import Consumption
from windlass.store.queries import register_queries
from windlass.store.table import Table

register_queries(__package__, "backfills.sql")

_decode_selection = msgspec.json.Decoder(Selection).decode
_decode_mark = msgspec.json.Decoder(Mark).decode


class BackfillRow(msgspec.Struct, frozen=True):
    """A backfill. Without a `mark`, all of its tasks are made. `truncated`: it has more partitions than were counted
    when it began."""

    id: UUID
    namespace: str
    dag: str
    job: str
    job_id: UUID
    selection: Selection
    downstream: bool
    state: BackfillState
    mark: Mark | None
    truncated: bool
    reason: str | None
    created_by: str
    created_at: datetime
    ended_at: datetime | None

    @property
    def content(self) -> tuple[object, ...]:
        """What a repeated order has to have too."""
        return self.namespace, self.dag, self.job, self.selection, self.downstream


class JobProgress(NamedTuple):
    """The tasks of a backfill in one job: those that were made, how they ended, how many are open, and how many of
    these wait for an input."""

    job: str
    partitions: int
    tasks: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    unfinished: int = 0
    waiting: int = 0


class NewTask(NamedTuple):
    """A task of a backfill."""

    task_id: UUID
    key: str
    waiting: bool


class BackfillTable(Table):
    """Backfills within a transaction."""

    # ----------------------------------------------------------------------------------------- records

    async def insert(
        self, id_: UUID, place: tuple[str, str, str, UUID], selection: Selection, downstream: bool, truncated: bool,
        created_by: str,
    ) -> bool:  # fmt: skip
        """Add a backfill of a job: namespace, DAG, name and id. Returns whether it is new."""
        text = msgspec.json.encode(selection).decode()
        return bool(await self.session.fetch("insert_backfill", id_, *place, text, downstream, truncated, created_by))

    async def put_jobs(self, id_: UUID, partitions: Mapping[str, int]) -> None:
        await self.session.fetch("put_backfill_jobs", id_, list(partitions), list(partitions.values()))

    async def get(self, id_: UUID) -> BackfillRow | None:
        return _only(await self.session.fetch("get_backfill", id_))

    async def page(self, namespace: str, dag: str | None, after: Position | None, limit: int) -> list[BackfillRow]:
        rows = await self.session.fetch("get_backfills", namespace, dag, *(after or NOWHERE), limit)
        return [_row(row) for row in rows]

    async def jobs(self, ids: Collection[UUID]) -> dict[UUID, list[JobProgress]]:
        found: dict[UUID, list[JobProgress]] = {}
        for row in await self.session.fetch("backfill_jobs", list(ids)):
            found.setdefault(row[0], []).append(JobProgress(*row[1:]))
        return found

    async def unfinished(self, limit: int) -> list[UUID]:
        """The backfills that have not ended."""
        return [row[0] for row in await self.session.fetch("open_backfills", limit)]

    async def lock(self, id_: UUID, *, wait: bool = False) -> BackfillRow | None:
        """Lock a backfill. Unless it waits, one that another server works on is skipped."""
        return _only(await self.session.fetch("wait_for_backfill" if wait else "lock_backfill", id_))

    async def update(self, row: BackfillRow) -> None:
        mark = None if row.mark is None else msgspec.json.encode(row.mark).decode()
        await self.session.fetch("update_backfill", row.id, row.state, row.reason, mark)

    # ----------------------------------------------------------------------------------------- what is selected

    async def active_job(self, job_id: UUID) -> tuple[UUID, bool] | None:
        """The active deployment of a job, and whether the job gets tasks now."""
        rows = await self.session.fetch("active_backfill_job", job_id)
        return (rows[0][0], rows[0][1]) if rows else None

    async def keys_between(self, version: UUID, span: Span, mark: Mark, limit: int) -> list[tuple[str, int]]:
        """Keys of a version whose numbers lie in a span, each with its first number."""
        after = (span.first - 1 if span.first > -(2**63) else span.first) if mark.number is None else mark.number
        rows = await self.session.fetch("partitions_between", version, *span, after, mark.key, limit)
        return [(row[0], row[1]) for row in rows]

    async def count_between(self, versions: Collection[UUID], span: Span) -> int:
        count: int = await self.session.fetchval("count_partitions_between", list(versions), *span)
        return count

    async def committed(self, inputs: Mapping[int, UUID], keys: Sequence[str]) -> dict[str, dict[int, Partition]]:
        """For each of these keys the partitions that inputs have, by the index of the input."""
        found: dict[str, dict[int, Partition]] = {key: {} for key in keys}
        rows = await self.session.fetch("input_partitions", list(inputs), list(inputs.values()), list(keys))
        for index, *partition in rows:
            found[partition[0]][index] = Partition(*partition)
        return found

    async def count_made_from(self, job_id: UUID, deployment_id: UUID, keys: Sequence[str]) -> dict[str, int]:
        """For each job below, how many partitions were made from these."""
        rows = await self.session.fetch("count_made_from", job_id, deployment_id, list(keys))
        return {row[0]: row[1] for row in rows}

    async def jobs_below(self, deployment_id: UUID, job_id: UUID) -> list[str]:
        return [row[0] for row in await self.session.fetch("jobs_below", deployment_id, job_id)]

    # ----------------------------------------------------------------------------------------- tasks

    async def insert_tasks(self, row: BackfillRow, tasks: Sequence[NewTask]) -> None:
        if tasks:
            await self.session.fetch("insert_backfill_tasks", row.id, row.job_id, row.job, *zip(*tasks, strict=True))

    async def give(self, consumptions: Sequence[Consumption]) -> None:
        """Record the revisions that a job was given, and the task that was given them last."""
        if consumptions:
            await self.session.fetch("give_to_job", *zip(*map(astuple, consumptions), strict=True))

    async def count_open(self, id_: UUID) -> int:
        count: int = await self.session.fetchval("open_backfill_tasks", id_)
        return count

    async def count_ended(self, id_: UUID, deployment_id: UUID | None, limit: int) -> list[UUID]:
        """Count tasks that have ended, and forget them. With a deployment, the tasks below are followed."""
        ended = [row[0] for row in await self.session.fetch("count_backfill_tasks", id_, deployment_id, limit)]
        if ended and deployment_id is not None:
            await self.session.fetch("follow_backfill_tasks", id_, deployment_id, ended)
        return ended

    async def tally(self, row: BackfillRow, *, own: bool) -> Tally:
        """How many tasks are open, of its own job only with `own`, and how the others ended."""
        [counts] = await self.session.fetch("backfill_tally", row.id, row.job, own)
        return Tally(*counts)

    async def forget_tasks(self, id_: UUID) -> None:
        await self.session.fetch("forget_backfill_tasks", id_)

    async def tasks_to_cancel(self, row: BackfillRow, limit: int) -> list[UUID]:
        return [r[0] for r in await self.session.fetch("backfill_tasks_to_cancel", row.id, row.job, limit)]

    # ----------------------------------------------------------------------------------------- tasks that wait

    async def waiting(self, places: Collection[tuple[UUID, str]]) -> dict[tuple[UUID, str], list[UUID]]:
        """The tasks that wait for these partitions (job, key)."""
        found: dict[tuple[UUID, str], list[UUID]] = {}
        for job_id, key, task_id in await self.session.fetch("waiting_backfill_tasks", *zip(*places, strict=True)):
            found.setdefault((job_id, key), []).append(task_id)
        return found

    async def stop_waiting(self, wires: Mapping[UUID, bytes]) -> None:
        """Give tasks the inputs that they have waited for."""
        await self.session.fetch("stop_waiting", list(wires))
        await self.session.fetch("rewrite_inputs", list(wires), list(wires.values()))

    async def wires(self, tasks: Collection[UUID]) -> dict[UUID, bytes]:
        return {row[0]: row[1] for row in await self.session.fetch("task_wires", list(tasks))}


def _only(rows: Sequence[Sequence[object]]) -> BackfillRow | None:
    return _row(rows[0]) if rows else None


def _row(row: Sequence[object]) -> BackfillRow:
    id_, namespace, dag, job, job_id, selection, downstream, state, mark, *rest = row
    return BackfillRow(
        id_, namespace, dag, job, job_id, _decode_selection(selection), downstream, BackfillState(state),  # type: ignore[arg-type]
        None if mark is None else _decode_mark(mark), *rest,  # type: ignore[arg-type]
    )  # fmt: skip
