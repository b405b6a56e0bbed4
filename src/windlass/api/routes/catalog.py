"""The catalog of datasets: versions, partitions, events, lineage. A dataset is named in a path by its name or its uuid.

A dataset that a key may not read is answered as one that does not exist.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, convert, field

from windlass.api.framework import cursor
from windlass.api.framework.forms import Cursor, In, Limit, Listed, Paged, Positive
from windlass.api.framework.request import KEY_HEADER
from windlass.api.framework.route import Call, Table
from windlass.core.access import Role
from windlass.core.validation import check_text
from windlass.datasets.catalog import Catalog, Lineage, PartitionHistory
from windlass.datasets.purge import Purge
from windlass.datasets.requests import order_of
from windlass.datasets.rules.lineage import Direction, JobName, Node
from windlass.datasets.rules.partition import PARTITION_MAX, Span
from windlass.datasets.rules.status import PartitionStatus, PartitionView, Place
from windlass.datasets.tables.catalog import DatasetView, RevisionView
from windlass.errors import Malformed
from windlass.net.ids import parse_id

table = Table("catalog")

DEPTH_MAX = 1000
DatasetName = Annotated[str, Meta(min_length=1, max_length=200, description="name or uuid of a dataset")]
PlaceCursor = Annotated[
    str, Meta(max_length=4 * PARTITION_MAX * 2, pattern="^[A-Za-z0-9_-]*$", description="`next` of the page before")
]
Spans = list[Annotated[list[int], Meta(min_length=2, max_length=2)]]
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class VersionForm(Struct, frozen=True):
    """A generation of a dataset, made by one definition of its job. `rows` and `bytes` are null if no task reported
    them, in lists, and for versions with more than 10,000 partitions."""

    dataset_version: UUID
    state: Literal["current", "live", "old", "purged"]
    rows: int | None
    bytes: int | None
    created_at: datetime


class DatasetForm(Struct, frozen=True, kw_only=True):
    """A dataset. `cursor` and `location` are those of the current version. `fresh` is null if the dataset has no
    maximum age. A retired dataset is no longer part of its DAG."""

    name: str | None
    dataset_uuid: UUID
    namespace: str
    dag: str
    job: str | None
    output_index: int | None
    storage: str
    write_mode: str | None
    description: str
    current_version: UUID | None
    versions: list[VersionForm]
    cursor: int | None
    fresh: bool | None
    read_roles: list[str]
    schema: Raw | None
    location: str | None
    retired: bool


class PartitionForm(Struct, frozen=True, kw_only=True):
    """A partition. `inputs` is what it was made from. One that is not committed has no revision; `task_id` is then the
    task that makes it."""

    partition_key: str
    first: int | None = field(name="start")
    last: int | None = field(name="end")
    status: PartitionStatus
    revision: int | None
    rows: int | None
    bytes: int | None
    location: str | None
    task_id: UUID | None
    attempt: int | None
    dag_version: UUID | None
    committed_at: datetime | None
    inputs: Raw
    trace_id: str | None


class RevisionForm(Struct, frozen=True, kw_only=True):
    """A revision of a partition. A revert is a new revision with the task of an old one."""

    revision: int
    rows: int | None
    bytes: int | None
    location: str | None
    task_id: UUID
    attempt: int
    dag_version: UUID | None
    committed_at: datetime
    inputs: Raw
    trace_id: str | None


class PartitionDetail(PartitionForm, frozen=True, kw_only=True):
    """A partition with its revisions, newest first."""

    revisions: list[RevisionForm]


class CoverageForm(Struct, frozen=True):
    """Numbers of a version as merged spans, both ends inclusive. Missing is what the partitions of its job should
    have. With `truncated` there are more than these."""

    committed: Spans
    missing: Spans
    failed: Spans
    truncated: bool


class DatasetEventForm(Struct, frozen=True, kw_only=True):
    """An event of a dataset. `routing` is what became of it, `tasks` are the tasks of jobs that read what it
    reports."""

    id: UUID
    task_id: UUID
    attempt: int
    dataset_uuid: UUID
    dataset_version: UUID
    cursor: int | None
    partition_key: str | None
    first: int | None = field(name="start")
    last: int | None = field(name="end")
    revision: int | None
    declared: bool
    caller: str
    at: datetime
    routed_at: datetime | None
    routing: str | None
    tasks: list[UUID]
    traceparent: str | None


class LineageNode(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A dataset or a job. `name` of a dataset without one is that of its output, `job/output`."""

    id: str
    kind: Literal["dataset", "job"]
    name: str
    dag: str
    dataset_uuid: UUID | UnsetType = UNSET
    dataset_version: UUID | UnsetType = UNSET


class LineageEdge(Struct, frozen=True, kw_only=True):
    """Data goes from one node to another. `where` is the filter of an input."""

    source: str = field(name="from")
    target: str = field(name="to")
    where: str | UnsetType = UNSET


