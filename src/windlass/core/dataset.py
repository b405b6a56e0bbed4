"""Events and batches: data that a task has made, and the fact that it did. Nothing else is called an event.

An event has an identity (task, dataset, version, and cursor or partition), so that telling it twice, in another attempt
or with the end of the task, is telling it once. Who routes events and writes batches to tables is not known here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from uuid import UUID

import msgspec

from windlass.core.check import check_text
from windlass.core.error import Invalid
from windlass.core.id import derived_id
from windlass.core.task import Task
from windlass.core.transition import Effect, Instant

ROUTE, BUFFER = "route", "buffer"
PARTITION_MAX, URI_MAX = 500, 2000
_URI = re.compile(r"[a-z][a-z0-9+.-]*://[^\s\\?#%]+")

Outputs = dict[UUID, UUID]  # the datasets that a task may write, each with its version


class SaidEvent(msgspec.Struct, frozen=True):
    """What was said: that a dataset reached a cursor, or that a partition of it is there. `start` and `end` are both
    part of a partition of blocks."""

    dataset_uuid: UUID
    dataset_version: UUID
    cursor: int | None = None
    partition_key: str | None = None
    start: int | None = None
    end: int | None = None

    def id_of(self, task_id: UUID) -> UUID:
        """Its identity: the same in every attempt of the task."""
        scope = f"cursor:{self.cursor}" if self.partition_key is None else f"partition:{self.partition_key}"
        return derived_id("event", task_id, self.dataset_uuid, self.dataset_version, scope)

    def check(self, field: str) -> None:
        if (self.cursor is None) == (self.partition_key is None):
            raise Invalid("must have a cursor or a partition_key", field=field)
        if self.partition_key is not None:
            check_text(f"{field}.partition_key", self.partition_key, PARTITION_MAX)
        if (self.start is None) != (self.end is None):
            raise Invalid("start and end go together", field=field)
        if self.start is None or self.end is None:
            return
        if self.partition_key != f"{self.start}-{self.end}" or self.start > self.end:
            raise Invalid("partition_key must be {start}-{end}, and start not after end", field=field)


class DatasetEvent(msgspec.Struct, frozen=True):
    """An event as it is recorded. One about a dataset that was not declared as an output is kept for audit only."""

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
    def of(cls, task: Task, said: SaidEvent, declared: bool, caller: str, now: Instant) -> DatasetEvent:
        return cls(
            said.id_of(task.id), task.namespace, task.id, task.attempt, said.dataset_uuid, said.dataset_version,
            said.cursor, said.partition_key, said.start, said.end, declared, caller, now,
        )  # fmt: skip


def routed(event: DatasetEvent) -> Effect:
    """Whoever waits for this dataset is to be told."""
    id_ = derived_id(ROUTE, event.task_id, event.attempt, event.id)
    return Effect(id_, ROUTE, event.namespace, event.task_id, event.attempt, {"event_id": str(event.id)})


class SaidPublish(msgspec.Struct, frozen=True):
    """What was said: that a batch of records of a dataset lies at a place."""

    dataset_uuid: UUID
    dataset_version: UUID
    batch_uri: str
    record_count: int

    def id_of(self, task_id: UUID, attempt: int) -> UUID:
        return derived_id("publish", task_id, attempt, self.dataset_uuid, self.batch_uri)

    @property
    def content(self) -> tuple[UUID, int]:
        """What has to be the same for a repeat to be one."""
        return self.dataset_version, self.record_count

    def check(self) -> None:
        check_text("batch_uri", self.batch_uri, URI_MAX)
        if not _URI.fullmatch(self.batch_uri):
            raise Invalid("must be a plain URI, such as s3://bucket/folder/batch.jsonl", field="batch_uri")

    def is_under(self, prefixes: Sequence[str]) -> bool:
        """Folders only, and no way out of them."""
        for prefix in prefixes:
            rest = self.batch_uri.removeprefix(prefix)
            if rest != self.batch_uri and all(part not in ("", ".", "..") for part in rest.split("/")):
                return True
        return False


class Publish(msgspec.Struct, frozen=True):
    """A batch as it is recorded, with whose it is: that is believed, whatever its rows say."""

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
    def of(cls, task: Task, said: SaidPublish, caller: str, now: Instant) -> Publish:
        return cls(
            said.id_of(task.id, task.attempt), task.namespace, task.id, task.attempt, said.dataset_uuid,
            said.dataset_version, said.batch_uri, said.record_count, caller, now,
        )  # fmt: skip

    @property
    def content(self) -> tuple[UUID, int]:
        return self.dataset_version, self.record_count

    @property
    def effect(self) -> Effect:
        """The message for whoever writes the batch to its table: a pointer, never the records."""
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
    """The datasets that a task was submitted to write (`wire.outputs`). What cannot be read allows nothing."""
    try:
        return {} if wire is None else {o.dataset_uuid: o.dataset_version for o in _decode_wire(wire).outputs}
    except msgspec.DecodeError:
        return {}


def prefixes_of(scratch_uri: str, dataset_uuid: UUID, task_id: UUID, attempt: int) -> tuple[str, ...]:
    """Where the batches of one attempt lie: as the contract lays them out, or in the scratch folder of the attempt."""
    root = scratch_uri.rstrip("/")
    return f"{root}/buffers/{dataset_uuid}/{task_id}/{attempt}/", scratch_of(scratch_uri, task_id, attempt)


def scratch_of(scratch_uri: str, task_id: UUID, attempt: int) -> str:
    """The folder of one attempt: nobody else's, and not that of the next try."""
    return f"{scratch_uri.rstrip('/')}/tasks/{task_id}/{attempt}/"
