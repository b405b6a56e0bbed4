"""Batches on their way to the tables of their datasets, and which versions have a table."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from windlass.datasets.rules.events import Publish
from windlass.datasets.rules.schema import DatasetSchema
from windlass.store.queries import register_queries
from windlass.store.records import Row
from windlass.store.table import Table

register_queries(__package__, "sink.sql")


class VersionWithoutTable(NamedTuple):
    """A version of a PostgreSQL dataset whose table is not made yet."""

    id: UUID
    dataset_uuid: UUID
    namespace: str
    write_mode: str | None
    schema: DatasetSchema | None


class WaitingBatch(msgspec.Struct, frozen=True):
    """A batch that a sink writes. All that it says is from the record of the publish."""

    id: UUID
    namespace: str
    task_id: UUID
    attempt: int
    dataset_uuid: UUID
    dataset_version: UUID
    batch_uri: str
    record_count: int
    at: datetime
    sunk_at: datetime | None
    dataset: str | None
    schema: DatasetSchema
    has_table: bool
    purged: bool
    trace: str | None


class SinkTable(Table):
    """Batches and tables of versions, within a transaction on the state."""

    async def versions_without_table(self, deployment_id: UUID | None = None) -> list[VersionWithoutTable]:
        rows = await self.session.fetch("versions_without_table", deployment_id)
        return [VersionWithoutTable(row[0], row[1], row[2], row[3], _schema(row[4])) for row in rows]

    async def mark_tables(self, locations: Mapping[UUID, str]) -> None:
        await self.session.fetch("mark_tables", list(locations), list(locations.values()))

    async def purged_tables(self, limit: int) -> list[UUID]:
        return [row[0] for row in await self.session.fetch("purged_tables", limit)]

    async def forget_table(self, version: UUID) -> None:
        await self.session.fetch("forget_table", version)

    async def views_of_dag(self, namespace: str, dag: str) -> dict[UUID, UUID]:
        """The current version of each PostgreSQL dataset of a DAG."""
        return {row[0]: row[1] for row in await self.session.fetch("views_of_dag", namespace, dag)}

    async def receive(self, limit: int, visibility_s: float) -> dict[UUID, int]:
        """Batches of one dataset with the number of their deliveries."""
        return {row[0]: row[1] for row in await self.session.fetch("receive_batches", limit, visibility_s)}

    async def ack(self, ids: Collection[UUID]) -> None:
        if ids:
            await self.session.fetch("ack_batches", list(ids))

    async def delay(self, held: Mapping[UUID, int], delay_s: float, *, counted: bool) -> None:
        await self.session.fetch("delay_batches", list(held), list(held.values()), delay_s, not counted)

    async def dead_letter(self, new_id: UUID, id_: UUID, deliveries: int, reason: str) -> bool:
        return bool(await self.session.fetch("dead_letter_batch", new_id, id_, deliveries, reason))

    async def lost(self, age_s: float, limit: int) -> list[Publish]:
        """Batches that wait and have no message."""
        return [Publish(*row) for row in await self.session.fetch("lost_batches", age_s, limit)]

    async def put_messages(self, batches: Collection[Publish]) -> None:
        await self.session.fetch(
            "put_batch_messages", [one.id for one in batches], [one.namespace for one in batches],
            [one.queue for one in batches], [msgspec.json.encode(one.message) for one in batches],
        )  # fmt: skip

    async def batches(self, ids: Collection[UUID]) -> dict[UUID, WaitingBatch]:
        rows = await self.session.fetch("publishes_to_sink", list(ids))
        return {row[0]: WaitingBatch(*_decoded(row)) for row in rows}

    async def mark_sunk(self, tasks: Mapping[UUID, UUID]) -> None:
        """Each batch with the task of its sink."""
        await self.session.fetch("mark_sunk", list(tasks), list(tasks.values()))

    async def revive(self, namespace: str, queue: str, message_id: str) -> Publish | None:
        """A batch whose message is a dead letter, to be tried again. None if there is no such batch, or if it is in its
        table."""
        try:
            publish_id = UUID(message_id)
        except ValueError:
            return None
        rows = await self.session.fetch("revive_batch", publish_id, namespace, queue)
        return Publish(*rows[0]) if rows else None

    async def publish_queued(self, publish_id: UUID) -> bool:
        rows = await self.session.fetch("publish_queued", publish_id)
        return bool(rows and rows[0][0])

    async def batches_to_remove(self, keep_s: float, limit: int) -> dict[UUID, str]:
        """Batches whose objects are no longer needed, with their addresses."""
        return {row[0]: row[1] for row in await self.session.fetch("batches_to_remove", keep_s, limit)}

    async def mark_removed(self, ids: Collection[UUID]) -> None:
        await self.session.fetch("mark_removed", list(ids))

    async def lag_s(self) -> float:
        lag: float = await self.session.fetchval("sink_lag")
        return lag


def _decoded(row: Row) -> list[Any]:
    """The values of a batch, whose schema is JSON."""
    return [*row[:11], _schema(row[11]), *row[12:]]


def _schema(text: str | None) -> DatasetSchema | None:
    return None if text is None else msgspec.json.decode(text, type=DatasetSchema)
