"""Dataset events and batches of a task, and what they commit. Nothing else is called an event.

An event is identified by task, dataset, version, and cursor or partition, so reporting it twice, in another attempt or
with the end of the task, records it once. A cursor of a DAG's dataset raises its high water; a partition commits the
next revision (`rules.commit`). Data in the lake is committed by the outputs of a completion, whose files were read
before. This module does not know what routes events, reads the lake or writes batches to tables.
"""

from __future__ import annotations

import re
from bisect import bisect_right, insort
from collections import ChainMap
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from uuid import UUID

import msgspec

from windlass.core.context import CommandContext
from windlass.core.effects import register_effect
from windlass.core.ids import derived_id
from windlass.core.states import Effect, Instant, Transition
from windlass.core.task import Task
from windlass.core.validation import check_text
from windlass.datasets.rules.commit import Committed, Content, Fence, Neighbor, commit
from windlass.datasets.rules.partition import PARTITION_MAX, Span
from windlass.datasets.rules.writer import NO_WRITER, Production, Writer
from windlass.errors import Invalid

ROUTE, BUFFER = "route", "buffer"
register_effect(ROUTE, detached=True)
register_effect(BUFFER, detached=True)
URI_MAX = 2000
# What became of an event at once.
DUPLICATE, UNCOMMITTED, UNDECLARED, OLD_VERSION = "duplicate", "uncommitted", "undeclared", "old_version"
_URI = re.compile(r"[a-z][a-z0-9+.-]*://[^\s\\?#%]+")


class Files(msgspec.Struct, frozen=True):
    """The files of an output in the lake: the folder, and what its manifest says. They were checked."""

    location: str
    manifest_sha256: str
    rows: int
    bytes: int


class EventReport(msgspec.Struct, frozen=True):
    """A worker's report that a dataset reached a cursor, or that a partition of it is complete. `start` and `end` are
    the first and last block of a partition. One that comes from the outputs of a completion has the number of rows, if
    it was reported, and the files, if they are in the lake. `field` is its place in the request."""

    dataset_uuid: UUID
    dataset_version: UUID
    cursor: int | None = None
    partition_key: str | None = None
    start: int | None = None
    end: int | None = None
    field: str = "events"
    rows: int | None = None
    files: Files | None = None

    def id_of(self, task_id: UUID) -> UUID:
        """The id of the event, the same in every attempt of the task."""
        scope = f"cursor:{self.cursor}" if self.partition_key is None else f"partition:{self.partition_key}"
        return derived_id("event", task_id, self.dataset_uuid, self.dataset_version, scope)

    def check(self) -> None:
        field = self.field
        if (self.cursor is None) == (self.partition_key is None):
            raise Invalid("must have a cursor or a partition_key", field=field)
        if self.partition_key is not None:
            check_text(f"{field}.partition_key", self.partition_key, PARTITION_MAX)
        if (self.start is None) != (self.end is None):
            raise Invalid("must have both start and end, or neither", field=field)
        if self.start is None or self.end is None:
            return
        if self.partition_key != f"{self.start}-{self.end}" or self.start > self.end:
            raise Invalid("partition_key must be {start}-{end}, and start not after end", field=field)


class DatasetEvent(msgspec.Struct, frozen=True):
    """A recorded event. An event of a dataset that is not a declared output is kept for audit only. `revision` is that
    of the partition that it commits. `routing` is set if it wakes no job."""

    id: UUID
    namespace: str
    task_id: UUID
    attempt: int
    dataset_uuid: UUID
    dataset_version: UUID
    cursor: int | None
    partition_key: str | None
    first: int | None
    last: int | None
    declared: bool
    caller: str
    at: Instant
    revision: int | None = None
    traceparent: str | None = None
    routing: str | None = None

    @classmethod
    def of(cls, task: Task, report: EventReport, declared: bool, caller: str, now: Instant) -> DatasetEvent:
        return cls(
            report.id_of(task.id), task.namespace, task.id, task.attempt, report.dataset_uuid, report.dataset_version,
            report.cursor, report.partition_key, report.start, report.end, declared, caller, now,
            traceparent=task.trace, routing=None if declared else UNDECLARED,
        )  # fmt: skip

    @property
    def effects(self) -> tuple[Effect, ...]:
        """The effect that routes it, if it may wake a job."""
        return (routed(self),) if self.routing is None else ()


