"""Partitions as people see them: the status of each, and pages of those that are committed and those that are not.

A partition is committed if its version has it, and stale if a newer revision of an input exists than the one it was
made from. One that is not committed is known by its job: the job was given the partition of an input with the same key,
or the scheme of the job has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, TypeAlias
from uuid import UUID

import msgspec

from windlass.core.states import Instant, State
from windlass.datasets.rules.partition import BIGINT_MIN, Scheme
from windlass.errors import Invalid


class PartitionStatus(StrEnum):
    """The status of a partition."""

    MISSING = "missing"
    RUNNING = "running"
    COMMITTED = "committed"
    STALE = "stale"
    FAILED = "failed"


class Place(NamedTuple):
    """A place in the order of partitions: by their first number, those without one at the end, then by key."""

    first: int | None
    key: str

    @property
    def order(self) -> tuple[bool, int, bytes]:
        """As the database compares them."""
        return self.first is None, self.first or 0, self.key.encode()


BEGIN = Place(BIGINT_MIN, "")  # before every partition


class PartitionView(msgspec.Struct, frozen=True):
    """A partition for people. What is not committed has no revision; it has the task that makes it. `inputs` is JSON:
    what the revision was made from."""

    key: str
    first: int | None
    last: int | None
    status: PartitionStatus
    revision: int | None = None
    rows: int | None = None
    bytes: int | None = None
    location: str | None = None
    task_id: UUID | None = None
    attempt: int | None = None
    deployment_id: UUID | None = None
    committed_at: Instant | None = None
    inputs: str = "[]"
    trace_id: str | None = None

    @property
    def place(self) -> Place:
        return Place(self.first, self.key)


class Found(NamedTuple):
    """Partitions that one query has found. `end` is the place up to which it has looked; None: to the end."""

    items: Sequence[PartitionView]
    end: Place | None


Page: TypeAlias = tuple[list[PartitionView], Place | None]

_ENDED = frozenset({State.SUCCEEDED, State.CANCELLED, State.SKIPPED})


def status_of(committed: bool, stale: bool, task: State | None, expected: bool) -> PartitionStatus | None:
    """The status of a partition; None if there is nothing to show. `task` is the state of the newest task that makes
    it, `expected` whether the scheme of its job has it."""
    if committed and not stale:
        return PartitionStatus.COMMITTED
    if task is State.FAILED:
        return PartitionStatus.FAILED
    if task is not None and task not in _ENDED:
        return PartitionStatus.RUNNING
    if committed:
        return PartitionStatus.STALE
    return PartitionStatus.MISSING if expected else None


def has_key(scheme: Scheme, key: str) -> bool:
    """Whether a scheme has a partition with this key."""
    try:
        scheme.span(key)
    except Invalid:
        return False
    return True


def merge_page(found: Sequence[Found], limit: int) -> Page:
    """One page of what several queries have found, and the place after which the next one begins. What lies beyond the
    end of a query is left to the next page: another of its partitions may come before it."""
    ends = [one.end for one in found if one.end is not None]
    end = min(ends, key=lambda place: place.order) if ends else None
    items = {
        item.key: item
        for one in found
        for item in one.items
        if end is None or item.place.order <= end.order
    }  # fmt: skip
    ordered = sorted(items.values(), key=lambda item: item.place.order)
    if len(ordered) > limit:
        return ordered[:limit], ordered[limit - 1].place
    return ordered, end
