"""Statements on the tables of PostgreSQL datasets: how a schema looks in the data database. Builds text only."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from windlass.datasets.rules.schema import ORG_ID, SYSTEM_COLUMNS, ColumnType, DatasetSchema, OnConflict

SCHEMA = "windlass_data"
PRODUCER = (ORG_ID, "producer_task_id", "producer_attempt", "seq")  # of a record, after the columns of its writer

_TYPES = {ColumnType.TEXT: 'text collate "C"', ColumnType.BOOL: "boolean", ColumnType.DOUBLE: "double precision"}


def table_of(version: UUID) -> str:
    """The name of the table of a version."""
    return f"v_{version.hex}"


def incoming_of(version: UUID) -> str:
    """The name of the temporary table of a sink. Each version has its own, since the driver remembers its columns."""
    return f"incoming_{version.hex}"


def view_of(dataset_uuid: UUID | str) -> str:
    return f"dataset_{dataset_uuid}"


def location_of(version: UUID) -> str:
    """The location of a version, as workers and readers get it."""
    return f"postgres_table:{SCHEMA}.{table_of(version)}"


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def create_table(version: UUID, schema: DatasetSchema | None, org_id: str, *, buffered: bool) -> list[str]:
    """The statements that make a table with its key and indexes. They may be run again. Rows of a buffered dataset come
    from the sink, which fills every column; a job that writes by itself need not know those of Windlass."""
    table = f"{SCHEMA}.{table_of(version)}"
    own = () if schema is None else schema.writer_columns
    columns = [f"{quoted(c.name)} {_type(c.type)}{'' if c.nullable else ' not null'}" for c in own]
    defaults = {} if buffered else {ORG_ID: literal(org_id), "ingested_at": "now()"}
    for name, type_ in SYSTEM_COLUMNS.items():
        needed = " not null" if buffered or name in defaults else ""
        default = f" default {defaults[name]}" if name in defaults else ""
        columns.append(f"{quoted(name)} {_type(type_)}{needed}{default}")
    statements = [f"create table if not exists {table} ({', '.join(columns)})"]
    if schema is None:
        return statements
    if schema.unique_columns:
        nullable = {column.name for column in own if column.nullable}
        nulls = " nulls not distinct" if nullable & set(schema.unique_columns) else ""  # PostgreSQL 15 and newer
        key = _list(schema.unique_columns)
        statements.append(f"create unique index if not exists {table_of(version)}_key on {table} ({key}){nulls}")
    for number, index in enumerate(schema.indexes):
        statements.append(f"create index if not exists {table_of(version)}_i{number} on {table} ({_list(index)})")
    if buffered:  # consumers read windows of cursors
        statements.append(f"create index if not exists {table_of(version)}_seq on {table} (seq)")
    return statements


def drop_table(version: UUID) -> str:
    return f"drop table if exists {SCHEMA}.{table_of(version)}"


def view_name(dataset_uuid: UUID | str) -> str:
    """The view of the current version of a dataset, as SQL names it."""
    return f"{SCHEMA}.{quoted(view_of(dataset_uuid))}"


def replace_view(dataset_uuid: UUID, version: UUID) -> list[str]:
    """The statements that make a view show another version, whose columns may be others."""
    view = view_name(dataset_uuid)
    return [f"drop view if exists {view}", f"create view {view} as select * from {SCHEMA}.{table_of(version)}"]


def drop_view(dataset_uuid: UUID) -> str:
    return f"drop view if exists {view_name(dataset_uuid)}"


def create_incoming(version: UUID, schema: DatasetSchema) -> str:
    """The statement that makes the temporary table to which records are copied."""
    columns = _list(record_columns(schema))
    return (
        f"create temporary table {incoming_of(version)} on commit drop as "
        f"select {columns} from {SCHEMA}.{table_of(version)} with no data"
    )  # fmt: skip


def record_columns(schema: DatasetSchema) -> tuple[str, ...]:
    """The columns of a record that is copied."""
    return (*(column.name for column in schema.writer_columns), *PRODUCER)


def clear_incoming(version: UUID) -> str:
    return f"truncate {incoming_of(version)}"


def insert_incoming(version: UUID, schema: DatasetSchema, *, late: bool = False) -> str:
    """The statement that moves records from the temporary table to that of a version. It returns how many rows of each
    cursor are new, and how many replace others. With `ignore` the first record of a key wins, with `update` the last;
    a temporary table is read in the order in which it was written. `late`: the records are of one batch that was
    published at $1, and rows of batches that were published after it stay as they are."""
    columns, key = record_columns(schema), _list(schema.unique_columns)
    listed = _list(columns)
    if schema.on_conflict is OnConflict.IGNORE:
        rows, conflict = f"select {listed}, now() from {incoming_of(version)}", "do nothing"
    else:
        rows = f"select distinct on ({key}) {listed}, now() from {incoming_of(version)} order by {key}, ctid desc"
        changed = [name for name in (*columns, "ingested_at") if name not in schema.unique_columns]
        conflict = f"do update set {', '.join(f'{quoted(name)} = excluded.{quoted(name)}' for name in changed)}"
        if late:
            conflict += (
                f" where not exists (select from {SCHEMA}.sink_commit c where c.dataset_version = '{version}' "
                "and c.cursor = t.seq and c.published_at > $1::timestamptz)"
            )
    return (
        f"with written as (insert into {SCHEMA}.{table_of(version)} as t ({listed}, ingested_at) {rows} "
        f"on conflict ({key}) {conflict} returning t.seq, t.xmax = 0 as new) "
        "select w.seq, count(*) filter (where w.new), count(*) filter (where not w.new) from written w group by w.seq"
    )  # fmt: skip


def literal(text: str) -> str:
    """A text as a literal of PostgreSQL, with standard strings."""
    return "'" + text.replace("'", "''") + "'"


def _list(names: Iterable[str]) -> str:
    return ", ".join(map(quoted, names))


def _type(type_: ColumnType) -> str:
    return _TYPES.get(type_, type_.value)
