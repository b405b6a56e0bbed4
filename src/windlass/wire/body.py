"""Bodies of requests, read up to a limit and no further, whoever serves them; one that is too long is not kept."""

from __future__ import annotations

from collections.abc import AsyncIterable

from windlass.core.error import TooLarge


async def gathered(declared: str, stream: AsyncIterable[bytes], limit: int) -> bytes:
    """All of a stream. `declared` is what the header says of its length."""
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
