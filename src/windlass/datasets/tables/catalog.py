"""Reads of datasets in PostgreSQL: what there is of each, which part is committed, and what tasks make it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import msgspec

from windlass.core.access import Principal
from windlass.core.position import NOWHERE, Position
from windlass.core.states import State
from windlass.datasets.rules.dag import Job
from windlass.datasets.rules.lineage import JobName, Link
from windlass.datasets.rules.partition import Span
from windlass.datasets.rules.status import Place
from windlass.datasets.tables.dags import rights_of
from windlass.datasets.tables.events import EventView
from windlass.store.queries import register_queries
from windlass.store.table import Table

register_queries(__package__, "catalog.sql")

VERSIONS_MAX = 100  # of one dataset that are shown
SUMMED_MAX = 10_000  # rows and bytes of a version with more partitions are not added up

_decode_job = msgspec.json.Decoder(Job).decode


class VersionView(msgspec.Struct, frozen=True):
    """A version of a dataset. Rows and bytes are None if they are not known, or not added up."""

    dataset_version: UUID
    state: str
    created_at: datetime
    rows: int | None
    bytes: int | None


class DatasetView(msgspec.Struct, frozen=True):
    """A dataset and its current version. The schema is JSON. `label` is its place in the list."""

    id: UUID
    namespace: str
    dag: str
    job: str | None
    output_index: int | None
    name: str | None
    storage: str
    write_mode: str | None
    read_roles: list[str]
    description: str
    schema: str | None
    retired: bool
    current_version: UUID | None
    location: str | None
    cursor: int | None
    fresh: bool | None
    label: str
    versions: list[VersionView] = []


class PartitionRow(msgspec.Struct, frozen=True):
    """The current revision of a partition. `stale`: a newer revision of an input exists."""

    key: str
    first: int | None
    last: int | None
    revision: int
    rows: int | None
    bytes: int | None
    location: str | None
    task_id: UUID
    attempt: int
    deployment_id: UUID | None
    committed_at: datetime
    inputs: str
    trace_id: str | None
    stale: bool


class RevisionView(msgspec.Struct, frozen=True):
    """One revision of a partition. `inputs` is JSON."""

    revision: int
    rows: int | None
    bytes: int | None
    location: str | None
    task_id: UUID
    attempt: int
    deployment_id: UUID | None
    committed_at: datetime
    inputs: str
    trace_id: str | None
    manifest_sha256: str | None


class InputRow(NamedTuple):
    """A partition of an input."""

    key: str
    first: int | None
    last: int | None


class MakingTask(NamedTuple):
    """The newest task that makes a partition."""

    id: UUID
    state: State
    attempt: int
    deployment_id: UUID | None


class InputVersion(NamedTuple):
    """A version that a job reads by partitions."""

    job_id: UUID
    input_index: int
    dataset_version: UUID


class CatalogEvent(EventView, frozen=True):
    """An event of a dataset, and the tasks that it has made."""

    tasks: Sequence[UUID] = ()


class LineageDataset(NamedTuple):
    """A dataset in a lineage."""

    id: UUID
    name: str | None
    dag: str
    job: str | None
    output_index: int | None
    current_version: UUID | None
    readable: bool


class CatalogTable(Table):
    """Reads of datasets within a transaction."""

    # ----------------------------------------------------------------------------------------- datasets

    async def page(self, caller: Principal, namespace: str, after: str | None, limit: int) -> list[DatasetView]:
        rows = await self.session.fetch("get_datasets", None, None, *rights_of(caller), after, limit, namespace)
        return [DatasetView(*row) for row in rows]

    async def find(self, caller: Principal, which: UUID | str, namespace: str | None) -> DatasetView | None:
        """A dataset that the caller may read, by its id or name. By id in any namespace if none is given."""
        id_, name = (which, None) if isinstance(which, UUID) else (None, which)
        rows = await self.session.fetch("get_datasets", id_, name, *rights_of(caller), None, 1, namespace)
        return DatasetView(*rows[0]) if rows else None

    async def versions(self, datasets: Collection[UUID], *, sums: bool) -> dict[UUID, list[VersionView]]:
        rows = await self.session.fetch("dataset_versions", list(datasets), sums, VERSIONS_MAX, SUMMED_MAX)
        found: dict[UUID, list[VersionView]] = {}
        for row in rows:
            found.setdefault(row[0], []).append(VersionView(*row[1:]))
        return found

    async def jobs(self, dataset_version: UUID) -> dict[UUID, Job]:
        """The jobs of live deployments that write a version."""
        return {row[0]: _decode_job(row[1]) for row in await self.session.fetch("version_jobs", dataset_version)}

    # ----------------------------------------------------------------------------------------- partitions

    async def place_after(self, dataset_version: UUID, after: Place, count: int) -> Place | None:
        """The place of a partition so many after a place; None if there are fewer."""
        rows = await self.session.fetch("place_after", dataset_version, *after, count)
        return Place(*rows[0]) if rows else None

    async def partitions(
        self, dataset_version: UUID, after: Place, scan: int, limit: int, *, stale_only: bool
    ) -> list[PartitionRow]:
        """At most `limit` partitions among the `scan` that follow a place."""
        rows = await self.session.fetch("partition_page", dataset_version, *after, scan, limit, stale_only)
        return [PartitionRow(*row) for row in rows]

    async def partition(self, dataset_version: UUID, key: str) -> PartitionRow | None:
        rows = await self.session.fetch("get_partition", dataset_version, key)
        return PartitionRow(*rows[0]) if rows else None

    async def open_inputs(
        self, given: InputVersion, output: UUID, after: Place, scan: int, limit: int
    ) -> list[InputRow]:
        """At most `limit` partitions of an input that the output does not have, among the `scan` that follow a
        place."""
        rows = await self.session.fetch("input_page", given.dataset_version, *after, scan, limit, output)
        return [InputRow(*row) for row in rows]

    async def input_span(self, inputs: Collection[InputVersion], key: str) -> tuple[int | None, int | None] | None:
        """First and last number of the partition of an input with this key; None if no input has it."""
        rows = await self.session.fetch("get_spans", [given.dataset_version for given in inputs], key)
        return (rows[0][0], rows[0][1]) if rows else None

    async def tasks(self, keys: Sequence[str], inputs: Sequence[InputVersion]) -> dict[str, MakingTask]:
        """The newest task of each of these keys that has one."""
        if not keys or not inputs:
            return {}
        rows = await self.session.fetch("partition_tasks", keys, *zip(*inputs, strict=True))
        return {row[0]: MakingTask(row[1], State(row[2]), row[3], row[4]) for row in rows}

    async def revisions(
        self, dataset_version: UUID, key: str, limit: int, revision: int | None = None
    ) -> list[RevisionView]:
        rows = await self.session.fetch("partition_history", dataset_version, key, revision, limit)
        return [RevisionView(*row) for row in rows]

    async def committed_spans(self, dataset_version: UUID, limit: int) -> list[Span]:
        return [Span(*row) for row in await self.session.fetch("committed_spans", dataset_version, limit)]

    async def uncommitted(self, output: UUID, given: InputVersion, limit: int) -> dict[str, Span]:
        """Partitions of an input that the output does not have, by key."""
        rows = await self.session.fetch("uncommitted_spans", output, given.dataset_version, limit)
        return {row[0]: Span(row[1], row[2]) for row in rows}

    # ----------------------------------------------------------------------------------------- events and lineage

    async def events(
        self, dataset_uuid: UUID, namespace: str, after: Position | None, limit: int
    ) -> list[CatalogEvent]:
        rows = await self.session.fetch("dataset_events", dataset_uuid, namespace, *(after or NOWHERE), limit)
        return [CatalogEvent(*row) for row in rows]

    async def links(self, namespace: str) -> list[Link]:
        """What the jobs of active deployments read and write."""
        reads = await self.session.fetch("lineage_reads", namespace)
        writes = await self.session.fetch("lineage_writes", namespace)
        return [
            *(Link(dataset, JobName(dag, job), where) for dag, job, dataset, where in reads),
            *(Link(JobName(dag, job), dataset) for dag, job, dataset in writes),
        ]

    async def lineage_datasets(self, caller: Principal, datasets: Collection[UUID]) -> dict[UUID, LineageDataset]:
        rows = await self.session.fetch("lineage_datasets", list(datasets), *rights_of(caller))
        return {row[0]: LineageDataset(*row) for row in rows}