def routed(event: DatasetEvent) -> Effect:
    """The effect that routes an event."""
    id_ = derived_id(ROUTE, event.task_id, event.attempt, event.id)
    return Effect(id_, ROUTE, event.namespace, event.task_id, event.attempt, {"event_id": str(event.id)})


# --------------------------------------------------------------------------------------------- what an event commits


class HighWater(msgspec.Struct, frozen=True):
    """A version of a dataset has data up to this cursor."""

    dataset_version: UUID
    cursor: int


class PartitionCommit(msgspec.Struct, frozen=True):
    """A revision of a partition is committed. `inputs` is JSON: the versions, revisions and cursors of its inputs."""

    dataset_version: UUID
    key: str
    first: int | None
    last: int | None
    revision: int
    task_id: UUID
    attempt: int
    deployment_id: UUID | None
    location: str | None
    manifest_sha256: str | None
    rows: int | None
    bytes: int | None
    trace_id: str | None
    inputs: str
    committed_at: Instant


class CursorCommit(msgspec.Struct, frozen=True):
    """The files that a task added to a version when it reported a cursor. `inputs` as of a partition."""

    dataset_version: UUID
    cursor: int
    task_id: UUID
    attempt: int
    deployment_id: UUID
    location: str
    manifest_sha256: str
    rows: int
    bytes: int
    trace_id: str | None
    inputs: str
    committed_at: Instant


Place = tuple[UUID, str]  # a partition: version and key


class DatasetContext(CommandContext):
    """What events and batches are checked against: the tasks that report them, and what is recorded. `events` has what
    became of each recorded event, `partitions` the newest revision of each partition, `neighbors` the partitions that
    may overlap one that is reported, and `purged` the versions to which nothing is committed any more."""

    def __init__(
        self,
        writers: Mapping[UUID, Writer] | None = None,
        events: Mapping[UUID, str | None] | None = None,
        publishes: Mapping[UUID, tuple[UUID, int]] | None = None,
        high_waters: Mapping[UUID, int] | None = None,
        partitions: Mapping[Place, Committed] | None = None,
        neighbors: Iterable[tuple[UUID, Neighbor]] = (),
        purged: frozenset[UUID] = frozenset(),
    ) -> None:
        self._writers = writers or {}
        self.events: MutableMapping[UUID, str | None] = dict(events or {})
        self.publishes: MutableMapping[UUID, tuple[UUID, int]] = dict(publishes or {})
        self.high_waters: MutableMapping[UUID, int] = dict(high_waters or {})
        self.partitions: MutableMapping[Place, Committed] = dict(partitions or {})
        self.purged = purged
        self._spans = Spans()
        for version, neighbor in neighbors:
            self._spans.add(version, neighbor)

    def overlay(self) -> DatasetContext:
        """The same, to which what one report writes can be added and dropped again."""
        new = DatasetContext(self._writers, purged=self.purged)
        new.events, new.high_waters = ChainMap({}, self.events), ChainMap({}, self.high_waters)
        new.partitions = ChainMap({}, self.partitions)
        new._spans = Spans(self._spans)
        return new

    def writer(self, task_id: UUID) -> Writer:
        return self._writers.get(task_id, NO_WRITER)

    def is_alive(self, task_id: UUID, attempt: int) -> bool:
        """Whether the lease of this attempt has not run out."""
        return self.writer(task_id).attempt == attempt

    def note(self, transition: Transition) -> None:
        for write in transition.writes:
            if isinstance(write, Publish):
                self.publishes[write.id] = write.content
            else:
                self.add(write)

    def add(self, write: object) -> None:
        """Add what an event writes."""
        match write:
            case DatasetEvent():
                self.events[write.id] = write.routing
            case HighWater():
                self.high_waters[write.dataset_version] = write.cursor
            case PartitionCommit():
                place = write.dataset_version, write.key
                self.partitions[place] = Committed(write.task_id, write.revision, write.manifest_sha256)
                if write.first is not None and write.last is not None:
                    self._spans.add(write.dataset_version, Neighbor(write.key, Span(write.first, write.last)))

    def neighbors(self, version: UUID, key: str, span: Span) -> list[Neighbor]:
        """The partitions of a version that may overlap a new one."""
        return self._spans.neighbors(version, key, span)


