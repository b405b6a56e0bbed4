"""Wake-ups that PostgreSQL carries, for a worker that has no database: over `/internal`, with its certificate.

Here is also how a worker finds out which carrier its queue has, and how a message of any carrier is buried.
"""

from __future__ import annotations

import base64
from typing import TypeVar
from uuid import UUID

import msgspec

from windlass.core.error import ContractViolation, Invalid, NotFound
from windlass.queues.port import Call, CarrierAway, Message
from windlass.wire import wakeup as wire

ANSWER_S = 30.0

T = TypeVar("T")


async def ask_route(call: Call, queue: str, namespace: str = "default") -> wire.Route:
    """How the wake-ups of a queue reach its workers. Raises NotFound for a queue that has none."""
    return await ask(call, wire.ROUTE, wire.Where(queue, namespace), wire.Route)


async def bury(call: Call, route: wire.Route, message: Message, reason: str) -> None:
    """Let a server keep a message where people see it."""
    body = base64.b64encode(message.body[: wire.BODY_MAX_BYTES]).decode()
    said = wire.Bury(
        route.queue, route.namespace, message_id=message.id[:500], body=body, deliveries=message.deliveries,
        reason=reason[:2000],
    )  # fmt: skip
    await ask(call, wire.BURY, said, wire.Kept)


async def unheard(call: Call, route: wire.Route) -> None:
    """Tell a server that we waited for messages and got none, so that it sends again what should have come."""
    await ask(call, wire.UNHEARD, wire.Where(route.queue, route.namespace), wire.Kept)


async def ask(call: Call, path: str, said: object, answer: type[T], timeout_s: float = ANSWER_S) -> T:
    """One question to a server."""
    status, body = await call(path, msgspec.json.encode(said), timeout_s)
    if status == 200:
        try:
            return msgspec.json.decode(body, type=answer)
        except msgspec.DecodeError as error:
            raise ContractViolation(f"the answer to {path} cannot be read: {error}") from None
    told = _sentence(body)
    if status == 404:
        raise NotFound(told)
    if status in (408, 429) or status >= 500:
        raise CarrierAway(f"{path} was answered with {status}: {told}")
    raise Invalid(f"{path} was answered with {status}: {told}")


def _sentence(body: bytes) -> str:
    """What a person can read of a refusal."""
    try:
        return str(msgspec.json.decode(body)["message"])
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
        return body[:300].decode("utf-8", "replace")


class InternalConsumer:
    """See `port.Consumer`."""

    def __init__(self, route: wire.Route, call: Call) -> None:
        self._route, self._call = route, call
        self.visibility_s, self.max_deliveries = route.visibility_s, route.max_deliveries

    async def receive(self, limit: int, wait_s: float) -> list[Message]:
        wait_s = min(wait_s, wire.WAIT_MAX_S)
        said = wire.Receive(
            self._route.queue, self._route.namespace, limit=min(limit, wire.RECEIVE_MAX), wait_s=wait_s,
            visibility_s=self.visibility_s,
        )  # fmt: skip
        got = await ask(self._call, wire.RECEIVE, said, wire.Messages, wait_s + ANSWER_S)
        return [
            Message(str(one.message_id), one.body.encode(), one.deliveries, wire.Held(one.message_id, one.deliveries))
            for one in got.messages
        ]

    async def unheard(self) -> None:
        """The server that we asked has seen it."""

    async def extend(self, message: Message) -> bool:
        id_, deliveries = _held(message)
        return (await ask(self._call, wire.EXTEND, wire.Extend(id_, deliveries, self.visibility_s), wire.Kept)).kept

    async def ack(self, message: Message) -> None:
        await ask(self._call, wire.ACK, wire.Held(*_held(message)), wire.Kept)

    async def nack(self, message: Message, delay_s: float = 0.0) -> None:
        await ask(self._call, wire.NACK, wire.Nack(*_held(message), delay_s), wire.Kept)

    async def bury(self, message: Message, reason: str) -> None:
        await bury(self._call, self._route, message, reason)
        await self.ack(message)

    async def close(self) -> None:
        pass


def _held(message: Message) -> tuple[UUID, int]:
    receipt = message.receipt
    assert isinstance(receipt, wire.Held), message
    return receipt.message_id, receipt.deliveries
