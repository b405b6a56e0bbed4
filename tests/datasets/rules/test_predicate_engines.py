"""A condition takes the same rows in Python, PostgreSQL, DuckDB and pyarrow, whatever the types of the columns are."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import asyncpg
import duckdb
import pyarrow as pa
import pyarrow.dataset as dataset
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.datasets.rules.wheres import INTEGERS, NUMBERS, TEXTS, wheres
from tests.kit import database as databases

from windlass.datasets.rules.predicate import Where, column_offset, parse

INT64 = st.integers(-(2**63), 2**63 - 1)
IDS = st.sampled_from([UUID(int=0), UUID("80000000-0000-0000-0000-000000000000"), UUID(int=2**128 - 1), UUID(int=7)])
INSTANTS = st.sampled_from(
    [datetime(2026, 1, 31, tzinfo=UTC) + timedelta(hours=h, microseconds=h % 2) for h in range(-3, 4)]
)
DATES = st.sampled_from([date(2026, 1, 30), date(2026, 1, 31), date(1970, 1, 1)])
# Each column with its type in PostgreSQL, DuckDB and Arrow, and the values that a row may have in it.
COLUMNS: dict[str, tuple[str, str, pa.DataType, st.SearchStrategy[Any]]] = {
    "txt": ("text", "VARCHAR", pa.string(), TEXTS),
    "flag": ("boolean", "BOOLEAN", pa.bool_(), st.booleans()),
    "small": ("integer", "INTEGER", pa.int32(), st.integers(-3, 3) | st.sampled_from([-(2**31), 2**31 - 1])),
    "big": ("bigint", "BIGINT", pa.int64(), st.integers(-3, 3) | INT64 | st.just(2**53 + 1)),
    "dbl": ("double precision", "DOUBLE", pa.float64(), st.floats(-3, 3) | st.sampled_from(
        [0.1, -0.0, -2.5, math.nan, math.inf, -math.inf, float(2**53), 1e37, 1.5e300])),
    "flt": ("real", "FLOAT", pa.float32(), st.floats(-3, 3, width=32) | st.sampled_from([-2.5, math.nan, math.inf])
        | st.just(0.1).map(lambda value: pa.scalar(value, pa.float32()).as_py())),
    "num": ("numeric(38,3)", "DECIMAL(38,3)", pa.decimal128(38, 3), st.decimals(-3, 3, places=3)
        | st.sampled_from([Decimal("-2.5"), Decimal(10**34), Decimal("0.1")])),
    "id": ("uuid", "UUID", pa.uuid(), IDS),
    "ts": ("timestamptz", "TIMESTAMPTZ", pa.timestamp("us", "UTC"), INSTANTS),
    "local": ("timestamp", "TIMESTAMP", pa.timestamp("us"), INSTANTS.map(lambda at: at.replace(tzinfo=None))),
    "day": ("date", "DATE", pa.date32(), DATES),
    "doc": ("jsonb", "JSON", pa.binary(), st.just(b"{}")),
}  # fmt: skip
NAMES = st.sampled_from([*COLUMNS, "missing"])
TIMES = (
    INSTANTS.map(lambda at: at.isoformat()) | DATES.map(lambda day: day.isoformat()) | st.just("2026-01-31T01:00+01")
)
LITERALS = TEXTS | NUMBERS | INTEGERS | st.booleans() | IDS.map(str) | TIMES
ROWS = st.fixed_dictionaries({name: st.none() | values for name, (*_, values) in COLUMNS.items()})
PG_TYPES = {name: types[0] for name, types in COLUMNS.items()}
DUCK_TYPES = {name: types[1] for name, types in COLUMNS.items()}
SCHEMA = pa.schema([(name, types[2]) for name, types in COLUMNS.items()])


class Postgres:
    """By asyncpg, as the server does, which is strict about the types of parameters."""

    def __init__(self, dsn: str, runner: asyncio.Runner) -> None:
        self._runner = runner
        self._connection = runner.run(asyncpg.connect(dsn))
        runner.run(self._connection.execute("set timezone = 'Asia/Kolkata'"))

    def close(self) -> None:
        self._runner.run(self._connection.close())

    def takes(self, where: Where, row: dict[str, Any], types: dict[str, str] | None) -> bool:
        """Whether a condition takes a row."""
        return self._runner.run(self._takes(where, row, types))

    def taken(self, wheres: list[Where], values: list[Any], name: str) -> list[set[int]]:
        """The places of the values that each condition takes."""
        own = [value.decode() if isinstance(value, bytes) else value for value in values]
        rows = f'unnest($1::{PG_TYPES[name]}[]) with ordinality t ("{name}", place)'

        async def run() -> list[set[int]]:
            queries = [where.sql("postgres", PG_TYPES, first=2) for where in wheres]
            taken = []
            for text, params in queries:
                found = await self._connection.fetch(f"select place - 1 from {rows} where {text}", own, *params)
                taken.append({row[0] for row in found})
            return taken

        return self._runner.run(run())

    async def _takes(self, where: Where, row: dict[str, Any], types: dict[str, str] | None) -> bool:
        text, params = where.sql("postgres", types, first=len(row) + 1)
        names = [f'${place}::{PG_TYPES[name]} as "{name}"' for place, name in enumerate(row, 1)]
        values = [value.decode() if isinstance(value, bytes) else value for value in row.values()]
        query = f"select 1 from (select {', '.join(names)}) t where {text}"
        return await self._connection.fetchrow(query, *values, *params) is not None


@pytest.fixture(scope="module")
def in_postgres(postgres: databases.Server) -> Iterator[Postgres]:
    with asyncio.Runner() as runner, closing(Postgres(postgres.maintenance, runner)) as connection:
        yield connection


@pytest.fixture(scope="module")
def duckdb_connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with closing(duckdb.connect()) as connection:
        yield connection


def in_duckdb(connection: duckdb.DuckDBPyConnection, where: Where, row: dict[str, Any], types: Any) -> bool:
    text, params = where.sql("duckdb", types, first=len(row) + 1)
    names = [f'${place}::{DUCK_TYPES[name]} as "{name}"' for place, name in enumerate(row, 1)]
    values = [value if isinstance(value, int | float | str | None) else duckdb_text(value) for value in row.values()]
    query = f"select 1 from (select {', '.join(names)}) t where {text}"
    return connection.execute(query, [*values, *params]).fetchone() is not None


def duckdb_text(value: Any) -> str:
    return (
        value.decode() if isinstance(value, bytes) else format(value, "f") if isinstance(value, Decimal) else str(value)
    )


def in_arrow(where: Where, row: dict[str, Any], schema: pa.Schema | None) -> bool:
    values = [value.bytes if isinstance(value, UUID) else value for value in row.values()]
    arrays = [pa.array([value], SCHEMA.field(name).type) for name, value in zip(row, values, strict=True)]
    return (
        pa.table(arrays, schema=pa.schema([SCHEMA.field(name) for name in row])).filter(where.arrow(schema)).num_rows
        == 1
    )


@given(where=wheres(NAMES, LITERALS), row=ROWS)
@settings(max_examples=100, deadline=None)
def test_a_condition_takes_the_same_rows_everywhere(
    in_postgres: Postgres, duckdb_connection: duckdb.DuckDBPyConnection, where: Where, row: dict[str, Any]
) -> None:
    expected = where.matches(row)

    assert in_postgres.takes(where, row, PG_TYPES) is expected
    assert in_duckdb(duckdb_connection, where, row, DUCK_TYPES) is expected
    assert in_arrow(where, row, SCHEMA) is expected


@st.composite
def meetings(draw: st.DrawFn) -> tuple[str, object, str]:
    """A column, a value, and a comparison with a literal that is likely to be near the value."""
    name = draw(st.sampled_from(list(COLUMNS)))
    value = draw(COLUMNS[name][3])
    near = st.just(value) if isinstance(value, str) else LITERALS
    where = draw(wheres(st.just(name), near | LITERALS))
    return name, value, where.text


@given(meeting=meetings(), negated=st.booleans())
@settings(max_examples=100, deadline=None)
def test_a_value_meets_a_literal_with_the_same_result_everywhere(
    in_postgres: Postgres,
    duckdb_connection: duckdb.DuckDBPyConnection,
    meeting: tuple[str, object, str],
    negated: bool,
) -> None:
    name, value, text = meeting
    where = parse(f"NOT ({text})" if negated else text)
    row = {name: value}
    expected = where.matches(row)

    assert in_postgres.takes(where, row, PG_TYPES) is expected
    assert in_duckdb(duckdb_connection, where, row, DUCK_TYPES) is expected
    assert in_arrow(where, row, SCHEMA) is expected


FITTING = {"txt": TEXTS, "flag": st.booleans(), **dict.fromkeys(("small", "big", "dbl", "flt"), st.integers(-3, 3))}


@st.composite
def fitting(draw: st.DrawFn) -> tuple[dict[str, Any], Where]:
    name = draw(st.sampled_from(list(FITTING)))
    where = draw(wheres(st.just(name), FITTING[name], like=name == "txt"))
    return {name: draw(COLUMNS[name][3] | st.none())}, where


@given(drawn=fitting())
@settings(max_examples=100, deadline=None)
def test_literals_that_fit_their_columns_need_no_types(
    in_postgres: Postgres, duckdb_connection: duckdb.DuckDBPyConnection, drawn: tuple[dict[str, Any], Where]
) -> None:
    row, where = drawn
    expected = where.matches(row)

    assert in_postgres.takes(where, row, None) is expected
    assert in_duckdb(duckdb_connection, where, row, None) is expected
    assert in_arrow(where, row, None) is expected


# ------------------------------------------------------------------------------------------ values near literals

VALUES: dict[str, list[Any]] = {
    "txt": ["", "a", "A", "a\\b%", "a\nb", "é", "\uffff", "😀", "5", "true", "2026-01-31", str(UUID(int=7))],
    "flag": [True, False],
    "small": [-(2**31), -3, 0, 1, 2, 2**31 - 1],
    "big": [-(2**63), 0, 1, 2**53, 2**53 + 1, 2**63 - 1],
    "dbl": [-math.inf, -2.5, -0.0, 0.1, 1.0, float(2**53), 1e37, math.inf, math.nan],
    "flt": [-math.inf, -2.5, pa.scalar(0.1, pa.float32()).as_py(), 1.0, math.nan],
    "num": [Decimal(text) for text in ("-2.5", "0.1", "0.101", "1", "99999999999999999999999999999999999.999")],
    "id": [UUID(int=0), UUID(int=7), UUID(int=2**127), UUID(int=2**128 - 1)],
    "ts": [datetime(2026, 1, 31, 0, 0, 0, micro, tzinfo=UTC) for micro in (0, 1)] + [datetime(1969, 7, 20, tzinfo=UTC)],
    "local": [datetime.fromisoformat(text) for text in ("2026-01-31", "2026-01-30T23:00")],
    "day": [date(2026, 1, 31), date(1969, 7, 20)],
    "doc": [b"{}"],
}  # fmt: skip
NEAR = [
    "''", "'a'", "'A'", "'é'", "'\uffff'", "'😀'", "'5'", "'true'", "'a\\b%'",
    f"'{UUID(int=7)}'", f"'{UUID(int=2**127)}'",
    "'2026-01-31'", "'2026-01-31T00:00:00Z'", "'2026-01-31 01:00+01:00'", "'2026-01-31T00:00:00.000001'",
    "'2026-02-30'", "'9999-12-31'",
    "0", "1", "-3", "0.1", "-2.5", "0.5", "0.1005", "0.101", "1.000000000000000001",
    "2147483647", "2147483648", "-2147483649", "9007199254740992", "9007199254740993", "9223372036854775807",
    "9223372036854775808", "-9223372036854775808", "-9223372036854775809", "99999999999999999999", "1e37", "-1e37",
    "TRUE", "FALSE",
]  # fmt: skip
PATTERNS = ["", "a", "%", "_", "a%", "%b", "a_b", "a\\b%", "a\\b\\%", "%\\%", "a%%", "__", "A"]
CONDITIONS = [
    *(f"c {op} {literal}" for literal in NEAR for op in ("=", "<>", "<", "<=", ">", ">=")),
    *(f"c LIKE '{pattern}'" for pattern in PATTERNS),
    *(f"c IN ({one}, {other})" for one in NEAR[::3] for other in NEAR[1::4]),
    "c IS NULL", "c IS NOT NULL",
]  # fmt: skip


def conditions(name: str) -> list[Where]:
    """Each of them, and its negation: NULL takes neither row."""
    found = [parse(text.replace("c ", f"{name} ", 1)) for text in CONDITIONS]
    return [*found, *(parse(f"NOT ({where.text})") for where in found)]


def difference(name: str, values: list[Any], wheres: list[Where], taken: list[set[int]]) -> list[str]:
    return [
        f"{value!r}: {where.text}"
        for where, rows in zip(wheres, taken, strict=True)
        for place, value in enumerate(values)
        if (place in rows) is not where.matches({name: value})
    ]


@pytest.mark.parametrize("name", COLUMNS)
def test_postgres_agrees_on_every_value_near_a_literal(in_postgres: Postgres, name: str) -> None:
    values, each = [*VALUES[name], None], conditions(name)

    assert difference(name, values, each, in_postgres.taken(each, values, name)) == []


def test_postgres_agrees_on_a_numeric_that_is_not_a_number(in_postgres: Postgres) -> None:
    values, each = [Decimal("NaN")], conditions("num")

    assert difference("num", values, each, in_postgres.taken(each, values, "num")) == []


def taken_by_duckdb(
    connection: duckdb.DuckDBPyConnection, wheres: list[Where], values: list[Any], name: str, type_: str
) -> list[set[int]]:
    connection.execute(f'create or replace table t (place integer, "{name}" {type_})')
    rows = [[place, None if value is None else duckdb_text(value)] for place, value in enumerate(values)]
    connection.executemany(f"insert into t values ($1, $2::{type_})", rows)
    taken = []
    for where in wheres:
        text, params = where.sql("duckdb", {name: type_})
        taken.append({place for (place,) in connection.execute(f"select place from t where {text}", params).fetchall()})
    return taken


@pytest.mark.parametrize("name", COLUMNS)
def test_duckdb_agrees_on_every_value_near_a_literal(duckdb_connection: duckdb.DuckDBPyConnection, name: str) -> None:
    values, each = [*VALUES[name], None], conditions(name)
    taken = taken_by_duckdb(duckdb_connection, each, values, name, DUCK_TYPES[name])

    assert difference(name, values, each, taken) == []


@pytest.mark.parametrize("name", COLUMNS)
def test_arrow_agrees_on_every_value_near_a_literal(name: str) -> None:
    values, each = [*VALUES[name], None], conditions(name)
    own = [value.bytes if isinstance(value, UUID) else value for value in values]
    table = pa.table({name: pa.array(own, SCHEMA.field(name).type), "place": range(len(values))})
    taken = [set(table.filter(where.arrow(SCHEMA))["place"].to_pylist()) for where in each]

    assert difference(name, values, each, taken) == []


OTHER_TYPES = {
    "large_string": (pa.large_string(), "txt"), "string_view": (pa.string_view(), "txt"),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), "txt"), "int8": (pa.int8(), None),
    "uint64": (pa.uint64(), None), "half": (pa.float16(), None), "decimal256": (pa.decimal256(76, 3), "num"),
    "seconds": (pa.timestamp("s", "Europe/Berlin"), None), "nanoseconds": (pa.timestamp("ns"), "local"),
    "date64": (pa.date64(), "day"), "null": (pa.null(), None),
}  # fmt: skip
OTHER_VALUES: dict[str, list[Any]] = {
    "uint64": [0, 1, 2**64 - 1, 2**63], "int8": [-128, -3, 0, 1, 127], "half": [-2.5, 1.0, math.nan, math.inf],
    "seconds": [datetime(2026, 1, 31, tzinfo=UTC), datetime(2026, 1, 30, 23, tzinfo=UTC)], "null": [],
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_TYPES)
def test_arrow_agrees_on_columns_of_other_types(name: str) -> None:
    type_, like = OTHER_TYPES[name]
    values, each = [*(VALUES[like] if like else OTHER_VALUES[name]), None], conditions("x")
    schema = pa.schema([("x", type_), ("place", pa.int64())])
    table = pa.table([pa.array(values, type_), pa.array(range(len(values)))], schema=schema)
    # Computed and not filtered: pyarrow filters no table that has a column of type string_view.
    columns = {str(place): where.arrow(schema) for place, where in enumerate(each)}
    truths = dataset.dataset(table).to_table(columns).to_pydict()
    taken = [{row for row, truth in enumerate(truths[place]) if truth} for place in columns]

    assert difference("x", values, each, taken) == []


DUCKDB_TYPES = {
    "TINYINT": [-128, 0, 1, 127], "HUGEINT": [-(2**127), 0, 1, 10**37, 2**127 - 1],
    "UHUGEINT": [0, 1, 10**37, 2**128 - 1], "UBIGINT": [0, 1, 2**53 + 1, 2**64 - 1],
    "DECIMAL(4,3)": [Decimal("-2.5"), Decimal("0.1"), Decimal("0.101")],
    "TIMESTAMP_S": [datetime.fromisoformat("2026-01-31")], "TIMESTAMP_NS": [datetime.fromisoformat("2026-01-31")],
}  # fmt: skip


@pytest.mark.parametrize("type_", DUCKDB_TYPES)
def test_duckdb_agrees_on_columns_of_other_types(duckdb_connection: duckdb.DuckDBPyConnection, type_: str) -> None:
    values, each = [*DUCKDB_TYPES[type_], None], conditions("x")

    assert difference("x", values, each, taken_by_duckdb(duckdb_connection, each, values, "x", type_)) == []


# ------------------------------------------------------------------------------------------ without types


MISFITS = ["txt = 5", "txt > 1.5", "txt = TRUE", "big = '5'", "big < 'a'", "flag = 1", "flag LIKE '%'"]


@pytest.mark.parametrize("text", MISFITS)
def test_without_types_a_comparison_that_cannot_be_is_never_true(
    in_postgres: Postgres, duckdb_connection: duckdb.DuckDBPyConnection, text: str
) -> None:
    where = parse(text)
    row = {where.columns[0]: {"txt": "5", "big": 5, "flag": True}[where.columns[0]]}

    with pytest.raises((asyncpg.UndefinedFunctionError, asyncpg.DatatypeMismatchError)):
        in_postgres.takes(where, row, None)
    with suppress(duckdb.BinderException):  # it compares some types, and refuses to compare others
        assert not in_duckdb(duckdb_connection, where, row, None)
    with pytest.raises(pa.ArrowNotImplementedError):
        in_arrow(where, row, None)


def test_the_check_of_a_type_in_duckdb_costs_nothing(duckdb_connection: duckdb.DuckDBPyConnection) -> None:
    """The plan has the bare comparison, or no scan at all."""
    duckdb_connection.execute("create or replace table t (big bigint, txt text)")
    plans = {}
    for text in ("txt > 'a'", "big = 'a'"):
        query, params = parse(text).sql("duckdb")
        plans[text] = str(duckdb_connection.execute(f"explain select * from t where {query}", params).fetchall())

    assert "CASE" not in plans["txt > 'a'"]
    assert "Empty Result" in plans["big = 'a'"]


# ------------------------------------------------------------------------------------------ the text


@pytest.mark.parametrize(
    ("condition", "text", "params"),
    [
        ("topic IN ('a', 'b')", '("topic" = ANY($3::text[]))', [["a", "b"]]),
        ("topic = 'a'", '("topic" = $3::text)', ["a"]),
        ("topic < 'a'", '("topic" COLLATE "C" < $3::text)', ["a"]),
        ("topic LIKE 'a%'", """("topic" LIKE $3::text ESCAPE '')""", ["a%"]),
        ('"a""b" > 5', '("a""b" > $3::bigint)', [5]),
        ('"a""b" > 5.5', '("a""b" > $3::bigint)', [5]),
        ('"a""b" = 5.5', '("a""b" IS NULL AND NULL::boolean)', []),
        ('"a""b" <> 5.5', '("a""b" IS NOT NULL OR NULL::boolean)', []),
        ("topic = 5", "NULL::boolean", []),
        ("gone = 5", "NULL::boolean", []),
        ("gone IS NULL", "TRUE", []),
        ("NOT (topic IS NULL OR topic = 'a')", '(NOT (("topic" IS NULL) OR ("topic" = $3::text)))', ["a"]),
    ],
)
def test_postgres_gets_quoted_names_and_parameters_from_a_number_on(
    condition: str, text: str, params: list[object]
) -> None:
    assert parse(condition).sql("postgres", {"topic": "text", 'a"b': "integer"}, first=3) == (text, params)


def test_duckdb_gets_parameters_that_can_be_sent_as_json() -> None:
    where = parse(f"i = {2**64} AND d > 1.50 AND t < '2026-01-31' AND u = '{UUID(int=7)}' AND f = 0.1")
    types = {"i": "HUGEINT", "d": "DECIMAL(18,3)", "t": "TIMESTAMP WITH TIME ZONE", "u": "UUID", "f": "DOUBLE"}
    text, params = where.sql("duckdb", types)

    assert params == [str(2**64), "1.500", "2026-01-31 00:00:00+00:00", str(UUID(int=7)), 0.1]
    assert json.loads(json.dumps(params)) == params
    assert '"d" > $2::DECIMAL(18, 3)' in text


def test_an_unknown_dialect_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no dialect 'sqlite'"):
        parse("a = 1").sql("sqlite")  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["a IN (" + ",".join(["'x'"] * 600) + ")", " OR ".join(["a = 'x'"] * 310)])
def test_a_long_condition_is_taken_by_all(
    in_postgres: Postgres, duckdb_connection: duckdb.DuckDBPyConnection, text: str
) -> None:
    where, row = parse(text.replace("a ", "txt ")), {"txt": "x"}

    assert in_postgres.takes(where, row, PG_TYPES)
    assert in_duckdb(duckdb_connection, where, row, DUCK_TYPES)
    assert in_arrow(where, row, SCHEMA)


def test_misfits_are_comparisons_that_are_always_null() -> None:
    where = parse("txt = 5 AND (big IN (1, 'x', TRUE) OR NOT day > '2026-02-30') AND id LIKE '%' AND ts > '2026-01-31'")

    assert where.misfits(PG_TYPES) == [
        ("txt", "5"), ("big", "'x'"), ("big", "TRUE"), ("day", "'2026-02-30'"), ("id", "'%'"),
    ]  # fmt: skip
    assert where.misfits({}) == []


def test_the_place_of_a_column_is_where_it_is_named_first() -> None:
    text = """b = 'a' AND "a" = 1 OR a = 2"""

    assert column_offset(text, "b") == 0
    assert column_offset(text, "a") == 12