class Spans:
    """Partitions of versions that have numbers, and do not overlap. With `below`, also those."""

    def __init__(self, below: Spans | None = None) -> None:
        self._below = below
        self._sorted: dict[UUID, list[tuple[Span, str]]] = {}
        self._keys: set[Place] = set()

    def add(self, version: UUID, one: Neighbor) -> None:
        if (version, one.partition_key) not in self._keys:
            self._keys.add((version, one.partition_key))
            insort(self._sorted.setdefault(version, []), (one.span, one.partition_key))

    def neighbors(self, version: UUID, key: str, span: Span) -> list[Neighbor]:
        """Of partitions that do not overlap each other only one can overlap a new one: the last that begins before
        the end of the new one."""
        found = [] if self._below is None else self._below.neighbors(version, key, span)
        spans = self._sorted.get(version, [])
        place = bisect_right(spans, span.last, key=lambda one: one[0].first)
        for other, name in reversed(spans[max(0, place - 2) : place]):
            if name != key:
                return [*found, Neighbor(name, other)]
        return found


class Recorded(msgspec.Struct, frozen=True):
    """The events of a report that are new, and the records that they write, each once."""

    events: tuple[DatasetEvent, ...] = ()
    commits: tuple[HighWater | PartitionCommit | CursorCommit, ...] = ()

    @property
    def writes(self) -> tuple[object, ...]:
        return (*self.events, *self.commits)

    @property
    def effects(self) -> tuple[Effect, ...]:
        return tuple(effect for event in self.events for effect in event.effects)


def record_events(
    task: Task, reports: tuple[EventReport, ...], context: DatasetContext, caller: str, now: Instant
) -> Recorded:
    """Record the events of a task that are new, and commit what they report of a DAG's datasets. Raises OutputInvalid
    for a partition that may not be committed; then nothing is recorded."""
    writer, seen = context.writer(task.id), context.overlay()
    events: list[DatasetEvent] = []
    commits: list[HighWater | PartitionCommit | CursorCommit] = []
    for report in reports:
        declared = writer.outputs.get(report.dataset_uuid) == report.dataset_version
        event = DatasetEvent.of(task, report, declared, caller, now)
        if event.id in seen.events and not (report.files and seen.events[event.id] == UNCOMMITTED):
            continue
        made: tuple[HighWater | PartitionCommit | CursorCommit, ...] = ()
        if declared and writer.production is not None:
            event, made = _commit(event, report, writer.production, seen)
        for write in (event, *made):
            seen.add(write)
        events.append(event)
        commits += made
    return Recorded(tuple(events), tuple(commits))


def _commit(
    event: DatasetEvent, report: EventReport, production: Production, context: DatasetContext
) -> tuple[DatasetEvent, tuple[HighWater | PartitionCommit | CursorCommit, ...]]:
    """Commit what an event reports. Data in the lake is committed by the outputs of a completion, never by an event
    alone; rows of batches by the event of their sink: a cursor of their writer would hide those of the sink. A version
    that was purged stays empty."""
    if event.dataset_version in context.purged:
        return msgspec.structs.replace(event, routing=OLD_VERSION), ()
    if production.by_sink(event.dataset_uuid) or (production.in_lake(event.dataset_uuid) and report.files is None):
        return msgspec.structs.replace(event, routing=UNCOMMITTED), ()
    if event.cursor is not None:
        return _commit_cursor(event, event.cursor, report.files, production, context)
    assert event.partition_key is not None, event
    return _commit_partition(event, event.partition_key, report, production, context)


def _commit_cursor(
    event: DatasetEvent, cursor: int, files: Files | None, production: Production, context: DatasetContext
) -> tuple[DatasetEvent, tuple[HighWater | CursorCommit, ...]]:
    """A cursor that is not higher than the high water wakes nobody; its files are committed all the same."""
    version, made = event.dataset_version, []
    if files is not None:
        made.append(
            CursorCommit(
                version, cursor, event.task_id, event.attempt, production.deployment_id, files.location,
                files.manifest_sha256, files.rows, files.bytes, trace_of(event.traceparent), production.inputs,
                event.at,
            )
        )  # fmt: skip
    known = context.high_waters.get(version)
    if known is not None and cursor <= known:
        return msgspec.structs.replace(event, routing=DUPLICATE), tuple(made)
    return event, (*made, HighWater(version, cursor))


