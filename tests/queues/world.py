"""One engine, one carrier, one queue, and a worker's view of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

from tests.queues.side import Side
from tests.support.work import jobs, soon, until

from windlass.core.delivery import Wakeup
from windlass.core.queue import QueueConfig
from windlass.engine.engine import Engine
from windlass.queues.consume import ask_route, make_consumer
from windlass.queues.opening import make_senders
from windlass.queues.port import Consumer, Message
from windlass.testing.clock import VirtualClock
from windlass.wire.wakeup import Route

RESEND_S, RESEND_MAX_S = 60.0, 600.0
WAIT_S = 20.0


class World:
    def __init__(self, side: Side, engine: Engine, clock: VirtualClock, route: Route) -> None:
        self.side, self.engine, self.clock, self.route = side, engine, clock, route
        self.consumers: list[Consumer] = []

    @classmethod
    @asynccontextmanager
    async def open(cls, side: Side, engine: Engine, clock: VirtualClock, pace: float) -> AsyncIterator[World]:
        """Carriers of others have a clock of their own, which `pace` slows down."""
        queue = f"wake {uuid4()}"
        delivery = Wakeup(
            carrier=side.name, visibility_ms=int(1000 * pace), resend_ms=int(RESEND_S * 1000), max_deliveries=3
        )
        await engine.queues.put(queue, delivery=delivery, limits=QueueConfig())
        route = await ask_route(side.call, queue)
        world = cls(side, engine, clock, route)
        senders = make_senders(side.options, engine.messages)
        try:
            async with engine.wakeups.carrying(senders, loop=False):
                yield world
        finally:
            for part in (*world.consumers, *senders.values()):
                await part.close()

    def consumer(self) -> Consumer:
        made = make_consumer(self.route, self.side.call, self.side.options)
        self.consumers.append(made)
        return made

    async def submit(self, count: int = 1, **fields: Any) -> list[UUID]:
        return await self.engine.submit_many(jobs(count, queue=self.route.queue, **fields))

    async def speak(self) -> None:
        while await self.engine.wakeups.tick() + await self.engine.loops.effects_tick():
            pass

    async def all(self, consumer: Consumer, count: int) -> list[Message]:
        """So many messages."""
        found: list[Message] = []
        while len(found) < count:
            some = await consumer.receive(count - len(found), self.while_s(WAIT_S + self.route.visibility_s))
            assert some, f"{len(found)} of {count} came"
            found += some
        return found

    async def none(self, consumer: Consumer) -> bool:
        return not await consumer.receive(10, self.while_s(0.2))

    async def missed(self, consumer: Consumer) -> None:
        """A worker has waited in vain."""
        if self.side.name == "postgres":  # where the server that it asks sees it
            asking = asyncio.create_task(consumer.receive(1, 1.0))
            await until(lambda: any(ticket.idle for line in self.engine.hub._lines.values() for ticket in line))
            await self.clock.advance(1.0)
            assert await soon(asking) == []
        await consumer.unheard()

    def while_s(self, seconds: float) -> float:
        """The time of PostgreSQL stands still in these tests: waiting would not end."""
        return 0.0 if self.side.name == "postgres" else seconds
