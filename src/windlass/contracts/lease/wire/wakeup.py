"""Wake-ups on the wire: the message itself, and the requests of workers about messages that PostgreSQL carries.

A message holds only the id of a task. Other fields of a message from another sender are ignored.
"""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import Meta

from windlass.errors import Malformed

BODY_MAX_BYTES = 256 * 1024  # the limit of carriers
WAIT_MAX_S = 60.0
RECEIVE_MAX = 100

PREFIX = "/internal/wakeups/"
ROUTE, RECEIVE, EXTEND, ACK, NACK, DEAD_LETTER, IDLE = (
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
    """The body of a wake-up."""
    return msgspec.json.encode({"task_id": task_id})


def task_of(body: bytes) -> UUID:
    """The task that a message names. Raises Malformed if it is not a wake-up."""
    if len(body) > BODY_MAX_BYTES:
        raise Malformed(f"a wake-up has at most {BODY_MAX_BYTES} bytes, not {len(body)}")
    try:
        return msgspec.json.decode(body, type=_TaskId).task_id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"this is not a wake-up: {error}") from None


class QueueRef(msgspec.Struct, frozen=True):
    """A queue by name."""

    queue: Name
    namespace: Name = "default"


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """How the wake-ups of a queue reach its workers. `address` is a NATS subject, or the URL or name of an SQS queue;
    it is empty for PostgreSQL. A message that was delivered more than `max_deliveries` times becomes a dead letter."""

    queue: str
    namespace: str
    carrier: str
    address: str
    visibility_s: float
    max_deliveries: int
    trusted: bool
    secrets: list[str]


class Receive(QueueRef, frozen=True):
    """Up to `limit` messages; waits for the first. Other workers do not get them for `visibility_s`."""

    limit: Count = 1
    wait_s: Wait = 0.0
    visibility_s: Visibility = 60.0


class Received(msgspec.Struct, frozen=True):
    """A message. `deliveries` includes this delivery. Requests about the message name both fields, so that a worker
    loses a message that was delivered again."""

    message_id: UUID
    deliveries: Deliveries
    body: str  # text, because a message from another sender may not be JSON


class Messages(msgspec.Struct, frozen=True):
    messages: list[Received]


class Held(msgspec.Struct, frozen=True):
    """A message that a worker received, and its delivery count."""

    message_id: UUID
    deliveries: Deliveries


class Extend(Held, frozen=True):
    """Keep the message from others for `visibility_s` from now on."""

    visibility_s: Visibility = 60.0


class Nack(Held, frozen=True):
    """Deliver the message again after `delay_s`."""

    delay_s: Delay = 0.0


class DeadLetter(QueueRef, frozen=True, kw_only=True):
    """A message of any carrier that no worker can handle. `message_id` is its id at the carrier."""

    message_id: Annotated[str, Meta(min_length=1, max_length=MESSAGE_ID_MAX)]
    body: Annotated[str, Meta(max_length=BODY_MAX_BYTES * 2)]  # base64, because it may be any bytes
    deliveries: Deliveries
    reason: str


class Kept(msgspec.Struct, frozen=True):
    """Whether the caller still had the message."""

    kept: bool
