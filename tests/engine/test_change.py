"""The feed itself, directly and through a pooler: positions, order, and what happens around its beginning."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest
from tests.conftest import NewEngine
from tests.support.work import CRASH, begin, job, jobs, soon, waits_for

from windlass import Engine, StoreBusy
from windlass.core.error import Expired, Malformed
from windlass.engine import change
from windlass.engine.change import Change, Position, read_position
from windlass.testing.clock import VirtualClock


async def all_after(engine: Engine, position: Position) -> tuple[list[Change], Position]:
    told: list[Change] = []
    while True:
        found, position = await engine.changes.read(position)
        told += found
        if not found and position.upto is None:
            return told, position


async def test_changes_are_told_in_the_order_in_which_they_happened_to_each_task(engine: Engine) -> None:
    position = await engine.changes.begin()
    first = await begin(engine)
    second = await begin(engine)
    await engine.complete(second)
    await engine.fail(first, CRASH)

    told, _ = await all_after(engine, position)

    by_task = [[c.state.value for c in told if c.task_id == claimed.task.id] for claimed in (first, second)]
    assert by_task == [["queued", "running", "queued"], ["queued", "running", "succeeded"]]


async def test_from_every_position_the_rest_is_told(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change, "ROWS", 2)
    position = await engine.changes.begin()
    for size in (3, 1, 4, 2, 5):
        await engine.submit_many(jobs(size, idempotency_key=None, priority=size))
    told, end = await all_after(engine, position)
    assert len(told) == 15

    for place, one in enumerate(told):
        again = await engine.changes.begin(one.position)
        rest, _ = await all_after(engine, again)
        assert [c.task_id for c in rest] == [c.task_id for c in told[place + 1 :]]
    assert (await all_after(engine, end))[0] == []


async def test_whoever_waits_is_told_of_news_from_any_engine(engine: Engine, new_engine: NewEngine) -> None:
    other = await new_engine()
    position = await engine.changes.begin()
    generation = engine.changes.generation
    await soon(engine.changes.news(generation, 20))  # the first look wakes everybody
    told, position = await all_after(engine, position)
    generation = engine.changes.generation
    waiting = asyncio.create_task(engine.changes.news(generation, 20))

    task_id = await other.submit(job())

    await soon(waiting)
    told, _ = await all_after(engine, position)
    assert [c.task_id for c in told] == [task_id]


async def test_news_that_do_not_come_end_with_the_time(engine: Engine) -> None:
    await engine.changes.begin()
    await soon(engine.changes.news(engine.changes.generation + 1, 0.05))


async def test_an_open_transaction_keeps_the_feed_from_beginning_but_not_for_ever(
    engine: Engine, somebody: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change, "SWITCH_TRIES", 2)
    monkeypatch.setattr(change, "SWITCH_PAUSE_S", 0.01)
    async with somebody.transaction():
        await somebody.fetchval("select windlass.submit('job')")
        beginning = asyncio.create_task(engine.changes.begin())
        await waits_for(somebody)
        with pytest.raises(StoreBusy, match="keeps the feed from beginning"):
            await soon(beginning)
    await engine.changes.begin()


async def test_two_who_begin_at_once_do_not_lose_each_others_beginning(engine: Engine, new_engine: NewEngine) -> None:
    other = await new_engine()
    one, two = await asyncio.gather(engine.changes.begin(), other.changes.begin())
    await engine.submit(job())

    for position in (one, two):
        again = await engine.changes.begin(str(position))
        assert len((await all_after(other, again))[0]) == 1


async def test_a_feed_is_not_switched_off_behind_a_reader_that_begins_just_now(
    engine: Engine, new_engine: NewEngine, somebody: asyncpg.Connection
) -> None:
    """Whichever comes first: the reader that begins hears what follows."""
    other = await new_engine()
    for _ in range(10):
        await engine.changes.begin()
        await somebody.execute("update windlass.feed set read_at = read_at - interval '2 days'")
        position, _ = await asyncio.gather(engine.changes.begin(), other.changes.forget())
        task_id = await engine.submit(job())
        assert [c.task_id for c in (await all_after(engine, position))[0]] == [task_id]


async def test_who_writes_tasks_pays_for_no_trigger_while_nobody_follows(
    engine: Engine, clock: VirtualClock, somebody: asyncpg.Connection
) -> None:
    """A disabled one still makes every statement copy what it wrote. It comes with a reader and goes without."""
    count = "select count(*) from pg_trigger where tgrelid = 'windlass.task'::regclass and tgname like 'record%'"
    assert await somebody.fetchval(count) == 0
    for _ in range(2):
        await engine.changes.begin()
        assert await somebody.fetchval(count) == 2
        await clock.advance(change.KEEP_S + 1)
        await engine.changes.forget()
        assert await somebody.fetchval(count) == 0


async def test_what_is_no_position_is_refused(engine: Engine) -> None:
    with pytest.raises(Malformed):
        read_position("1:2:3:4")
    with pytest.raises(Malformed):
        await engine.changes.begin("9:1:")
    with pytest.raises(Expired):
        await engine.changes.begin("3:3:")


@pytest.mark.parametrize("position", [Position("1:1:"), Position("1:9:3,4"), Position("1:9:3", "2:12:", 7, 3)], ids=str)
def test_a_position_is_read_as_it_was_written(position: Position) -> None:
    assert read_position(str(position)) == position
