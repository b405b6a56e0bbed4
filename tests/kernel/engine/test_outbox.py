"""The outbox: effects are carried out at least once, with backoff and a cap, and a dead one is a loss to its task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from tests.kit.work import begin, soon, state, task, waits_for, worker

from windlass import Engine, Policy, State
from windlass.core.ids import derived_id
from windlass.core.states import Effect
from windlass.engine.send.outbox import BATCH, DELAY_MAX_S, HOLD_S, TRIES_MAX, Undeliverable
from windlass.testing.clock import VirtualClock

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

Handler = Callable[[Effect], Awaitable[None]]


def effect_of(task_id: UUID, number: int = 0, *, kind: str = "letter", attempt: int = 1) -> Effect:
    return Effect(derived_id(kind, task_id, number), kind, "default", task_id, attempt, {"number": number})


async def write(engine: Engine, *effects: Effect) -> None:
    async with engine.store.begin() as tx:
        await tx.outbox.insert_outbox(list(effects))


async def rows(other_connection: asyncpg.Connection) -> list[asyncpg.Record]:
    return list(await other_connection.fetch("select * from windlass.outbox order by available_at"))


class Hook:
    """A small HTTP server that notes what is posted to it, and refuses the first few."""

    def __init__(self) -> None:
        self.posts: list[str] = []
        self.refuse = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(
            next(line.split(":")[1] for line in head.splitlines() if line.lower().startswith("content-length"))
        )
        body = (await reader.readexactly(length)).decode()
        status = "503 Busy" if self.refuse else "204 No Content"
        if self.refuse:
            self.refuse -= 1
        else:
            self.posts.append(body)
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    async def post(self, effect: Effect) -> None:
        """The handler: carries an effect over HTTP."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        body = f"{effect.task_id} {effect.body['number']}".encode()
        head = f"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answer = (await reader.read()).decode()
        writer.close()
        if " 204 " not in answer:
            raise ConnectionError(answer.splitlines()[0])


@pytest.fixture
async def hook() -> AsyncIterator[Hook]:
    hook = Hook()
    server = await asyncio.start_server(hook.serve, "127.0.0.1", 0)
    hook.port = server.sockets[0].getsockname()[1]
    yield hook
    server.close()
    await server.wait_closed()


async def test_an_effect_is_carried_out_and_then_gone(
    engine: Engine, hook: Hook, other_connection: asyncpg.Connection
) -> None:
    engine.parts.effects.update({"letter": hook.post})
    claimed = await begin(engine)
    await write(engine, effect_of(claimed.task.id, 7))
    assert await soon(engine.loops.effects_tick()) == 1
    assert hook.posts == [f"{claimed.task.id} 7"]
    assert await rows(other_connection) == []
    assert await engine.loops.effects_tick() == 0


async def test_the_same_effect_written_twice_is_carried_out_once(engine: Engine, hook: Hook) -> None:
    engine.parts.effects.update({"letter": hook.post})
    claimed = await begin(engine)
    for _ in range(2):
        await write(engine, effect_of(claimed.task.id))
    await engine.loops.effects_tick()
    assert len(hook.posts) == 1


