"""Plain ASGI, for applications that stand on it without a framework: the body of a request, and an answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any

from windlass.wire.body import Gathering

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Header = tuple[bytes, bytes]

JSON: Header = (b"content-type", b"application/json")


class Gone(Exception):
    """The caller went while it was sending."""


async def body_of(headers: Mapping[bytes, bytes], receive: Receive, limit: int) -> bytes:
    """Raises TooLarge, Overloaded, Gone."""
    gathering = Gathering(headers.get(b"content-length", b"").decode("latin-1"), limit)
    await gathering.begin()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        await gathering.add(message.get("body", b""))
        if not message.get("more_body", False):
            return gathering.whole()


async def respond(send: Send, status: int, content: bytes, headers: Iterable[Header]) -> None:
    length = (b"content-length", str(len(content)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": content})


def encoded(headers: Mapping[str, str]) -> list[Header]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
