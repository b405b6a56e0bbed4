"""Consumers of data in PostgreSQL: their edges, their tasks, how far they have read, and what is owed to them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from msgspec.structs import astuple

from windlass.core.task import Task
from windlass.datasets.rules.dag import Job
from windlass.datasets.rules.job import JobRef, slots_of
from windlass.datasets.rules.owed import Partition
from windlass.datasets.rules.partition import Span
from windlass.datasets.rules.route import Edge, Event
from windlass.store import records
from windlass.store.queries import register_queries
from windlass.store.records import WIDTH
from windlass.store.table import Table

register_queries(__package__, "jobs.sql")

decode_job = msgspec.json.Decoder(Job).decode
_EDGE = ("job_id", "input_index", "dataset_uuid", "dataset_version", "trigger", "by_partition", "deployment_id",
         "paused", "held", "active", "coalesces", "needs_all", "current_version", "from_index")  # fmt: skip


class LiveEdge(Edge, frozen=True, kw_only=True):
    """An input of a job in a live deployment, with the version that it reads now. `dataset_version` is None while the
    dataset of another DAG has no active deployment. `current_version` is another one until what the job was given is
    carried over to it: `from_index` is the place that the input had."""

    paused: bool
    held: bool
    coalesces: bool = False
    current_version: UUID | None = None
    from_index: int | None = None

    @property
    def is_fed(self) -> bool:
        """Whether its job gets tasks now."""
        return not (self.paused or self.held)


class LiveJob(NamedTuple):
    """A job in a live deployment, the active one if that has it."""

    deployment_id: UUID
    paused: bool
    held: bool

    @property
    def is_fed(self) -> bool:
        """Whether it gets tasks now."""
        return not (self.paused or self.held)


class JobTask(msgspec.Struct, frozen=True):
    """A task of a job, by the key of what it is owed for. The trigger is JSON."""

    job_id: UUID
    dedupe_key: str
    task_id: UUID
    deployment_id: UUID
    trigger: str
    dataset_version: UUID | None = None
    cursor: int | None = None


class Consumption(msgspec.Struct, frozen=True):
    """A revision of a partition that a job was given."""

    job_id: UUID
    input_index: int
    dataset_version: UUID
    key: str
    revision: int
    task_id: UUID


class Window(NamedTuple):
    """A version of a dataset that a task of a job has read up to a cursor."""

    task_id: UUID
    job_id: UUID
    dataset_version: UUID
    cursor: int


class Load(NamedTuple):
    """The tasks of a job that have not ended: those that may start or run, those that wait for their turn, and how many
    of the former run."""

    started: int = 0
    waiting: int = 0
    running: int = 0

    @property
    def depth(self) -> int:
        """The tasks that do not run yet."""
        return self.started + self.waiting - self.running


class JobCounts(NamedTuple):
    """The state of a job for people."""

    held: bool
    behind: bool
    queued: int
    running: int
    failed: int


class JobTable(Table):
    """Jobs, their tasks and their cursors within a transaction."""

    # ----------------------------------------------------------------------------------------- routing

    async def has_work(self) -> bool:
        found: bool = await self.session.fetchval("has_dataset_work")
        return found

    async def events_to_route(self, ids: Sequence[UUID]) -> list[Event]:
        rows = await self.session.fetch("events_to_route", ids)
        return [
            Event(
                id=id_, dataset_uuid=dataset, dataset_version=version, cursor=cursor, partition_key=key,
                span=None if first is None else Span(first, last), revision=revision or 1, trace=trace,
            )
            for id_, dataset, version, cursor, key, first, last, revision, trace in rows
        ]  # fmt: skip

    async def unrouted_events(self, older_than_s: float, limit: int) -> list[UUID]:
        return [row[0] for row in await self.session.fetch("unrouted_events", older_than_s, limit)]

    async def edges_on(self, datasets: Collection[UUID]) -> list[LiveEdge]:
        return [_edge(row) for row in await self.session.fetch("live_edges", list(datasets), [])]

    async def edges_of(self, jobs: Collection[UUID]) -> list[LiveEdge]:
        return [_edge(row) for row in await self.session.fetch("live_edges", [], list(jobs))]

    async def live_versions(self, versions: Iterable[tuple[UUID, UUID]]) -> set[UUID]:
        """Those of these versions (version, dataset) whose events are routed."""
        rows = await self.session.fetch("live_versions", *zip(*versions, strict=True))
        return {row[0] for row in rows}

    async def live_jobs(self, jobs: Collection[UUID]) -> dict[UUID, LiveJob]:
        """Those of these jobs that a live deployment has."""
        return {row[0]: LiveJob(*row[1:]) for row in await self.session.fetch("live_jobs", list(jobs))}

    async def mark_routed(self, routing: Mapping[UUID, str]) -> None:
        await self.session.fetch("mark_routed", list(routing), list(routing.values()))

    # ----------------------------------------------------------------------------------------- tasks of jobs

    async def lock_jobs(self, jobs: Collection[UUID]) -> None:
        await self.session.fetch("lock_jobs", list(jobs))

    async def specs(self, wanted: Collection[tuple[UUID, UUID]]) -> dict[tuple[UUID, UUID], JobRef]:
        """Jobs with what their tasks are made from, by (deployment, job)."""
        if not wanted:
            return {}
        rows = await self.session.fetch("job_specs", *zip(*wanted, strict=True))
        decode = msgspec.json.decode
        specs = [
            JobRef(deployment_id, job_id, namespace, dag, name, queue, decode_job(job), decode(inputs), decode(outputs))
            for deployment_id, job_id, namespace, dag, name, queue, job, inputs, outputs in rows
        ]
        return {(spec.deployment_id, spec.job_id): spec for spec in specs}

    async def insert_job_tasks(self, tasks: Sequence[JobTask]) -> set[UUID]:
        """Returns the tasks that are new."""
        if not tasks:
            return set()
        rows = await self.session.fetch("insert_job_tasks", *zip(*map(astuple, tasks), strict=True))
        return {row[0] for row in rows}

    async def take_back(self, tasks: Sequence[UUID]) -> None:
        """Forget tasks that were recorded in this transaction and are not made."""
        if tasks:
            await self.session.fetch("take_back_job_tasks", tasks)

    async def find_task(self, job_id: UUID, dedupe_key: str) -> UUID | None:
        rows = await self.session.fetch("find_job_task", job_id, dedupe_key)
        return rows[0][0] if rows else None

    async def insert_consumptions(self, consumptions: Sequence[Consumption]) -> None:
        if consumptions:
            await self.session.fetch("insert_consumptions", *zip(*map(astuple, consumptions), strict=True))

    async def load(self, jobs: Collection[UUID]) -> dict[UUID, Load]:
        rows = await self.session.fetch("job_load", list(jobs))
        return {row[0]: Load(*row[1:]) for row in rows}

    async def slots(self, jobs: Collection[UUID]) -> dict[UUID, int | None]:
        """How many tasks of each of these jobs may be started at the same time. None: any number."""
        rows = await self.session.fetch("newest_definitions", list(jobs))
        return {row[0]: slots_of(decode_job(row[1])) for row in rows}

    async def next_tasks(self, job_id: UUID, limit: int) -> list[UUID]:
        return [row[0] for row in await self.session.fetch("next_job_tasks", job_id, limit)]

    async def due_server_tasks(self, queue: str, limit: int) -> list[tuple[Task, bytes | None, bytes]]:
        """Lock due tasks that run in the server: each with its `wire` and its payload."""
        rows = await self.session.fetch("due_server_tasks", queue, limit)
        return [(records.task_from(row), row[WIDTH], row[WIDTH + 1]) for row in rows]

    # ----------------------------------------------------------------------------------------- cursors

    async def ended_windows(self, jobs: Collection[UUID]) -> list[Window]:
        return [Window(*row) for row in await self.session.fetch("ended_windows", list(jobs))]

    async def forget_tasks(self, jobs: Collection[UUID], reason: str) -> set[UUID]:
        """Forget tasks that were cancelled for this reason. Returns their jobs."""
        return {row[0] for row in await self.session.fetch("forget_job_tasks", list(jobs), reason)}

    async def rename_tasks(self, ids: dict[UUID, UUID]) -> None:
        await self.session.fetch("rename_job_tasks", list(ids), list(ids.values()))

    async def move_cursors(self, windows: Sequence[Window]) -> None:
        if windows:
            await self.session.fetch(
                "move_cursors", [w.job_id for w in windows], [w.dataset_version for w in windows],
                [w.cursor for w in windows],
            )  # fmt: skip

    async def waiting_windows(self, wanted: Collection[tuple[UUID, UUID]]) -> dict[tuple[UUID, UUID], UUID]:
        """The task that waits to read all that there is, by job and version."""
        rows = await self.session.fetch("waiting_windows", *zip(*wanted, strict=True)) if wanted else []
        return {(row[0], row[1]): row[2] for row in rows}

    async def raise_windows(self, cursors: Mapping[UUID, int]) -> None:
        if cursors:
            await self.session.fetch("raise_windows", list(cursors), list(cursors.values()))

    async def lock_wire(self, task_id: UUID, attempt: int) -> bytes | None:
        rows = await self.session.fetch("lock_wire", task_id, attempt)
        return rows[0][0] if rows else None

    async def put_window(self, task_id: UUID, wire: bytes, cursor: int) -> None:
        await self.session.fetch("put_window", task_id, wire, cursor)

    async def cut_windows(self, jobs: Collection[UUID]) -> set[UUID]:
        return {row[0] for row in await self.session.fetch("cut_windows", list(jobs))}

    # ----------------------------------------------------------------------------------------- upgrades

    async def carry_over(self, edge: LiveEdge, limit: int) -> int:
        """Write which partitions of its current version the job of an edge was given already. Returns the number of
        those that were looked at."""
        count: int = await self.session.fetchval(
            "carry_over", edge.job_id, edge.input_index, edge.current_version, edge.from_index, edge.dataset_version,
            limit,
        )  # fmt: skip
        return count

    async def analyze_consumptions(self) -> None:
        await self.session.fetch("analyze_consumptions")

    async def carry_cursor(self, edge: LiveEdge) -> None:
        await self.session.fetch("carry_cursor", edge.job_id, edge.current_version, edge.dataset_version)

    async def is_buffered(self, dataset_uuid: UUID) -> bool:
        found: bool = await self.session.fetchval("is_buffered", dataset_uuid)
        return found

    async def start_at_cutover(self, edge: LiveEdge) -> None:
        await self.session.fetch("start_at_cutover", edge.job_id, edge.input_index, edge.current_version)

    async def has_open_window(self, job_id: UUID, dataset_version: UUID) -> bool:
        found: bool = await self.session.fetchval("has_open_window", job_id, dataset_version)
        return found

    async def end_upgrade(self, edge: LiveEdge) -> None:
        await self.session.fetch("delete_upgrade", edge.job_id, edge.input_index)

    async def cursors(self, job_id: UUID, versions: Collection[UUID]) -> dict[UUID, int]:
        return {row[0]: row[1] for row in await self.session.fetch("job_cursors", job_id, list(versions))}

    # ----------------------------------------------------------------------------------------- what is owed

    async def lock_behind(self, limit: int) -> list[UUID]:
        return [row[0] for row in await self.session.fetch("lock_behind_jobs", limit)]

    async def mark_behind(self, jobs: Collection[UUID]) -> None:
        if jobs:
            await self.lock_jobs(jobs)
            await self.session.fetch("mark_behind", list(jobs))

    async def caught_up(self, jobs: Collection[UUID]) -> None:
        if jobs:
            await self.session.fetch("caught_up", list(jobs))

    async def owed_partitions(
        self, job_id: UUID, dataset_version: UUID, input_index: int, limit: int
    ) -> list[Partition]:
        """Committed partitions that a job was not given yet."""
        rows = await self.session.fetch("owed_partitions", job_id, dataset_version, input_index, limit)
        return [Partition(*row) for row in rows]

    async def owed_to_all(
        self, job_id: UUID, inputs: Mapping[int, UUID], keys: Collection[str] | None, limit: int
    ) -> dict[str, list[tuple[int, Partition, bool]]]:
        """Partitions that all inputs of a job have and that it is owed: the part of each input by its index, and
        whether the job was given that."""
        chosen = None if keys is None else list(keys)
        rows = await self.session.fetch(
            "owed_to_all", job_id, list(inputs), list(inputs.values()), chosen, limit
        )  # fmt: skip
        found: dict[str, list[tuple[int, Partition, bool]]] = {}
        for key, first, last, revision, index, given in rows:
            found.setdefault(key, []).append((index, Partition(key, first, last, revision), given))
        return found

    async def with_pressure(self, limit: int) -> list[tuple[UUID, str, str, bool]]:
        """Jobs that are held or behind: id, DAG, name, and whether it is held."""
        rows = await self.session.fetch("jobs_with_pressure", limit)
        return [(row[0], row[1], row[2], row[3]) for row in rows]

    async def count_owed(self, job_id: UUID, dataset_version: UUID, input_index: int, limit: int) -> int:
        count: int = await self.session.fetchval("count_owed", job_id, dataset_version, input_index, limit)
        return count

    async def count_consumed(self, job_id: UUID, input_index: int, dataset_version: UUID) -> int:
        count: int = await self.session.fetchval("count_consumed", job_id, input_index, dataset_version)
        return count

    async def owed_cursor(self, job_id: UUID, dataset_version: UUID) -> int | None:
        rows = await self.session.fetch("owed_cursor", job_id, dataset_version)
        return rows[0][0] if rows else None

    # ----------------------------------------------------------------------------------------- for people

    async def counts(self, jobs: Collection[UUID]) -> dict[UUID, JobCounts]:
        return {row[0]: JobCounts(*row[1:]) for row in await self.session.fetch("job_counts", list(jobs))}

    async def find_webhook(self, namespace: str, path: str) -> tuple[UUID, UUID] | None:
        """The deployment and the job of a webhook."""
        rows = await self.session.fetch("find_webhook", namespace, path)
        return (rows[0][0], rows[0][1]) if rows else None


def _edge(row: Sequence[Any]) -> LiveEdge:
    return LiveEdge(**dict(zip(_EDGE, row, strict=True)))
