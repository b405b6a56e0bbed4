"""Dataset events and batches in PostgreSQL."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import msgspec
from msgspec.structs import astuple, replace

from windlass.core.position import NOWHERE, Position
from windlass.datasets.rules.commit import Committed, Neighbor
from windlass.datasets.rules.dag import Partitioning
from windlass.datasets.rules.events import (
    CursorCommit,
    DatasetContext,
    DatasetEvent,
    EventReport,
    HighWater,
    PartitionCommit,
    Place,
    Publish,
)
from windlass.datasets.rules.partition import Key, Scheme, Span
from windlass.datasets.rules.writer import Production, Writer
from windlass.engine.manage.timezones import zone_of
from windlass.store.pool import Session
from windlass.store.queries import register_queries
from windlass.store.writers import register_writer

register_queries(__package__, "events.sql")

_decode_partitions = msgspec.json.Decoder(Partitioning).decode


class EventView(DatasetEvent, frozen=True):
    """An event, and when it was routed."""

    routed_at: datetime | None = None


class PublishView(Publish, frozen=True):
    """A batch, when it was queued, when the sink had written it to its table with which task, and why it could not."""

    queued_at: datetime | None
    sunk_at: datetime | None
    sink_task_id: UUID | None
    problem: str | None


class LockedVersions(NamedTuple):
    """Versions of datasets: the highest cursor of those that have one, and those that were purged."""

    high_waters: dict[UUID, int]
    purged: frozenset[UUID] = frozenset()


class DatasetTable:
    """Events and batches within a transaction."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    async def insert_events(self, events: Sequence[DatasetEvent]) -> None:
        await self._session.fetch("insert_events", *zip(*map(astuple, events), strict=True))

    async def insert_publishes(self, publishes: Sequence[Publish]) -> None:
        await self._session.fetch("insert_publishes", *zip(*map(astuple, publishes), strict=True))

    async def known_events(self, ids: Collection[UUID]) -> dict[UUID, str | None]:
        """Those of these events that are recorded, with what became of each."""
        return {row[0]: row[1] for row in await self._session.fetch("known_events", list(ids))} if ids else {}

    async def known_publishes(self, ids: Collection[UUID]) -> dict[UUID, tuple[UUID, int]]:
        rows = await self._session.fetch("known_publishes", list(ids)) if ids else ()
        return {id_: (version, count) for id_, version, count in rows}

    async def owned(self, datasets: Collection[UUID]) -> set[UUID]:
        """Those of these datasets that belong to a DAG."""
        return {row[0] for row in await self._session.fetch("owned_datasets", list(datasets))}

    async def lock_versions(self, versions: Collection[UUID]) -> LockedVersions:
        """Lock versions of datasets until the transaction ends, so that revisions and cursors grow one by one. Returns
        what they are under the lock."""
        await self._session.fetch("lock_dataset_versions", sorted(versions))
        rows = await self._session.fetch("locked_versions", list(versions))
        return LockedVersions(
            {row[0]: row[1] for row in rows if row[1] is not None}, frozenset(row[0] for row in rows if row[2])
        )

    async def high_waters(self, versions: Collection[UUID]) -> dict[UUID, int]:
        return {row[0]: row[1] for row in await self._session.fetch("high_waters", list(versions))}

    async def committed(self, places: Collection[Place]) -> dict[Place, Committed]:
        """The newest revision of each of these partitions that is committed."""
        if not places:
            return {}
        rows = await self._session.fetch("committed_partitions", *zip(*places, strict=True))
        return {(row[0], row[1]): Committed(*row[2:]) for row in rows}

    async def neighbors(self, places: Collection[tuple[UUID, str, int]]) -> list[tuple[UUID, Neighbor]]:
        """The partitions that may overlap these (version, key, last number)."""
        if not places:
            return []
        rows = await self._session.fetch("partition_neighbors", *zip(*places, strict=True))
        return [(row[0], Neighbor(row[1], Span(row[2], row[3]))) for row in rows]

    async def raise_high_waters(self, marks: Sequence[HighWater]) -> None:
        await self._session.fetch("raise_high_water", *zip(*map(astuple, marks), strict=True))

    async def commit_partitions(self, commits: Sequence[PartitionCommit]) -> None:
        await self._session.fetch("commit_partitions", *zip(*map(astuple, commits), strict=True))

    async def commit_cursors(self, commits: Sequence[CursorCommit]) -> None:
        await self._session.fetch("commit_cursors", *zip(*map(astuple, commits), strict=True))

    async def partition_locations(
        self, wanted: Sequence[tuple[int, UUID, str, int | None]]
    ) -> dict[int, tuple[str | None, int]]:
        """Where the files of revisions are (place, version, key, revision), by place. Without a revision: the newest
        one, which is returned too."""
        if not wanted:
            return {}
        rows = await self._session.fetch("partition_locations", *zip(*wanted, strict=True))
        return {row[0]: (row[1], row[2]) for row in rows}

    async def cursor_locations(self, version: UUID, after: int | None, up_to: int | None, limit: int) -> list[str]:
        """Where the files are that were added to a version between two cursors."""
        return [row[0] for row in await self._session.fetch("cursor_locations", version, after, up_to, limit)]

    async def current_locations(self, version: UUID, limit: int) -> list[str]:
        """Where the files of all partitions of a version are."""
        return [row[0] for row in await self._session.fetch("current_locations", version, limit)]

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
    writers = {id_: _with_scheme(writer) for id_, writer in writers.items()}
    commits = [(event, production) for task_id, event in events if (production := writers[task_id].production)]
    parts = [(event, event.partition_key, made) for event, made in commits if event.partition_key is not None]
    known = await table.known_events({event.id_of(task_id) for task_id, event in events})
    published = await table.known_publishes(publishes)
    locked = await table.lock_versions({event.dataset_version for event, _ in commits}) if commits else None
    return DatasetContext(
        writers,
        known,
        published,
        locked.high_waters if locked else {},
        await table.committed({(event.dataset_version, key) for event, key, _ in parts}),
        await table.neighbors(
            {(e.dataset_version, key, e.end) for e, key, made in parts if e.end is not None and _may_overlap(made)}
        ),
        locked.purged if locked else frozenset(),
    )


def _may_overlap(production: Production) -> bool:
    """Partitions of a scheme are aligned, so they overlap no other."""
    return production.scheme is None or isinstance(production.scheme, Key)


def _with_scheme(writer: Writer) -> Writer:
    production = writer.production
    if production is None or production.partitions is None:
        return writer
    return replace(writer, production=replace(production, scheme=scheme_of(_decode_partitions(production.partitions))))


def scheme_of(partitions: Partitioning) -> Scheme:
    """The scheme that a job declares."""
    return partitions.scheme(zone_of(partitions.timezone) if partitions.timezone else None)


register_writer(HighWater, lambda session, marks: DatasetTable(session).raise_high_waters(marks))
register_writer(CursorCommit, lambda session, commits: DatasetTable(session).commit_cursors(commits))
register_writer(PartitionCommit, lambda session, commits: DatasetTable(session).commit_partitions(commits))
register_writer(DatasetEvent, lambda session, events: DatasetTable(session).insert_events(events))
register_writer(Publish, lambda session, publishes: DatasetTable(session).insert_publishes(publishes))
