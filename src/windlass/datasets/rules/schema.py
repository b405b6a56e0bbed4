"""Schemas of datasets: columns, keys and indexes, and the columns that Windlass adds to every PostgreSQL dataset.

Knows the types that a column may have, not how a database spells them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from enum import StrEnum
from typing import NamedTuple

import msgspec

ORG_ID = "org_id"


class ColumnType(StrEnum):
    """The type of a column."""

    TEXT = "text"
    BOOL = "bool"
    INTEGER = "integer"
    BIGINT = "bigint"
    DOUBLE = "double"
    NUMERIC = "numeric"
    UUID = "uuid"
    TIMESTAMPTZ = "timestamptz"
    DATE = "date"
    JSONB = "jsonb"
    BYTEA = "bytea"


class OnConflict(StrEnum):
    """What a row does whose unique key is in the table already."""

    IGNORE = "ignore"
    UPDATE = "update"


class Column(msgspec.Struct, frozen=True):
    """A column of a dataset."""

    name: str
    type: ColumnType
    nullable: bool = True


# Of every PostgreSQL dataset. Windlass fills them: what a row says of one is ignored.
SYSTEM_COLUMNS: Mapping[str, ColumnType] = {
    ORG_ID: ColumnType.TEXT,
    "producer_task_id": ColumnType.UUID,
    "producer_attempt": ColumnType.INTEGER,
    "ingested_at": ColumnType.TIMESTAMPTZ,
    "seq": ColumnType.BIGINT,
}
# PostgreSQL has columns of these names in every table, and no room for more columns in an index.
OF_POSTGRES = frozenset({"tableoid", "ctid", "xmin", "xmax", "cmin", "cmax"})
INDEX_COLUMNS_MAX = 32
RESERVED = frozenset(SYSTEM_COLUMNS) - {ORG_ID}  # a schema may list `org_id`, with any type


class DatasetSchema(msgspec.Struct, frozen=True):
    """The schema of a dataset, as the file has it."""

    columns: tuple[Column, ...]
    unique: tuple[str, ...] = ()
    indexes: tuple[tuple[str, ...], ...] = ()
    on_conflict: OnConflict = OnConflict.IGNORE

    @property
    def writer_columns(self) -> tuple[Column, ...]:
        """The columns that writers fill: all but `org_id`."""
        return tuple(column for column in self.columns if column.name not in SYSTEM_COLUMNS)

    @property
    def unique_columns(self) -> tuple[str, ...]:
        """The unique key of the table: `org_id` comes first if the file does not name it. Empty without a key."""
        return self.unique if not self.unique or ORG_ID in self.unique else (ORG_ID, *self.unique)

    def names(self, *, postgres: bool) -> frozenset[str]:
        """The columns that a `where` may name."""
        own = frozenset(column.name for column in self.columns)
        return own | frozenset(SYSTEM_COLUMNS) if postgres else own


class Fault(NamedTuple):
    """What is wrong with a schema, and at which path below it."""

    path: tuple[str | int, ...]
    message: str
    reserved: bool = False


def faults(schema: DatasetSchema) -> Iterator[Fault]:
    """What is wrong with a schema. Names that differ in case only are the same column to DuckDB."""
    seen: dict[str, str] = {}
    for index, column in enumerate(schema.columns):
        path = ("columns", index, "name")
        if column.name.lower() in RESERVED:
            yield Fault(path, f"{column.name} is a column that Windlass adds and fills: take it out", reserved=True)
        elif column.name.lower() in OF_POSTGRES:
            yield Fault(path, f"{column.name} is a column that PostgreSQL has in every table: take another name")
        elif (same := seen.setdefault(column.name.lower(), column.name)) is not column.name:
            yield Fault(path, f"{column.name} is there already, as {same}")
    known = {column.name for column in schema.columns} | {ORG_ID}
    yield from _unknown(("unique",), schema.unique, known)
    for index, columns in enumerate(schema.indexes):
        yield from _unknown(("indexes", index), columns, known | SYSTEM_COLUMNS.keys())
    if len(schema.unique_columns) > INDEX_COLUMNS_MAX:
        yield Fault(("unique",), f"has more than {INDEX_COLUMNS_MAX} columns with {ORG_ID}")
    if schema.unique == (ORG_ID,):
        yield Fault(("unique",), f"must have a column besides {ORG_ID}, or there is one row for each organisation")
    if schema.on_conflict is OnConflict.UPDATE and not schema.unique:
        yield Fault(("on_conflict",), "update needs a unique key: add unique")


def _unknown(path: tuple[str | int, ...], columns: Iterable[str], known: Set[str]) -> Iterator[Fault]:
    for index, column in enumerate(columns):
        if column not in known:
            yield Fault((*path, index), f"{column} is not one of the columns")
