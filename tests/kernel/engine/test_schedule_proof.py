"""Proofs for schedules: two years in six zones are what the preview said; an engine may stop at any statement."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import asyncpg
import pytest
from tests.conftest import NewEngine
from tests.kernel.engine.test_schedule import at_noon, keys, spec, tick
from tests.kit.work import SOON_S, only_direct

from windlass import Engine
from windlass.core.cron import parse_cron
from windlass.core.cron_times import first_fires
from windlass.core.schedule import Overlap, Schedule
from windlass.engine.loops.schedule_loop import Pace
from windlass.errors import StoreBusy
from windlass.store.errors import CommitUnknown
from windlass.store.pool import Session
from windlass.testing.clock import VirtualClock

pytestmark = pytest.mark.slow

ZONES = (
    "UTC", "America/New_York", "Europe/London", "Australia/Lord_Howe", "America/Havana", "Africa/Casablanca",
)  # fmt: skip
CRONS = ("30 1 * * *", "30 2 * * *", "0 */6 * * *", "15 9 * * MON-FRI", "0 0 0 29 2 ?", "0 30 1 1-7 * SUN")
YEARS = timedelta(days=2 * 365)


async def previewed(engine: Engine, schedule: Schedule, begin: datetime) -> list[str]:
    """Two years of fires, page by page."""
    fires: list[datetime] = []
    while not fires or fires[-1] <= begin + YEARS:
        page = await engine.schedules.preview(schedule.id, 1000, after=fires[-1] if fires else begin)
        fires += page
        if len(page) < 1000:
            break
    return [fire.isoformat() for fire in fires if fire <= begin + YEARS]


@only_direct
async def test_two_years_in_six_zones_are_what_the_preview_said(
    new_engine: NewEngine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    """Two engines take turns, and are there again after each jump; nothing of it counts as an outage."""
    engines = [await new_engine(pace=Pace(interval_s=86400 * 2)) for _ in range(2)]
    begin = await at_noon(clock)
    made = [
        await engines[0].schedules.create(spec(cron=cron, timezone=zone, max_catchup=0))
        for zone in ZONES
        for cron in CRONS
    ]
    expected = [await previewed(engines[0], schedule, begin) for schedule in made]
    for engine in engines:
        await tick(engine)
    randomness, now = Random(5), begin
    while now < begin + YEARS:
        jump = min(timedelta(seconds=randomness.randrange(3 * 86400, 6 * 86400)), begin + YEARS - now)
        now = await clock.advance(jump.total_seconds())
        await tick(randomness.choice(engines))
    found = [await keys(other_connection, schedule) for schedule in made]
    assert found == expected
    assert [len(fires) for fires in expected[:4]] == [730, 730, 2920, pytest.approx(521, abs=2)]
    assert all(len(set(fires)) == len(fires) for fires in found)


class Stop:
    """Lets the connection of an engine break at its nth statement; a commit may have happened, or not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        self.after_commit, self.broke_at = False, ""
        self.dead: list[int] = []
        fetch, execute = Session.fetch, Session.execute

        async def broken_fetch(session: Session, query: str, *args: object) -> Any:
            self._count(session, query)
            return await fetch(session, query, *args)

        async def broken_execute(session: Session, command: str) -> None:
            if command == "commit" and self.left == 0 and self.after_commit:
                await execute(session, command)
                self.left, self.broke_at = None, "after commit"
                raise CommitUnknown("the answer was lost")
            self._count(session, command)
            await execute(session, command)

        monkeypatch.setattr(Session, "fetch", broken_fetch)
        monkeypatch.setattr(Session, "execute", broken_execute)

    def _count(self, session: Session, what: str) -> None:
        if self.left is None:
            return
        if self.left == 0:
            self.left, self.broke_at = None, what
            session.broken = True
            self.dead.append(session.connection.get_server_pid())
            session.connection.terminate()
            raise StoreBusy(f"broken at {what}")
        self.left -= 1

    async def buried(self, other_connection: asyncpg.Connection) -> None:
        """Until the server has noticed which connections broke: till then it keeps their locks."""
        query = "select count(*) from pg_stat_activity where pid = any($1)"
        async with asyncio.timeout(SOON_S):
            while await other_connection.fetchval(query, self.dead):  # noqa: ASYNC110
                await asyncio.sleep(0.001)


