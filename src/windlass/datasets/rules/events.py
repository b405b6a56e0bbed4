"""Dataset events and batches of a task, and what they commit. Nothing else is called an event.

An event is identified by task, dataset, version, and cursor or partition, so reporting it twice, in another attempt or
with the end of the task, records it once. A cursor of a DAG's dataset raises its high water; a partition commits the
next revision. This module does not know what routes events or writes batches to tables.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec

from windlass.core.context import CommandContext
from windlass.core.effects import register_effect
from windlass.core.ids import derived_id
from windlass.core.states import Effect, Instant, Transition
from windlass.core.task import Task
from windlass.core.validation import check_text
from windlass.errors import Invalid

ROUTE, BUFFER = "route", "buffer"
register_effect(ROUTE, detached=True)
register_effect(BUFFER, detached=True)
PARTITION_MAX, URI_MAX = 500, 2000
DUPLICATE, UNCOMMITTED, UNDECLARED = "duplicate", "uncommitted", "undeclared"  # what became of an event at once
_URI = re.compile(r"[a-z][a-z0-9+.-]*://[^\s\\?#%]+")

Outputs = dict[UUID, UUID]  # the datasets that a task may write, each with its version


class EventReport(msgspec.Struct, frozen=True):
    """A worker's report that a dataset reached a cursor, or that a partition of it is complete. `start` and `end` are
    the first and last block of a partition."""

    dataset_uuid: UUID
    dataset_version: UUID
    cursor: int | None = None
    partition_key: str | None = None
    start: int | None = None
    end: int | None = None

    def id_of(self, task_id: UUID) -> UUID:
        """The id of the event, the same in every attempt of the task."""
        scope = f"cursor:{self.cursor}" if self.partition_key is None else f"partition:{self.partition_key}"
        return derived_id("event", task_id, self.dataset_uuid, self.dataset_version, scope)

    def check(self, field: str) -> None:
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


class Production(msgspec.Struct, frozen=True):
    """What a task of a DAG makes and from what: the storage of each dataset that it writes, its inputs, its
    deployment."""

    storages: Mapping[UUID, str]
    inputs: str
    deployment_id: UUID


class Writer(msgspec.Struct, frozen=True):
    """A task that writes datasets: the attempt whose lease is live (0 if it has expired), the datasets that it may
    write, and what it makes if it is a task of a DAG."""

    attempt: int
    outputs: Outputs
    production: Production | None = None

    @classmethod
    def of(cls, attempt: int | None, wire: bytes | None, job_id: UUID | None) -> Writer:
        """From the `wire` of a task. The client writes the `wire` of the tasks that it submits, so only a task that the
        engine made for a job belongs to a DAG."""
        return cls(attempt or 0, outputs_of(wire), None if job_id is None else production_of(wire))

    def without(self, datasets: Collection[UUID]) -> Writer:
        """The same, without the right to write these datasets."""
        kept = {id_: version for id_, version in self.outputs.items() if id_ not in datasets}
        return Writer(self.attempt, kept, self.production)


NO_WRITER = Writer(0, {})


class DatasetContext(CommandContext):
    """What events and batches are checked against: the tasks that report them, and what is recorded. `partitions` has
    the revision of each committed partition."""

    def __init__(
        self,
        writers: Mapping[UUID, Writer] | None = None,
        events: Iterable[UUID] = (),
        publishes: Mapping[UUID, tuple[UUID, int]] | None = None,
        high_waters: Mapping[UUID, int] | None = None,
        partitions: Mapping[tuple[UUID, str], int] | None = None,
    ) -> None:
        self._writers = writers or {}
        self.events, self.publishes = set(events), dict(publishes or {})
        self.high_waters, self.partitions = dict(high_waters or {}), dict(partitions or {})

    def writer(self, task_id: UUID) -> Writer:
        return self._writers.get(task_id, NO_WRITER)

    def is_alive(self, task_id: UUID, attempt: int) -> bool:
        """Whether the lease of this attempt has not run out."""
        return self.writer(task_id).attempt == attempt

    def note(self, transition: Transition) -> None:
        for write in transition.writes:
            match write:
                case DatasetEvent():
                    self.events.add(write.id)
                case Publish():
                    self.publishes[write.id] = write.content
                case HighWater():
                    self.high_waters[write.dataset_version] = write.cursor
                case PartitionCommit():
                    self.partitions[write.dataset_version, write.key] = write.revision


class Recorded(msgspec.Struct, frozen=True):
    """The events of a report that are new, and the records that they write, each once."""

    events: tuple[DatasetEvent, ...] = ()
    commits: tuple[HighWater | PartitionCommit, ...] = ()

    @property
    def writes(self) -> tuple[object, ...]:
        return (*self.events, *self.commits)

    @property
    def effects(self) -> tuple[Effect, ...]:
        return tuple(effect for event in self.events for effect in event.effects)


def record_events(
    task: Task, reports: tuple[EventReport, ...], context: DatasetContext, caller: str, now: Instant
) -> Recorded:
    """Record the events of a task that are new, and commit what they report of a DAG's datasets."""
    writer = context.writer(task.id)
    events: dict[UUID, DatasetEvent] = {}
    high: dict[UUID, HighWater] = {}
    parts: dict[tuple[UUID, str], PartitionCommit] = {}
    for report in reports:
        declared = writer.outputs.get(report.dataset_uuid) == report.dataset_version
        event = DatasetEvent.of(task, report, declared, caller, now)
        if event.id in context.events or event.id in events:
            continue
        if declared and writer.production is not None:
            event = _commit(event, writer.production, context, high, parts)
        events[event.id] = event
    return Recorded(tuple(events.values()), (*high.values(), *parts.values()))