async def test_one_that_fails_comes_back_later_and_later(
    engine: Engine, hook: Hook, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    engine.parts.effects["letter"], hook.refuse = hook.post, 3
    claimed = await begin(engine)
    await write(engine, effect_of(claimed.task.id))
    for tries, least in ((1, 1.0), (2, 2.0), (3, 4.0)):
        assert await engine.loops.effects_tick() == 1
        [row] = await rows(other_connection)
        waits_s = (row["available_at"] - await clock.now()).total_seconds()
        assert (row["tries"], "503" in row["error"]) == (tries, True)
        assert least <= waits_s <= least * 1.2
        assert await engine.loops.effects_tick() == 0
        await clock.advance(waits_s)
    await engine.loops.effects_tick()
    assert hook.posts == [f"{claimed.task.id} 0"]


async def test_an_effect_whose_handler_leaves_while_it_is_taken_is_there_for_the_next_one(
    engine: Engine, hook: Hook, other_connection: asyncpg.Connection, clock: VirtualClock
) -> None:
    engine.parts.effects.update({"letter": hook.post})
    claimed = await begin(engine)
    await write(engine, effect_of(claimed.task.id))
    async with other_connection.transaction():
        await other_connection.execute("lock table windlass.outbox in exclusive mode")
        taking = asyncio.create_task(engine.loops.effects_tick())
        await waits_for(other_connection)
        del engine.parts.effects["letter"]

    assert await soon(taking) == 0
    [row] = await rows(other_connection)
    assert (hook.posts, row["available_at"] <= await clock.now()) == ([], True)


async def test_who_dies_in_the_middle_loses_the_effect_to_the_next_one(
    engine: Engine, new_engine: Any, clock: VirtualClock, tmp_path: Path
) -> None:
    """At least once: it may have happened before the death, and happens again."""
    file, began = tmp_path / "effects", asyncio.Event()

    async def write_and_hang(effect: Effect) -> None:
        file.open("a").write("first\n")
        began.set()
        await asyncio.sleep(3600)

    async def write_line(effect: Effect) -> None:
        file.open("a").write("second\n")

    engine.parts.effects.update({"letter": write_and_hang})
    claimed = await begin(engine, await worker(engine, ttl_s=3600))
    await write(engine, effect_of(claimed.task.id))
    dying = asyncio.create_task(engine.loops.effects_tick())
    await soon(began.wait())
    dying.cancel()
    await asyncio.gather(dying, return_exceptions=True)
    other = await new_engine(effects={"letter": write_line})
    assert await other.loops.effects_tick() == 0, "it may still be at it"
    await clock.advance(HOLD_S)
    assert await other.loops.effects_tick() == 1
    assert file.read_text() == "first\nsecond\n"
    assert await state(engine, claimed.task.id) is State.RUNNING


async def test_one_that_always_fails_is_given_up_and_its_task_is_told(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    async def fail(effect: Effect) -> None:
        raise ConnectionError("nobody is there")

    engine.parts.effects.update({"letter": fail})
    claimed = await begin(engine, await worker(engine, ttl_s=7 * 86400))
    await write(engine, effect_of(claimed.task.id))
    for _ in range(TRIES_MAX):
        assert await state(engine, claimed.task.id) is State.RUNNING
        assert await engine.loops.effects_tick() == 1
        await clock.advance(DELAY_MAX_S * 1.2)
    assert await engine.loops.effects_tick() == 0
    [row] = await rows(other_connection)
    assert (row["tries"], row["dead_at"] is not None, "nobody is there" in row["error"]) == (TRIES_MAX, True, True)
    lost = await task(engine, claimed.task.id)
    assert (lost.state, lost.losses, lost.error.reason) == (State.QUEUED, 1, "EFFECT_UNDELIVERABLE")  # type: ignore[union-attr]


async def test_one_that_can_never_be_delivered_is_given_up_at_once(
    engine: Engine, other_connection: asyncpg.Connection
) -> None:
    async def refuse(effect: Effect) -> None:
        raise Undeliverable("no such address")

    engine.parts.effects.update({"letter": refuse})
    claimed = await begin(engine, policy=Policy(max_losses=1))
    await write(engine, effect_of(claimed.task.id))
    await engine.loops.effects_tick()
    ended = await task(engine, claimed.task.id)
    assert (ended.state, ended.error.reason) == (State.FAILED, "EFFECT_UNDELIVERABLE")  # type: ignore[union-attr]
    async with engine.store.views() as views:
        [dead] = await views.list_effects("default", True, None, 10)
    assert (dead.task_id, dead.tries, "no such address" in str(dead.error)) == (claimed.task.id, 1, True)


@pytest.mark.parametrize("when", ["a newer attempt runs", "the task has ended", "the task is gone"])
async def test_a_dead_effect_of_an_attempt_that_is_over_changes_no_task(
    engine: Engine, other_connection: asyncpg.Connection, when: str
) -> None:
    async def refuse(effect: Effect) -> None:
        raise Undeliverable

    engine.parts.effects.update({"letter": refuse})
    lease = await worker(engine)
    claimed = await begin(engine, lease)
    await write(engine, effect_of(claimed.task.id))
    if when == "a newer attempt runs":
        await engine.release(claimed)
        await engine.claim(lease)
    elif when == "the task has ended":
        await engine.complete(claimed)
    else:
        await other_connection.execute("delete from windlass.task")
    before = await other_connection.fetch("select * from windlass.task")
    await engine.loops.effects_tick()
    assert await other_connection.fetch("select * from windlass.task") == before
    assert (await rows(other_connection))[0]["dead_at"] is not None


async def test_text_of_an_error_that_cannot_be_stored_is_mended(
    engine: Engine, other_connection: asyncpg.Connection
) -> None:
    async def fail(effect: Effect) -> None:
        raise ValueError("a\x00b\ud800")

    engine.parts.effects.update({"letter": fail})
    await write(engine, effect_of((await begin(engine)).task.id))
    await engine.loops.effects_tick()
    assert (await rows(other_connection))[0]["error"] == "ValueError: a\ufffdb\ufffd"


async def test_an_engine_takes_only_kinds_that_it_can_handle(engine: Engine, hook: Hook) -> None:
    claimed = await begin(engine)
    await write(engine, effect_of(claimed.task.id, kind="launch"))
    assert await engine.loops.effects_tick() == 0
    engine.parts.effects.update({"letter": hook.post})
    assert await engine.loops.effects_tick() == 0


async def test_two_engines_carry_out_each_effect_once_between_them(
    engine: Engine, new_engine: Any, hook: Hook, other_connection: asyncpg.Connection
) -> None:
    engines = [engine, await new_engine()]
    claimed = await begin(engine)
    await write(engine, *(effect_of(claimed.task.id, i) for i in range(40)))
    for each in engines:
        each.parts.effects.update({"letter": hook.post})
    await soon(asyncio.gather(*(each.loops.effects_tick() for each in engines for _ in range(2))))
    assert sorted(hook.posts) == sorted(f"{claimed.task.id} {i}" for i in range(40))
    assert await rows(other_connection) == []


async def test_more_effects_than_one_tick_takes_are_all_carried_out(engine: Engine) -> None:
    seen: list[int] = []

    async def note(effect: Effect) -> None:
        seen.append(int(str(effect.body["number"])))

    engine.parts.effects.update({"letter": note})
    claimed = await begin(engine)
    await write(engine, *(effect_of(claimed.task.id, i) for i in range(BATCH + 20)))
    while await engine.loops.effects_tick():
        pass
    assert sorted(seen) == list(range(BATCH + 20))
