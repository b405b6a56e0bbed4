"""Plain ASGI: reads the body of a request, writes an answer, and notices when the caller disconnects."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import AbstractContextManager, aclosing, nullcontext
from typing import Any, TypeVar

from windlass.errors import TooLarge
from windlass.net.memory import room_for

T = TypeVar("T")
Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Header = tuple[bytes, bytes]

UNDECLARED_STEP_BYTES = 64 * 1024  # the room that is taken at a time for a body without a declared length
JSON: Header = (b"content-type", b"application/json")
NO_STORE: Header = (b"cache-control", b"no-store")


class Disconnected(Exception):
    """The caller disconnected before its body was complete."""


async def body_of(headers: Mapping[bytes, bytes], receive: Receive, limit: int) -> bytes:
    """Read a body of at most `limit` bytes. Each part waits for room in memory first: see `net.memory`. Raises TooLarge
    (for a declared length before anything is read), Overloaded, Disconnected."""
    declared = headers.get(b"content-length", b"")
    room = int(declared[:20]) if declared.isdigit() else 0
    if room > limit:
        raise TooLarge(f"the body may have at most {limit} bytes", limit=limit)
    await room_for(room)
    # One part, the usual case, is kept as it is. More go into one buffer, so that a long body is in memory once.
    first, buffer, size, more = b"", None, 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        part, more = message.get("body", b""), message.get("more_body", False)
        size += len(part)
        if size > limit:
            raise TooLarge(f"the body may have at most {limit} bytes", limit=limit)
        if size > room:
            step = max(len(part), min(UNDECLARED_STEP_BYTES, limit - room))
            room += step
            await room_for(step)
        if buffer is not None:
            buffer.write(part)
        elif not first:
            first = part
        elif part:
            buffer, first = io.BytesIO(first), b""
            buffer.seek(0, io.SEEK_END)
            buffer.write(part)
    return first if buffer is None else buffer.getvalue()


async def pieces_of(receive: Receive) -> AsyncGenerator[bytes, None]:
    """The body of a request piece by piece, for bodies of any length. Raises Disconnected."""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        if piece := message.get("body", b""):
            yield piece
        more = message.get("more_body", False)


async def respond(send: Send, status: int, content: bytes, headers: Iterable[Header]) -> None:
    length = (b"content-length", str(len(content)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": content})


def encoded(headers: Mapping[str, str]) -> list[Header]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]


class Response:
    """An answer of a handler that chooses its status, headers or media type."""

    def __init__(
        self, content: bytes = b"", status: int = 200, media: str = "application/json", headers: Iterable[Header] = ()
    ) -> None:
        self.content, self.status = content, status
        self.headers: list[Header] = [(b"content-type", media.encode()), *headers]
        self.watch: Callable[[], AbstractContextManager[None]] = nullcontext  # entered while the answer is sent

    async def send(self, _receive: Receive, send: Send) -> None:
        await respond(send, self.status, self.content, self.headers)


class StreamingResponse(Response):
    """An answer that is sent piece by piece, until it ends or the caller disconnects."""

    def __init__(
        self,
        pieces: AsyncGenerator[bytes, None],
        status: int = 200,
        media: str = "application/json",
        headers: Iterable[Header] = (),
    ) -> None:
        super().__init__(b"", status, media, headers)
        self._pieces = pieces

    async def send(self, receive: Receive, send: Send) -> None:
        async def send_pieces() -> None:
            async with aclosing(self._pieces) as pieces:
                async for piece in pieces:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        await while_connected(send_pieces(), receive)


async def while_connected(work: Awaitable[T], receive: Receive, closing: asyncio.Event | None = None) -> T | None:
    """The result of `work`, or None, with `work` cancelled, once the caller disconnects or the server closes."""
    working = asyncio.ensure_future(work)
    waiting: list[asyncio.Future[Any]] = [working, asyncio.ensure_future(disconnected(receive))]
    if closing is not None:
        waiting.append(asyncio.ensure_future(closing.wait()))
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def disconnected(receive: Receive) -> None:
    """Returns when the caller has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
