"""The routes `/internal/wakeups/*`, an addition to the lease protocol: workers have no database and receive messages
here.

Callers are authenticated before; these routes check the namespaces of a caller.
"""

from __future__ import annotations

import base64
from typing import TypeVar

import msgspec

from windlass.contracts.lease.delivery import Wakeup
from windlass.contracts.lease.rules import Caller
from windlass.contracts.lease.wakeups.messages import Messages
from windlass.contracts.lease.wakeups.planner import Wakeups
from windlass.contracts.lease.wire import wakeup as wire
from windlass.core.validation import check_name, check_text
from windlass.engine.engine import Engine
from windlass.errors import Forbidden, Invalid, Malformed, NotFound
from windlass.net.decode import decoded

T = TypeVar("T")
H = TypeVar("H", bound=wire.Held)
W = TypeVar("W", bound=wire.QueueRef)
NO_MESSAGES = wire.Messages([])


class WakeupRoutes:
    """The handlers of these routes. Each takes the body of a POST and the caller, and returns the answer or raises a
    WindlassError."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def route(self, body: bytes, caller: Caller) -> wire.Route:
        request = _named(_read(body, wire.QueueRef), caller)
        wakeup = await self._engine.queues.delivery(request.queue, Wakeup, namespace=request.namespace)
        if wakeup is None:
            raise NotFound(f"the queue {request.queue} in {request.namespace} sends no wake-ups")
        return wire.Route(
            queue=request.queue, namespace=request.namespace, carrier=wakeup.carrier,
            address=wakeup.address_of(request.namespace, request.queue), visibility_s=wakeup.visibility_ms / 1000,
            max_deliveries=wakeup.max_deliveries, trusted=wakeup.trusted, secrets=list(wakeup.secrets),
        )  # fmt: skip

    async def receive(self, body: bytes, caller: Caller) -> wire.Messages:
        request = _named(_read(body, wire.Receive), caller)
        if request.wait_s > 0:
            await self._engine.listen()
        found = await self._engine.service(Messages).receive(
            request.namespace, request.queue, limit=request.limit, visibility_s=request.visibility_s,
            wait_s=request.wait_s,
        )  # fmt: skip
        if not found and request.wait_s > 0:
            await self._engine.service(Wakeups).report_idle(request.namespace, request.queue)
        return wire.Messages([wire.Received(m.id, m.deliveries, m.body.decode("utf-8", "replace")) for m in found])

    async def report_idle(self, body: bytes, caller: Caller) -> wire.Kept:
        """A worker of another carrier received nothing."""
        request = _named(_read(body, wire.QueueRef), caller)
        await self._engine.service(Wakeups).report_idle(request.namespace, request.queue)
        return wire.Kept(True)

    async def extend(self, body: bytes, caller: Caller) -> wire.Kept:
        held = await self._held(body, wire.Extend, caller)
        return wire.Kept(
            held is not None
            and await self._engine.service(Messages).extend(held.message_id, held.deliveries, held.visibility_s)
        )

    async def ack(self, body: bytes, caller: Caller) -> wire.Kept:
        held = await self._held(body, wire.Held, caller)
        return wire.Kept(
            held is not None and await self._engine.service(Messages).ack(held.message_id, held.deliveries)
        )

    async def nack(self, body: bytes, caller: Caller) -> wire.Kept:
        held = await self._held(body, wire.Nack, caller)
        return wire.Kept(
            held is not None
            and await self._engine.service(Messages).nack(held.message_id, held.deliveries, held.delay_s)
        )

    async def _held(self, body: bytes, kind: type[H], caller: Caller) -> H | None:
        """The request about a message; None if the caller may not reach the namespace of the message. Message ids can
        be derived, so the id proves nothing."""
        held = _read(body, kind)
        if caller.namespaces is None:
            return held
        namespace = await self._engine.service(Messages).namespace_of(held.message_id)
        return held if namespace is None or caller.reaches(namespace) else None

    async def dead_letter(self, body: bytes, caller: Caller) -> wire.Kept:
        request = _named(_read(body, wire.DeadLetter), caller)
        check_text("message_id", request.message_id, wire.MESSAGE_ID_MAX)
        try:
            content = base64.b64decode(request.body, validate=True)
        except ValueError:
            raise Invalid("must be base64", field="body") from None
        if request.queue not in await self._engine.queues.settings(request.namespace, [request.queue]):
            raise NotFound(f"there is no queue {request.queue} in {request.namespace}")
        try:
            task_id = wire.task_of(content)
        except Malformed:
            task_id = None
        await self._engine.service(Wakeups).dead_letter(
            request.namespace, request.queue, message_id=request.message_id, task_id=task_id, body=content,
            deliveries=request.deliveries, reason=request.reason,
        )  # fmt: skip
        return wire.Kept(True)


def _named(request: W, caller: Caller) -> W:
    check_name("queue", request.queue)
    check_name("namespace", request.namespace)
    if not caller.reaches(request.namespace):
        raise Forbidden("the certificate is bound to other namespaces", field="namespace")
    return request


def _read(body: bytes, kind: type[T]) -> T:
    return decoded(msgspec.json.Decoder(kind), body)
