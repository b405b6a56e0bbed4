"""Batches of records: which rows a batch has, and what is wrong with one that is not accepted.

A batch is JSON Lines. All of it is checked before any row is written: strict types, no NULL where the schema has none,
ranges, no NUL character, no unknown column, as many records as were published. A row that names a column which Windlass
fills (`org_id`, `seq`) is refused. This module does not know where batches come from, nor the database.
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

from windlass.datasets.rules.schema import SYSTEM_COLUMNS, Column, ColumnType, DatasetSchema

LINE_MAX_BYTES = 1024 * 1024
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
_AT = re.compile(r" - at `\$\.(?P<path>[^`]*)`$")
_FIELD = re.compile(r"(?P<what>missing required|contains unknown) field `(?P<name>.*)`", re.DOTALL)
_NUL, _ESCAPE = b"\\u0000", b"\\u"


class BatchInvalid(ValueError):
    """A batch that is not accepted. The message names line and column, never a value."""

    def __init__(self, message: str, line: int | None = None, column: str | None = None) -> None:
        places = (f"line {line}" if line else "", f"column {column}" if column else "")
        place = ", ".join(filter(None, places))
        super().__init__(f"{place}: {message}" if place else message)
        self.line, self.column = line, column


class _BadValue(ValueError):
    """A value of the right JSON type that its column does not take."""


class BatchReader:
    """Reads batches of one schema. A record has the values of `columns`, in this order."""

    def __init__(self, schema: DatasetSchema) -> None:
        columns = schema.writer_columns
        self.columns = tuple(column.name for column in columns)
        self._decode = msgspec.json.Decoder(_row_type(columns)).decode
        names = [f"c{index}" for index in range(len(columns))]
        getter = attrgetter(*names)
        self._values: Callable[[Any], Record] = getter if len(names) > 1 else lambda row: (getter(row),)
        self._converters = [
            (i, column, _CONVERT[column.type]) for i, column in enumerate(columns) if column.type in _CONVERT
        ]
        self._texts = [(i, column) for i, column in enumerate(columns) if column.type is ColumnType.TEXT]
        self._keys = list(_long_keys(schema, self.columns))

    def read(self, content: bytes, record_count: int) -> list[Record]:
        """The records of a batch. Raises BatchInvalid."""
        records = [self._record(line, number) for number, line in _lines(content)]
        if _NUL in content:
            for number, record in zip(_numbers(content), records, strict=True):
                self._check_nul(record, number)
        if len(records) != record_count:
            raise BatchInvalid(f"has {len(records)} records, and {record_count} were published")
        return records

    def _record(self, line: bytes, number: int) -> Record:
        try:
            record = self._values(self._decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _explained(error, number) from None
        if self._converters:
            record = self._converted(record, number)
        for indexes in self._keys:
            if sum(len(record[i]) for i in indexes if record[i] is not None) * 4 > KEY_MAX_BYTES:
                self._check_key(record, indexes, number)
        return record

    def _converted(self, record: Record, number: int) -> Record:
        values = list(record)
        for index, column, convert in self._converters:
            value = values[index]
            if value is None:
                continue
            try:
                values[index] = convert(value)
            except _BadValue as error:
                raise BatchInvalid(str(error), number, column.name) from None
            if values[index] is None and not column.nullable:
                raise BatchInvalid("must not be null", number, column.name)
        return tuple(values)

    def _check_nul(self, record: Record, number: int) -> None:
        for index, column in self._texts:
            if record[index] is not None and "\x00" in record[index]:
                raise BatchInvalid("must not contain the character NUL", number, column.name)

    def _check_key(self, record: Record, indexes: tuple[int, ...], number: int) -> None:
        sizes = {i: len(v.encode() if isinstance(v, str) else v) for i in indexes if (v := record[i]) is not None}
        if sum(sizes.values()) > KEY_MAX_BYTES:
            longest = max(sizes, key=sizes.__getitem__)
            message = f"is too long for a key: the columns of an index have at most {KEY_MAX_BYTES} bytes together"
            raise BatchInvalid(message, number, self.columns[longest])


def _row_type(columns: tuple[Column, ...]) -> type[msgspec.Struct]:
    """The type of a line. Fields have names of their own, since a column may have any name."""
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
    return msgspec.defstruct("Row", fields, rename=names, forbid_unknown_fields=True, kw_only=True, gc=False)


def _lines(content: bytes) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, with their numbers. Raises BatchInvalid for one that is too long."""
    for number, line in enumerate(content.split(b"\n"), 1):
        if len(line) > LINE_MAX_BYTES:
            raise BatchInvalid(f"has {len(line)} bytes, the limit is {LINE_MAX_BYTES}", number)
        if line and not line.isspace():
            yield number, line


def _numbers(content: bytes) -> Iterator[int]:
    return (number for number, _ in _lines(content))


def _explained(error: Exception, number: int) -> BatchInvalid:
    """What is wrong with a line, without the words of the decoder for where it is."""
    text = str(error)
    if isinstance(error, RecursionError):
        return BatchInvalid("is nested too deeply", number)
    if isinstance(error, UnicodeDecodeError):
        return BatchInvalid("is not UTF-8", number)
    if (named := _FIELD.search(text)) is not None:
        missing, name = named["what"].startswith("missing"), named["name"]
        unknown = (
            "is filled by Windlass, never by a row" if name in SYSTEM_COLUMNS else "is not a column of the dataset"
        )
        return BatchInvalid("is missing" if missing else unknown, number, name[:128])
    if (at := _AT.search(text)) is not None:
        return BatchInvalid(text[: at.start()], number, at["path"].split("[")[0][:128])
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
    """The text of a JSON value that PostgreSQL takes: it has no NUL in its texts, and no number without end."""
    text = bytes(raw)
    if text == b"null":
        return None
    try:
        value = msgspec.json.decode(text)
        if _ESCAPE in text and _has_nul(value):
            raise _BadValue("must not contain the character NUL")
        return text.decode()
    except UnicodeDecodeError:
        raise _BadValue("is not UTF-8") from None
    except RecursionError:
        raise _BadValue("is nested too deeply") from None
    except msgspec.DecodeError as error:
        raise _BadValue(str(error)) from None


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