class LineageForm(Struct, frozen=True):
    """Datasets, jobs, and how data goes between them. Two jobs are linked directly if the key may not read the dataset
    between them."""

    nodes: list[LineageNode]
    edges: list[LineageEdge]


class OfVersion(In, frozen=True, forbid_unknown_fields=True):
    """A version of a dataset. Default: the current one."""

    dataset_version: UUID | None = field(name="version", default=None)


class PartitionPage(In, frozen=True, forbid_unknown_fields=True):
    """A page of partitions. With `status` a page may be shorter than `limit`, or empty, before the last one."""

    status: tuple[PartitionStatus, ...] = ()
    dataset_version: UUID | None = field(name="version", default=None)
    after: PlaceCursor | None = None
    limit: Limit = 50


class EventPage(In, frozen=True, forbid_unknown_fields=True):
    """A page of the events of a dataset."""

    after: Cursor | None = None
    limit: Limit = 50


class LineageQuery(In, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A dataset, where to look from it, and how many jobs to pass at most."""

    dataset: DatasetName
    direction: Direction = Direction.BOTH
    depth: Annotated[int, Meta(ge=1, le=DEPTH_MAX)] = 10


class RevertOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """The revision whose content the partition gets again."""

    revision: Positive


@table.add("GET", "/api/v1/datasets", Role.VIEWER)
async def list_datasets(call: Call[Paged, None]) -> Listed[DatasetForm]:
    """List the datasets that the key may read, by name, then those without a name."""
    query = call.query
    found = await _catalog(call).page(
        call.principal, call.namespace(query.namespace), after=cursor.to_name(query.after), limit=query.limit + 1
    )
    page = found[: query.limit]
    more = cursor.of_name(page[-1].label) if len(found) > query.limit else None
    return Listed([_dataset(dataset) for dataset in page], more)


@table.add("GET", "/api/v1/datasets/{dataset}", Role.VIEWER)
async def get_dataset(call: Call[In, None]) -> DatasetForm:
    """Get a dataset with its versions."""
    return _dataset(await _catalog(call).get(call.principal, *which_dataset(call)))


@table.add(
    "POST", "/api/v1/datasets/{dataset}/versions/{dataset_version}/purge", Role.ADMIN, headers=(KEY_HEADER,)
)  # fmt: skip
async def purge_version(call: Call[In, None]) -> VersionForm:
    """Delete the data of a version that no deployment needs: neither a live one nor the one that a rollback goes back
    to. The version is purged at once; its objects and its table are deleted soon after. A deploy of its file builds it
    again."""
    version = parse_id("version", call.path["dataset_version"])
    if version is None:
        raise Malformed("is not the id of a version", field="dataset_version")
    found = await call.engine.service(Purge).order(call.principal, *which_dataset(call), version)
    return convert(found, VersionForm, from_attributes=True)


@table.add("GET", "/api/v1/datasets/{dataset}/partitions", Role.VIEWER)
async def list_partitions(call: Call[PartitionPage, None]) -> Listed[PartitionForm]:
    """List the partitions of a version by their first number, then by key."""
    query, place = call.query, cursor.to_place(call.query.after)
    page, end = await _catalog(call).partitions(
        call.principal, *which_dataset(call), version=query.dataset_version, status=query.status,
        after=None if place is None else Place(*place), limit=query.limit,
    )  # fmt: skip
    return Listed([PartitionForm(**_partition(partition)) for partition in page], cursor.of_place(end))


@table.add("GET", "/api/v1/datasets/{dataset}/partitions/{partition_key}", Role.VIEWER)
async def get_partition(call: Call[OfVersion, None]) -> PartitionDetail:
    """Get a partition with its revisions. A slash in its key is written `%2F`."""
    return _detail(
        await _catalog(call).partition(
            call.principal, *which_dataset(call), _key(call), version=call.query.dataset_version
        )
    )


@table.add("POST", "/api/v1/datasets/{dataset}/partitions/{partition_key}/revert", Role.OPERATOR, headers=(KEY_HEADER,))
async def revert_partition(call: Call[OfVersion, RevertOrder]) -> PartitionDetail:
    """Give a partition the content of an old revision again, as a new revision. What was made from it is made again. If
    it has that content already, nothing changes."""
    version = call.query.dataset_version
    order = order_of(call.key, "revert", call.path["dataset"], _key(call), version, call.body)
    return _detail(
        await _catalog(call).revert(
            call.principal, *which_dataset(call), _key(call), call.body.revision, version=version, order=order
        )
    )


@table.add("GET", "/api/v1/datasets/{dataset}/coverage", Role.VIEWER)
async def get_coverage(call: Call[OfVersion, None]) -> CoverageForm:
    """Get what is committed, missing and failed of a version, as ranges of numbers."""
    found = await _catalog(call).coverage(call.principal, *which_dataset(call), version=call.query.dataset_version)
    whole = found.coverage
    return CoverageForm(_spans(whole.committed), _spans(whole.missing), _spans(whole.failed), found.truncated)


@table.add("GET", "/api/v1/datasets/{dataset}/events", Role.VIEWER)
async def list_dataset_events(call: Call[EventPage, None]) -> Listed[DatasetEventForm]:
    """List the events of a dataset, newest first."""
    query = call.query
    found = await _catalog(call).events(
        call.principal, *which_dataset(call), after=cursor.to_position(query.after), limit=query.limit + 1
    )
    page, more = cursor.page_of(found, query.limit, lambda event: (event.at, event.id))
    return Listed(convert(page, list[DatasetEventForm], from_attributes=True), more)


@table.add("GET", "/api/v1/lineage", Role.VIEWER, errors=(400, 401, 403, 404, 422, 503))
async def get_lineage(call: Call[LineageQuery, None]) -> LineageForm:
    """Get what a dataset is made from, and what is made from it, in active DAGs."""
    query = call.query
    return _lineage(
        await _catalog(call).lineage(call.principal, *which_dataset(call, query.dataset), query.direction, query.depth)
    )


def _catalog(call: Call[Any, Any]) -> Catalog:
    return call.engine.service(Catalog)


def which_dataset(call: Call[Any, Any], text: str | None = None) -> tuple[UUID | str, str | None]:
    """The dataset of a request: its uuid or name, and its namespace. A uuid needs no namespace."""
    text = call.path["dataset"] if text is None else text
    given = call.query.namespace
    if _UUID.fullmatch(text):
        return UUID(text), call.principal.namespace if given is None else call.namespace(given)
    if len(text) > 200 or not text.isprintable():
        raise Malformed("is neither the uuid nor the name of a dataset", field="dataset")
    return text, call.namespace(given)


def _key(call: Call[Any, Any]) -> str:
    key = call.path["partition_key"]
    check_text("partition_key", key, PARTITION_MAX)
    return key


def _spans(spans: Sequence[Span]) -> Spans:
    return [[*span] for span in spans]


def _dataset(dataset: DatasetView) -> DatasetForm:
    d = dataset
    return DatasetForm(
        name=d.name, dataset_uuid=d.id, namespace=d.namespace, dag=d.dag, job=d.job, output_index=d.output_index,
        storage=d.storage, write_mode=d.write_mode, description=d.description, current_version=d.current_version,
        versions=convert(d.versions, list[VersionForm], from_attributes=True), cursor=d.cursor, fresh=d.fresh,
        read_roles=d.read_roles, schema=None if d.schema is None else Raw(d.schema.encode()), location=d.location,
        retired=d.retired,
    )  # fmt: skip


def _partition(partition: PartitionView) -> dict[str, Any]:
    p = partition
    return {
        "partition_key": p.key, "first": p.first, "last": p.last, "status": p.status, "revision": p.revision,
        "rows": p.rows, "bytes": p.bytes, "location": p.location, "task_id": p.task_id, "attempt": p.attempt,
        "dag_version": p.deployment_id, "committed_at": p.committed_at, "inputs": Raw(p.inputs.encode()),
        "trace_id": p.trace_id,
    }  # fmt: skip


def _detail(found: PartitionHistory) -> PartitionDetail:
    return PartitionDetail(**_partition(found.partition), revisions=[_revision(one) for one in found.revisions])


def _revision(revision: RevisionView) -> RevisionForm:
    r = revision
    return RevisionForm(
        revision=r.revision, rows=r.rows, bytes=r.bytes, location=r.location, task_id=r.task_id, attempt=r.attempt,
        dag_version=r.deployment_id, committed_at=r.committed_at, inputs=Raw(r.inputs.encode()), trace_id=r.trace_id,
    )  # fmt: skip


def _lineage(found: Lineage) -> LineageForm:
    nodes = [
        LineageNode(
            id=_node_id(d.id), kind="dataset", name=d.name or f"{d.job}/{d.output_index}", dag=d.dag,
            dataset_uuid=d.id, dataset_version=UNSET if d.current_version is None else d.current_version,
        )
        for d in found.datasets
    ]  # fmt: skip
    nodes += [LineageNode(id=_node_id(job), kind="job", name=job.name, dag=job.dag) for job in found.jobs]
    edges = [
        LineageEdge(source=_node_id(link.source), target=_node_id(link.target), where=link.where or UNSET)
        for link in found.links
    ]
    return LineageForm(nodes, edges)


def _node_id(node: Node) -> str:
    return f"{node.dag}/{node.name}" if isinstance(node, JobName) else str(node)
