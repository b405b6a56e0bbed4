"""Tables of versions in a real PostgreSQL: names and values of any kind, and which row of a key stays."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest
from tests.datasets.rules.test_batch import as_json
from tests.datasets.world import World

from windlass.datasets.data.batches import Batch, write_batches
from windlass.datasets.data.database import DataDatabase
from windlass.datasets.rules import table_sql
from windlass.datasets.rules.batch import BatchReader
from windlass.datasets.rules.schema import Column, ColumnType, DatasetSchema, OnConflict
from windlass.errors import Unavailable

AT = datetime(2026, 1, 1, tzinfo=UTC)
HOSTILE = ('se"lect', '""', "a%s%(x)s", "x'); drop table windlass.task; --", "naïve ✓ 表", "select", "A", "a", "$1",
           "a b",
           "incoming", "ü" * 31, "\\", "c0", "new", "\u202e", "a\nb")  # fmt: skip
TEXTS = (
    "",
    "\\N",
    "\\.",
    "a\tb\nc\r\n",
    '"',
    "'",
    "%s",
    "\\x00",
    "é́",
    "😀" * 500,
    "\u202e\ufeff\x7f\x01",
    "$$;--",
    "NULL",
)


@pytest.fixture
def data(world: World) -> DataDatabase:
    return world.engine.service(DataDatabase)


async def make(data: DataDatabase, schema: DatasetSchema) -> UUID:
    version = uuid4()
    for _ in range(2):  # a deploy may be repeated
        async with data.begin() as session:
            for statement in table_sql.create_table(version, schema, "default", buffered=True):
                await session.execute(statement)
            await session.fetch("put_data_version", version, version)
    return version


def batch_of(schema: DatasetSchema, rows: Sequence[dict[str, Any]], at: datetime = AT) -> Batch:
    content = "\n".join(json.dumps({name: as_json(value) for name, value in row.items()}) for row in rows)
    records = BatchReader(schema).read(content.encode(), len(rows))
    return Batch(uuid4(), "default", uuid4(), 1, at, records)


async def rows_in(data: DataDatabase, name: str) -> list[dict[str, Any]]:
    connection = await asyncpg.connect(data.dsn)
    try:
        return [dict(row) for row in await connection.fetch(f"select * from windlass_data.{name} order by seq")]
    finally:
        await connection.close()


async def test_names_and_texts_of_any_kind_are_columns_and_values(data: DataDatabase) -> None:
    columns = tuple(Column(name, ColumnType.TEXT) for name in HOSTILE)
    schema = DatasetSchema(
        columns, HOSTILE[:3], indexes=((HOSTILE[3], HOSTILE[4]), ("seq",)), on_conflict=OnConflict.UPDATE
    )
    version = await make(data, schema)
    given = [(text,) * len(HOSTILE) for text in TEXTS]  # the check of DAG files has let no such name through
    for at in (AT, AT - timedelta(1)):
        await write_batches(data, version, schema, [Batch(uuid4(), "or'g%s", uuid4(), 1, at, given)])
    async with data.begin() as session:
        for statement in table_sql.replace_view(version, version):
            await session.execute(statement)
    for name in (table_sql.table_of(version), table_sql.quoted(table_sql.view_of(version))):
        found = await rows_in(data, name)
        assert sorted((row[HOSTILE[0]], row[HOSTILE[-1]]) for row in found) == sorted((text, text) for text in TEXTS)


VALUES: dict[ColumnType, tuple[str, ...]] = {
    ColumnType.TEXT: tuple(map(json.dumps, TEXTS)),
    ColumnType.BOOL: ("true", "false"),
    ColumnType.INTEGER: ("0", "-2147483648", "2147483647"),
    ColumnType.BIGINT: ("-9223372036854775808", "9223372036854775807"),
    ColumnType.DOUBLE: ("1.7976931348623157e308", "5e-324", "-0.0", "1"),
    ColumnType.NUMERIC: ("9.99e999", "1e-1000", '"123456789012345678901234567890.000"', "0e99999"),
    ColumnType.UUID: ('"00000000-0000-0000-0000-000000000000"', '"ffffffffffffffffffffffffffffffff"'),
    ColumnType.TIMESTAMPTZ: ('"0002-01-01T00:00:00+23:59"', '"9998-12-31T23:59:59.999999-23:59"',
                             '"2026-01-01T00:00:00Z"'),
    ColumnType.DATE: ('"0001-01-01"', '"9999-12-31"'),
    ColumnType.JSONB: ("[]", '{"a": {"": "\\u0001\\ud83d\\ude00"}}', "[1e1000, 1e-1000, -0]", "9" * 4000,
                       "[" * 300 + "]" * 300,
                       '"\\\\u0000"', "0." + "1" * 900),
    ColumnType.BYTEA: ('""', '"AP8="'),
}  # fmt: skip


def exact(text: str) -> Any:
    return json.loads(text, parse_float=Decimal, parse_int=Decimal)


@pytest.mark.parametrize("type_", list(ColumnType))
async def test_every_value_that_a_batch_may_have_is_stored(data: DataDatabase, type_: ColumnType) -> None:
    indexes = () if type_ is ColumnType.JSONB else (("v",),)
    schema = DatasetSchema((Column("key", ColumnType.INTEGER), Column("v", type_)), ("key",), indexes)
    version = await make(data, schema)
    values = (*VALUES[type_], "null")
    lines = [f'{{"key": {number}, "v": {value}}}' for number, value in enumerate(values)]
    records = BatchReader(schema).read("\n".join(lines).encode(), len(lines))
    for _ in range(2):
        await write_batches(data, version, schema, [Batch(uuid4(), "default", uuid4(), 1, AT, records)])
    found = {row["key"]: row["v"] for row in await rows_in(data, table_sql.table_of(version))}
    if type_ is ColumnType.JSONB:  # PostgreSQL has spaces and digits of its own
        assert [exact(v or "null") for v in found.values()] == [exact(v) for v in values]
    else:
        assert found == dict(records)


@pytest.mark.parametrize("seed", range(8))
async def test_the_row_that_was_published_last_stays_in_whatever_order_batches_are_written(
    data: DataDatabase, seed: int
) -> None:
    randomness = random.Random(seed)
    schema = DatasetSchema(
        (Column("key", ColumnType.TEXT), Column("n", ColumnType.INTEGER)), ("key",), on_conflict=OnConflict.UPDATE
    )
    version = await make(data, schema)
    batches, expected = [], {}
    for number in range(12):
        rows = [
            {"key": randomness.choice([None, *"abcdef"]), "n": 100 * number + line}
            for line in range(randomness.randrange(8))
        ]
        batches.append(batch_of(schema, rows, AT + timedelta(seconds=number)))
        expected |= {row["key"]: row["n"] for row in rows}
    randomness.shuffle(batches)
    while batches:  # in groups, as a sink writes them: each in the order of its publishes
        size = randomness.randrange(1, 5)
        group, batches = sorted(batches[:size], key=lambda one: one.published_at), batches[size:]
        await write_batches(data, version, schema, group)
        if randomness.random() < 0.3:
            await write_batches(data, version, schema, group)
    found = await rows_in(data, table_sql.table_of(version))
    assert {row["key"]: row["n"] for row in found} == expected
    assert len(found) == len(expected)


async def test_the_first_row_of_a_key_stays_if_conflicts_are_ignored(data: DataDatabase) -> None:
    schema = DatasetSchema((Column("key", ColumnType.TEXT), Column("n", ColumnType.INTEGER)), ("key",))
    version = await make(data, schema)
    first = batch_of(schema, [{"key": "a", "n": 1}, {"key": "a", "n": 2}, {"key": None, "n": 3}])
    second = batch_of(schema, [{"key": "a", "n": 4}, {"key": None, "n": 5}, {"key": "b", "n": 6}])
    commits = await write_batches(data, version, schema, [first, second])
    assert [tuple(commits[one.publish_id]) for one in (first, second)] == [(1, 3, 2), (2, 3, 1)]
    found = await rows_in(data, table_sql.table_of(version))
    assert {row["key"]: (row["n"], row["seq"]) for row in found} == {"a": (1, 1), None: (3, 1), "b": (6, 2)}


async def test_a_version_without_a_table_is_written_later(data: DataDatabase) -> None:
    schema = DatasetSchema((Column("key", ColumnType.TEXT),), ("key",))
    with pytest.raises(Unavailable):
        await write_batches(data, uuid4(), schema, [batch_of(schema, [{"key": "a"}])])
    version = await make(data, schema)
    async with data.begin() as session:
        await session.execute(table_sql.drop_table(version))
    with pytest.raises(Unavailable):  # purged meanwhile
        await write_batches(data, version, schema, [batch_of(schema, [{"key": "a"}])])


async def test_the_cursor_of_a_version_goes_on_after_its_table_was_dropped(data: DataDatabase) -> None:
    schema = DatasetSchema((Column("key", ColumnType.TEXT),), ("key",))
    version = await make(data, schema)
    await write_batches(data, version, schema, [batch_of(schema, [{"key": "a"}])])
    async with data.begin() as session:
        await session.execute(table_sql.drop_table(version))
        for statement in table_sql.create_table(version, schema, "default", buffered=True):
            await session.execute(statement)
        await session.fetch("put_data_version", version, version)
    batch = batch_of(schema, [{"key": "a"}])
    assert (await write_batches(data, version, schema, [batch]))[batch.publish_id] == (2, 1, 1)
