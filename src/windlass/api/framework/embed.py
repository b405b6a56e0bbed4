"""Answers that refer to stored objects: each reference is replaced by the text of its object, as a stream.

A reference begins with `@`, which JSON has only inside strings, and contains an unescaped quotation mark, which no
string contains. So it can be found in any encoded answer.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator

from windlass.core.payload_reference import MARK
from windlass.engine.payloads.blob_port import Blob
from windlass.engine.payloads.objects import Objects
from windlass.errors import NotFound
from windlass.net.asgi import NO_STORE, Response, StreamingResponse

REFERENCE_START = MARK + b'{"key":"'
_REFERENCE = re.compile(rb'@\{"key":"[^"\\]*","size":\d+,"sha256":"[0-9a-f]*"\}')


async def embedded(content: bytes, objects: Objects, status: int, *, head: bool) -> Response:
    """Returns the answer with the objects in place of their references. A deleted object becomes null. Raises
    Unavailable."""
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
    headers = (NO_STORE, (b"content-length", b"%d" % length))
    return StreamingResponse(_nothing() if head else _pieces(parts), status, headers=headers)


async def _nothing() -> AsyncGenerator[bytes, None]:
    return
    yield


async def _pieces(parts: list[bytes | Blob]) -> AsyncGenerator[bytes, None]:
    for part in parts:
        if isinstance(part, bytes):
            yield part
        else:
            async for piece in part.pieces:
                yield piece
