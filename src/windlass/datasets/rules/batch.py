"""Batches of records: which rows a batch has, and what is wrong with one that is not accepted.

A batch is JSON Lines. All of it is checked before any row is written: strict types, no NULL where the schema has none,
ranges, no NUL character, no unknown column, as many records as were published. Columns that Windlass fills (`org_id`,
`seq`) may be in a row and are ignored. This module does not know where batches come from, nor the database.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import date, datetime
from decimal import Decimal
from operator import attrgetter
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import Meta, Raw

from windlass.datasets.rules.events import BatchReport
from windlass.datasets.rules.schema import SYSTEM_COLUMNS, Column, ColumnType, DatasetSchema
from windlass.datasets.rules.writer import BUFFERED, OutputPlace
from windlass.errors import Forbidden, Invalid

LINE_MAX_BYTES = 1024 * 1024
LINES_MAX = 1_000_000  # a short line takes much more memory than it has bytes
KEY_MAX_BYTES = 2600  # PostgreSQL has no room for longer entries of an index
DIGITS_MAX = 1000  # before and after the point of a numeric
YEAR_MIN, YEAR_MAX = 2, 9998  # in any time zone, a year that every reader has
ENDINGS = (".jsonl", ".parquet", ".arrow")

Record = tuple[Any, ...]

_NULL = Raw(b"null")
_TYPES: dict[ColumnType, Any] = {
    ColumnType.TEXT: str,
    ColumnType.BOOL: bool,
    ColumnType.INTEGER: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)],
    ColumnType.BIGINT: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)],
    ColumnType.DOUBLE: float,
    ColumnType.NUMERIC: Raw,
    ColumnType.UUID: UUID,
    ColumnType.TIMESTAMPTZ: Annotated[datetime, Meta(tz=True)],
    ColumnType.DATE: date,
    ColumnType.JSONB: Raw,
    ColumnType.BYTEA: bytes,
}
_NUMBER = re.compile(rb'(?P<quote>"?)(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,5})?)(?P=quote)')
_AT = re.compile(r" - at `\$\.(?P<path>.*)`$", re.DOTALL)
_FIELD = re.compile(r"(?P<what>missing required|contains unknown) field `(?P<name>.*)`", re.DOTALL)
_NUL = b"\\u0000"
_NUL_IN_TEXT = _NUL.decode()


class BatchInvalid(ValueError):
    """A batch that is not accepted. The message names line and column, never a value."""

    def __init__(self, message: str, line: int | None = None, column: str | None = None) -> None:
        places = (f"line {line}" if line else "", f"column {column}" if column else "")
        place = ", ".join(filter(None, places))
        super().__init__(f"{place}: {message}" if place else message)
        self.line, self.column = line, column


class _BadValue(ValueError):
    """A value of the right JSON type that its column does not take."""


def check_batch(batch: BatchReport, place: OutputPlace) -> None:
    """Refuse a batch of a DAG's task that no sink could write. Raises Forbidden and Invalid."""
    if place.write_mode != BUFFERED:
        raise Forbidden("the dataset is not buffered: it takes no batches", field="dataset_uuid")
    if not batch.batch_uri.endswith(ENDINGS):
        raise Invalid(f"must end with one of {', '.join(ENDINGS)}", field="batch_uri")
    if batch.record_count > LINES_MAX:
        raise Invalid(f"must be at most {LINES_MAX}: publish several batches", field="record_count")