def _commit(
    event: DatasetEvent,
    production: Production,
    context: DatasetContext,
    high: dict[UUID, HighWater],
    parts: dict[tuple[UUID, str], PartitionCommit],
) -> DatasetEvent:
    """Commit what an event reports. Objects are committed by the outputs of a completion, never by an event alone."""
    version = event.dataset_version
    if production.storages.get(event.dataset_uuid) == "s3":
        return msgspec.structs.replace(event, routing=UNCOMMITTED)
    if event.cursor is not None:
        known = high[version].cursor if version in high else context.high_waters.get(version)
        if known is not None and event.cursor <= known:
            return msgspec.structs.replace(event, routing=DUPLICATE)
        high[version] = HighWater(version, event.cursor)
        return event
    assert event.partition_key is not None, event
    place = version, event.partition_key
    revision = (parts[place].revision if place in parts else context.partitions.get(place, 0)) + 1
    parts[place] = PartitionCommit(
        version, event.partition_key, event.first, event.last, revision, event.task_id, event.attempt,
        production.deployment_id, None, None, None, None, trace_of(event.traceparent), production.inputs, event.at,
    )  # fmt: skip
    return msgspec.structs.replace(event, revision=revision)


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
    def effect(self) -> Effect:
        """The effect with the message for the process that writes the batch to its table. It has no records."""
        body: dict[str, object] = {
            "kind": "buffer_batch",
            "publish_id": str(self.id),
            "org_id": self.namespace,
            "dataset_uuid": str(self.dataset_uuid),
            "dataset_version": str(self.dataset_version),
            "batch_uri": self.batch_uri,
            "record_count": self.record_count,
            "producer": {"task_id": str(self.task_id), "attempt": self.attempt},
        }
        id_ = derived_id(BUFFER, self.task_id, self.attempt, self.dataset_uuid, self.batch_uri)
        return Effect(id_, BUFFER, self.namespace, self.task_id, self.attempt, body)


class _Output(msgspec.Struct, frozen=True):
    dataset_uuid: UUID
    dataset_version: UUID


class _Wire(msgspec.Struct, frozen=True):
    outputs: list[_Output] = []


_decode_wire = msgspec.json.Decoder(_Wire).decode


def production_of(wire: bytes | None) -> Production | None:
    """What a task of a DAG makes, from its `wire`. None for other tasks."""
    fields: dict[str, Any] = {} if wire is None else msgspec.json.decode(wire)
    if "dag_version" not in fields:
        return None
    storages = {UUID(output["dataset_uuid"]): str(output["storage"]) for output in fields["outputs"]}
    made_from = [
        {name: given[name] for name in _PROVENANCE if given.get(name) is not None} for given in fields["inputs"]
    ]
    return Production(storages, msgspec.json.encode(made_from).decode(), UUID(fields["dag_version"]))


_PROVENANCE = ("index", "dataset_uuid", "dataset_version", "partition_key", "revision", "cursor_to")


def outputs_of(wire: bytes | None) -> Outputs:
    """The datasets that a task may write (`wire.outputs` of its submission). Unreadable outputs allow nothing."""
    try:
        return {} if wire is None else {o.dataset_uuid: o.dataset_version for o in _decode_wire(wire).outputs}
    except msgspec.DecodeError:
        return {}


def prefixes_of(scratch_uri: str, dataset_uuid: UUID, task_id: UUID, attempt: int) -> tuple[str, ...]:
    """The folders for batches of one attempt: the one that the contract defines, and the attempt's scratch folder."""
    root = scratch_uri.rstrip("/")
    return f"{root}/buffers/{dataset_uuid}/{task_id}/{attempt}/", scratch_of(scratch_uri, task_id, attempt)


def scratch_of(scratch_uri: str, task_id: UUID, attempt: int) -> str:
    """The scratch folder of one attempt, which no other attempt uses."""
    return f"{scratch_uri.rstrip('/')}/tasks/{task_id}/{attempt}/"
