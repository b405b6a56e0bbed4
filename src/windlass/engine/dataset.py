"""What tasks have told of datasets: their events and batches, read for people, in order."""

from __future__ import annotations

from typing import Generic, TypeVar
from uuid import UUID

import msgspec

from windlass.core.check import check_count, check_type
from windlass.core.position import Position, check_position
from windlass.store.dataset_table import EventView, PublishView
from windlass.store.store import Store

__all__ = ["Datasets", "EventView", "PublishView", "Records"]

T = TypeVar("T")
PAGE_DEFAULT, PAGE_MAX = 50, 1000


class Records(msgspec.Struct, Generic[T], frozen=True):
    """Oldest first. `next` is the position to go on from, None at the end."""

    items: list[T]
    next: Position | None


class Datasets:
    """Reads; takes no locks."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def events(
        self, task_id: UUID, *, after: Position | None = None, limit: int = PAGE_DEFAULT
    ) -> Records[EventView]:
        """What a task has told of."""
        _check(task_id, after, limit)
        async with self._store.begin() as tx:
            found = await tx.datasets.task_events(task_id, after, limit + 1)
        page = found[:limit]
        return Records(page, (page[-1].at, page[-1].id) if len(found) > limit else None)

    async def publishes(
        self, task_id: UUID, *, after: Position | None = None, limit: int = PAGE_DEFAULT
    ) -> Records[PublishView]:
        """What a task has handed over."""
        _check(task_id, after, limit)
        async with self._store.begin() as tx:
            found = await tx.datasets.task_publishes(task_id, after, limit + 1)
        page = found[:limit]
        return Records(page, (page[-1].at, page[-1].id) if len(found) > limit else None)


def _check(task_id: object, after: Position | None, limit: object) -> None:
    check_type("task_id", task_id, UUID)
    check_count("limit", limit, least=1, most=PAGE_MAX)
    check_position("after", after)
