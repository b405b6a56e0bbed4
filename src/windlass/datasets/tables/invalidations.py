"""Invalidations in PostgreSQL: what was wrong, and which jobs have processed it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import msgspec
from msgspec.structs import astuple

from windlass.core.position import NOWHERE, Position
from windlass.datasets.rules.invalidation import Invalidation, Reason, Scope
from windlass.datasets.rules.schema import DatasetSchema
from windlass.store.pool import Session
from windlass.store.queries import register_queries
from windlass.store.table import Table
from windlass.store.writers import register_writer

register_queries(__package__, "invalidations.sql")

_decode_schema = msgspec.json.Decoder(DatasetSchema).decode
_WIDTH = len(Invalidation.__struct_fields__)


class InvalidationView(NamedTuple):
    """An invalidation, the tasks that were made for it, and the jobs that have processed it."""

    invalidation: Invalidation
    processed_at: datetime | None
    tasks: Sequence[UUID]
    processed_by: Sequence[str]


class InvalidationTable(Table):
    """Invalidations within a transaction."""

    async def insert(self, invalidations: Sequence[Invalidation]) -> bool:
        """Returns whether one is new."""
        return bool(await self.session.fetch("insert_invalidations", *zip(*map(astuple, invalidations), strict=True)))

    async def get(self, id_: UUID) -> InvalidationView | None:
        rows = await self.session.fetch("get_invalidations", None, id_, *NOWHERE, 1)
        return _view(rows[0]) if rows else None

    async def page(self, dataset_uuid: UUID, after: Position | None, limit: int) -> list[InvalidationView]:
        rows = await self.session.fetch("get_invalidations", dataset_uuid, None, *(after or NOWHERE), limit)
        return [_view(row) for row in rows]

    async def lock_unrouted(self, limit: int) -> list[Invalidation]:
        return [_invalidation(row) for row in await self.session.fetch("unrouted_invalidations", limit)]

    async def insert_tasks(self, id_: UUID, tasks: Mapping[UUID, UUID]) -> None:
        """The task of each job."""
        await self.session.fetch("insert_invalidation_tasks", id_, list(tasks), list(tasks.values()))

    async def mark_routed(self, id_: UUID) -> None:
        await self.session.fetch("mark_invalidation_routed", id_)

    async def settle(self, reason: str) -> int:
        """Record what was processed. `reason` is why tasks of jobs that left were cancelled."""
        settled: int = await self.session.fetchval("settle_invalidations", reason)
        ended: int = await self.session.fetchval("end_invalidations")
        return settled + ended

    async def output_facts(
        self, dataset_uuid: UUID, version: UUID, key: str | None
    ) -> tuple[DatasetSchema | None, bool]:
        """The schema of a dataset, and whether a version of it has a partition."""
        [[schema, known]] = await self.session.fetch("output_facts", dataset_uuid, version, key)
        return None if schema is None else _decode_schema(schema), known


async def _write(session: Session, invalidations: Sequence[Invalidation]) -> None:
    await InvalidationTable(session).insert(invalidations)


register_writer(Invalidation, _write)


def _view(row: Sequence[object]) -> InvalidationView:
    processed_at, tasks, processed_by = row[_WIDTH:]
    return InvalidationView(_invalidation(row), processed_at, tasks, processed_by)  # type: ignore[arg-type]


def _invalidation(row: Sequence[object]) -> Invalidation:
    found = Invalidation(*row[:_WIDTH])  # type: ignore[arg-type]
    return msgspec.structs.replace(found, scope=Scope(found.scope), reason=Reason(found.reason))
