"""Bodies of requests, read up to a limit and no further, whoever serves them; one that is too long is not kept."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from windlass.core.error import TooLarge

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class Gone(Exception):
    """The caller went while it was sending."""


async def body_of(headers: Mapping[bytes, bytes], receive: Receive, limit: int) -> bytes:
    """As ASGI tells of it. Mostly one part; a heartbeat is worth saving a generator."""
    check_declared(headers.get(b"content-length", b"").decode("latin-1"), limit)
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise too_large(limit)
        if not message.get("more_body", False):
            return b"".join(parts)


async def gathered(declared: str, stream: AsyncIterable[bytes], limit: int) -> bytes:
    """As a stream tells of it. `declared` is what the header says of its length."""
    check_declared(declared, limit)
    parts, size = [], 0
    async for part in stream:
        parts.append(part)
        size += len(part)
        if size > limit:
            raise too_large(limit)
    return b"".join(parts)


def check_declared(length: str, limit: int) -> None:
    if length.isdecimal() and int(length[:20]) > limit:
        raise too_large(limit)


def too_large(limit: int) -> TooLarge:
    return TooLarge(f"the body may have at most {limit} bytes", limit=limit)
