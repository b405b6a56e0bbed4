"""A NATS server that is killed and started again on its folder."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.contracts.lease.wakeups.side import Internal
from tests.kit.carriers import nats_server
from tests.kit.ports import free_port
from tests.kit.work import jobs

from windlass.contracts.lease.delivery import Wakeup
from windlass.contracts.lease.wakeups.carriers.drivers import make_consumer
from windlass.contracts.lease.wakeups.carriers.internal import fetch_route
from windlass.contracts.lease.wakeups.carriers.opening import make_senders
from windlass.contracts.lease.wakeups.carriers.options import CarrierOptions
from windlass.contracts.lease.wakeups.carriers.port import Consumer
from windlass.contracts.lease.wakeups.planner import Wakeups
from windlass.contracts.lease.wire.wakeup import task_of
from windlass.core.queue import QueueConfig
from windlass.engine.engine import Engine
from windlass.errors import Unavailable
from windlass.testing.clock import VirtualClock

pytestmark = pytest.mark.slow

QUEUE = "killed"


@pytest.fixture
def mode() -> str:
    return "direct"


@pytest.fixture
async def restart(tmp_path: Path) -> AsyncIterator[tuple[int, Callable[[bool], None]]]:
    """Its port, and what starts it or kills it with SIGKILL."""
    port, running = free_port(), contextlib.ExitStack()

    def turn(on: bool) -> None:
        running.close()
        if on:
            running.enter_context(nats_server(tmp_path, port))

    turn(True)
    yield port, turn
    turn(False)


async def receive(consumer: Consumer, count: int) -> set[object]:
    found: set[object] = set()
    while len(found) < count:
        with contextlib.suppress(Unavailable):
            for message in await consumer.receive(10, 1.0):
                found.add(task_of(message.body))
                await consumer.ack(message)
        await asyncio.sleep(0.01)
    return found


async def test_a_nats_server_that_is_killed_loses_nothing_that_it_took(
    engine: Engine, clock: VirtualClock, restart: tuple[int, Callable[[bool], None]]
) -> None:
    port, turn = restart
    options, call = CarrierOptions(nats_url=f"nats://127.0.0.1:{port}"), Internal(engine)
    await engine.queues.put(QUEUE, delivery=Wakeup(carrier="nats", visibility_ms=1000), limits=QueueConfig())
    senders = make_senders(options)
    consumer = make_consumer(await fetch_route(call, QUEUE), call, options)
    try:
        async with engine.service(Wakeups).carrying(senders, loop=False):
            before = await engine.submit_many(jobs(3, queue=QUEUE))
            while await engine.service(Wakeups).tick() + await engine.loops.effects_tick():
                pass
            await asyncio.to_thread(turn, False)
            during = await engine.submit_many(jobs(3, queue=QUEUE))
            await engine.service(Wakeups).tick()
            await engine.loops.effects_tick()
            assert len(await engine.parts.repair.effects()) == 3
            await asyncio.to_thread(turn, True)
            while await engine.parts.repair.effects():
                await clock.advance(30.0)
                await engine.service(Wakeups).tick()
                await engine.loops.effects_tick()
            assert await receive(consumer, 6) == {*before, *during}
    finally:
        for close in (consumer.close, *(sender.close for sender in senders.values())):
            await close()
