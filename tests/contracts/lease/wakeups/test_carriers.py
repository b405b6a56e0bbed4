"""What every carrier promises, on both sides, against the real thing."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.contracts.lease.wakeups.world import RESEND_MAX_S, RESEND_S, World
from tests.kit.work import soon

from windlass.contracts.lease.wakeups.carriers.internal import fetch_route
from windlass.contracts.lease.wakeups.carriers.port import Consumer
from windlass.contracts.lease.wakeups.planner import Wakeups
from windlass.contracts.lease.wakeups.rules import LOST_AFTER_MAX_S
from windlass.contracts.lease.wire.wakeup import task_of
from windlass.contracts.lease.worker.retry import until_answered
from windlass.errors import NotFound, Unavailable

pytestmark = pytest.mark.slow


async def test_a_message_holds_the_id_of_its_task_and_nothing_else(world: World) -> None:
    [task_id] = await world.submit_jobs()
    await world.speak()

    [message] = await world.all(world.consumer(), 1)
    assert msgspec.json.decode(message.body) == {"task_id": str(task_id)}
    assert message.deliveries == 1


async def test_what_was_acknowledged_is_not_delivered_again(world: World) -> None:
    ids = await world.submit_jobs(12)
    await world.speak()
    consumer = world.consumer()

    found = await world.all(consumer, 12)
    assert sorted(task_of(one.body) for one in found) == sorted(ids)
    for one in found:
        await consumer.ack(one)
        await consumer.ack(one)  # twice does no harm
    await world.side.hide_is_over(world.route.visibility_s)
    assert await world.none(consumer)


async def test_the_message_of_a_worker_that_died_is_delivered_to_another(world: World) -> None:
    await world.submit_jobs()
    await world.speak()
    dies, lives = world.consumer(), world.consumer()
    [first] = await world.all(dies, 1)
    assert await world.none(lives)

    await world.side.hide_is_over(world.route.visibility_s)
    [again] = await world.all(lives, 1)
    assert (again.body, again.deliveries) == (first.body, 2)
    await lives.ack(again)


async def test_a_message_that_is_extended_stays_hidden(world: World) -> None:
    await world.submit_jobs()
    await world.speak()
    mine, other = world.consumer(), world.consumer()
    [message] = await world.all(mine, 1)
    for _ in range(3):
        await world.side.hide_is_over(0.6 * world.route.visibility_s)
        assert await mine.extend(message)
        assert not await other.receive(1, world.while_s(0.6 * world.route.visibility_s))
    await mine.ack(message)


async def test_a_message_that_was_given_back_comes_at_once_or_after_its_delay(world: World) -> None:
    await world.submit_jobs()
    await world.speak()
    consumer = world.consumer()
    [one] = await world.all(consumer, 1)
    await consumer.nack(one)
    [two] = await world.all(consumer, 1)
    await consumer.nack(two, world.route.visibility_s)

    assert await world.none(consumer)
    await world.side.hide_is_over(world.route.visibility_s)
    [three] = await world.all(consumer, 1)
    assert three.deliveries == 3
    await consumer.ack(three)


async def test_a_message_that_was_lost_is_sent_again(world: World) -> None:
    [task_id] = await world.submit_jobs()
    await world.speak()
    await world.side.lose(world.route)
    await world.speak()
    consumer = world.consumer()
    assert await world.none(consumer)

    await world.clock.advance(RESEND_S)
    await world.speak()
    [message] = await world.all(consumer, 1)
    assert task_of(message.body) == task_id
    await consumer.ack(message)


async def test_what_a_carrier_lost_is_sent_again_as_soon_as_a_worker_that_waits_says_so(world: World) -> None:
    """However seldom it is announced by now."""
    ids = await world.submit_jobs(3)
    for _ in range(8):
        await world.speak()
        await world.clock.advance(RESEND_MAX_S)
    await world.speak()
    await world.side.lose(world.route)
    consumer = world.consumer()
    await world.clock.advance(LOST_AFTER_MAX_S)
    await world.speak()
    assert await world.none(consumer)

    await world.missed(consumer)
    await world.speak()
    found = await world.all(consumer, 3)
    assert sorted(task_of(one.body) for one in found) == sorted(ids)
    for one in found:
        await consumer.ack(one)


async def test_a_poison_message_is_buried_shown_and_gone(world: World) -> None:
    await world.submit_jobs()
    await world.speak()
    await world.side.put(world.route, b"{not a wake-up")
    consumer = world.consumer()
    found = await world.all(consumer, 2)
    [poison] = [one for one in found if one.body == b"{not a wake-up"]
    await consumer.dead_letter(poison, "it cannot be read")

    [letter] = await world.engine.service(Wakeups).dead_messages(queue=world.route.queue)
    assert (letter.body, letter.reason, letter.task_id) == (b"{not a wake-up", "it cannot be read", None)
    for one in found:
        await consumer.ack(one)
    await world.side.hide_is_over(world.route.visibility_s)
    assert await world.none(consumer)


async def test_a_wake_up_that_nobody_can_handle_is_buried_and_replayed(world: World) -> None:
    [task_id] = await world.submit_jobs()
    await world.speak()
    consumer = world.consumer()
    while True:
        [message] = await world.all(consumer, 1)
        if message.deliveries > consumer.max_deliveries:
            break
        await consumer.nack(message)
    await consumer.dead_letter(message, "delivered too often")
    await world.clock.advance(86400.0)
    await world.speak()
    assert await world.none(consumer)

    [letter] = await world.engine.service(Wakeups).dead_messages(queue=world.route.queue)
    assert (letter.task_id, letter.deliveries) == (task_id, 4)
    await world.engine.service(Wakeups).replay(letter)
    await world.speak()
    [again] = await world.all(consumer, 1)
    assert (task_of(again.body), again.deliveries) == (task_id, 1)
    await consumer.ack(again)


async def test_a_carrier_that_is_away_is_said_to_be_and_what_was_sent_arrives_when_it_is_back(world: World) -> None:
    consumer = world.consumer()
    await world.submit_jobs()
    await world.speak()
    [first] = await world.all(consumer, 1)
    await world.side.cut()
    [task_id] = await world.submit_jobs()
    for _ in range(3):
        await world.speak()
        await world.clock.advance(5.0)
    with pytest.raises(Unavailable):
        await until_refused(world, consumer)

    await world.side.mend()
    found: set[object] = set()
    while task_id not in found:  # its clients come back when they do, whatever our clock says
        await world.clock.advance(30.0)
        await world.speak()
        try:
            some = await consumer.receive(10, world.while_s(0.5))
        except Unavailable:
            await asyncio.sleep(0.02)  # who asks again at once leaves its client no moment to connect
            continue
        found |= {task_of(one.body) for one in some}
        for one in some:
            await consumer.ack(one)
    await consumer.ack(first)


async def until_refused(world: World, consumer: Consumer) -> None:
    """That nobody is there may be noticed a moment later."""
    while True:
        await consumer.receive(1, world.while_s(0.1))


async def test_what_its_carrier_has_forgotten_is_done_with(world: World) -> None:
    await world.submit_jobs()
    await world.speak()
    consumer = world.consumer()
    [message] = await world.all(consumer, 1)
    await world.side.forget(world.route)

    await soon(until_answered("a message", lambda: consumer.ack(message)))


async def test_a_queue_that_sends_no_wake_ups_has_no_route(world: World) -> None:
    with pytest.raises(NotFound, match="sends no wake-ups"):
        await fetch_route(world.side.call, "default")
