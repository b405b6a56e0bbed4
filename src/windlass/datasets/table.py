"""Dataset events and batches in PostgreSQL."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from uuid import UUID

from msgspec.structs import astuple

from windlass.core.position import NOWHERE, Position
from windlass.datasets.rules.events import DatasetEvent, Publish
from windlass.store.pool import Session
from windlass.store.queries import register_queries
from windlass.store.writers import register_writer

register_queries(__package__, "table.sql")


class EventView(DatasetEvent, frozen=True):
    """An event, and when it was routed."""

    routed_at: datetime | None


class PublishView(Publish, frozen=True):
    """A batch, and when it was queued."""

    queued_at: datetime | None


class DatasetTable:
    """Events and batches within a transaction."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    async def insert_events(self, events: Sequence[DatasetEvent]) -> None:
        await self._session.fetch("insert_events", *zip(*map(astuple, events), strict=True))

    async def insert_publishes(self, publishes: Sequence[Publish]) -> None:
        await self._session.fetch("insert_publishes", *zip(*map(astuple, publishes), strict=True))

    async def known_events(self, ids: Collection[UUID]) -> set[UUID]:
        return {row[0] for row in await self._session.fetch("known_events", list(ids))} if ids else set()

    async def known_publishes(self, ids: Collection[UUID]) -> dict[UUID, tuple[UUID, int]]:
        rows = await self._session.fetch("known_publishes", list(ids)) if ids else ()
        return {id_: (version, count) for id_, version, count in rows}

    async def event_routed(self, event_id: UUID) -> None:
        await self._session.fetch("event_routed", event_id)

    async def publish_queued(self, publish_id: UUID) -> None:
        await self._session.fetch("publish_queued", publish_id)

    async def task_events(self, task_id: UUID, after: Position | None, limit: int) -> list[EventView]:
        rows = await self._session.fetch("task_events", task_id, *(after or NOWHERE), limit)
        return [EventView(*row) for row in rows]

    async def task_publishes(self, task_id: UUID, after: Position | None, limit: int) -> list[PublishView]:
        rows = await self._session.fetch("task_publishes", task_id, *(after or NOWHERE), limit)
        return [PublishView(*row) for row in rows]


register_writer(DatasetEvent, lambda session, events: DatasetTable(session).insert_events(events))
register_writer(Publish, lambda session, publishes: DatasetTable(session).insert_publishes(publishes))