@only_direct
@pytest.mark.parametrize("overlap", list(Overlap))
async def test_an_engine_may_stop_at_any_statement_and_each_fire_is_made_once(
    new_engine: NewEngine,
    clock: VirtualClock,
    other_connection: asyncpg.Connection,
    monkeypatch: pytest.MonkeyPatch,
    overlap: Overlap,
) -> None:
    dying, heir = await new_engine(), await new_engine()
    begin = await at_noon(clock)
    made = await heir.schedules.create(spec(overlap=overlap))
    other = await heir.schedules.create(spec())
    stop, minute, seen = Stop(monkeypatch), 0, set()
    for after_commit in (False, True):
        for statement in range(40):
            minute += 1
            await clock.advance(60)
            stop.left, stop.after_commit, stop.broke_at = statement, after_commit, ""
            try:
                await tick(dying)
            except StoreBusy:
                seen.add(stop.broke_at)
            stop.left = None
            await stop.buried(other_connection)
            await tick(heir)
            if not stop.broke_at:
                break
    expected = [(begin + timedelta(minutes=n + 1)).isoformat() for n in range(minute)]
    assert await keys(other_connection, other) == expected
    assert {"insert_tasks", "settle_schedules", "commit", "after commit"} <= seen
    known = await heir.schedules.get(made.id)
    fired = await keys(other_connection, made)
    assert (known.fired + known.skipped, known.fired) == (minute, len(fired))
    assert fired == (expected if overlap is not Overlap.SKIP else expected[:1])
    assert known.last_fire_at == datetime.fromisoformat(fired[-1]).astimezone(UTC)


@only_direct
@pytest.mark.parametrize("seed", range(4))
async def test_whatever_happens_no_fire_is_lost_and_none_is_made_twice(
    new_engine: NewEngine,
    clock: VirtualClock,
    other_connection: asyncpg.Connection,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    """Three engines tick side by side, break at any statement, have a clock that jumps; people pause and trigger."""
    randomness, stop = Random(seed), Stop(monkeypatch)
    paces = [Pace(batch=randomness.choice([1, 3, 100]), fires_max=randomness.choice([2, 50])) for _ in range(3)]
    engines = [await new_engine(pace=pace) for pace in paces]
    await at_noon(clock)
    crons = ("* * * * *", "*/7 * * * * *", "0 */2 * * *", "30 12-14 * * *")
    steady = [await engines[0].schedules.create(spec(cron=cron, max_catchup=10_000)) for cron in crons]
    touched = [await engines[0].schedules.create(spec(cron=cron, max_catchup=3)) for cron in crons[:2]]
    latest = await clock.now()
    for _ in range(60):
        latest = max(latest, await clock.advance(randomness.choice([1, 5, 20, 61, 600, 1800, -30, -4000])))
        stop.left, stop.after_commit = (
            randomness.choice([None, None, randomness.randrange(25)]),
            randomness.random() < 0.5,
        )
        await asyncio.gather(
            *[randomness.choice(engines).loops.schedule_tick() for _ in range(randomness.randrange(1, 4))],
            _meddle(randomness.choice(engines), randomness.choice(touched), randomness),
            return_exceptions=True,
        )
        stop.left = None
    await clock.advance(max(0.0, (latest - await clock.now()).total_seconds()))
    for schedule in touched:
        await until_free(lambda s=schedule: engines[0].schedules.resume(s.id))  # type: ignore[misc]
    await stop.buried(other_connection)
    for _ in range(3):
        await tick(engines[0])
    now = await clock.now()
    for schedule in (*steady, *touched):
        made = [key for key in await keys(other_connection, schedule) if not key.startswith("manual:")]
        wanted = first_fires(parse_cron(schedule.cron), UTC, schedule.created_at, 100_000, now)
        every = [fire.isoformat() for fire in wanted]
        known = await engines[0].schedules.get(schedule.id)
        assert known.fired == len(made) == len(set(made))
        assert set(made) <= set(every)
        assert known.next_fire_at is not None
        assert known.next_fire_at > now
        if schedule in steady:
            assert made == every
        else:
            assert made[-1:] == every[-1:]


async def _meddle(engine: Engine, schedule: Schedule, randomness: Random) -> None:
    what = randomness.choice(["pause", "resume", "trigger", "update", ""])
    if what == "update":
        await engine.schedules.update(schedule.id, {"payload": str(randomness.randrange(9)).encode()})
    elif what:
        await getattr(engine.schedules, what)(schedule.id)


async def until_free(call: Callable[[], Awaitable[Any]]) -> None:
    """A connection that broke may hold its locks for a moment."""
    while True:
        with contextlib.suppress(StoreBusy):
            await call()
            return
