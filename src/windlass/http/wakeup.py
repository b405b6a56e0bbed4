"""Dead letters: messages to workers that nobody could do anything with, kept until a person has looked at them."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from msgspec import Struct

from windlass.core.access import Role
from windlass.engine.wakeup import DeadMessage
from windlass.http import cursor
from windlass.http.form import Listed, Name, Nothing, Paged
from windlass.http.route import Call, Table

table = Table("letters")

SHOWN_MAX = 2000


class LetterFilter(Paged, frozen=True, forbid_unknown_fields=True):
    """Of one queue only."""

    queue: Name | None = None


class LetterForm(Struct, frozen=True, kw_only=True):
    """A message that was given up. `task_id` if it was a wake-up; `body` is its beginning."""

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
async def list_letters(call: Call[LetterFilter, None]) -> Listed[LetterForm]:
    """Messages that were given up, newest first."""
    query = call.query
    found = await call.engine.wakeups.dead_messages(
        call.namespace(query.namespace), queue=query.queue, after=cursor.to_position(query.after), limit=query.limit + 1
    )
    page, more = cursor.page_of(found, query.limit, lambda letter: (letter.dead_at, letter.id))
    return Listed([_form(one) for one in page], more)


@table.add("POST", "/api/v1/letters/{letter_id}/replay", Role.OPERATOR)
async def replay_letter(call: Call[None, Nothing]) -> LetterForm:
    """Wake a worker for its task again, if that still waits; the letter is kept no longer."""
    return _form(await call.engine.wakeups.replay(await _seen(call)))


@table.add("DELETE", "/api/v1/letters/{letter_id}", Role.OPERATOR)
async def discard_letter(call: Call[None, None]) -> LetterForm:
    """Throw it away, unless a task still waits for it."""
    return _form(await call.engine.wakeups.discard(await _seen(call)))


async def _seen(call: Call[None, Nothing] | Call[None, None]) -> DeadMessage:
    letter = await call.engine.wakeups.dead_message(call.id("letter_id"))
    call.reach(letter.namespace)
    return letter


def _form(letter: DeadMessage) -> LetterForm:
    return LetterForm(
        id=letter.id, namespace=letter.namespace, queue=letter.queue, message_id=letter.message_id,
        task_id=letter.task_id, body=letter.body[:SHOWN_MAX].decode("utf-8", "replace"), deliveries=letter.deliveries,
        reason=letter.reason, dead_at=letter.dead_at,
    )  # fmt: skip
