"""The feed itself, directly and through a pooler: positions, order, and what happens around its beginning."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
from tests.conftest import NewEngine
from tests.kit.work import CRASH, begin, job, jobs, soon, until, waits_for

from windlass import Engine, StoreBusy
from windlass.engine.read import change_feed
from windlass.engine.read.change_feed import Change, Position, covers, read_position
from windlass.errors import Expired, Malformed
from windlass.store.tables.change import ChangeTable
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
    monkeypatch.setattr(change_feed, "ROWS", 2)
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
    engine: Engine, other_connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_feed, "SWITCH_TRIES", 2)
    monkeypatch.setattr(change_feed, "SWITCH_PAUSE_S", 0.01)
    async with other_connection.transaction():
        await other_connection.fetchval("select windlass.submit('job')")
        beginning = asyncio.create_task(engine.changes.begin())
        await waits_for(other_connection)
        with pytest.raises(StoreBusy, match="the feed cannot begin"):
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
    engine: Engine, new_engine: NewEngine, other_connection: asyncpg.Connection
) -> None:
    """Whichever comes first: the reader that begins hears what follows."""
    other = await new_engine()
    for _ in range(10):
        await engine.changes.begin()
        await other_connection.execute("update windlass.feed set read_at = read_at - interval '2 days'")
        position, _ = await asyncio.gather(engine.changes.begin(), other.changes.forget())
        task_id = await engine.submit(job())
        assert [c.task_id for c in (await all_after(engine, position))[0]] == [task_id]


async def test_who_writes_tasks_pays_for_no_trigger_while_nobody_follows(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    """A disabled one still makes every statement copy what it wrote. It comes with a reader and goes without."""
    count = "select count(*) from pg_trigger where tgrelid = 'windlass.task'::regclass and tgname like 'record%'"
    assert await other_connection.fetchval(count) == 0
    for _ in range(2):
        await engine.changes.begin()
        assert await other_connection.fetchval(count) == 2
        await clock.advance(change_feed.KEEP_S + 1)
        await engine.changes.forget()
        assert await other_connection.fetchval(count) == 0


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


# ------------------------------------------------------------------------------------------------- one look for all


class Follower:
    """Follows the feed as a stream does, and keeps what it was told."""

    def __init__(self, engine: Engine, namespace: str | None = None) -> None:
        self._engine, self._namespace = engine, namespace
        self.told: list[Change] = []
        self.position = Position("")

    async def follow(self, begun: asyncio.Event | None = None) -> None:
        feed = self._engine.changes
        self.position = await feed.begin()
        with feed.following():
            if begun is not None:
                begun.set()
            while True:
                generation = feed.generation
                piece, self.position = await feed.page(self.position, self._namespace)
                if piece is None:
                    await feed.news(generation, 60)
                else:
                    self.told += piece.of(self._namespace)


@asynccontextmanager
async def followers(engine: Engine, count: int, namespace: str | None = None) -> AsyncIterator[list[Follower]]:
    readers = [Follower(engine, namespace) for _ in range(count)]
    begun = [asyncio.Event() for _ in readers]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one.follow(event)) for one, event in zip(readers, begun, strict=True)]
        await soon(asyncio.gather(*(event.wait() for event in begun)))
        yield readers
        for task in tasks:
            task.cancel()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The namespaces of all reads of the feed from the database."""
    done: list[str | None] = []
    read = ChangeTable.list_changes

    async def counted(self: ChangeTable, namespace: str | None, *rest: Any) -> Any:
        done.append(namespace)
        return await read(self, namespace, *rest)

    monkeypatch.setattr(ChangeTable, "list_changes", counted)
    return done


async def test_all_readers_of_an_engine_share_one_look(engine: Engine, reads: list[str | None]) -> None:
    async with followers(engine, 40) as everybody:
        first = await engine.submit(job())
        await until(lambda: all([c.task_id for c in one.told] == [first] for one in everybody))
        await until(lambda: len({str(one.position) for one in everybody}) == 1)
        joined = len(reads)
        ids = [await engine.submit(job()) for _ in range(10)]
        await until(lambda: all([c.task_id for c in one.told] == [first, *ids] for one in everybody))
        looks = (len(reads) - joined) / 11
    assert looks <= 2, "each look serves all forty"


async def test_a_reader_of_one_namespace_is_told_of_no_other_and_does_not_read_for_itself(
    engine: Engine, reads: list[str | None]
) -> None:
    async with followers(engine, 5, "ours") as everybody:
        await until(lambda: all(str(one.position) != "" for one in everybody))
        ours = []
        for _ in range(5):
            await engine.submit(job(namespace="theirs"))
            ours.append(await engine.submit(job(namespace="ours")))
        await until(lambda: all([c.task_id for c in one.told] == ours for one in everybody))
        assert {c.namespace for one in everybody for c in one.told} == {"ours"}
    assert reads.count("ours") <= 5, "once each, to join the others"


async def test_a_reader_that_falls_behind_what_is_kept_catches_up(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_feed, "CHANGES_KEPT", 5)
    monkeypatch.setattr(change_feed, "ROWS", 2)
    position = await engine.changes.begin()
    async with followers(engine, 3) as everybody:
        ids = [await engine.submit(job()) for _ in range(15)]
        await until(lambda: all([c.task_id for c in one.told] == ids for one in everybody))
        told: list[Change] = []
        while len(told) < len(ids):
            piece, position = await engine.changes.page(position)
            told += [] if piece is None else piece.changes
        assert [c.task_id for c in told] == ids
        for one in told:  # from everywhere on
            again, rest = await engine.changes.begin(one.position), []
            while (found := await engine.changes.page(again))[0] is not None:
                rest += found[0].changes
                again = found[1]
            assert [c.task_id for c in rest] == ids[ids.index(one.task_id) + 1 :]


async def test_a_position_that_nobody_can_have_yet_does_not_keep_the_database_busy(
    engine: Engine, reads: list[str | None]
) -> None:
    await engine.changes.begin()
    piece, position = await soon(engine.changes.page(Position("900000000:900000000:")))
    assert piece is None
    assert covers(position.since, "1:1:")
    assert len(reads) < 10


@pytest.mark.parametrize(
    ("later", "earlier", "does"),
    [
        ("10:10:", "10:10:", True),
        ("12:15:12,14", "10:12:10", True),
        ("10:15:10", "10:12:10", True),
        ("10:15:10", "11:12:", False),
        ("10:15:10,11", "10:12:10", False),
        ("10:11:10", "10:12:10,11", False),
    ],
)
def test_a_snapshot_covers_another_if_it_sees_all_of_it(later: str, earlier: str, does: bool) -> None:
    assert covers(later, earlier) is does
