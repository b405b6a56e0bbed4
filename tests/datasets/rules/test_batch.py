"""What a batch may contain: each type, each mistake with its line and column, and texts of any kind."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.datasets.rules import batch
from windlass.datasets.rules.batch import KEY_MAX_BYTES, LINE_MAX_BYTES, BatchInvalid, BatchReader, check_batch
from windlass.datasets.rules.events import BatchReport
from windlass.datasets.rules.schema import SYSTEM_COLUMNS, Column, ColumnType, DatasetSchema
from windlass.datasets.rules.writer import OutputPlace
from windlass.errors import Forbidden, Invalid

ID = UUID("6f2c1a7e-54d0-4a30-9d3d-0a6f0f5c9b11")
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def schema_of(type_: ColumnType, *, nullable: bool = True) -> DatasetSchema:
    return DatasetSchema((Column("key", ColumnType.TEXT, nullable=False), Column("v", type_, nullable)), ("key",))


def read(type_: ColumnType, value: str, *, nullable: bool = True) -> Any:
    """The value of a line `{"key": …, "v": …}`, given as JSON."""
    [(_, found)] = BatchReader(schema_of(type_, nullable=nullable)).read(f'{{"key": "k", "v": {value}}}'.encode(), 1)
    return found


def refused(schema: DatasetSchema, content: bytes, count: int = 1) -> BatchInvalid:
    with pytest.raises(BatchInvalid) as caught:
        BatchReader(schema).read(content, count)
    return caught.value


@pytest.mark.parametrize(
    ("type_", "value", "expected"),
    [
        ("text", '"a"', "a"), ("text", '""', ""), ("text", '"\\ud83d\\ude00 %s \\\\N \\t"', "😀 %s \\N \t"),
        ("bool", "true", True), ("bool", "false", False),
        ("integer", "2147483647", 2**31 - 1), ("integer", "-2147483648", -(2**31)),
        ("bigint", "9223372036854775807", 2**63 - 1), ("bigint", "-9223372036854775808", -(2**63)),
        ("double", "1", 1.0), ("double", "-2.5e-3", -0.0025),
        ("double", "1.7976931348623157e308", 1.7976931348623157e308),
        ("numeric", "1.50", Decimal("1.50")),
        ("numeric", '"-12345678901234567890.1"', Decimal("-12345678901234567890.1")),
        ("numeric", "1e999", Decimal("1e999")), ("numeric", "0e99999", Decimal(0)),
        ("uuid", f'"{ID}"', ID), ("uuid", f'"{ID.hex}"', ID),
        ("timestamptz", '"2026-01-31T12:00:00Z"', NOON), ("timestamptz", '"2026-01-31T14:00:00.000+02:00"', NOON),
        ("date", '"2026-01-31"', date(2026, 1, 31)), ("date", '"0001-01-01"', date(1, 1, 1)),
        ("jsonb", '{"a": [1, null, "x"]}', '{"a": [1, null, "x"]}'), ("jsonb", '"\\\\u0000"', '"\\\\u0000"'),
        ("jsonb", "1e999", "1e999"), ("jsonb", '"null"', '"null"'),
        ("bytea", '"AAECfw=="', b"\x00\x01\x02\x7f"), ("bytea", '""', b""),
        *((type_, "null", None) for type_ in ColumnType),
    ],
)  # fmt: skip
def test_a_value_of_the_type_of_its_column_is_read(type_: str, value: str, expected: object) -> None:
    found = read(ColumnType(type_), value)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("text", "1"), ("text", "true"), ("text", '"\\u0000"'), ("text", '"\\ud800"'), ("text", '["a"]'),
        ("bool", "1"), ("bool", '"true"'), ("bool", '"t"'),
        ("integer", "1.0"), ("integer", '"1"'), ("integer", "2147483648"), ("integer", "-2147483649"),
        ("integer", "true"),
        ("bigint", "9223372036854775808"), ("bigint", "-9223372036854775809"), ("bigint", "1e3"),
        ("double", "1e400"), ("double", '"1.5"'), ("double", "NaN"), ("double", "Infinity"),
        ("numeric", '"NaN"'), ("numeric", '"Infinity"'), ("numeric", '" 1"'), ("numeric", '"1_000"'),
        ("numeric", "true"),
        ("numeric", "1e1000"), ("numeric", "1e-1001"), ("numeric", '"0x1"'), ("numeric", "1e999999"),
        ("numeric", '"١"'),
        ("uuid", '"6f2c"'), ("uuid", "1"),
        ("timestamptz", '"2026-01-31T12:00:00"'), ("timestamptz", "1767225600"), ("timestamptz", '"infinity"'),
        ("timestamptz", '"0001-01-01T00:00:00Z"'), ("timestamptz", '"9999-12-31T23:59:59Z"'),
        ("date", '"2026-02-30"'), ("date", '"2026-01-31T00:00:00Z"'), ("date", "20260131"),
        ("jsonb", '{"a": "\\u0000"}'), ("jsonb", '{"\\u0000": 1}'), ("jsonb", "[1e1001]"), ("jsonb", "[1e-20000]"),
        ("jsonb", "[0." + "0" * 2000 + "1]"), ("jsonb", "9" * 200_000), ("jsonb", '"\\udc00"'), ("jsonb", "nul"),
        ("bytea", '"a b"'), ("bytea", '"AAE"'), ("bytea", "[1]"),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_refused_with_its_line(type_: str, value: str) -> None:
    error = refused(schema_of(ColumnType(type_)), f'{{"key": "k"}}\n\n{{"key": "k", "v": {value}}}'.encode(), 2)
    assert error.line == 3
    assert len(str(error)) < 300  # and so it has not the value


@pytest.mark.parametrize("type_", list(ColumnType))
def test_null_and_a_missing_column_are_refused_where_the_schema_has_no_null(type_: ColumnType) -> None:
    schema = schema_of(type_, nullable=False)
    for line in (b'{"key": "k", "v": null}', b'{"key": "k"}'):
        error = refused(schema, line)
        assert (error.line, error.column) == (1, "v")


def test_a_column_that_may_be_null_may_be_left_out() -> None:
    for type_ in ColumnType:
        assert BatchReader(schema_of(type_)).read(b'{"key": "k"}', 1) == [("k", None)]


def test_columns_of_windlass_in_a_row_are_ignored_whatever_they_are() -> None:
    row = {name: {"any": ["thing"]} for name in SYSTEM_COLUMNS} | {"key": "k"}
    schema = DatasetSchema((Column("org_id", ColumnType.UUID), Column("key", ColumnType.TEXT)), ("org_id", "key"))
    assert BatchReader(schema).read(json.dumps(row).encode(), 1) == [("k",)]


@pytest.mark.parametrize(
    ("content", "line", "column"),
    [
        (b'{"key": "a"}\n{"key": "b", "other": 1}', 2, "other"),
        (b'{"key": "a"}\n{"key": 7}', 2, "key"),
        (b'{"key": "a"}\n\r\n  \n{"v": "b"}', 4, "key"),
        (b'{"key": "a"}\n["key"]', 2, None),
        (b'{"key": "a"}\n"key"', 2, None),
        (b'{"key": "a"} {"key": "b"}', 1, None),
        (b'{"key":\n"a"}', 1, None),
        (b'{"key": "a"}\n{"key": "\xff"}', 2, None),
        (b'{"key": "a"}\n{"key": "b"', 2, None),
        (b"\xef\xbb\xbf" + b'{"key": "a"}', 1, None),
        (b'{"key": "a"}\n{"key": "b", "v": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 2, None),
        (b'{"key": "a"}\n{"key": "' + b"x" * LINE_MAX_BYTES + b'"}', 2, None),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_line_and_column(content: bytes, line: int, column: str | None) -> None:
    error = refused(schema_of(ColumnType.JSONB), content, 2)
    assert (error.line, error.column) == (line, column)
    assert str(error).startswith(f"line {line}")


def test_a_line_of_the_longest_length_is_read() -> None:
    schema = schema_of(ColumnType.TEXT)
    frame = len(b'{"key": "k", "v": ""}')
    line = b'{"key": "k", "v": "' + b"x" * (LINE_MAX_BYTES - frame) + b'"}'
    assert len(line) == LINE_MAX_BYTES
    [(_, value)] = BatchReader(schema).read(line, 1)
    assert len(value) == LINE_MAX_BYTES - frame
    assert refused(schema, line.replace(b'"k"', b'"kk"')).line == 1


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_batch_has_as_many_records_as_were_published(count: int) -> None:
    assert "2 records" in str(refused(schema_of(ColumnType.TEXT), b'{"key": "a"}\n{"key": "b"}\n', count))
    assert BatchReader(schema_of(ColumnType.TEXT)).read(b"\n\n", 0) == []


def test_lines_that_would_take_much_more_memory_than_bytes_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "LINES_MAX", 100)
    assert "100 lines" in str(refused(schema_of(ColumnType.TEXT), b"\n" * 101, 0))


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("x" * KEY_MAX_BYTES, True), ("x" * (KEY_MAX_BYTES + 1), False),
        ("😀" * (KEY_MAX_BYTES // 4), True), ("😀" * (KEY_MAX_BYTES // 4 + 1), False),
    ],
)  # fmt: skip
def test_a_key_that_no_index_has_room_for_is_refused(text: str, fits: bool) -> None:
    content = b'{"key": "short"}\n' + json.dumps({"key": text}).encode()
    if fits:
        assert len(BatchReader(schema_of(ColumnType.TEXT)).read(content, 2)) == 2
    else:
        error = refused(schema_of(ColumnType.TEXT), content, 2)
        assert (error.line, error.column) == (2, "key")


def test_columns_of_one_index_share_its_room() -> None:
    half = "x" * (KEY_MAX_BYTES // 2 + 1)
    schema = DatasetSchema((Column("a", ColumnType.TEXT), Column("b", ColumnType.TEXT)), ("a",), indexes=(("a", "b"),))
    line = json.dumps({"a": half, "b": half}).encode()
    assert refused(schema, line).line == 1
    assert len(BatchReader(DatasetSchema(schema.columns, ("a",))).read(line, 1)) == 1


# --------------------------------------------------------------------------------------------- properties

TEXTS = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=50)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=8,
)
ZONES = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
VALUES: dict[ColumnType, st.SearchStrategy[Any]] = {
    ColumnType.TEXT: TEXTS,
    ColumnType.BOOL: st.booleans(),
    ColumnType.INTEGER: st.integers(-(2**31), 2**31 - 1),
    ColumnType.BIGINT: st.integers(-(2**63), 2**63 - 1),
    ColumnType.DOUBLE: st.floats(allow_nan=False, allow_infinity=False),
    ColumnType.NUMERIC: st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**20), max_value=10**20),
    ColumnType.UUID: st.uuids(),
    ColumnType.TIMESTAMPTZ: st.datetimes(datetime(3, 1, 1), datetime(9997, 1, 1), timezones=ZONES),  # noqa: DTZ001
    ColumnType.DATE: st.dates(),
    ColumnType.JSONB: JSON,
    ColumnType.BYTEA: st.binary(max_size=50),
}


def as_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value) if isinstance(value, UUID | Decimal) else value.isoformat() if isinstance(value, date) else value


@given(st.data(), st.lists(st.sampled_from(list(ColumnType)), min_size=1, max_size=6), st.integers(0, 4))
def test_a_batch_is_read_as_it_was_written(data: st.DataObject, types: list[ColumnType], count: int) -> None:
    columns = tuple(Column(f"c{place}", type_) for place, type_ in enumerate(types))
    rows = [tuple(data.draw(st.none() | VALUES[type_]) for type_ in types) for _ in range(count)]
    lines = [json.dumps({f"c{place}": as_json(value) for place, value in enumerate(row)}) for row in rows]
    found = BatchReader(DatasetSchema(columns)).read("\n".join(lines).encode(), count)
    for given_row, read_row in zip(rows, found, strict=True):
        for type_, value, got in zip(types, given_row, read_row, strict=True):
            assert (json.loads(got) if type_ is ColumnType.JSONB and got is not None else got) == value


@given(st.binary(max_size=200))
def test_no_content_does_anything_but_to_be_read_or_refused(content: bytes) -> None:
    for type_ in (ColumnType.JSONB, ColumnType.NUMERIC):
        reader = BatchReader(schema_of(type_))
        with suppress(BatchInvalid):
            reader.read(b'{"key": "k", "v": ' + content + b"}", 1)


# --------------------------------------------------------------------------------------------- what may be published


@pytest.mark.parametrize("ending", [".jsonl", ".parquet", ".arrow"])
def test_batches_have_one_of_three_endings(ending: str) -> None:
    place = OutputPlace(0, "postgres", "buffered")
    check_batch(BatchReport(uuid4(), uuid4(), f"s3://b/x{ending}", 1), place)
    for name in (f"x{ending}.gz", f"x{ending}/y", "x", f"x{ending.upper()}"):
        with pytest.raises(Invalid):
            check_batch(BatchReport(uuid4(), uuid4(), f"s3://b/{name}", 1), place)


def test_a_dataset_that_is_not_buffered_takes_no_batches() -> None:
    for place in (OutputPlace(0, "s3"), OutputPlace(0, "postgres", "direct"), OutputPlace(0, "none")):
        with pytest.raises(Forbidden):
            check_batch(BatchReport(uuid4(), uuid4(), "s3://b/x.jsonl", 1), place)


def test_a_batch_has_at_most_a_million_records() -> None:
    place = OutputPlace(0, "postgres", "buffered")
    check_batch(BatchReport(uuid4(), uuid4(), "s3://b/x.jsonl", 1_000_000), place)
    with pytest.raises(Invalid):
        check_batch(BatchReport(uuid4(), uuid4(), "s3://b/x.jsonl", 1_000_001), place)
