"""What a job is owed: a task, which exists once by its key, with what it is given to read and why it exists."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC
from typing import NamedTuple
from uuid import UUID

import msgspec
from msgspec.structs import replace

from windlass.core.ids import derived_id
from windlass.core.states import Instant

TaskKey = tuple[UUID, str]  # a job, and the key of one of its tasks


class Partition(msgspec.Struct, frozen=True):
    """A revision of a partition. `revision` is None if the partition is not committed."""

    key: str
    first: int | None = None
    last: int | None = None
    revision: int | None = None


class Given(msgspec.Struct, frozen=True):
    """What a task reads of one input: a version of its dataset up to a cursor, or one partition of it. With neither, it
    reads all that is there when an attempt begins. `invalidation` is what became wrong in it, as the claim shows it."""

    input_index: int
    dataset_version: UUID
    cursor: int | None = None
    partition: Partition | None = None
    invalidation: dict[str, object] | None = None


class Trigger(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a task exists, for the worker and for people. `kind` is event, source, build, backfill or invalidation."""

    kind: str
    source: str | None = None
    payload: object = None
    webhook: dict[str, object] | None = None
    cursor: int | None = None
    partition_key: str | None = None
    start: int | None = None
    end: int | None = None
    event_id: UUID | None = None
    backfill_id: UUID | None = None
    invalidation_id: UUID | None = None


EVENT, BACKFILL, INVALIDATION = "event", "backfill", "invalidation"  # kinds of triggers
BUILD = Trigger("build")  # a comparison of what is committed with what was given


class Owed(msgspec.Struct, frozen=True):
    """A task that a job should have: once, by its `dedupe_key`. Inputs that are not `given` are read as they are when
    an attempt begins. `waits`: an input that it needs is not committed, so it is blocked until it is."""

    job_id: UUID
    deployment_id: UUID
    dedupe_key: str
    trigger: Trigger
    given: tuple[Given, ...] = ()
    trace: str | None = None
    waits: bool = False

    @property
    def key(self) -> TaskKey:
        return self.job_id, self.dedupe_key

    @property
    def task_id(self) -> UUID:
        return task_id_of(self.job_id, self.dedupe_key)

    @property
    def window(self) -> Given | None:
        """The input that is read up to a cursor."""
        return next((each for each in self.given if each.cursor is not None), None)

    @property
    def partition(self) -> Partition | None:
        return next((each.partition for each in self.given if each.partition is not None), None)


def merged(owed: Iterable[Owed]) -> dict[TaskKey, Owed]:
    """Each task once. A job that reads a dataset by two inputs has one task for both."""
    found: dict[TaskKey, Owed] = {}
    for one in owed:
        known = found.get(one.key)
        if known is not None:
            indexes = {each.input_index for each in known.given}
            more = tuple(each for each in one.given if each.input_index not in indexes)
            one = replace(known, given=(*known.given, *more))
        found[one.key] = one
    return found


class NewestWindow(NamedTuple):
    """The newest of several windows of one version that a job is owed."""

    owed: Owed
    cursor: int

    @property
    def key(self) -> TaskKey:
        return self.owed.key


def coalesced(
    owed: Mapping[TaskKey, Owed], jobs: Collection[UUID]
) -> tuple[dict[TaskKey, Owed], dict[tuple[UUID, UUID], NewestWindow]]:
    """Of the windows of these jobs only the newest, by job and version: one task reads all that waits. What is owed
    otherwise is returned first."""
    kept: dict[TaskKey, Owed] = {}
    newest: dict[tuple[UUID, UUID], NewestWindow] = {}
    for key, one in owed.items():
        window = one.window
        if window is None or window.cursor is None or one.job_id not in jobs:
            kept[key] = one
            continue
        known = newest.get((one.job_id, window.dataset_version))
        if known is None or window.cursor > known.cursor:
            newest[one.job_id, window.dataset_version] = NewestWindow(one, window.cursor)
    return kept, newest


def task_id_of(job_id: UUID, dedupe_key: str) -> UUID:
    """The id of the task of a job with this key, always the same."""
    return derived_id("job_task", job_id, dedupe_key)


def next_task_id(task_id: UUID) -> UUID:
    """The id of the task that is made again for the same key, since this one was cancelled when its job left."""
    return derived_id("job_task", task_id)


# ------------------------------------------------------------------------------------------ keys of tasks
#
# Unique for each job. A second event, another server or the reconcile loop finds the same task.


def partition_task(dataset_uuid: UUID, dataset_version: UUID, partition_key: str, revision: int) -> str:
    """The key of the task for a revision of a partition. For a partition that is made from several of an input, the key
    is its own and the revision is the sum of theirs, which grows with each commit of one of them."""
    return f"partition:{dataset_uuid}:{dataset_version}:{partition_key}:{revision}"


def cursor_task(dataset_uuid: UUID, dataset_version: UUID, cursor: int) -> str:
    return f"cursor:{dataset_uuid}:{dataset_version}:{cursor}"


def invalidation_task(invalidation_id: UUID) -> str:
    return f"invalidation:{invalidation_id}"


def backfill_task(backfill_id: UUID, partition_key: str) -> str:
    return f"backfill:{backfill_id}:{partition_key}"


def fire_task(at: Instant) -> str:
    return f"fire:{at.astimezone(UTC).isoformat().replace('+00:00', 'Z')}"


def webhook_task(webhook_id: str) -> str:
    return f"webhook:{webhook_id}"


def emit_task(emit_id: UUID | str) -> str:
    return f"emit:{emit_id}"
