"""Wake-ups over the internal port: what workers without a database have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import httpx
import pytest
from tests.contracts.lease.world import QUEUE, World, client, refused
from tests.support.work import soon, until

from windlass.core.error import Invalid, NotFound, Unavailable
from windlass.queues.consume import ask_route, make_consumer
from windlass.queues.port import Call, Consumer
from windlass.queues.postgres import PostgresSender
from windlass.wire.wakeup import task_of


def calling(http: httpx.AsyncClient) -> Call:
    async def call(path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        try:
            answer = await http.post(path, content=body, timeout=timeout_s)
        except httpx.TransportError as error:
            raise Unavailable(str(error)) from None
        return answer.status_code, answer.content

    return call


@pytest.fixture
async def consumer(world: World) -> AsyncIterator[Consumer]:
    call = calling(world.http)
    async with world.engine.wakeups.carrying({"postgres": PostgresSender(world.engine.messages)}, loop=False):
        yield make_consumer(await ask_route(call, QUEUE), call)


async def speak(world: World) -> None:
    while await world.engine.wakeups.tick() + await world.engine.loops.effects_tick():
        pass


def receivers(world: World) -> int:
    return sum(ticket.idle for ticket in world.engine.hub._lines.get(("message", "default", QUEUE), ()))


async def test_a_worker_receives_extends_and_acknowledges_over_mtls(world: World, consumer: Consumer) -> None:
    task_id = await world.submit()
    await speak(world)

    [message] = await consumer.receive(10, 0.0)
    assert task_of(message.body) == task_id
    assert await consumer.extend(message)
    assert (await world.claim(task_id))["status"] == "Claimed"
    await consumer.ack(message)
    assert not await consumer.extend(message)


async def test_a_worker_that_waits_is_told_at_once(world: World, consumer: Consumer) -> None:
    waiting = asyncio.create_task(consumer.receive(1, 30.0))
    await until(lambda: receivers(world) == 1)
    task_id = await world.submit()
    await speak(world)

    [message] = await soon(waiting)
    assert task_of(message.body) == task_id


async def test_a_message_is_not_kept_for_a_worker_that_has_gone(world: World, consumer: Consumer) -> None:
    gone = asyncio.create_task(consumer.receive(1, 30.0))
    await until(lambda: receivers(world) == 1)
    gone.cancel()
    await until(lambda: receivers(world) == 0)
    await world.submit()
    await speak(world)

    assert len(await consumer.receive(1, 0.0)) == 1


async def test_without_a_certificate_there_is_no_message(world: World, consumer: Consumer) -> None:
    await world.submit()
    await speak(world)
    for shown in (None, world.papers.foreign, world.papers.expired):
        async with client(world.url, world.papers, shown) as http:
            with pytest.raises(Unavailable):
                await ask_route(calling(http), QUEUE)
    assert len(await consumer.receive(1, 0.0)) == 1


async def test_a_refused_claim_is_spoken_of_again(world: World, consumer: Consumer) -> None:
    task_id = await world.submit()
    await speak(world)
    [message] = await consumer.receive(1, 0.0)
    await world.engine.pause_queue(QUEUE)
    assert (await world.claim(task_id))["detail"] == "NotReady"
    await consumer.ack(message)
    await world.engine.pause_queue(QUEUE, paused=False)
    await world.clock.advance(1.0)
    await speak(world)

    [again] = await consumer.receive(1, 0.0)
    assert task_of(again.body) == task_id


BAD: list[tuple[str, Any]] = [
    ("receive", {}),
    ("receive", {"queue": ""}),
    ("receive", {"queue": "a\x00b"}),
    ("receive", {"queue": "q", "limit": 0}),
    ("receive", {"queue": "q", "limit": 101}),
    ("receive", {"queue": "q", "wait_s": 61}),
    ("receive", {"queue": "q", "visibility_s": 0}),
    ("receive", {"queue": 5}),
    ("extend", {"message_id": "x", "deliveries": 1}),
    ("ack", {"message_id": str(uuid4()), "deliveries": 2**40}),
    ("ack", {"message_id": str(uuid4())}),
    ("nack", {"message_id": str(uuid4()), "deliveries": 1, "delay_s": -1}),
    ("bury", {"queue": "q", "message_id": "1", "body": "not base64!", "deliveries": 1, "reason": ""}),
    ("bury", {"queue": "q", "message_id": "a\x00", "body": "", "deliveries": 1, "reason": "a\x00"}),
    ("route", []),
    ("route", None),
]


@pytest.mark.parametrize(("route", "body"), BAD, ids=range(len(BAD)))
async def test_what_makes_no_sense_is_refused_with_its_field(world: World, route: str, body: Any) -> None:
    refused(await world.post(f"wakeups/{route}", body), 400, "invalid_argument")


async def test_other_paths_and_methods_are_refused(world: World) -> None:
    refused(await world.post("wakeups/all", {}), 404, "not_found")
    refused(await world.http.get("/internal/wakeups/receive"), 405, "method_not_allowed")


async def test_a_consumer_says_what_a_server_refuses(world: World) -> None:
    with pytest.raises(NotFound, match="sends no wake-ups"):
        await ask_route(calling(world.http), "nobody")
    with pytest.raises(Invalid):
        await ask_route(calling(world.http), "a\x00")
