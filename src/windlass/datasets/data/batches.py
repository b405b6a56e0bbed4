"""Writes batches to the table of their version, in one transaction with their record in `sink_commit`.

Writers of a version take turns under its lock: a batch is in its table once, and cursors have no gap. A reader that
sees a cursor sees all rows of the cursors before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from windlass.datasets.data.database import DataDatabase
from windlass.datasets.rules import table_sql
from windlass.datasets.rules.batch import Record
from windlass.datasets.rules.schema import DatasetSchema
from windlass.errors import StoreBusy
from windlass.store.pool import Session


class Batch(msgspec.Struct, frozen=True):
    """A batch that was read and checked. `org_id` and the producer are those of its publish, never of its rows."""

    publish_id: UUID
    org_id: str
    task_id: UUID
    attempt: int
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
    """Write batches of one version, all or none. One that is in the table already is left out. Raises Unavailable, and
    Invalid for a value that the database does not store."""
    async with data.begin() as session:
        await session.fetch("lock_data", version)
        known = await _commits(session, [batch.publish_id for batch in batches])
        new = {batch.publish_id: batch for batch in batches if batch.publish_id not in known}
        if not new:
            return known
        raised = await session.fetch("raise_data_cursor", version, len(new))
        if not raised:
            raise StoreBusy(f"the data database has no table of version {version}")
        first = int(raised[0][0]) - len(new) + 1
        cursors = {id_: first + place for place, id_ in enumerate(new)}
        fresh = await _insert(session, version, schema, new, cursors)
        made = {
            id_: BatchCommit(cursors[id_], len(batch.records), fresh.get(cursors[id_], 0)) for id_, batch in new.items()
        }
        columns = zip(*((one.rows_in, one.rows_new, one.cursor) for one in made.values()), strict=True)
        await session.fetch("insert_sink_commits", version, list(made), *map(list, columns))
    return known | made


async def _insert(
    session: Session, version: UUID, schema: DatasetSchema, batches: Mapping[UUID, Batch], cursors: Mapping[UUID, int]
) -> dict[int, int]:
    """Returns the number of new rows by cursor."""
    if not any(batch.records for batch in batches.values()):
        return {}
    await session.execute(table_sql.create_incoming(version, schema))
    rows = _rows(batches, cursors)
    await session.copy(table_sql.incoming_of(version), table_sql.record_columns(schema), rows)
    return {row[0]: row[1] for row in await session.run(table_sql.insert_incoming(version, schema))}


def _rows(batches: Mapping[UUID, Batch], cursors: Mapping[UUID, int]) -> Iterator[tuple[Any, ...]]:
    for id_, batch in batches.items():
        producer = (batch.org_id, batch.task_id, batch.attempt, cursors[id_])
        for record in batch.records:
            yield record + producer


async def _commits(session: Session, publish_ids: Sequence[UUID]) -> dict[UUID, BatchCommit]:
    rows = await session.fetch("sink_commits", list(publish_ids))
    return {row[0]: BatchCommit(*row[1:]) for row in rows}
