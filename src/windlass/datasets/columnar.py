"""Parquet and Arrow batches, decoded to JSON Lines in a process of its own (`columnar_program`)."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import msgspec

from windlass.datasets.rules.batch import LINES_MAX, BatchInvalid
from windlass.datasets.rules.schema import SYSTEM_COLUMNS, DatasetSchema
from windlass.errors import Unavailable

PROGRAM = Path(__file__).with_name("columnar_program.py")
ENDINGS = (".parquet", ".arrow")
INVALID = 3  # the exit code of a file that cannot be a batch
DECODE_S = 120.0
REASON_MAX_BYTES, PIECE_BYTES = 16 * 1024, 1024 * 1024
_VARIABLES = {"ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}


class _Reason(msgspec.Struct):
    message: str
    column: str | None = None


def ending_of(uri: str) -> str | None:
    """The ending of a batch that has to be decoded first."""
    return next((ending for ending in ENDINGS if uri.endswith(ending)), None)


async def decode(content: bytes, ending: str, schema: DatasetSchema, record_count: int, max_bytes: int) -> bytes:
    """The rows of a file as JSON Lines, at most `max_bytes`. Raises BatchInvalid, and Unavailable if pyarrow is
    missing."""
    columns = {column.name: column.type.value for column in schema.writer_columns}
    order = {
        "ending": ending, "columns": columns, "ignored": list(SYSTEM_COLUMNS),
        "rows_max": min(record_count, LINES_MAX),
    }  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", str(PROGRAM), msgspec.json.encode(order).decode(),
        stdin=PIPE, stdout=PIPE, stderr=PIPE, env=_VARIABLES,
    )  # fmt: skip
    try:
        async with asyncio.timeout(DECODE_S):
            lines, reason, _ = await asyncio.gather(
                _read(process, max_bytes), _reason(process), _feed(process, content)
            )
            code = await process.wait()
    except TimeoutError:
        raise BatchInvalid(f"cannot be decoded within {DECODE_S:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if lines is None:
        raise BatchInvalid(f"decodes to more than {max_bytes} bytes: publish several batches")
    if code != 0:
        raise _error(code, reason)
    return lines


def _error(code: int, reason: bytes) -> BatchInvalid | Unavailable:
    try:
        found = msgspec.json.decode(reason, type=_Reason)
    except msgspec.DecodeError:  # it was killed, or killed itself
        return BatchInvalid("cannot be decoded: the file is damaged, or needs too much memory or time")
    if code == INVALID:
        return BatchInvalid(found.message, column=found.column)
    return Unavailable(f"this sink cannot decode it: {found.message}; install windlass-engine[arrow]")


async def _feed(process: Process, content: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(ConnectionError):  # it ended before it had read all: its exit code says why
        process.stdin.write(content)
        await process.stdin.drain()
    process.stdin.close()


async def _read(process: Process, max_bytes: int) -> bytes | None:
    """What a process writes; None if it is too much."""
    assert process.stdout is not None
    pieces: list[bytes] = []
    size = 0
    while piece := await process.stdout.read(PIECE_BYTES):
        size += len(piece)
        if size > max_bytes:
            process.kill()
            return None
        pieces.append(piece)
    return b"".join(pieces)


async def _reason(process: Process) -> bytes:
    """The end of what a process has to say. All of it is read, so that it does not wait for us."""
    assert process.stderr is not None
    tail = b""
    while piece := await process.stderr.read(PIECE_BYTES):
        tail = (tail + piece)[-REASON_MAX_BYTES:]
    return tail
