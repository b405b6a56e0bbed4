"""Wake-ups as they cross a process border: the message itself, and what a worker that has no database says to a server
about the messages that PostgreSQL carries.

The message holds nothing but the id of a task. Every other field of one that comes from elsewhere is ignored.
"""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import Meta

from windlass.core.error import Malformed

BODY_MAX_BYTES = 256 * 1024  # what carriers take; nothing longer is a wake-up
WAIT_MAX_S = 60.0
RECEIVE_MAX = 100

PREFIX = "/internal/wakeups/"
ROUTE, RECEIVE, EXTEND, ACK, NACK, BURY, UNHEARD = (
    PREFIX + name for name in ("route", "receive", "extend", "ack", "nack", "bury", "unheard")
)

MESSAGE_ID_MAX = 500
Name = Annotated[str, Meta(min_length=1, max_length=200)]
Count = Annotated[int, Meta(ge=1, le=RECEIVE_MAX)]
Wait = Annotated[float, Meta(ge=0, le=WAIT_MAX_S)]
Deliveries = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Delay = Annotated[float, Meta(ge=0, le=43_200)]
Visibility = Annotated[float, Meta(ge=1, le=43_200)]


class _TaskId(msgspec.Struct):
    task_id: UUID


def message_of(task_id: UUID) -> bytes:
    """The whole of a wake-up."""
    return msgspec.json.encode({"task_id": task_id})


def task_of(body: bytes) -> UUID:
    """Which task a message is about. Raises Malformed for what is no wake-up."""
    if len(body) > BODY_MAX_BYTES:
        raise Malformed(f"a wake-up has at most {BODY_MAX_BYTES} bytes, not {len(body)}")
    try:
        return msgspec.json.decode(body, type=_TaskId).task_id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"this is no wake-up: {error}") from None


class Where(msgspec.Struct, frozen=True):
    """The queue whose wake-ups are meant."""

    queue: Name
    namespace: Name = "default"


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """How the wake-ups of a queue reach its workers. `address` is the carrier's own: a subject, the URL or the name of
    a queue; empty for PostgreSQL. A message that was delivered more than `max_deliveries` times is to be buried."""

    queue: str
    namespace: str
    carrier: str
    address: str
    visibility_s: float
    max_deliveries: int
    trusted: bool
    secrets: list[str]


class Receive(Where, frozen=True):
    """Up to `limit` messages; with none at hand, wait for the first. Nobody else gets them for `visibility_s`."""

    limit: Count = 1
    wait_s: Wait = 0.0
    visibility_s: Visibility = 60.0


class Received(msgspec.Struct, frozen=True):
    """`deliveries` counts this one. Whoever names a message names both: one that was delivered again is not his."""

    message_id: UUID
    deliveries: Deliveries
    body: str  # as text: what somebody else put there may be anything


class Messages(msgspec.Struct, frozen=True):
    messages: list[Received]


class Held(msgspec.Struct, frozen=True):
    """A message that somebody received, and how often it had been delivered then."""

    message_id: UUID
    deliveries: Deliveries


class Extend(Held, frozen=True):
    """To be kept from others for so long from now on."""

    visibility_s: Visibility = 60.0


class Nack(Held, frozen=True):
    """To be delivered again, after a while."""

    delay_s: Delay = 0.0


class Bury(Where, frozen=True, kw_only=True):
    """A message of any carrier that nobody can do anything with. `message_id` is the carrier's."""

    message_id: Annotated[str, Meta(min_length=1, max_length=MESSAGE_ID_MAX)]
    body: Annotated[str, Meta(max_length=BODY_MAX_BYTES * 2)]  # base64, since it may be anything
    deliveries: Deliveries
    reason: str


class Kept(msgspec.Struct, frozen=True):
    """Whether the message was still the caller's."""

    kept: bool
