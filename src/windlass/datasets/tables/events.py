"""Dataset events and batches in PostgreSQL."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from uuid import UUID

from msgspec.structs import astuple

from windlass.core.position import NOWHERE, Position
from windlass.datasets.rules.events import (
    DatasetContext,
    DatasetEvent,
    EventReport,
    HighWater,
    PartitionCommit,
    Publish,
    Writer,
)
from windlass.store.pool import Session
from windlass.store.queries import register_queries
from windlass.store.writers import register_writer

register_queries(__package__, "events.sql")


class EventView(DatasetEvent, frozen=True):
    """An event, and when it was routed."""

    routed_at: datetime | None = None


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

    async def owned(self, datasets: Collection[UUID]) -> set[UUID]:
        """Those of these datasets that belong to a DAG."""
        return {row[0] for row in await self._session.fetch("owned_datasets", list(datasets))}

    async def lock_versions(self, versions: Collection[UUID]) -> dict[UUID, int]:
        """Lock versions of datasets until the transaction ends, so that revisions and cursors grow one by one. Returns
        the highest cursor of those that have one."""
        await self._session.fetch("lock_dataset_versions", sorted(versions))
        return await self.high_waters(versions)

    async def high_waters(self, versions: Collection[UUID]) -> dict[UUID, int]:
        return {row[0]: row[1] for row in await self._session.fetch("high_waters", list(versions))}

    async def revisions(self, places: Collection[tuple[UUID, str]]) -> dict[tuple[UUID, str], int]:
        """The revision of each of these partitions (version, key) that is committed."""
        if not places:
            return {}
        rows = await self._session.fetch("partition_revisions", *zip(*places, strict=True))
        return {(row[0], row[1]): row[2] for row in rows}

    async def raise_high_waters(self, marks: Sequence[HighWater]) -> None:
        await self._session.fetch("raise_high_water", *zip(*map(astuple, marks), strict=True))

    async def commit_partitions(self, commits: Sequence[PartitionCommit]) -> None:
        await self._session.fetch("commit_partitions", *zip(*map(astuple, commits), strict=True))

    async def publish_queued(self, publish_id: UUID) -> None:
        await self._session.fetch("publish_queued", publish_id)

    async def task_events(self, task_id: UUID, after: Position | None, limit: int) -> list[EventView]:
        rows = await self._session.fetch("task_events", task_id, *(after or NOWHERE), limit)
        return [EventView(*row) for row in rows]

    async def task_publishes(self, task_id: UUID, after: Position | None, limit: int) -> list[PublishView]:
        rows = await self._session.fetch("task_publishes", task_id, *(after or NOWHERE), limit)
        return [PublishView(*row) for row in rows]


async def load_context(
    session: Session,
    writers: Mapping[UUID, Writer],
    events: Sequence[tuple[UUID, EventReport]],
    publishes: Collection[UUID] = (),
) -> DatasetContext:
    """What the reports of a batch are checked against. `events` are those that tasks report. A dataset of a DAG is no
    output of a task that was submitted by hand."""
    table = DatasetTable(session)
    by_hand = {id_ for writer in writers.values() if writer.production is None for id_ in writer.outputs}
    if by_hand and (owned := await table.owned(by_hand)):
        writers = {id_: writer if writer.production else writer.without(owned) for id_, writer in writers.items()}
    commits = [event for task_id, event in events if writers[task_id].production is not None]
    return DatasetContext(
        writers,
        await table.known_events({event.id_of(task_id) for task_id, event in events}),
        await table.known_publishes(publishes),
        await table.lock_versions({event.dataset_version for event in commits}) if commits else {},
        await table.revisions({(e.dataset_version, e.partition_key) for e in commits if e.partition_key is not None}),
    )


register_writer(HighWater, lambda session, marks: DatasetTable(session).raise_high_waters(marks))
register_writer(PartitionCommit, lambda session, commits: DatasetTable(session).commit_partitions(commits))
register_writer(DatasetEvent, lambda session, events: DatasetTable(session).insert_events(events))
register_writer(Publish, lambda session, publishes: DatasetTable(session).insert_publishes(publishes))
