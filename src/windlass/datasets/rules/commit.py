"""The commit of a partition: which revision it gets, and whether it may be committed at all.

A commit is made by the current attempt of a task. Repeating it is the same revision; other content, or another task, is
the next one. Nothing is overwritten: a revision points to the files of its attempt. This module does not know where the
files are, nor what reads the partition.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

import msgspec

from windlass.datasets.rules.coverage import overlap
from windlass.datasets.rules.partition import Key, Scheme, Span, range_span
from windlass.errors import Invalid, LeaseLost, OutputInvalid, PartitionOverlap


class Fence(msgspec.Struct, frozen=True):
    """The attempt that commits. `current` is the attempt that the task has now."""

    task_id: UUID
    attempt: int
    current: int


class Content(msgspec.Struct, frozen=True):
    """What an attempt commits: a partition by its key, with the manifest of its files. An output without files has no
    manifest: the event itself is its content."""

    partition_key: str
    start: int | None = None
    end: int | None = None
    manifest_sha256: str | None = None


class Committed(msgspec.Struct, frozen=True):
    """The newest revision of a partition."""

    task_id: UUID
    revision: int
    manifest_sha256: str | None = None


class Commit(msgspec.Struct, frozen=True):
    """The revision of a commit. `new` is False if it was committed before: then nothing is written and nobody woken."""

    partition_key: str
    span: Span | None
    revision: int
    new: bool


class Neighbor(msgspec.Struct, frozen=True):
    """Another partition of the same version that has a span."""

    partition_key: str
    span: Span


def commit(
    partition: Committed | None,
    content: Content,
    fence: Fence,
    *,
    scheme: Scheme | None = None,
    neighbors: Iterable[Neighbor] = (),
    field: str = "outputs[0]",
) -> Commit:
    """The commit of a partition. `partition` is its newest revision, None if there is none; `neighbors` are partitions
    of the version that may overlap it. Raises LeaseLost for an attempt that is over, OutputInvalid for a key that the
    scheme does not have, and PartitionOverlap."""
    if fence.attempt != fence.current:
        raise LeaseLost(
            f"attempt {fence.attempt} is over, the task is at attempt {fence.current}", task_id=fence.task_id
        )
    span = partition_span(content, scheme, field)
    if span is not None and (scheme is None or isinstance(scheme, Key)):
        _check_overlap(content.partition_key, span, neighbors, field)
    if partition is None:
        return Commit(content.partition_key, span, 1, new=True)
    again = partition.task_id == fence.task_id and partition.manifest_sha256 == content.manifest_sha256
    return Commit(content.partition_key, span, partition.revision + (not again), new=not again)


def partition_span(content: Content, scheme: Scheme | None, field: str = "outputs[0]") -> Span | None:
    """The span of a partition. Raises OutputInvalid if the scheme has no such partition, or if `start` and `end` are
    another one."""
    if (content.start is None) != (content.end is None):
        raise OutputInvalid("must have both start and end, or neither", field=field)
    span = Span(content.start, content.end) if content.start is not None and content.end is not None else None
    own = _scheme_span(content.partition_key, scheme or Key(), f"{field}.partition_key")
    if own is None and span is not None and range_span(content.partition_key) != span:
        raise OutputInvalid("must be {start}-{end}, and start not after end", field=f"{field}.partition_key")
    if own is not None and span not in (None, own):
        raise OutputInvalid(f"start and end must be {own.first} and {own.last}", field=f"{field}.start")
    return own or span


def _scheme_span(key: str, scheme: Scheme, field: str) -> Span | None:
    try:
        return scheme.span(key)
    except Invalid as error:
        raise OutputInvalid(error.message.removeprefix(f"{error.field}: "), field=field) from error


def _check_overlap(key: str, span: Span, neighbors: Iterable[Neighbor], field: str) -> None:
    others = {other.span: other.partition_key for other in neighbors if other.partition_key != key}
    if (found := overlap(span, others)) is not None:
        message = f"{key} overlaps {others[found]}, which is committed in the same version"
        raise PartitionOverlap(message, field=f"{field}.partition_key", partition_key=others[found])
