"""Wake-ups that PostgreSQL carries, for workers without a database: over `/internal`, with the worker's certificate.

Also the calls that workers of every carrier make: the route of a queue, dead letters, and the report of an idle worker.
"""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from typing import TypeVar

import msgspec

from windlass.contracts.lease.wakeups.carriers.port import Call, CarrierUnavailable, Message
from windlass.contracts.lease.wire import wakeup as wire
from windlass.errors import ContractViolation, Invalid, NotFound

ANSWER_S = 30.0

T = TypeVar("T")


async def fetch_route(call: Call, queue: str, namespace: str = "default") -> wire.Route:
    """How the wake-ups of a queue reach its workers. Raises NotFound for a queue without wake-ups."""
    return await fetch(call, wire.ROUTE, wire.QueueRef(queue, namespace), wire.Route)


async def fetch(call: Call, path: str, request: object, answer: type[T], timeout_s: float = ANSWER_S) -> T:
    """Send one request to a server and decode its answer."""
    status, body = await call(path, msgspec.json.encode(request), timeout_s)
    if status == 200:
        try:
            return msgspec.json.decode(body, type=answer)
        except msgspec.DecodeError as error:
            raise ContractViolation(f"the answer to {path} cannot be read: {error}") from None
    try:
        reason = str(msgspec.json.decode(body)["message"])
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
        reason = body[:300].decode("utf-8", "replace")
    if status == 404:
        raise NotFound(reason)
    if status in (408, 429) or status >= 500:
        raise CarrierUnavailable(f"{path} was answered with {status}: {reason}")
    raise Invalid(f"{path} was answered with {status}: {reason}")


class ServerCalls(ABC):
    """The part of a `port.Consumer` that is the same for all carriers: what it reports to a server."""

    def __init__(self, route: wire.Route, call: Call) -> None:
        self._route, self._call = route, call
        self.visibility_s, self.max_deliveries = route.visibility_s, route.max_deliveries

    @abstractmethod
    async def ack(self, message: Message) -> None: ...

    async def report_idle(self) -> None:
        await fetch(self._call, wire.IDLE, wire.QueueRef(self._route.queue, self._route.namespace), wire.Kept)

    async def dead_letter(self, message: Message, reason: str) -> None:
        request = wire.DeadLetter(
            self._route.queue, self._route.namespace, message_id=message.id[: wire.MESSAGE_ID_MAX],
            body=base64.b64encode(message.body[: wire.BODY_MAX_BYTES]).decode(), deliveries=message.deliveries,
            reason=reason[:2000],
        )  # fmt: skip
        await fetch(self._call, wire.DEAD_LETTER, request, wire.Kept)
        await self.ack(message)


class InternalConsumer(ServerCalls):
    """See `port.Consumer`."""

    async def receive(self, limit: int, wait_s: float) -> list[Message]:
        wait_s = min(wait_s, wire.WAIT_MAX_S)
        request = wire.Receive(
            self._route.queue, self._route.namespace, limit=min(limit, wire.RECEIVE_MAX), wait_s=wait_s,
            visibility_s=self.visibility_s,
        )  # fmt: skip
        answer = await fetch(self._call, wire.RECEIVE, request, wire.Messages, wait_s + ANSWER_S)
        return [Message(str(m.message_id), m.body.encode(), m.deliveries, m.message_id) for m in answer.messages]

    async def report_idle(self) -> None:
        """Nothing to do: the server that answered `receive` notices it."""

    async def extend(self, message: Message) -> bool:
        request = wire.Extend(message.receipt, message.deliveries, self.visibility_s)
        return (await fetch(self._call, wire.EXTEND, request, wire.Kept)).kept

    async def ack(self, message: Message) -> None:
        await fetch(self._call, wire.ACK, wire.Held(message.receipt, message.deliveries), wire.Kept)

    async def nack(self, message: Message, delay_s: float = 0.0) -> None:
        await fetch(self._call, wire.NACK, wire.Nack(message.receipt, message.deliveries, delay_s), wire.Kept)

    async def close(self) -> None:
        pass
