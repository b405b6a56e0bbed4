"""The process that turns one Parquet or Arrow batch into JSON Lines: the object on stdin, lines on stdout.

Such a file may be crafted, and may decode to a thousand times its size. So it is decoded here, in a process without
credentials that has little memory and little time, and not in the sink. The sink checks the lines as it checks those of
any batch. Uses the standard library and pyarrow only.
"""

from __future__ import annotations

import base64
import datetime
import json
import math
import os
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MIB = 1024 * 1024
MEMORY_BYTES, CPU_S = 1024 * MIB, 60
ROWS = 1024  # decoded at a time
INVALID = 3


class Refused(Exception):
    """The file cannot be a batch of the dataset. With the column, if it is about one."""

    def __init__(self, message: str, column: str | None = None) -> None:
        super().__init__(message)
        self.column = column


def main() -> int:
    given = json.loads(sys.argv[1])
    try:
        import pyarrow as pa
        import pyarrow.parquet

        _limit()
        content = sys.stdin.buffer.read()
        for batch in _batches(pa, content, given["ending"], given["rows_max"]):
            _write(pa, batch, given["columns"], set(given["ignored"]))
        sys.stdout.buffer.flush()
    except ImportError as error:
        return _fail(1, str(error))
    except Refused as error:
        return _fail(INVALID, str(error), error.column)
    except (MemoryError, OSError, ValueError, NotImplementedError) as error:
        if isinstance(error, BrokenPipeError):
            return 1
        return _fail(INVALID, f"cannot be decoded: {_plain(error)}")
    return 0


def _limit() -> None:
    """Take no more memory and time than a batch may need."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, used + MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _plain(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _fail(code: int, message: str, column: str | None = None) -> int:
    sys.stderr.write(json.dumps({"message": message, "column": column}))
    return code


def _batches(pa: Any, content: bytes, ending: str, rows_max: int) -> Iterator[Any]:
    """The record batches of a file, until there are more rows than there may be."""
    left = rows_max
    for batch in _all_batches(pa, content, ending):
        for start in range(0, batch.num_rows, ROWS):
            piece = batch.slice(start, ROWS)
            left -= piece.num_rows
            if left < 0:
                raise Refused(f"has more than {rows_max} records")
            yield piece


def _all_batches(pa: Any, content: bytes, ending: str) -> Iterator[Any]:
    source = pa.BufferReader(content)
    if ending == ".parquet":
        yield from pa.parquet.ParquetFile(source).iter_batches(batch_size=ROWS, use_threads=False)
    elif content.startswith(b"ARROW1"):
        reader = pa.ipc.open_file(source)
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)
    elif content:
        yield from pa.ipc.open_stream(source)
    else:
        raise Refused("is empty")


def _write(pa: Any, batch: Any, columns: dict[str, str], ignored: set[str]) -> None:
    """Write the rows of a record batch as lines."""
    names = batch.schema.names
    if len(set(names)) < len(names):
        raise Refused("has two columns of one name")
    texts: list[list[str]] = []
    for name, values in zip(names, batch.columns, strict=True):
        if name in ignored:
            continue
        if name not in columns:
            raise Refused("is not a column of the dataset", name[:128])
        key = json.dumps(name)
        try:
            texts.append([f"{key}:{value}" for value in _values(pa, values, columns[name])])
        except Refused as error:
            raise Refused(str(error), name) from None
    rows = zip(*texts, strict=True) if texts else (() for _ in range(batch.num_rows))
    write = sys.stdout.buffer.write
    for row in rows:
        write(("{" + ",".join(row) + "}\n").encode())


def _values(pa: Any, values: Any, type_: str) -> list[str]:
    """The values of a column as JSON."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if pa.types.is_null(values.type):
        return ["null"] * len(values)
    convert = _converter(pa.types, values.type, type_)
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.timestamp("us", "UTC"), safe=False)
    return ["null" if value is None else convert(value) for value in values.to_pylist()]


def _converter(types: Any, found: Any, type_: str) -> Callable[[Any], str]:
    """How a value of a type of Arrow becomes one of a column."""
    is_text = types.is_string(found) or types.is_large_string(found) or types.is_string_view(found)
    is_bytes = types.is_binary(found) or types.is_large_binary(found) or types.is_fixed_size_binary(found)
    if type_ == "jsonb":
        return _json_text if is_text else _json_value
    if is_text:  # as in JSON: the sink reads dates, uuids and digits from text
        return json.dumps
    match type_:
        case "bool" if types.is_boolean(found):
            return json.dumps
        case "integer" | "bigint" if types.is_integer(found):
            return str
        case "double" if types.is_integer(found) or types.is_floating(found):
            return _finite
        case "numeric" if types.is_integer(found) or types.is_decimal(found):
            return lambda value: f'"{value}"'
        case "numeric" if types.is_floating(found):
            return _finite
        case "uuid" if types.is_fixed_size_binary(found) and found.byte_width == 16:
            return lambda value: f'"{value.hex()}"'
        case "timestamptz" if types.is_timestamp(found) and found.tz is not None:
            return lambda value: f'"{value.isoformat()}"'
        case "timestamptz" if types.is_timestamp(found):
            raise Refused("Expected times with a time zone")
        case "date" if types.is_date(found):
            return lambda value: f'"{value.isoformat()}"'
        case "bytea" if is_bytes:
            return lambda value: f'"{base64.b64encode(value).decode()}"'
    raise Refused(f"Expected {type_}, got {found}")


def _finite(value: float) -> str:
    if not math.isfinite(value):
        raise Refused("must be a finite number")
    return repr(value)


def _json_text(value: str) -> str:
    """A text in a column of JSON is the JSON, in one line. It is parsed, so that it adds no field to its row."""
    try:
        json.loads(value, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise Refused("is not JSON") from None
    return value.replace("\n", " ").replace("\r", " ")


def _no_constant(_name: str) -> None:
    raise ValueError


def _json_value(value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False, default=_text_of)
    except ValueError:
        raise Refused("must be a finite number") from None


def _text_of(value: Any) -> str:
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    raise Refused(f"has a value of {type(value).__name__}, which JSON has not")


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # a file that has damaged the memory of this process does not get to run its clean-up
