"""Dataset events and batches of a task. Nothing else is called an event.

An event is identified by task, dataset, version, and cursor or partition, so reporting it twice, in another attempt or
with the end of the task, records it once. This module does not know what routes events or writes batches to tables.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from uuid import UUID

import msgspec

from windlass.core.effects import register_effect
from windlass.core.ids import derived_id
from windlass.core.states import Effect, Instant
from windlass.core.task import Task
from windlass.core.validation import check_text
from windlass.errors import Invalid

ROUTE, BUFFER = "route", "buffer"
register_effect(ROUTE, detached=True)
register_effect(BUFFER, detached=True)
PARTITION_MAX, URI_MAX = 500, 2000
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
    """A recorded event. An event of a dataset that is not a declared output is kept for audit only."""

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

    @classmethod
    def of(cls, task: Task, report: EventReport, declared: bool, caller: str, now: Instant) -> DatasetEvent:
        return cls(
            report.id_of(task.id), task.namespace, task.id, task.attempt, report.dataset_uuid, report.dataset_version,
            report.cursor, report.partition_key, report.start, report.end, declared, caller, now,
        )  # fmt: skip


def routed(event: DatasetEvent) -> Effect:
    """The effect that routes an event."""
    id_ = derived_id(ROUTE, event.task_id, event.attempt, event.id)
    return Effect(id_, ROUTE, event.namespace, event.task_id, event.attempt, {"event_id": str(event.id)})


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