def _commit_partition(
    event: DatasetEvent, key: str, report: EventReport, production: Production, context: DatasetContext
) -> tuple[DatasetEvent, tuple[PartitionCommit, ...]]:
    version, files = event.dataset_version, report.files
    span = None if event.first is None or event.last is None else Span(event.first, event.last)
    found = commit(
        context.partitions.get((version, key)),
        Content(key, event.first, event.last, None if files is None else files.manifest_sha256),
        Fence(event.task_id, event.attempt, event.attempt),
        scheme=production.scheme,
        neighbors=[] if span is None else context.neighbors(version, key, span),
        field=report.field,
    )
    if not found.new:
        return msgspec.structs.replace(event, revision=found.revision, routing=DUPLICATE), ()
    first, last = found.span or (None, None)
    location, sha256, rows, size = (
        (None, None, report.rows, None)
        if files is None
        else (files.location, files.manifest_sha256, files.rows, files.bytes)
    )
    made = PartitionCommit(
        version, key, first, last, found.revision, event.task_id, event.attempt, production.deployment_id, location,
        sha256, rows, size, trace_of(event.traceparent), production.inputs, event.at,
    )  # fmt: skip
    return msgspec.structs.replace(event, revision=found.revision, first=first, last=last), (made,)


def trace_of(traceparent: str | None) -> str | None:
    """The id of the trace in a W3C traceparent."""
    return None if traceparent is None else traceparent.split("-")[1]


class BatchReport(msgspec.Struct, frozen=True):
    """A worker's report that it wrote a batch of records of a dataset to a URI."""

    dataset_uuid: UUID
    dataset_version: UUID
    batch_uri: str
    record_count: int

    def id_of(self, task_id: UUID, attempt: int) -> UUID:
        return derived_id("publish", task_id, attempt, self.dataset_uuid, self.batch_uri)

    @property
    def content(self) -> tuple[UUID, int]:
        """The fields that have to match in a repeated report."""
        return self.dataset_version, self.record_count

    def check(self) -> None:
        check_text("batch_uri", self.batch_uri, URI_MAX)
        if not _URI.fullmatch(self.batch_uri):
            raise Invalid("must be a plain URI, such as s3://bucket/folder/batch.jsonl", field="batch_uri")

    def is_under(self, prefixes: Sequence[str]) -> bool:
        """Whether the URI lies below one of these folders, without `..` or empty parts."""
        for prefix in prefixes:
            rest = self.batch_uri.removeprefix(prefix)
            if rest != self.batch_uri and all(part not in ("", ".", "..") for part in rest.split("/")):
                return True
        return False


class Publish(msgspec.Struct, frozen=True):
    """A recorded batch. Its namespace and task are those of the attempt, not those in its rows."""

    id: UUID
    namespace: str
    task_id: UUID
    attempt: int
    dataset_uuid: UUID
    dataset_version: UUID
    batch_uri: str
    record_count: int
    caller: str
    at: Instant

    @classmethod
    def of(cls, task: Task, report: BatchReport, caller: str, now: Instant) -> Publish:
        return cls(
            report.id_of(task.id, task.attempt), task.namespace, task.id, task.attempt, report.dataset_uuid,
            report.dataset_version, report.batch_uri, report.record_count, caller, now,
        )  # fmt: skip

    @property
    def content(self) -> tuple[UUID, int]:
        return self.dataset_version, self.record_count

    @property
    def queue(self) -> str:
        """The queue of messages for sinks."""
        return f"{BUFFER}.{self.dataset_uuid}"

    @property
    def message(self) -> dict[str, object]:
        """The message for the sink that writes the batch to its table. It has no records."""
        return {
            "kind": "buffer_batch",
            "publish_id": str(self.id),
            "org_id": self.namespace,
            "dataset_uuid": str(self.dataset_uuid),
            "dataset_version": str(self.dataset_version),
            "batch_uri": self.batch_uri,
            "record_count": self.record_count,
            "producer": {"task_id": str(self.task_id), "attempt": self.attempt},
        }

    @property
    def effect(self) -> Effect:
        """The effect that sends the message."""
        id_ = derived_id(BUFFER, self.task_id, self.attempt, self.dataset_uuid, self.batch_uri)
        return Effect(id_, BUFFER, self.namespace, self.task_id, self.attempt, self.message)


def prefixes_of(scratch_uri: str, dataset_uuid: UUID, task_id: UUID, attempt: int) -> tuple[str, ...]:
    """The folders for batches of one attempt: the one that the contract defines, and the attempt's scratch folder."""
    root = scratch_uri.rstrip("/")
    return f"{root}/buffers/{dataset_uuid}/{task_id}/{attempt}/", scratch_of(scratch_uri, task_id, attempt)


def scratch_of(scratch_uri: str, task_id: UUID, attempt: int) -> str:
    """The scratch folder of one attempt, which no other attempt uses."""
    return f"{scratch_uri.rstrip('/')}/tasks/{task_id}/{attempt}/"
