"""Messages that come twice, late, too early or in no order: through every carrier, a task never runs twice at once."""

from __future__ import annotations

import asyncio
import random
from uuid import UUID

import pytest
from tests.contracts.lease.wakeups.world import World

from windlass import State
from windlass.contracts.lease.claim_by_id import Held, Holders
from windlass.contracts.lease.rules import Caller, LeaseCredential, LeaseReport, NotClaimed
from windlass.contracts.lease.wakeups.carriers.port import Consumer, Message
from windlass.contracts.lease.wakeups.planner import Wakeups
from windlass.contracts.lease.wire.wakeup import message_of, task_of
from windlass.core.task import Outcome

pytestmark = pytest.mark.slow

CALLER = Caller("CN=wrapper", "00")


class Workers:
    """Wrappers in miniature: they claim what a message names, and remember who held what when."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.running: set[UUID] = set()
        self.ran: list[UUID] = []

    async def handle(self, consumer: Consumer, message: Message) -> bool:
        """Whether there was something to run."""
        task_id = task_of(message.body)
        held = await self._world.engine.service(Holders).claim(task_id, "w", CALLER)
        if isinstance(held, Held):
            assert task_id not in self.running, "twice at once"
            self.running.add(task_id)
            await asyncio.sleep(0)
            self.running.discard(task_id)
            self.ran.append(task_id)
            await self._finish(held)
        elif held.state is State.QUEUED:
            await self._world.engine.service(Wakeups).refused(task_id)
        await consumer.ack(message)
        return isinstance(held, Held)

    async def _finish(self, held: Held) -> None:
        task = held.task
        shown = LeaseCredential(task.id, attempt=task.attempt, token=task.lease_id, caller=CALLER)
        await self._world.engine.service(Holders).finish(LeaseReport(shown, Outcome.SUCCEEDED, b"1"))


@pytest.fixture
def workers(world: World) -> Workers:
    return Workers(world)


async def test_a_message_that_is_delivered_five_times_at_once_and_in_no_order_runs_its_task_once(
    world: World, workers: Workers
) -> None:
    ids = await world.submit_jobs(5)
    await world.speak()
    consumer = world.consumer()
    bodies = [message_of(task_id) for task_id in ids for _ in range(4)]
    random.Random(7).shuffle(bodies)
    for body in bodies:
        await world.side.put(world.route, body)

    messages = await world.all(consumer, 25)
    random.Random(8).shuffle(messages)
    ran = await asyncio.gather(*(workers.handle(consumer, message) for message in messages))
    assert sum(ran) == 5
    assert sorted(workers.ran) == sorted(ids)
    assert await world.none(consumer)


async def test_a_message_that_comes_late_runs_nothing(world: World, workers: Workers) -> None:
    [done, cancelled] = await world.submit_jobs(2)
    await world.speak()
    consumer = world.consumer()
    late = await world.all(consumer, 2)
    await world.engine.cancel(cancelled)
    held = await world.engine.service(Holders).claim(done, "other", CALLER)
    assert isinstance(held, Held)

    assert [await workers.handle(consumer, message) for message in late] == [False, False]
    assert workers.ran == []


async def test_a_message_that_comes_before_its_task_can_be_seen_or_claimed_loses_nothing(
    world: World, workers: Workers
) -> None:
    consumer = world.consumer()
    assert await world.none(consumer)
    [delayed] = await world.submit_jobs(delay_s=30.0)
    unseen = UUID(int=7)
    for task_id in (delayed, unseen):
        await world.side.put(world.route, message_of(task_id))
    for message in await world.all(consumer, 2):
        assert not await workers.handle(consumer, message)
    assert isinstance(await world.engine.service(Holders).claim(unseen, "w", CALLER), NotClaimed)

    await world.clock.advance(30.0)
    await world.speak()
    [message] = await world.all(consumer, 1)
    assert await workers.handle(consumer, message)
    assert workers.ran == [delayed]


async def test_who_claimed_while_the_queue_was_paused_is_woken_when_it_goes_on(world: World, workers: Workers) -> None:
    [task_id] = await world.submit_jobs()
    await world.speak()
    consumer = world.consumer()
    [message] = await world.all(consumer, 1)
    await world.engine.pause_queue(world.route.queue)
    assert not await workers.handle(consumer, message)
    await world.clock.advance(5.0)
    await world.speak()
    assert await world.none(consumer)

    await world.engine.pause_queue(world.route.queue, paused=False)
    await world.speak()
    [again] = await world.all(consumer, 1)
    assert await workers.handle(consumer, again)
    assert workers.ran == [task_id]


async def test_a_worker_that_died_with_its_task_loses_nothing(world: World, workers: Workers) -> None:
    [task_id] = await world.submit_jobs()
    await world.speak()
    consumer = world.consumer()
    [message] = await world.all(consumer, 1)
    held = await world.engine.service(Holders).claim(task_id, "dies", CALLER)
    assert isinstance(held, Held)
    await world.side.hide_is_over(world.route.visibility_s)
    [again] = await world.all(consumer, 1)
    assert again.body == message.body
    assert not await workers.handle(consumer, again)  # the lease of the dead one still holds

    await world.clock.advance(60.0)
    await world.engine.parts.outgoing.silence_tick()
    await world.clock.advance(600.0)
    await world.speak()
    [third] = await world.all(consumer, 1)
    assert await workers.handle(consumer, third)
