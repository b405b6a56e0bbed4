"""What a test can do to a carrier that engine and workers cannot: lose messages, put others there, cut its wire."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol
from uuid import uuid4

import asyncpg
import msgspec
import nats
from tests.kit.gate import Gate

from windlass.contracts.lease.rules import Caller
from windlass.contracts.lease.server.wakeups import WakeupRoutes
from windlass.contracts.lease.wakeups.carriers.aws import AwsClient
from windlass.contracts.lease.wakeups.carriers.options import NO_CARRIERS, CarrierOptions
from windlass.contracts.lease.wakeups.messages import put_messages
from windlass.contracts.lease.wakeups.rules import WakeupMessage
from windlass.contracts.lease.wire import wakeup as wire
from windlass.contracts.lease.wire.wakeup import Route, message_of
from windlass.engine.engine import Engine
from windlass.errors import Invalid, NotFound, Unavailable, WindlassError
from windlass.testing.clock import VirtualClock

CALLER = Caller("CN=wrapper", "00")


class Internal:
    """`/internal` of a server, without the server: what it answers, and whether it does."""

    def __init__(self, engine: Engine) -> None:
        routes, self.away = WakeupRoutes(engine), False
        self._posts = {
            wire.ROUTE: routes.route, wire.RECEIVE: routes.receive, wire.EXTEND: routes.extend, wire.ACK: routes.ack,
            wire.NACK: routes.nack, wire.DEAD_LETTER: routes.dead_letter, wire.IDLE: routes.report_idle,
        }  # fmt: skip

    async def __call__(self, path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        if self.away:
            raise Unavailable("nobody answers")
        try:
            return 200, msgspec.json.encode(await self._posts[path](body, CALLER))
        except WindlassError as error:
            status = {Invalid: 400, NotFound: 404}.get(type(error), 503)
            return status, error.message.encode()


class Sender:
    """A carrier whose messages are received like those of PostgreSQL. It knows a message that is sent twice by its
    effect, as NATS does."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def send(self, messages: Sequence[WakeupMessage]) -> None:
        async with self._engine.store.begin() as tx:
            for message in messages:
                stored = message.effect_id, message_of(message.task_id)
                await put_messages(tx, message.namespace, message.queue, [stored])


class Side(Protocol):
    name: str
    options: CarrierOptions
    call: Internal

    async def lose(self, route: Route) -> None: ...
    async def forget(self, route: Route) -> None: ...
    async def put(self, route: Route, body: bytes) -> None: ...
    async def cut(self) -> None: ...
    async def mend(self) -> None: ...
    async def hide_is_over(self, seconds: float) -> None: ...


class PostgresSide:
    name, options = "postgres", NO_CARRIERS

    def __init__(self, engine: Engine, other_connection: asyncpg.Connection, clock: VirtualClock) -> None:
        self._engine, self._somebody, self._clock = engine, other_connection, clock
        self.call = Internal(engine)

    async def lose(self, route: Route) -> None:
        await self._somebody.execute("delete from windlass.message")

    async def forget(self, route: Route) -> None:
        await self.lose(route)

    async def put(self, route: Route, body: bytes) -> None:
        async with self._engine.store.begin() as tx:
            await put_messages(tx, route.namespace, route.queue, [(uuid4(), body)])

    async def cut(self) -> None:
        """The database itself cannot be away from the engine alone; a worker's server can."""
        self.call.away = True

    async def mend(self) -> None:
        self.call.away = False

    async def hide_is_over(self, seconds: float) -> None:
        await self._clock.advance(seconds)


class _Gated:
    def __init__(self, engine: Engine, gate: Gate) -> None:
        self._gate, self.call = gate, Internal(engine)

    async def cut(self) -> None:
        await self._gate.cut()

    async def mend(self) -> None:
        await self._gate.mend()

    async def hide_is_over(self, seconds: float) -> None:
        """Its own clock goes by itself: whoever receives waits for it."""


class NatsSide(_Gated):
    name = "nats"
    options: CarrierOptions
    client: Any

    @classmethod
    @asynccontextmanager
    async def open(cls, engine: Engine, port: int) -> AsyncIterator[NatsSide]:
        async with Gate("127.0.0.1", port) as gate:
            side = cls(engine, gate)
            side.options = CarrierOptions(nats_url=f"nats://127.0.0.1:{gate.port}")
            side.client = await nats.connect(f"nats://127.0.0.1:{port}")
            try:
                yield side
            finally:
                await side.client.close()

    async def lose(self, route: Route) -> None:
        js = self.client.jetstream()
        await js.purge_stream(await js.find_stream_name_by_subject(route.address), subject=route.address)

    async def forget(self, route: Route) -> None:
        """With everything: who made it anew knows of nothing."""
        js = self.client.jetstream()
        await js.delete_stream(await js.find_stream_name_by_subject(route.address))

    async def put(self, route: Route, body: bytes) -> None:
        await self.client.jetstream().publish(route.address, body)


class SqsSide(_Gated):
    name = "sqs"
    options: CarrierOptions
    client: AwsClient

    @classmethod
    @asynccontextmanager
    async def open(cls, engine: Engine, port: int) -> AsyncIterator[SqsSide]:
        async with Gate("127.0.0.1", port) as gate:
            side = cls(engine, gate)
            side.options = CarrierOptions(aws_region="eu-west-1", aws_endpoint_url=f"http://127.0.0.1:{gate.port}")
            side.client = AwsClient(
                "sqs", CarrierOptions(aws_region="eu-west-1", aws_endpoint_url=f"http://127.0.0.1:{port}")
            )
            try:
                yield side
            finally:
                await side.client.close()

    async def _url(self, route: Route) -> str:
        return str((await self.client.call("get_queue_url", QueueName=route.address))["QueueUrl"])

    async def lose(self, route: Route) -> None:
        await self.client.call("purge_queue", QueueUrl=await self._url(route))

    async def forget(self, route: Route) -> None:
        url = await self._url(route)
        await self.client.call("delete_queue", QueueUrl=url)

    async def put(self, route: Route, body: bytes) -> None:
        await self.client.call("send_message", QueueUrl=await self._url(route), MessageBody=body.decode())
