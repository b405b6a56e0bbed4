"""Writes batches to the table of their version, in one transaction with their record in `sink_commit`.

Writers of a version take turns under its lock: a batch is in its table once, and cursors have no gap. A reader that
sees a cursor sees all rows of the cursors before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from windlass.datasets.data.database import DataDatabase
from windlass.datasets.rules import table_sql
from windlass.datasets.rules.batch import Record
from windlass.datasets.rules.schema import DatasetSchema, OnConflict
from windlass.errors import StoreBusy
from windlass.store.pool import Session


class Batch(msgspec.Struct, frozen=True):
    """A batch that was read and checked. `org_id`, the producer and the time are those of its publish, never of its
    rows."""

    publish_id: UUID
    org_id: str
    task_id: UUID
    attempt: int
    published_at: datetime
    records: Sequence[Record]


class BatchCommit(NamedTuple):
    """A batch that is in its table. `cursor` is the `seq` of its rows; `rows_new` does not count rows that were there
    before."""

    cursor: int
    rows_in: int
    rows_new: int


async def find_commits(data: DataDatabase, publish_ids: Sequence[UUID]) -> dict[UUID, BatchCommit]:
    """Those of these batches that are in their tables."""
    async with data.begin() as session:
        return await _commits(session, publish_ids)


async def write_batches(
    data: DataDatabase, version: UUID, schema: DatasetSchema, batches: Sequence[Batch]
) -> dict[UUID, BatchCommit]:
    """Write batches of one version, all or none, in the order in which they were published. One that is in the table
    already is left out. Raises Unavailable, and Invalid for a value that the database does not store."""
    async with data.begin() as session:
        await session.fetch("lock_data", version)
        known = await _commits(session, [batch.publish_id for batch in batches])
        new = {batch.publish_id: batch for batch in batches if batch.publish_id not in known}
        if not new:
            return known
        newest = max(batch.published_at for batch in new.values())
        raised = await session.fetch("raise_data_cursor", version, len(new), newest)
        if not raised:
            raise StoreBusy(f"the data database has no table of version {version}")
        [(last, before)] = raised
        cursors = {id_: int(last) - len(new) + 1 + place for place, id_ in enumerate(new)}
        incoming = _Incoming(session, version, schema, cursors)
        if schema.on_conflict is OnConflict.UPDATE and before and any(b.published_at < before for b in new.values()):
            fresh: dict[int, int] = {}
            for batch in new.values():
                fresh |= await incoming.insert([batch], batch.published_at)
        else:
            fresh = await incoming.insert(list(new.values()))
        made = {
            id_: BatchCommit(cursors[id_], len(batch.records), fresh.get(cursors[id_], 0)) for id_, batch in new.items()
        }
        columns = zip(
            *((one.rows_in, one.rows_new, one.cursor, new[id_].published_at) for id_, one in made.items()), strict=True
        )
        await session.fetch("insert_sink_commits", version, list(made), *map(list, columns))
    return known | made


class _Incoming:
    """The temporary table through which records come into the table of a version, within a transaction."""

    def __init__(self, session: Session, version: UUID, schema: DatasetSchema, cursors: Mapping[UUID, int]) -> None:
        self._session, self._version, self._schema, self._cursors = session, version, schema, cursors
        self._made = False

    async def insert(self, batches: Sequence[Batch], late: datetime | None = None) -> dict[int, int]:
        """Write records. Returns the number of new rows by cursor. `late`: newer batches were written before this
        one, which was published then, and their rows stay."""
        if not any(batch.records for batch in batches):
            return {}
        if self._made:
            await self._session.execute(table_sql.clear_incoming(self._version))
        else:
            await self._session.execute(table_sql.create_incoming(self._version, self._schema))
            self._made = True
        columns = table_sql.record_columns(self._schema)
        await self._session.copy(table_sql.incoming_of(self._version), columns, self._rows(batches))
        statement = table_sql.insert_incoming(self._version, self._schema, late=late is not None)
        rows = await self._session.run(statement, *(() if late is None else (late,)))
        return {row[0]: row[1] for row in rows}

    def _rows(self, batches: Sequence[Batch]) -> Iterator[tuple[Any, ...]]:
        for batch in batches:
            producer = (batch.org_id, batch.task_id, batch.attempt, self._cursors[batch.publish_id])
            for record in batch.records:
                yield record + producer


async def _commits(session: Session, publish_ids: Sequence[UUID]) -> dict[UUID, BatchCommit]:
    rows = await session.fetch("sink_commits", list(publish_ids))
    return {row[0]: BatchCommit(*row[1:]) for row in rows}
