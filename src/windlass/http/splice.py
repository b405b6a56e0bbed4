"""Answers that hold what is kept as an object: its text is put where the reference stands, and is streamed there.

A reference begins with `@`, which no JSON does outside of a string, and goes on with a bare quotation mark, which no
string holds: it can be found in an encoded answer, whatever else is in it.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

from starlette.responses import Response, StreamingResponse

from windlass.core.error import NotFound
from windlass.core.reference import MARK
from windlass.engine.blob import Blob
from windlass.engine.objects import Objects

SIGN = MARK + b'{"key":"'
_REFERENCE = re.compile(rb'@\{"key":"[^"\\]*","size":\d+,"sha256":"[0-9a-f]*"\}')


async def spliced(content: bytes, objects: Objects, status: int, headers: dict[str, str], *, head: bool) -> Response:
    """The answer with the objects in their places. One that is gone is null; while the store is away there is none."""
    parts: list[bytes | Blob] = []
    end = 0
    for found in _REFERENCE.finditer(content):
        parts.append(content[end : found.start()])
        try:
            parts.append(await objects.open(found[0]))
        except NotFound:
            parts.append(b"null")
        end = found.end()
    parts.append(content[end:])
    length = sum(len(part) if isinstance(part, bytes) else part.length for part in parts)
    told = {**headers, "Content-Length": str(length)}
    if head:
        return Response(None, status, told, "application/json")
    return StreamingResponse(_stream(parts), status, told, "application/json")


async def _stream(parts: list[bytes | Blob]) -> AsyncIterator[bytes]:
    for part in parts:
        if isinstance(part, bytes):
            yield part
        else:
            async for piece in part.pieces:
                yield piece
