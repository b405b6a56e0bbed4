"""Schedules on the engine: fires by ticks, catch-up, pause and resume, overlap, and what code declares."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest
from tests.conftest import NewEngine
from tests.kit.work import only_direct, settle, soon, state, until, work_off, worker

from windlass import Engine, State
from windlass.core.schedule import Overlap, Schedule, ScheduleSpec
from windlass.engine.loops.schedule_loop import Pace
from windlass.engine.read.metrics import Tally
from windlass.engine.submit.submitter import add_each
from windlass.errors import Conflict, Invalid, InvalidState, NotFound, StoreBusy
from windlass.testing.clock import VirtualClock


def spec(**fields: Any) -> ScheduleSpec:
    return ScheduleSpec(**{"kind": "job", "cron": "* * * * *", **fields})


async def at_noon(clock: VirtualClock) -> datetime:
    """Move the clock to the next noon."""
    now = await clock.now()
    noon = now.replace(hour=12, minute=0, second=0, microsecond=0) + timedelta(days=1)
    return await clock.advance((noon - now).total_seconds())


async def tick(engine: Engine) -> int:
    """All that is due."""
    done = 0
    while settled := await engine.loops.schedule_tick():
        done += settled
    return done


async def live(engine: Engine, clock: VirtualClock, seconds: float, *, every_s: float = 5) -> None:
    """Let this much time go by on a server that ticks."""
    for _ in range(int(seconds / every_s)):
        await clock.advance(every_s)
        await tick(engine)


async def keys(other_connection: asyncpg.Connection, schedule: Schedule) -> list[str]:
    rows = await other_connection.fetch(
        "select idempotency_key from windlass.task where schedule_id = $1 order by idempotency_key", schedule.id
    )
    return [row[0].removeprefix(f"schedule:{schedule.id}:") for row in rows]


def at(noon: datetime, *minutes: int) -> list[str]:
    return [(noon + timedelta(minutes=minute)).isoformat() for minute in minutes]


async def test_a_schedule_fires_at_its_times_with_its_task(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    noon = await at_noon(clock)
    made = await engine.schedules.create(spec(queue="mail", payload=b'{"to":"ada"}', priority=7, name="hourly"))
    assert (made.next_fire_at, made.last_fire_at, made.fired) == (noon + timedelta(minutes=1), None, 0)
    await tick(engine)
    assert await keys(other_connection, made) == []
    await live(engine, clock, 180)
    assert await keys(other_connection, made) == at(noon, 1, 2, 3)
    known = await engine.schedules.get("hourly")
    [newest, *_] = ids = [id_ for _, id_ in await engine.schedules.task_page(made.id)]
    assert (known.fired, known.last_task_id, known.last_fire_at) == (3, newest, noon + timedelta(minutes=3))
    assert len(ids) == 3
    view = await engine.tasks.get(newest)
    assert (view.task.queue, view.task.kind, view.task.priority, view.payload) == ("mail", "job", 7, b'{"to":"ada"}')


async def test_a_fire_is_single_even_if_the_engine_forgets_that_it_was_made(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    noon = await at_noon(clock)
    made = await engine.schedules.create(spec())
    await live(engine, clock, 60)
    await other_connection.execute(
        "update windlass.schedule set settled_at = $1, next_fire_at = $1::timestamptz + interval '1 minute'", noon
    )
    assert await tick(engine) == 1
    assert await keys(other_connection, made) == at(noon, 1)
    assert (await engine.schedules.get(made.id)).next_fire_at == noon + timedelta(minutes=2)


async def test_after_an_outage_the_newest_are_made_up_for_and_no_others(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    noon = await at_noon(clock)
    few, none = await engine.schedules.create(spec(max_catchup=3)), await engine.schedules.create(spec(max_catchup=0))
    await live(engine, clock, 120)
    await clock.advance(3 * 86400)
    await tick(engine)
    days = 3 * 24 * 60
    assert await keys(other_connection, few) == at(noon, 1, 2, days, days + 1, days + 2)
    assert await keys(other_connection, none) == at(noon, 1, 2)
    await live(engine, clock, 60)
    assert await keys(other_connection, none) == at(noon, 1, 2, days + 3)


async def test_a_short_outage_is_bounded_too(
    new_engine: NewEngine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    noon = await at_noon(clock)
    first = await new_engine()
    made = await first.schedules.create(spec(cron="* * * * * *", max_catchup=2))
    await live(first, clock, 3, every_s=1)
    await first.close()
    await clock.advance(8)
    second = await new_engine()
    await tick(second)
    await live(second, clock, 2, every_s=1)

    seconds = [1, 2, 3, 10, 11, 12, 13]
    assert await keys(other_connection, made) == [(noon + timedelta(seconds=second)).isoformat() for second in seconds]


async def test_a_database_that_was_away_is_an_outage(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    noon = await at_noon(clock)
    made = await engine.schedules.create(spec(cron="* * * * * *", max_catchup=2))
    await live(engine, clock, 3, every_s=1)

    def away() -> None:
        raise StoreBusy

    with monkeypatch.context() as broken:
        broken.setattr(engine.store, "single", away)
        for _ in range(8):
            await clock.advance(1)
            with pytest.raises(StoreBusy):
                await engine.loops.schedule_tick()
    await tick(engine)

    seconds = [1, 2, 3, 10, 11]
    assert await keys(other_connection, made) == [(noon + timedelta(seconds=second)).isoformat() for second in seconds]


async def test_an_engine_that_starts_beside_another_takes_nothing_from_it(
    new_engine: NewEngine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    noon = await at_noon(clock)
    first = await new_engine()
    made = await first.schedules.create(spec(cron="* * * * * *", max_catchup=0))
    await tick(first)
    for second in range(12):
        await clock.advance(1)
        await tick(first)
        if second % 3 == 0:
            await tick(await new_engine())

    assert await keys(other_connection, made) == [(noon + timedelta(seconds=n)).isoformat() for n in range(1, 13)]


async def test_what_a_live_server_is_late_with_is_never_left_out(
    new_engine: NewEngine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    engine = await new_engine(pace=Pace(batch=2, fires_max=3))
    noon = await at_noon(clock)
    made = [await engine.schedules.create(spec(cron="* * * * * *", max_catchup=1)) for _ in range(4)]
    await tick(engine)
    for _ in range(4):
        await clock.advance(10)
        await engine.loops.schedule_tick()  # one portion only: it falls behind
    assert sum([len(await keys(other_connection, one)) for one in made]) < 40
    await tick(engine)
    expected = [(noon + timedelta(seconds=second)).isoformat() for second in range(1, 41)]
    assert [await keys(other_connection, one) for one in made] == [expected] * 4


async def test_a_paused_schedule_does_not_fire_and_catches_up_when_it_is_resumed(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    noon = await at_noon(clock)
    made = await engine.schedules.create(spec(max_catchup=2))
    await live(engine, clock, 60)
    assert (await engine.schedules.pause(made.id)).paused
    await live(engine, clock, 600)
    assert await keys(other_connection, made) == at(noon, 1)
    assert not (await engine.schedules.resume(made.id)).paused
    await tick(engine)
    assert await keys(other_connection, made) == at(noon, 1, 10, 11)
    await live(engine, clock, 60)
    assert await keys(other_connection, made) == at(noon, 1, 10, 11, 12)


async def test_a_clock_that_jumps_back_and_forth_fires_nothing_twice(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    noon = await at_noon(clock)
    made = await engine.schedules.create(spec())
    await live(engine, clock, 120)
    await clock.advance(-3600)
    await live(engine, clock, 600)
    assert await keys(other_connection, made) == at(noon, 1, 2)
    await clock.advance(3600 - 600 + 60)
    await tick(engine)
    assert await keys(other_connection, made) == at(noon, 1, 2, 3)


async def test_a_deleted_schedule_fires_no_more_and_its_tasks_stay(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    await at_noon(clock)
    made = await engine.schedules.create(spec(name="gone"))
    await live(engine, clock, 60)
    assert (await engine.schedules.delete(made.id)).name == "gone"
    await live(engine, clock, 120)
    assert len(await keys(other_connection, made)) == 1
    for call in (engine.schedules.get(made.id), engine.schedules.delete(made.id), engine.schedules.trigger(made.id)):
        with pytest.raises(NotFound):
            await call
    assert (await engine.schedules.create(spec(name="gone"))).id != made.id


async def test_an_update_changes_only_what_is_named(engine: Engine, clock: VirtualClock) -> None:
    noon = await at_noon(clock)
    made = await engine.schedules.create(spec(name="one", payload=b"1"))
    await engine.schedules.create(spec(name="two"))
    changed = await engine.schedules.update(made.id, {"payload": b"2", "timezone": "Europe/Rome", "cron": "0 9 * * *"})
    assert (changed.payload, changed.name, changed.queue) == (b"2", "one", "default")
    assert changed.next_fire_at is not None
    assert changed.next_fire_at.hour in (7, 8)
    assert changed == await engine.schedules.get("one")
    put_off = await engine.schedules.update(made.id, {}, next_fire_at=noon + timedelta(days=10))
    assert put_off.next_fire_at == noon + timedelta(days=10)
    [first, second] = await engine.schedules.preview(made.id, 2)
    assert first == noon + timedelta(days=10)
    assert second > first
    with pytest.raises(Conflict):
        await engine.schedules.update(made.id, {"name": "two"})
    for wrong in ({"timezone": "Mars/Base"}, {"cron": "never"}, {"id": uuid4()}, {"timezone": "localtime"}):
        with pytest.raises(Invalid):
            await engine.schedules.update(made.id, wrong)


@pytest.mark.parametrize("wrong", [{"cron": "never"}, {"kind": ""}, {"name": "a\x00"}, {"queue": ""}])
async def test_what_the_schedules_of_an_engine_store_is_checked(engine: Engine, wrong: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        await engine.schedules.create(ScheduleSpec(**{"kind": "job", "cron": "@daily", **wrong}))
    with pytest.raises(Invalid, match="namespace"):
        await engine.schedules.create(ScheduleSpec(kind="job", cron="@daily"), namespace="")


async def test_the_same_request_again_is_the_same_schedule(engine: Engine) -> None:
    made = await engine.schedules.create(spec(), key="request")
    assert await engine.schedules.create(spec(), key="request") == made
    named = await engine.schedules.create(spec(name="named", payload=b'{"a": 1}'))
    assert await engine.schedules.create(spec(name="named", payload=b'{"a":1}')) == named
    with pytest.raises(Conflict, match="named"):
        await engine.schedules.create(spec(name="named"))
    assert (await engine.schedules.create(spec(name="named"), namespace="other")).id != named.id


async def test_lists_are_newest_first_and_page_exactly(engine: Engine) -> None:
    made = [await engine.schedules.create(spec(queue="mail" if n % 2 else "default")) for n in range(5)]
    await engine.schedules.create(spec(), namespace="other")
    first = await engine.schedules.page(limit=3)
    rest = await engine.schedules.page(after=(first[-1].created_at, first[-1].id))
    assert [s.id for s in (*first, *rest)] == sorted([s.id for s in made], reverse=True)
    assert {s.id for s in await engine.schedules.page(queue="mail")} == {made[3].id, made[1].id}


async def test_a_preview_is_what_it_will_fire(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    await at_noon(clock)
    made = await engine.schedules.create(spec(cron="*/7 * * * *", timezone="Asia/Kathmandu"))
    preview = await engine.schedules.preview(made.id, 5)
    await live(engine, clock, 40 * 60)
    assert (await keys(other_connection, made))[:5] == [fire.isoformat() for fire in preview]
    assert len(await engine.schedules.preview_cron("@daily", count=1000)) == 1000
    for cron, timezone in (("x", "UTC"), ("@daily", "x")):
        with pytest.raises(Invalid):
            await engine.schedules.preview_cron(cron, timezone)


# --------------------------------------------------------------------------------------------- trigger and overlap


async def test_a_trigger_submits_now_and_leaves_the_fires_as_they_are(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    noon = await at_noon(clock)
    made = await engine.schedules.create(spec(cron="0 * * * *"))
    task_id = await engine.schedules.trigger(made.id, key="once")
    assert await engine.schedules.trigger(made.id, key="once") == task_id
    other = await engine.schedules.trigger(made.id)
    assert other != task_id
    known = await engine.schedules.get(made.id)
    assert (known.next_fire_at, known.fired) == (noon + timedelta(hours=1), 0)
    assert {id_ for _, id_ in await engine.schedules.task_page(made.id)} == {task_id, other}


async def fires(engine: Engine, clock: VirtualClock, schedule: Schedule) -> list[UUID]:
    """A minute later: what it has submitted so far, the oldest first."""
    await clock.advance(60)
    await tick(engine)
    return sorted(id_ for _, id_ in await engine.schedules.task_page(schedule.id))


async def test_skip_leaves_out_a_fire_while_an_earlier_task_has_not_ended(engine: Engine, clock: VirtualClock) -> None:
    await at_noon(clock)
    made = await engine.schedules.create(spec(overlap=Overlap.SKIP))
    [first] = await fires(engine, clock, made)
    assert await fires(engine, clock, made) == [first]
    with pytest.raises(InvalidState, match=str(first)):
        await engine.schedules.trigger(made.id)
    assert await work_off(engine, await worker(engine, ttl_s=3600)) == [first]
    assert len(await fires(engine, clock, made)) == 2
    known = await engine.schedules.get(made.id)
    assert (known.fired, known.skipped) == (2, 1)


async def test_queue_lets_a_fire_wait_until_the_earlier_one_has_ended(engine: Engine, clock: VirtualClock) -> None:
    await at_noon(clock)
    made = await engine.schedules.create(spec(overlap=Overlap.QUEUE))
    for _ in range(3):
        ids = await fires(engine, clock, made)
    assert [await state(engine, id_) for id_ in ids] == [State.QUEUED, State.BLOCKED, State.BLOCKED]
    lease = await worker(engine, ttl_s=3600)
    for id_ in ids:
        [claimed] = await engine.claim(lease, 10)
        assert claimed.task.id == id_
        await engine.complete(claimed)
        await settle(engine)


async def test_cancel_ends_the_earlier_one_and_waits_for_its_end(engine: Engine, clock: VirtualClock) -> None:
    await at_noon(clock)
    made = await engine.schedules.create(spec(overlap=Overlap.CANCEL))
    await fires(engine, clock, made)
    await fires(engine, clock, made)
    await settle(engine)
    ids = sorted(id_ for _, id_ in await engine.schedules.task_page(made.id))
    assert [await state(engine, id_) for id_ in ids] == [State.CANCELLED, State.QUEUED]
    lease = await worker(engine, ttl_s=3600)
    [running] = await engine.claim(lease)
    third = (await fires(engine, clock, made))[-1]
    assert [await state(engine, id_) for id_ in (running.task.id, third)] == [State.RUNNING, State.BLOCKED]
    assert (await engine.tasks.get(running.task.id)).task.cancel is not None
    await engine.complete(running)
    await settle(engine)
    assert await state(engine, third) is State.QUEUED


async def test_another_overlap_holds_from_the_next_fire_on(engine: Engine, clock: VirtualClock) -> None:
    await at_noon(clock)
    made = await engine.schedules.create(spec())
    [first] = await fires(engine, clock, made)
    await engine.schedules.update(made.id, {"overlap": Overlap.QUEUE})
    await fires(engine, clock, made)
    first, second, third = await fires(engine, clock, made)
    assert [await state(engine, id_) for id_ in (first, second, third)] == [State.QUEUED, State.QUEUED, State.BLOCKED]
    await engine.schedules.update(made.id, {"overlap": Overlap.CANCEL})
    await fires(engine, clock, made)
    await settle(engine)
    assert [await state(engine, id_) for id_ in (first, second, third)] == [State.CANCELLED] * 3


async def test_a_schedule_whose_fire_is_refused_is_set_aside_and_holds_up_nobody(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    noon = await at_noon(clock)
    broken, whole = await engine.schedules.create(spec()), await engine.schedules.create(spec())

    async def refusing(tx: Any, batch: list[Any]) -> Any:
        if any(submission.schedule_id == broken.id for submission in batch):
            raise Conflict("it cannot be")
        return await add_each(tx, batch)

    with monkeypatch.context() as patched:
        patched.setattr("windlass.engine.loops.schedule_loop.add_each", refusing)
        await live(engine, clock, 90)
    assert await keys(other_connection, whole) == at(noon, 1)
    assert (await engine.schedules.get(broken.id)).problem == "it cannot be"
    await live(engine, clock, 60)
    assert await keys(other_connection, broken) == at(noon, 1, 2)


# --------------------------------------------------------------------------------------------- several engines


async def test_three_engines_that_tick_at_once_fire_each_time_once(
    new_engine: NewEngine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    engines = [await new_engine() for _ in range(3)]
    noon = await at_noon(clock)
    made = [await engines[0].schedules.create(spec(overlap=overlap)) for overlap in (Overlap.ALLOW, Overlap.QUEUE) * 10]
    for _ in range(12):
        await clock.advance(30)
        await asyncio.gather(*[tick(engine) for engine in engines for _ in range(2)])
    await tick(engines[0])
    assert [await keys(other_connection, one) for one in made] == [at(noon, 1, 2, 3, 4, 5, 6)] * 20


async def test_a_delete_beside_ticks_leaves_no_half_fire(
    new_engine: NewEngine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    engines = [await new_engine() for _ in range(2)]
    await at_noon(clock)
    made = [await engines[0].schedules.create(spec()) for _ in range(20)]
    await clock.advance(60)
    await asyncio.gather(
        tick(engines[0]), tick(engines[1]), *[engines[1].schedules.delete(schedule.id) for schedule in made]
    )
    counts = [len(await keys(other_connection, schedule)) for schedule in made]
    assert set(counts) <= {0, 1}
    await clock.advance(600)
    await tick(engines[0])
    assert [len(await keys(other_connection, schedule)) for schedule in made] == counts
    assert await other_connection.fetchval("select count(*) from windlass.schedule") == 0


async def test_a_held_task_keeps_only_its_own_schedule_from_firing(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.engine.loops.schedule_loop.LONG_MS", 100)
    monkeypatch.setattr("windlass.store.tables.task.LOCK_TIMEOUT_MS", 100)
    noon = await at_noon(clock)
    held, free = await engine.schedules.create(spec(overlap=Overlap.CANCEL)), await engine.schedules.create(spec())
    [task_id] = await fires(engine, clock, held)
    async with other_connection.transaction():
        await other_connection.execute("select from windlass.task where id = $1 for update", task_id)
        await clock.advance(60)
        assert await engine.loops.schedule_tick() == 1
        assert await engine.loops.schedule_tick() == 0
    assert await keys(other_connection, free) == at(noon, 1, 2)
    assert await keys(other_connection, held) == at(noon, 1)
    await tick(engine)
    assert await keys(other_connection, held) == at(noon, 1, 2)


async def test_a_zone_that_a_server_does_not_know_holds_up_nobody_else(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    noon = await at_noon(clock)
    broken, whole = await engine.schedules.create(spec()), await engine.schedules.create(spec())
    await other_connection.execute("update windlass.schedule set timezone = 'Mars/Base' where id = $1", broken.id)
    await live(engine, clock, 60)
    assert await keys(other_connection, whole) == at(noon, 1)
    assert "Mars/Base" in str((await engine.schedules.get(broken.id)).problem)
    await other_connection.execute("update windlass.schedule set timezone = 'UTC' where id = $1", broken.id)
    await live(engine, clock, 60)
    assert await keys(other_connection, broken) == at(noon, 1, 2)
    assert (await engine.schedules.get(broken.id)).problem is None


# --------------------------------------------------------------------------------------------- waking at the time


@only_direct
async def test_an_engine_sleeps_until_the_next_one_is_due(
    new_engine: NewEngine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    tally = Tally()
    engine: Engine = await new_engine(tally=tally)
    await at_noon(clock)
    await engine.start()
    made = await engine.schedules.create(spec(cron="*/3 * * * * *"))
    for count in range(1, 4):
        await until(lambda: any(alarm <= 3 for alarm in clock.alarms))
        await clock.advance(min(clock.alarms))
        await until(lambda count=count: tally.fires["submitted"] == count)  # type: ignore[misc]
    assert len(await keys(other_connection, made)) == 3
    assert tally.lateness.sum_s == 0


@only_direct
async def test_a_schedule_that_is_made_in_another_engine_is_heard_of(
    new_engine: NewEngine, clock: VirtualClock
) -> None:
    server: Engine = await new_engine(listen=True)
    other: Engine = await new_engine()
    await at_noon(clock)
    await server.start()
    listening = asyncio.create_task(server.claim(await worker(server), wait_s=3000))
    await until(lambda: any(alarm > 100 for alarm in clock.alarms))
    before = len(clock.alarms)
    await other.schedules.create(spec(cron="*/2 * * * * *"))
    await until(lambda: len(clock.alarms) > before)
    await clock.advance(2)
    assert len(await soon(listening)) == 1


# --------------------------------------------------------------------------------------------- declared in code


async def test_what_an_app_declares_is_made_changed_and_in_the_end_removed(engine: Engine, clock: VirtualClock) -> None:
    noon = await at_noon(clock)
    declare = engine.schedules.declare
    assert await declare("shop", [spec(name="a"), spec(name="b")]) == 0
    one, two = await engine.schedules.get("a"), await engine.schedules.get("b")
    assert (one.app, one.next_fire_at) == ("shop", noon + timedelta(minutes=1))
    await engine.schedules.pause(one.id)
    await clock.advance(30)
    assert await declare("shop", [spec(name="a", payload=b"7")]) == 1, "b may still be declared by older code"
    changed = await engine.schedules.get("a")
    assert (changed.id, changed.payload, changed.paused, changed.next_fire_at) == (one.id, b"7", True, one.next_fire_at)
    await clock.advance(200)
    assert await declare("shop", [spec(name="b")], anew=False) == 1, "a worker of older code still runs"
    await clock.advance(200)
    assert await declare("shop", [spec(name="a", payload=b"8")], anew=False) == 1
    assert (await engine.schedules.get("a")).payload == b"7", "only a start changes anything"
    await clock.advance(101)
    assert await declare("shop", [spec(name="a")], anew=False) == 0
    with pytest.raises(NotFound):
        await engine.schedules.get(two.id)
    assert await declare("shop", []) == 1
    await clock.advance(301)
    assert await declare("shop", []) == 0


async def test_what_an_app_declares_is_not_changed_from_outside_while_its_workers_run(
    engine: Engine, clock: VirtualClock
) -> None:
    await engine.schedules.declare("shop", [spec(name="a")])
    made = await engine.schedules.get("a")
    for refused in (engine.schedules.update(made.id, {"cron": "@daily"}), engine.schedules.delete(made.id)):
        with pytest.raises(InvalidState, match="shop"):
            await refused
    assert (await engine.schedules.update(made.id, {"paused": True})).paused
    await engine.schedules.trigger(made.id)
    await clock.advance(301)
    await engine.schedules.delete(made.id)


async def test_names_that_are_taken_are_told(engine: Engine) -> None:
    await engine.schedules.create(spec(name="mine"))
    await engine.schedules.declare("shop", [spec(name="ours")])
    for app, name in (("shop", "mine"), ("other", "ours")):
        with pytest.raises(Conflict, match=name):
            await engine.schedules.declare(app, [spec(name=name), spec(name="x")])
    with pytest.raises(NotFound):
        await engine.schedules.get("x")
    with pytest.raises(Conflict):
        await engine.schedules.create(spec(name="ours"))
    with pytest.raises(Invalid):
        await engine.schedules.declare("shop", [spec()])


async def test_workers_that_start_at_once_declare_the_same_schedule_once(new_engine: NewEngine) -> None:
    engines = [await new_engine() for _ in range(5)]
    await asyncio.gather(*[one.schedules.declare("shop", [spec(name="a"), spec(name="b")]) for one in engines])
    assert sorted(str(s.name) for s in await engines[0].schedules.page()) == ["a", "b"]
