"""Wake-ups over `/internal`, beside the routes of the document: workers have no database, and PostgreSQL carries their
messages unless another carrier was named. Who asks was checked before."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeVar

import msgspec

from windlass.core.check import check_name, check_text
from windlass.core.delivery import Wakeup
from windlass.core.error import Forbidden, Invalid, Malformed, NotFound
from windlass.core.holder import Caller
from windlass.engine.engine import Engine
from windlass.wire import wakeup as wire
from windlass.wire.decode import decoded

T = TypeVar("T")
NO_MESSAGES = wire.Messages([])


class WakeupRoutes:
    """What workers ask about their messages. Each takes the body of a POST and who sent it, and returns what is told,
    or raises one of our own errors."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.posts: dict[str, Callable[[bytes, Caller], Awaitable[object]]] = {
            wire.ROUTE: self._route,
            wire.RECEIVE: self._receive,
            wire.EXTEND: self._extend,
            wire.ACK: self._ack,
            wire.NACK: self._nack,
            wire.BURY: self._bury,
            wire.UNHEARD: self._unheard,
        }

    async def _route(self, body: bytes, caller: Caller) -> wire.Route:
        said = _named(_read(body, wire.Where), caller)
        wakeup = await self._engine.queues.delivery(said.queue, Wakeup, namespace=said.namespace)
        if wakeup is None:
            raise NotFound(f"the queue {said.queue} in {said.namespace} sends no wake-ups")
        return wire.Route(
            queue=said.queue, namespace=said.namespace, carrier=wakeup.carrier,
            address=wakeup.address_of(said.namespace, said.queue), visibility_s=wakeup.visibility_ms / 1000,
            max_deliveries=wakeup.max_deliveries, trusted=wakeup.trusted, secrets=list(wakeup.secrets),
        )  # fmt: skip

    async def _receive(self, body: bytes, caller: Caller) -> wire.Messages:
        said = _named(_read(body, wire.Receive), caller)
        if said.wait_s > 0:
            await self._engine.hear()
        found = await self._engine.messages.receive(
            said.namespace, said.queue, limit=said.limit, visibility_s=said.visibility_s, wait_s=said.wait_s
        )
        if not found and said.wait_s > 0:
            await self._engine.wakeups.unheard(said.namespace, said.queue)
        return wire.Messages(
            [wire.Received(one.id, one.deliveries, one.body.decode("utf-8", "replace")) for one in found]
        )

    async def _unheard(self, body: bytes, caller: Caller) -> wire.Kept:
        """Of a carrier that workers talk to by themselves: nothing came."""
        said = _named(_read(body, wire.Where), caller)
        await self._engine.wakeups.unheard(said.namespace, said.queue)
        return wire.Kept(True)

    async def _extend(self, body: bytes, caller: Caller) -> wire.Kept:
        said = _read(body, wire.Extend)
        if not await self._reaches(said, caller):
            return wire.Kept(False)
        return wire.Kept(await self._engine.messages.extend(said.message_id, said.deliveries, said.visibility_s))

    async def _ack(self, body: bytes, caller: Caller) -> wire.Kept:
        said = _read(body, wire.Held)
        if not await self._reaches(said, caller):
            return wire.Kept(False)
        return wire.Kept(await self._engine.messages.ack(said.message_id, said.deliveries))

    async def _nack(self, body: bytes, caller: Caller) -> wire.Kept:
        said = _read(body, wire.Nack)
        if not await self._reaches(said, caller):
            return wire.Kept(False)
        return wire.Kept(await self._engine.messages.nack(said.message_id, said.deliveries, said.delay_s))

    async def _reaches(self, held: wire.Held, caller: Caller) -> bool:
        """A message is named by an id that can be derived: whoever may not hear of its task has not received it."""
        if caller.namespaces is None:
            return True
        namespace = await self._engine.messages.namespace_of(held.message_id)
        return namespace is None or caller.reaches(namespace)

    async def _bury(self, body: bytes, caller: Caller) -> wire.Kept:
        said = _named(_read(body, wire.Bury), caller)
        check_text("message_id", said.message_id, wire.MESSAGE_ID_MAX)
        try:
            content = base64.b64decode(said.body, validate=True)
        except ValueError:
            raise Invalid("must be base64", field="body") from None
        if said.queue not in await self._engine.queues.settings(said.namespace, [said.queue]):
            raise NotFound(f"there is no queue {said.queue} in {said.namespace}")
        try:
            task_id = wire.task_of(content)
        except Malformed:
            task_id = None
        await self._engine.wakeups.bury(
            said.namespace, said.queue, message_id=said.message_id, task_id=task_id, body=content,
            deliveries=said.deliveries, reason=said.reason,
        )  # fmt: skip
        return wire.Kept(True)


async def while_there(
    poll: Awaitable[T], receive: Callable[[], Awaitable[MutableMapping[str, Any]]], closing: asyncio.Event
) -> T | None:
    """What a long poll tells; None, and nothing more is looked for, once its caller has gone or the server ends: what
    it found then would be kept from all others for a while."""
    polling = asyncio.ensure_future(poll)
    gone, ends = asyncio.ensure_future(_gone(receive)), asyncio.ensure_future(closing.wait())
    everything: tuple[asyncio.Future[Any], ...] = (polling, gone, ends)
    try:
        await asyncio.wait(everything, return_when=asyncio.FIRST_COMPLETED)
        return polling.result() if polling.done() else None
    finally:
        for one in everything:
            one.cancel()
        await asyncio.gather(*everything, return_exceptions=True)


async def _gone(receive: Callable[[], Awaitable[MutableMapping[str, Any]]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


W = TypeVar("W", bound=wire.Where)


def _named(said: W, caller: Caller) -> W:
    check_name("queue", said.queue)
    check_name("namespace", said.namespace)
    if not caller.reaches(said.namespace):
        raise Forbidden("the certificate is bound to other namespaces", field="namespace")
    return said


def _read(body: bytes, kind: type[T]) -> T:
    return decoded(msgspec.json.Decoder(kind), body)
