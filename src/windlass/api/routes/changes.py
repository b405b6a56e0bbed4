"""The live feed as Server-Sent Events.

Every event carries its position as `id`, so that a reader that reconnects with `Last-Event-ID` misses nothing and
receives nothing twice. The reader pulls: the next page is read when the last one was sent, so that a slow reader
costs one position and no buffer. The server disconnects a reader that reads nothing. All readers share the pages that
were read and encoded for one of them. A sign of life also carries the position, so that a quiet reader does not fall
behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from windlass.api.framework.forms import Name
from windlass.api.framework.route import Call, Table
from windlass.core.access import Role
from windlass.engine.read.change_feed import Change, Piece, Position
from windlass.errors import Unavailable
from windlass.net.asgi import NO_STORE, Response, StreamingResponse

table = Table("changes")

POSITION_HEADER = "last-event-id"
KEEP_ALIVE_S = 15.0
MEDIA_TYPE = "text/event-stream"


class Feed(Struct, frozen=True, forbid_unknown_fields=True):
    """The namespace of the changes. Default: all namespaces that the key reaches."""

    namespace: Name | None = None


@table.add("GET", "/api/v1/changes", Role.VIEWER, headers=(POSITION_HEADER,), media=MEDIA_TYPE)
async def changes(call: Call[Feed, None]) -> Response:
    """Stream changes of tasks as Server-Sent Events of the type `change`, from now on or after `Last-Event-ID`. The
    answer is 410 if the events after that one are no longer kept."""
    named = call.query.namespace
    namespace = call.principal.namespace if named is None else call.namespace(named)
    position = await call.engine.changes.begin(call.header(POSITION_HEADER) or None)
    headers = (NO_STORE, (b"x-accel-buffering", b"no"))
    return StreamingResponse(_events(call, position, namespace), media=MEDIA_TYPE, headers=headers)


async def _events(call: Call[Feed, None], position: Position, namespace: str | None) -> AsyncGenerator[bytes, None]:
    """Yield events until the reader disconnects, its key is revoked, the server stops or the database fails."""
    feed = call.engine.changes
    yield _quiet(position)
    with feed.following():
        while not call.closing.is_set():
            try:
                generation = feed.generation
                piece, position = await feed.page(position, namespace)
                if piece is not None:
                    yield _frame(piece, namespace)
                    continue
                await _news(call, generation)
                if feed.generation == generation:
                    await feed.touch()
                    yield _quiet(position)
            except Unavailable:
                return


async def _news(call: Call[Feed, None], generation: int) -> None:
    """Wait until there may be changes, a sign of life is due, or the server stops."""
    news = asyncio.ensure_future(call.engine.changes.news(generation, KEEP_ALIVE_S))
    closing = asyncio.ensure_future(call.closing.wait())
    try:
        await asyncio.wait((news, closing), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for waiting in (news, closing):
            waiting.cancel()
        await asyncio.gather(news, closing, return_exceptions=True)


def _frame(piece: Piece, namespace: str | None) -> bytes:
    frame = piece.frames.get(namespace)
    if frame is None:
        frame = piece.frames[namespace] = b"".join(_event(change) for change in piece.of(namespace))
    return frame


def _event(change: Change) -> bytes:
    fields = asdict(change)
    position = fields.pop("position").encode()
    return b"event: change\nid: %s\ndata: %s\n\n" % (position, msgspec.json.encode(fields))


def _quiet(position: Position) -> bytes:
    """A sign of life: a comment without an event that advances the reader's position."""
    return b": here\nid: %s\n\n" % str(position).encode()
