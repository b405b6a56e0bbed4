"""The live feed as Server-Sent Events.

Every event carries its position as `id`, so that a reader that comes back with `Last-Event-ID` misses nothing and hears
nothing twice. The reader pulls: the next page is taken when the last one has been sent, so that a slow reader costs one
position and no buffer; one that reads nothing is cut off by the server. All readers share what was read for one of
them, and what was written. A sign of life carries the position as well, so that a quiet reader does not fall behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from uuid import UUID

import msgspec
from msgspec import Struct
from starlette.responses import Response, StreamingResponse

from windlass.core.access import Role
from windlass.core.error import Unavailable
from windlass.core.transition import State
from windlass.engine.change import Change, Piece, Position
from windlass.http.form import Name
from windlass.http.route import Call, Table

table = Table("changes")

POSITION_HEADER = "last-event-id"
SIGN_OF_LIFE_S = 15.0
MEDIA_TYPE = "text/event-stream"


class Feed(Struct, frozen=True, forbid_unknown_fields=True):
    """Changes in one namespace; without it, in all that the key reaches."""

    namespace: Name | None = None


class ChangeForm(Struct, frozen=True):
    """A task came into a state."""

    task_id: UUID
    namespace: str
    queue: str
    kind: str
    state: State
    attempt: int
    at: datetime


@table.add("GET", "/api/v1/changes", Role.VIEWER, headers=(POSITION_HEADER,), media=MEDIA_TYPE)
async def changes(call: Call[Feed, None]) -> Response:
    """What happens to tasks, from now on or after `Last-Event-ID`, as Server-Sent Events of the type `change`. 410 if
    what followed that event is no longer kept."""
    given = call.query.namespace
    namespace = call.principal.namespace if given is None else call.namespace(given)
    position = await call.engine.changes.begin(call.headers.get(POSITION_HEADER) or None)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_events(call, position, namespace), headers=headers, media_type=MEDIA_TYPE)


async def _events(call: Call[Feed, None], position: Position, namespace: str | None) -> AsyncIterator[bytes]:
    """Until the reader goes, its key is revoked, the server ends or the database is away: the reader comes back."""
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
    """Something may have happened, or it is time for a sign of life, or the server ends."""
    news = asyncio.ensure_future(call.engine.changes.news(generation, SIGN_OF_LIFE_S))
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
    form = ChangeForm(
        change.task_id, change.namespace, change.queue, change.kind, change.state, change.attempt, change.at
    )
    return b"event: change\nid: %s\ndata: %s\n\n" % (change.position.encode(), msgspec.json.encode(form))


def _quiet(position: Position) -> bytes:
    """A sign of life: no event, but the position moves on."""
    return b": here\nid: %s\n\n" % str(position).encode()
