"""One engine, one carrier, one queue, and a worker's view of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from tests.contracts.lease.wakeups.side import Side
from tests.kit import world as kit
from tests.kit.work import jobs, soon, until

from windlass.contracts.lease.delivery import Wakeup
from windlass.contracts.lease.wakeups.carriers.drivers import make_consumer
from windlass.contracts.lease.wakeups.carriers.internal import fetch_route
from windlass.contracts.lease.wakeups.carriers.opening import make_senders
from windlass.contracts.lease.wakeups.carriers.port import Consumer, Message
from windlass.contracts.lease.wakeups.planner import Wakeups
from windlass.contracts.lease.wire.wakeup import Route
from windlass.core.queue import QueueConfig
from windlass.engine.engine import Engine
from windlass.testing.clock import VirtualClock

RESEND_S, RESEND_MAX_S = 60.0, 600.0
WAIT_S = 20.0


@dataclass
class World(kit.World[UUID]):
    """A carrier, a queue whose wake-ups it carries, and the consumers of workers."""

    side: Side
    route: Route
    consumers: list[Consumer] = field(default_factory=list)

    @classmethod
    @asynccontextmanager
    async def open(cls, side: Side, engine: Engine, clock: VirtualClock, pace: float) -> AsyncIterator[World]:
        """Carriers of others have a clock of their own, which `pace` slows down."""
        queue = f"wake {uuid4()}"
        delivery = Wakeup(
            carrier=side.name, visibility_ms=int(1000 * pace), resend_ms=int(RESEND_S * 1000), max_deliveries=3
        )
        await engine.queues.put(queue, delivery=delivery, limits=QueueConfig())
        route = await fetch_route(side.call, queue)
        world = cls(engine, clock, side, route)
        senders = make_senders(side.options)
        try:
            async with engine.service(Wakeups).carrying(senders, loop=False):
                yield world
        finally:
            for close in (*(one.close for one in world.consumers), *(sender.close for sender in senders.values())):
                await close()

    def consumer(self) -> Consumer:
        made = make_consumer(self.route, self.side.call, self.side.options)
        self.consumers.append(made)
        return made

    async def submit_jobs(self, count: int = 1, **fields: Any) -> list[UUID]:
        return await self.engine.submit_many(jobs(count, queue=self.route.queue, **fields))

    async def speak(self) -> None:
        while await self.engine.service(Wakeups).tick() + await self.engine.loops.effects_tick():
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
            await until(
                lambda: any(waiter.idle for line in self.engine.parts.notifications._lines.values() for waiter in line)
            )
            await self.clock.advance(1.0)
            assert await soon(asking) == []
        await consumer.report_idle()

    def while_s(self, seconds: float) -> float:
        """The time of PostgreSQL stands still in these tests: waiting would not end."""
        return 0.0 if self.side.name == "postgres" else seconds
