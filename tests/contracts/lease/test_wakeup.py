"""Wake-ups over the internal port: what workers without a database have."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import httpx
import pytest
from tests.contracts.lease.world import QUEUE, SCRATCH, World, client
from tests.kit.work import soon, until
from tests.kit.world import ok, refused

from windlass.contracts.lease.delivery import Wakeup
from windlass.contracts.lease.mount import make_lease_app
from windlass.contracts.lease.rules import Caller
from windlass.contracts.lease.wakeups.carriers.drivers import make_consumer
from windlass.contracts.lease.wakeups.carriers.internal import fetch_route
from windlass.contracts.lease.wakeups.carriers.port import Call, Consumer
from windlass.contracts.lease.wakeups.planner import Wakeups
from windlass.contracts.lease.wire.wakeup import task_of
from windlass.core.queue import QueueConfig
from windlass.errors import Invalid, NotFound, Unavailable

pytestmark = pytest.mark.slow


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
    async with world.engine.service(Wakeups).carrying({}, loop=False):
        yield make_consumer(await fetch_route(call, QUEUE), call)


async def speak(world: World) -> None:
    while await world.engine.service(Wakeups).tick() + await world.engine.loops.effects_tick():
        pass


def receivers(world: World) -> int:
    return sum(waiter.idle for waiter in world.engine.parts.notifications._lines.get(("message", "default", QUEUE), ()))


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
    for shown in (None, world.tls_files.foreign, world.tls_files.expired):
        async with client(world.url, world.tls_files, shown) as http:
            with pytest.raises(Unavailable):
                await fetch_route(calling(http), QUEUE)
    assert len(await consumer.receive(1, 0.0)) == 1


async def test_a_refused_claim_is_announced_again(world: World, consumer: Consumer) -> None:
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


async def test_a_server_that_ends_still_answers_what_is_no_wait(world: World) -> None:
    """Who acknowledges, asks for a route or keeps a message would take the end of a wait for its answer."""
    await speak(world)
    app = make_lease_app(world.engine, "test", SCRATCH)
    app.state.closing.set()
    held = {"message_id": str(uuid4()), "deliveries": 1}
    asked = {"route": {"queue": QUEUE}, "ack": held, "nack": held, "extend": held, "unheard": {"queue": QUEUE}}
    answers = {name: await answered(app, f"/internal/wakeups/{name}", body) for name, body in asked.items()}

    assert answers["route"]["carrier"] == "postgres"
    assert [answers[name] for name in ("ack", "nack", "extend")] == [{"kept": False}] * 3
    assert answers["unheard"] == {"kept": True}
    waits = {"queue": QUEUE, "wait_s": 60.0}
    assert await soon(answered(app, "/internal/wakeups/receive", waits)) == {"messages": []}


async def answered(app: Any, path: str, body: dict[str, Any]) -> Any:
    sent: list[Any] = []
    given = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

    async def receive() -> Any:
        if not given:
            await asyncio.Event().wait()
        return given.pop()

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b"",
             "state": {"caller": Caller("CN=w", "00")}}  # fmt: skip
    await app(scope, receive, send)
    assert sent[0]["status"] == 200, sent
    return json.loads(sent[1]["body"])


async def test_a_certificate_that_is_bound_to_namespaces_hears_of_no_task_of_others(
    world: World, consumer: Consumer
) -> None:
    await world.engine.queues.put(QUEUE, namespace="shop", delivery=Wakeup(), limits=QueueConfig())
    ours, theirs = await world.submit(namespace="shop"), await world.submit()
    await speak(world)
    async with client(world.url, world.tls_files, world.tls_files.bound) as http:
        for name, more in (("route", {}), ("receive", {}), ("unheard", {}),
                           ("bury", {"message_id": "1", "body": "", "deliveries": 1, "reason": ""})):  # fmt: skip
            told = refused(await world.post(f"wakeups/{name}", {"queue": QUEUE, **more}, http), 403, "not_allowed")
            assert told["field"] == "namespace"
        assert (await world.claim(theirs, http)) == {"status": "NotClaimed", "reason": "NotFound"}
        refused(await http.get(f"/internal/task-fetch?task_id={theirs}"), 404, "task_not_found")
        [message] = await consumer.receive(1, 0.0)
        held = {"message_id": message.id, "deliveries": message.deliveries}
        for name in ("extend", "ack", "nack"):
            assert ok(await world.post(f"wakeups/{name}", held, http)) == {"kept": False}

        mine = make_consumer(await fetch_route(calling(http), QUEUE, "shop"), calling(http))
        [message] = await mine.receive(1, 0.0)
        assert task_of(message.body) == ours
        assert (await world.claim(ours, http))["status"] == "Claimed"
        ok(await http.get(f"/internal/task-fetch?task_id={ours}"))
        assert await mine.extend(message)
        await mine.ack(message)
    assert (await world.task(theirs)).attempt == 0
    assert (await world.claim(theirs))["status"] == "Claimed"


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
        await fetch_route(calling(world.http), "nobody")
    with pytest.raises(Invalid):
        await fetch_route(calling(world.http), "a\x00")


# --------------------------------------------------------------------------------------------- dead letters


def letter(**fields: Any) -> dict[str, Any]:
    return {"queue": QUEUE, "message_id": "m1", "body": "", "deliveries": 1, "reason": "poison", **fields}


@pytest.mark.parametrize("body", ["caf\u00e9", "\u65e5\u672c", "not base64!", "YQ"])
async def test_a_letter_whose_body_is_no_base64_is_refused(world: World, body: str) -> None:
    told = refused(await world.post("wakeups/bury", letter(body=body)), 400, "invalid_argument")
    assert told["field"] == "body"


async def test_a_letter_may_say_anything(world: World) -> None:
    answer = await world.post("wakeups/bury", letter(message_id="\u65e5", reason="\u00e9\x00" * 5000))
    assert ok(answer) == {"kept": True}
    [kept] = await world.engine.service(Wakeups).dead_messages()
    assert kept.message_id == "\u65e5"
    assert len(kept.reason) == 2000


async def test_a_letter_for_a_queue_that_nobody_made_is_refused(world: World) -> None:
    refused(await world.post("wakeups/bury", letter(queue="nobody made it")), 404, "task_not_found")
    assert await world.engine.service(Wakeups).dead_messages() == []
