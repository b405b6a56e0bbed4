"""Reads the dataset events and batches of a task, for people, oldest first."""

from __future__ import annotations

from typing import Generic, TypeVar
from uuid import UUID

import msgspec

from windlass.core.position import Position
from windlass.datasets.tables.events import DatasetTable, EventView, PublishView
from windlass.store.store import Store

__all__ = ["Datasets", "EventView", "PublishView", "Records"]

T = TypeVar("T")
V = TypeVar("V", EventView, PublishView)
PAGE_DEFAULT = 50


class Records(msgspec.Struct, Generic[T], frozen=True):
    """One page, oldest first. `next` is the position of the next page, None at the end."""

    items: list[T]
    next: Position | None


class Datasets:
    """Reads events and batches. Takes no locks."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def events(
        self, task_id: UUID, *, after: Position | None = None, limit: int = PAGE_DEFAULT
    ) -> Records[EventView]:
        """The dataset events of a task."""
        async with self._store.begin() as tx:
            return _page(await DatasetTable(tx.session).task_events(task_id, after, limit + 1), limit)

    async def publishes(
        self, task_id: UUID, *, after: Position | None = None, limit: int = PAGE_DEFAULT
    ) -> Records[PublishView]:
        """The published batches of a task."""
        async with self._store.begin() as tx:
            return _page(await DatasetTable(tx.session).task_publishes(task_id, after, limit + 1), limit)


def _page(found: list[V], limit: int) -> Records[V]:
    page = found[:limit]
    return Records(page, (page[-1].at, page[-1].id) if len(found) > limit else None)
