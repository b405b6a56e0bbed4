"""The catalog: datasets, their versions and partitions, as the callers see them that may read them.

A dataset that a caller may not read is reported as one that does not exist. Reads take no locks. A revert commits an
old revision of a partition again, as the next one, so that all that was made from the partition is owed again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import tzinfo
from typing import NamedTuple
from uuid import UUID

import msgspec
from msgspec.structs import astuple, replace

from windlass.core.access import Principal
from windlass.core.position import Position
from windlass.core.states import State
from windlass.datasets.requests import Order, known, remember
from windlass.datasets.rules.coverage import Coverage, complete, coverage, merge, subtract
from windlass.datasets.rules.dag import ExecutionStrategy, Job, When
from windlass.datasets.rules.events import PartitionCommit
from windlass.datasets.rules.lineage import Direction, JobName, Link, lineage, without
from windlass.datasets.rules.partition import Key, Ordered, Scheme, Span
from windlass.datasets.rules.status import (
    BEGIN,
    Found,
    Page,
    PartitionStatus,
    PartitionView,
    Place,
    has_key,
    merge_page,
    status_of,
)
from windlass.datasets.tables.catalog import (
    CatalogEvent,
    CatalogTable,
    DatasetView,
    InputVersion,
    LineageDataset,
    MakingTask,
    PartitionRow,
    RevisionView,
)
from windlass.datasets.tables.events import DatasetTable
from windlass.datasets.tables.jobs import JobTable
from windlass.engine.commit.lock_waits import LONG_MS
from windlass.engine.engine import Engine
from windlass.engine.manage.timezones import zone_of
from windlass.errors import InvalidState, NotFound
from windlass.store.notify import PendingNotifications
from windlass.store.transaction import Transaction

# Partitions that one page with a filter looks at, and the most that it loads. It may have fewer items than its limit.
SCAN_MAX, LOAD_MAX = 1_000, 500
REVISIONS_MAX = 500
SPANS_MAX = 10_000
OPEN_STATUSES = frozenset(PartitionStatus) - {PartitionStatus.COMMITTED, PartitionStatus.STALE}


class Producers(NamedTuple):
    """The jobs that write a version, and the versions that they read by partitions."""

    jobs: Mapping[UUID, Job]
    inputs: Sequence[InputVersion]

    def expects(self, key: str) -> bool:
        """Whether the scheme of a job has a partition with this key."""
        return any(has_key(scheme, key) for scheme in map(scheme_of, self.jobs.values()) if scheme is not None)


class _Scan(NamedTuple):
    """What a page of partitions looks for."""

    version: UUID
    producers: Producers
    after: Place
    limit: int
    status: frozenset[PartitionStatus]

    @property
    def load(self) -> int:
        """The most that a query returns."""
        return max(LOAD_MAX, self.limit) if self.status else self.limit + 1

    @property
    def width(self) -> int:
        """The most that a query looks at, so that its time is limited."""
        return max(SCAN_MAX, self.load) if self.status else self.load

    @property
    def stale_only(self) -> bool:
        return bool(self.status) and PartitionStatus.COMMITTED not in self.status


class PartitionHistory(msgspec.Struct, frozen=True):
    """A partition and its revisions, newest first."""

    partition: PartitionView
    revisions: list[RevisionView]


class CoverageView(msgspec.Struct, frozen=True):
    """What is committed, missing and failed of a version. `truncated`: there are more spans."""

    coverage: Coverage
    truncated: bool


class Lineage(msgspec.Struct, frozen=True):
    """Datasets and jobs, and how data goes between them."""

    datasets: list[LineageDataset]
    jobs: list[JobName]
    links: list[Link]


class Catalog:
    """The datasets of one database."""

    def __init__(self, engine: Engine) -> None:
        self._store = engine.parts.store

    # ----------------------------------------------------------------------------------------- datasets

    async def page(
        self, caller: Principal, namespace: str, *, after: str | None = None, limit: int = 50
    ) -> list[DatasetView]:
        """The datasets that a caller may read, by name, then those without one."""
        async with self._store.begin() as tx:
            catalog = CatalogTable(tx.session)
            found = await catalog.page(caller, namespace, after, limit)
            versions = await catalog.versions([dataset.id for dataset in found], sums=False)
        return [replace(dataset, versions=versions.get(dataset.id, [])) for dataset in found]

    async def get(self, caller: Principal, which: UUID | str, namespace: str | None) -> DatasetView:
        """A dataset with its versions, by its id or name. By id in any namespace if none is given."""
        async with self._store.begin() as tx:
            found = await find_dataset(tx, caller, which, namespace)
            versions = await CatalogTable(tx.session).versions([found.id], sums=True)
        return replace(found, versions=versions.get(found.id, []))

    async def events(
        self, caller: Principal, which: UUID | str, namespace: str | None, *, after: Position | None, limit: int
    ) -> list[CatalogEvent]:
        """The events of a dataset, newest first."""
        async with self._store.begin() as tx:
            found = await find_dataset(tx, caller, which, namespace)
            return await CatalogTable(tx.session).events(found.id, found.namespace, after, limit)

    async def lineage(
        self, caller: Principal, which: UUID | str, namespace: str | None, direction: Direction, depth: int
    ) -> Lineage:
        """What a dataset is made from, and what is made from it, in active deployments. Datasets that the caller may
        not read are left out: the jobs on both sides are linked."""
        async with self._store.begin() as tx:
            found, catalog = await find_dataset(tx, caller, which, namespace), CatalogTable(tx.session)
            links = lineage(await catalog.links(found.namespace), found.id, direction, depth)
            ids = {node for link in links for node in link[:2] if isinstance(node, UUID)} | {found.id}
            datasets = await catalog.lineage_datasets(caller, ids)
        links = without(links, {id_ for id_ in ids if id_ not in datasets or not datasets[id_].readable})
        nodes = dict.fromkeys(node for link in links for node in link[:2])
        shown = dict.fromkeys([found.id, *(node for node in nodes if isinstance(node, UUID))])
        return Lineage([datasets[id_] for id_ in shown], [node for node in nodes if isinstance(node, JobName)], links)

    # ----------------------------------------------------------------------------------------- partitions

    async def partitions(
        self,
        caller: Principal,
        which: UUID | str,
        namespace: str | None,
        *,
        version: UUID | None = None,
        status: Collection[PartitionStatus] = (),
        after: Place | None = None,
        limit: int = 50,
    ) -> Page:
        """One page of the partitions of a version, the current one unless given: by first number, then by key. With
        `status` a page may have fewer than `limit` items, or none, before the last one."""
        async with self._store.begin() as tx:
            dataset = await find_dataset(tx, caller, which, namespace)
            version_id = await _version(tx, dataset, version)
            if version_id is None:
                return [], None
            return await status_page(tx, version_id, status, after or BEGIN, limit)

    async def partition(
        self, caller: Principal, which: UUID | str, namespace: str | None, key: str, *, version: UUID | None = None
    ) -> PartitionHistory:
        """A partition with its revisions."""
        async with self._store.begin() as tx:
            dataset = await find_dataset(tx, caller, which, namespace)
            version_id = await _version(tx, dataset, version)
            found = None if version_id is None else await _partition(tx, version_id, key)
            if version_id is None or found is None:
                raise no_partition(dataset, key)
            revisions = await CatalogTable(tx.session).revisions(version_id, key, REVISIONS_MAX)
        return PartitionHistory(found, revisions)

    async def coverage(
        self, caller: Principal, which: UUID | str, namespace: str | None, *, version: UUID | None = None
    ) -> CoverageView:
        """What there is of a version, as spans. Partitions without numbers are in none."""
        async with self._store.begin() as tx:
            dataset = await find_dataset(tx, caller, which, namespace)
            version_id = await _version(tx, dataset, version)
            if version_id is None:
                return CoverageView(Coverage([], [], []), False)
            catalog, producers = CatalogTable(tx.session), await _producers(tx, version_id)
            committed = await catalog.committed_spans(version_id, SPANS_MAX + 1)
            failed: list[Span] = []
            for given in producers.inputs:
                open_ = await catalog.uncommitted(version_id, given, SPANS_MAX)
                tasks = await catalog.tasks(list(open_), producers.inputs)
                failed += [span for key, span in open_.items() if key in tasks and tasks[key].state is State.FAILED]
            within = await _within(catalog, producers)
        whole = coverage(committed, failed, within)
        parts = [whole.committed, whole.missing, whole.failed]
        shown = Coverage(*(part[:SPANS_MAX] for part in parts))
        return CoverageView(shown, any(len(part) > SPANS_MAX for part in parts))

    # ----------------------------------------------------------------------------------------- revert

    async def revert(
        self,
        caller: Principal,
        which: UUID | str,
        namespace: str | None,
        key: str,
        revision: int,
        *,
        version: UUID | None = None,
        order: Order | None = None,
    ) -> PartitionHistory:
        """Commit an old revision of a partition again, as the next one. What was made from the partition is owed again.
        If the partition has that content already, nothing changes, so that a repeated revert is one."""
        async with self._store.begin() as tx:
            dataset = await find_dataset(tx, caller, which, namespace)
            version_id = await _version(tx, dataset, version)
            if version_id is None:
                raise no_partition(dataset, key)
            await self._revert(tx, dataset, version_id, key, revision, order)
        return await self.partition(caller, dataset.id, dataset.namespace, key, version=version_id)

    async def _revert(
        self, tx: Transaction, dataset: DatasetView, version: UUID, key: str, revision: int, order: Order | None
    ) -> None:
        catalog, jobs = CatalogTable(tx.session), JobTable(tx.session)
        edges = await jobs.edges_on([dataset.id])
        readers = {e.job_id for e in edges if e.dataset_version == version and e.trigger and e.by_partition}
        await tx.limit_waits(LONG_MS)
        # Before the lock of the version: a report has the lock of its task when it takes that one, and a router has
        # those of jobs when it takes those of tasks.
        await jobs.lock_jobs(readers)
        await DatasetTable(tx.session).lock_versions([version])
        if await known(tx, dataset.namespace, order) is not None:
            return
        await remember(tx, dataset.namespace, order, version)
        current = await catalog.partition(version, key)
        if current is None:
            raise no_partition(dataset, key)
        wanted = await catalog.revisions(version, key, 1, revision)
        if not wanted:
            raise NotFound(f"partition {key} has no revision {revision}", partition_key=key, revision=revision)
        old = wanted[0]
        if (old.task_id, old.attempt, old.location) == (current.task_id, current.attempt, current.location):
            return
        commit = PartitionCommit(
            version, key, current.first, current.last, current.revision + 1, old.task_id, old.attempt,
            old.deployment_id, old.location, old.manifest_sha256, old.rows, old.bytes, old.trace_id, old.inputs,
            await tx.now(),
        )  # fmt: skip
        await DatasetTable(tx.session).commit_partitions([commit])
        await jobs.mark_behind(readers)
        await tx.wake(PendingNotifications(effects=True))


async def status_page(
    tx: Transaction, version: UUID, status: Collection[PartitionStatus], after: Place, limit: int
) -> Page:
    """One page of the partitions of a version, of any status if none is given."""
    producers = await _producers(tx, version)
    scan = _Scan(version, producers, after, limit, frozenset(status))
    found = [await _committed(tx, scan)]
    if not status or OPEN_STATUSES.intersection(status):
        found += [await _uncommitted(tx, scan, given) for given in producers.inputs]
    if status:
        found = [Found([item for item in one.items if item.status in status], one.end) for one in found]
    return merge_page(found, limit)


def scheme_of(job: Job) -> Ordered | None:
    """The partitions that a job declares, if they have an order; None if it declares none, or any."""
    scheme = declared_scheme(job)
    return None if isinstance(scheme, Key) else scheme


def declared_scheme(job: Job) -> Scheme | None:
    """The partitions that a job declares; None if it declares none."""
    if job.partitions is None:
        return None
    zone: tzinfo | None = zone_of(job.partitions.timezone) if job.partitions.timezone else None
    return job.partitions.scheme(zone)


async def find_dataset(tx: Transaction, caller: Principal, which: UUID | str, namespace: str | None) -> DatasetView:
    """A dataset that the caller may read. Raises NotFound, also for one that it may not."""
    found = await CatalogTable(tx.session).find(caller, which, namespace)
    if found is None:
        raise NotFound(f"there is no dataset {which}, or this key may not read it", dataset=str(which))
    return found


async def _version(tx: Transaction, dataset: DatasetView, version: UUID | None) -> UUID | None:
    """The version that is given, or the current one. Raises NotFound and InvalidState."""
    if version is None:
        return dataset.current_version
    versions = await CatalogTable(tx.session).versions([dataset.id], sums=False)
    states = {one.dataset_version: one.state for one in versions.get(dataset.id, [])}
    if version not in states:
        raise NotFound(f"the dataset has no version {version}", dataset_version=version)
    if states[version] == "purged":
        raise InvalidState(f"version {version} was purged", dataset_version=version)
    return version


async def _producers(tx: Transaction, version: UUID) -> Producers:
    jobs = await CatalogTable(tx.session).jobs(version)
    by_partition = {id_ for id_, job in jobs.items() if job.execution_strategy is ExecutionStrategy.PER_PARTITION}
    edges = await JobTable(tx.session).edges_of(by_partition) if by_partition else []
    return Producers(
        jobs,
        [
            InputVersion(edge.job_id, edge.input_index, edge.dataset_version)
            for edge in edges
            if edge.trigger and edge.dataset_version is not None
        ],
    )


async def _committed(tx: Transaction, scan: _Scan) -> Found:
    catalog, stale_only = CatalogTable(tx.session), scan.stale_only
    width = scan.width if stale_only else scan.load
    rows = await catalog.partitions(scan.version, scan.after, width, scan.load, stale_only=stale_only)
    tasks = await catalog.tasks([row.key for row in rows if row.stale], scan.producers.inputs)
    items = [_view(row, tasks.get(row.key)) for row in rows]
    if len(items) == scan.load:
        return Found(items, items[-1].place)
    return Found(items, await catalog.place_after(scan.version, scan.after, width) if stale_only else None)


async def _uncommitted(tx: Transaction, scan: _Scan, given: InputVersion) -> Found:
    """What a job makes, or should make, from the partitions of one input."""
    catalog, producers = CatalogTable(tx.session), scan.producers
    rows = await catalog.open_inputs(given, scan.version, scan.after, scan.width, scan.load)
    tasks = await catalog.tasks([row.key for row in rows], producers.inputs)
    items = [_open_view(row.key, row.first, row.last, tasks.get(row.key), producers) for row in rows]
    if len(rows) == scan.load:
        end: Place | None = Place(rows[-1].first, rows[-1].key)
    else:
        end = await catalog.place_after(given.dataset_version, scan.after, scan.width)
    return Found([item for item in items if item is not None], end)


async def _partition(tx: Transaction, version: UUID, key: str) -> PartitionView | None:
    catalog, producers = CatalogTable(tx.session), await _producers(tx, version)
    row = await catalog.partition(version, key)
    if row is not None:
        tasks = await catalog.tasks([key], producers.inputs) if row.stale else {}
        return _view(row, tasks.get(key))
    span = await catalog.input_span(producers.inputs, key)
    if span is None:
        return None
    return _open_view(key, *span, (await catalog.tasks([key], producers.inputs)).get(key), producers)


def _view(row: PartitionRow, task: MakingTask | None) -> PartitionView:
    status = status_of(True, row.stale, task.state if task else None, True)
    assert status is not None, row
    key, first, last, *rest = astuple(row)[:-1]
    return PartitionView(key, first, last, status, *rest)


def _open_view(
    key: str, first: int | None, last: int | None, task: MakingTask | None, producers: Producers
) -> PartitionView | None:
    status = status_of(False, False, task.state if task else None, producers.expects(key))
    if status is None:
        return None
    view = PartitionView(key, first, last, status)
    if task is None:
        return view
    return replace(view, task_id=task.id, attempt=task.attempt, deployment_id=task.deployment_id)


async def _within(catalog: CatalogTable, producers: Producers) -> list[Span]:
    """What there should be: for each job with a scheme, its partitions that its inputs have completely."""
    whole: list[Span] = []
    for job_id, job in producers.jobs.items():
        scheme = scheme_of(job)
        inputs = [given for given in producers.inputs if given.job_id == job_id]
        if scheme is None or not inputs:
            continue
        sets = [await catalog.committed_spans(given.dataset_version, SPANS_MAX) for given in inputs]
        there = sets[0]
        for other in sets[1:]:
            there = _common(there, other) if job.when is When.ALL else merge([*there, *other])
        whole += [run.span for run in complete(scheme, there)]
    return merge(whole)


def _common(one: list[Span], other: list[Span]) -> list[Span]:
    return subtract(one, subtract(one, other))


def no_partition(dataset: DatasetView, key: str) -> NotFound:
    return NotFound(f"dataset {dataset.name or dataset.id} has no partition {key}", partition_key=key)