class BatchReader:
    """Reads batches of one schema. A record has the values of `columns`, in this order."""

    def __init__(self, schema: DatasetSchema) -> None:
        columns = schema.writer_columns
        self.columns = tuple(column.name for column in columns)
        self._decode = msgspec.json.Decoder(_row_type(columns)).decode
        names = [f"c{index}" for index in range(len(columns))]
        getter = attrgetter(*names) if names else lambda _row: ()
        self._values: Callable[[Any], Record] = getter if len(names) != 1 else lambda row: (getter(row),)
        self._converters = [
            (f"c{i}", column, _CONVERT[column.type]) for i, column in enumerate(columns) if column.type in _CONVERT
        ]
        self._texts = [(i, column) for i, column in enumerate(columns) if column.type is ColumnType.TEXT]
        self._keys = list(_long_keys(schema, self.columns))

    def read(self, content: bytes, record_count: int) -> list[Record]:
        """The records of a batch. Raises BatchInvalid."""
        if content.count(b"\n") > LINES_MAX:
            raise BatchInvalid(f"has more than {LINES_MAX} lines: publish several batches")
        lines = content.split(b"\n")
        rows = self._rows(lines)
        for name, column, convert in self._converters:
            self._convert(rows, name, column, convert, lines)
        records = list(map(self._values, rows))
        if _NUL in content:
            self._check_nul(records, lines)
        for indexes in self._keys:
            self._check_key(records, indexes, lines)
        if len(records) != record_count:
            raise BatchInvalid(f"has {len(records)} records, and {record_count} were published")
        return records

    def _rows(self, lines: list[bytes]) -> list[Any]:
        decode, rows, number = self._decode, [], 0
        try:
            for number, line in enumerate(lines, 1):
                if line and not line.isspace():
                    if len(line) > LINE_MAX_BYTES:
                        raise BatchInvalid(f"has {len(line)} bytes, the limit is {LINE_MAX_BYTES}", number)
                    rows.append(decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _explained(error, number) from None
        return rows

    def _convert(
        self, rows: list[Any], name: str, column: Column, convert: Callable[[Any], Any], lines: list[bytes]
    ) -> None:
        """Replace the values of a column by those that the database takes."""
        get, done = attrgetter(name), 0
        try:
            for row in rows:
                if (value := get(row)) is not None:
                    converted = convert(value)
                    if converted is not value:
                        setattr(row, name, converted)
                done += 1
        except _BadValue as error:
            raise BatchInvalid(str(error), _number(lines, done), column.name) from None
        if not column.nullable:  # the decoder did not see a null in a value of JSON
            for place, row in enumerate(rows):
                if get(row) is None:
                    raise BatchInvalid("must not be null", _number(lines, place), column.name)

    def _check_nul(self, records: list[Record], lines: list[bytes]) -> None:
        for index, column in self._texts:
            for place, record in enumerate(records):
                if record[index] is not None and "\x00" in record[index]:
                    raise BatchInvalid("must not contain the character NUL", _number(lines, place), column.name)

    def _check_key(self, records: list[Record], indexes: tuple[int, ...], lines: list[bytes]) -> None:
        """Refuse records whose key has no room in an index. A character has at most four bytes, so in most batches a
        look at the longest values is enough."""
        longest = sum(max((len(record[i]) for record in records if record[i] is not None), default=0) for i in indexes)
        if longest * 4 <= KEY_MAX_BYTES:
            return
        for place, record in enumerate(records):
            sizes = {i: len(v.encode() if isinstance(v, str) else v) for i in indexes if (v := record[i]) is not None}
            if sum(sizes.values()) > KEY_MAX_BYTES:
                message = f"is too long for a key: the columns of an index have at most {KEY_MAX_BYTES} bytes together"
                raise BatchInvalid(message, _number(lines, place), self.columns[max(sizes, key=sizes.__getitem__)])


def _row_type(columns: tuple[Column, ...]) -> type[msgspec.Struct]:
    """The type of a line. Fields have names of their own, since a column may have any name. Columns of Windlass may be
    in a line, with any value, which is dropped."""
    names = {f"c{index}": column.name for index, column in enumerate(columns)}
    fields: list[Any] = []
    for index, column in enumerate(columns):
        type_ = _TYPES[column.type]
        if not column.nullable:
            fields.append((f"c{index}", type_))
        elif type_ is Raw:
            fields.append((f"c{index}", Raw, _NULL))
        else:
            fields.append((f"c{index}", type_ | None, None))
    for index, name in enumerate(SYSTEM_COLUMNS):
        fields.append((f"s{index}", Raw, _NULL))
        names[f"s{index}"] = name
    return msgspec.defstruct("Row", fields, rename=names, forbid_unknown_fields=True, kw_only=True, gc=False)


def _number(lines: list[bytes], place: int) -> int:
    """The number of the line of a record."""
    return [number for number, line in enumerate(lines, 1) if line and not line.isspace()][place]


def _explained(error: Exception, number: int) -> BatchInvalid:
    """What is wrong with a line, without the words of the decoder for where it is."""
    text = str(error)
    if isinstance(error, RecursionError):
        return BatchInvalid("is nested too deeply", number)
    if isinstance(error, UnicodeDecodeError):
        return BatchInvalid("is not UTF-8", number)
    if (named := _FIELD.search(text)) is not None:
        missing, name = named["what"].startswith("missing"), named["name"]
        return BatchInvalid("is missing" if missing else "is not a column of the dataset", number, name[:128])
    if (at := _AT.search(text)) is not None:
        return BatchInvalid(text[: at.start()], number, at["path"][:128])
    return BatchInvalid(text, number)


def _long_keys(schema: DatasetSchema, columns: tuple[str, ...]) -> Iterator[tuple[int, ...]]:
    """The columns of each index whose values may be too long for it."""
    types = {column.name: column.type for column in schema.writer_columns}
    for key in {schema.unique_columns, *schema.indexes}:
        found = tuple(columns.index(name) for name in key if types.get(name) in _LONG)
        if found:
            yield found


# --------------------------------------------------------------------------------------------- values


def _numeric(raw: Raw) -> Decimal | None:
    text = bytes(raw)
    if text == b"null":
        return None
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise _BadValue("Expected a number, or its digits as text")
    value = Decimal(found[2].decode())
    if value and (value.adjusted() >= DIGITS_MAX or int(value.as_tuple().exponent) < -DIGITS_MAX):
        raise _BadValue(f"has more than {DIGITS_MAX} digits before or after the point")
    return value or Decimal(0)


def _jsonb(raw: Raw) -> str | None:
    """The text of a JSON value that PostgreSQL takes: without NUL, and without numbers that are very long, large or
    small. That it is JSON was checked with its line; to decode it once more is faster than to search in it."""
    try:
        value, text = _decode_json(raw), str(raw, "utf-8")
    except UnicodeDecodeError:
        raise _BadValue("is not UTF-8") from None
    except RecursionError:
        raise _BadValue("is nested too deeply") from None
    except msgspec.ValidationError:
        raise _BadValue(f"has a number with more than {DIGITS_MAX} digits before or after the point") from None
    if value is None:
        return None
    if _NUL_IN_TEXT in text and _has_nul(value):
        raise _BadValue("must not contain the character NUL")
    return text


def _checked_number(digits: str) -> int:
    mantissa, _, exponent = digits.lower().partition("e")
    if len(mantissa) > DIGITS_MAX or len(exponent) > 5 or (exponent and abs(int(exponent)) > DIGITS_MAX):
        raise ValueError
    return 0


_decode_json = msgspec.json.Decoder(float_hook=_checked_number).decode


def _has_nul(value: object) -> bool:
    if isinstance(value, str):
        return "\x00" in value
    if isinstance(value, list):
        return any(map(_has_nul, value))
    return isinstance(value, dict) and any("\x00" in name or _has_nul(item) for name, item in value.items())


def _instant(value: datetime) -> datetime:
    if not YEAR_MIN <= value.year <= YEAR_MAX:
        raise _BadValue(f"must lie between the years {YEAR_MIN} and {YEAR_MAX}")
    return value


_CONVERT: dict[ColumnType, Callable[[Any], Any]] = {
    ColumnType.NUMERIC: _numeric,
    ColumnType.JSONB: _jsonb,
    ColumnType.TIMESTAMPTZ: _instant,
}
_LONG = {ColumnType.TEXT, ColumnType.BYTEA, ColumnType.JSONB}
