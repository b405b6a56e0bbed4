"""The API of dead letters: messages that no worker could handle, kept until a person replays or discards them."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from msgspec import Struct
from msgspec.structs import asdict

from windlass.api.framework import cursor
from windlass.api.framework.forms import Listed, Name, Nothing, Paged
from windlass.api.framework.route import Call, Table
from windlass.contracts.lease.wakeups.planner import DeadMessage, Wakeups
from windlass.core.access import Role

table = Table("letters")

SHOWN_MAX = 2000


class DeadLetterFilter(Paged, frozen=True, forbid_unknown_fields=True):
    """A page of dead letters, or of those of one queue."""

    queue: Name | None = None


class LetterForm(Struct, frozen=True, kw_only=True):
    """A dead letter. `task_id` is set if it was a wake-up; `body` is the beginning of the message."""

    id: UUID
    namespace: str
    queue: str
    message_id: str
    task_id: UUID | None
    body: str
    deliveries: int
    reason: str
    dead_at: datetime


@table.add("GET", "/api/v1/letters", Role.VIEWER)
async def list_letters(call: Call[DeadLetterFilter, None]) -> Listed[LetterForm]:
    """List dead letters, newest first."""
    query = call.query
    found = await call.engine.service(Wakeups).dead_messages(
        call.namespace(query.namespace), queue=query.queue, after=cursor.to_position(query.after), limit=query.limit + 1
    )
    page, more = cursor.page_of(found, query.limit, lambda message: (message.dead_at, message.id))
    return Listed([_form(message) for message in page], more)


@table.add("POST", "/api/v1/letters/{letter_id}/replay", Role.OPERATOR)
async def replay_letter(call: Call[None, Nothing]) -> LetterForm:
    """Send a message for its task again, if the task still waits, or for its batch, if it is not in its table. Delete
    the dead letter."""
    return _form(await call.engine.service(Wakeups).replay(await _reachable(call)))


@table.add("DELETE", "/api/v1/letters/{letter_id}", Role.OPERATOR)
async def discard_letter(call: Call[None, None]) -> LetterForm:
    """Delete a dead letter, unless a task still waits for its message."""
    return _form(await call.engine.service(Wakeups).discard(await _reachable(call)))


async def _reachable(call: Call[None, Nothing] | Call[None, None]) -> DeadMessage:
    message = await call.engine.service(Wakeups).dead_message(call.id("letter_id"))
    call.reach(message.namespace)
    return message


def _form(message: DeadMessage) -> LetterForm:
    body = message.body[:SHOWN_MAX].decode("utf-8", "replace")
    return LetterForm(**{**asdict(message), "body": body})
