"""Every list that says "newest first" goes by the time at which its rows were made, whatever their ids are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from tests.kit.work import job

from windlass import Engine
from windlass.contracts.lease.wakeups.planner import Wakeups
from windlass.core.access import Role
from windlass.core.ids import derived_id
from windlass.core.schedule import ScheduleSpec
from windlass.core.worker import Registration
from windlass.testing.clock import VirtualClock

COUNT = 12
RUN = UUID("33333333-3333-4333-8333-333333333333")
Row = tuple[datetime, UUID]
Look = Callable[[Engine, Row | None, int], Awaitable[Sequence[Row]]]


async def make_tasks(engine: Engine, ids: Sequence[UUID], clock: VirtualClock) -> None:
    for id_ in ids:
        await engine.submit(job(id=id_, run_id=RUN))
        await clock.advance(0.000_001)


async def look_at_tasks(engine: Engine, after: Row | None, limit: int) -> Sequence[Row]:
    page = await engine.tasks.page(after=after, limit=limit)
    return [(row.created_at, row.task.id) for row in page.tasks]


async def look_at_a_run(engine: Engine, after: Row | None, limit: int) -> Sequence[Row]:
    page = await engine.tasks.page(run_id=RUN, after=after, limit=limit)
    return [(row.created_at, row.task.id) for row in page.tasks]


async def make_runs(engine: Engine, ids: Sequence[UUID], clock: VirtualClock) -> None:
    for id_ in ids:
        await engine.submit(job(run_id=id_))
        await clock.advance(0.000_001)


async def look_at_runs(engine: Engine, after: Row | None, limit: int) -> Sequence[Row]:
    return [(run.created_at, run.id) for run in await engine.runs.list(after=after, limit=limit)]


TIMES: dict[str, tuple[str, str]] = {  # of rows whose ids the engine draws: the table, and its time
    "letters": ("dead_message", "dead_at"),
    "keys": ("api_key", "created_at"),
    "schedules": ("schedule", "created_at"),
    "workers": ("worker", "created_at"),
    "effects": ("outbox", "created_at"),
}


async def look_at_letters(engine: Engine, after: Row | None, limit: int) -> Sequence[Row]:
    return [(one.dead_at, one.id) for one in await engine.service(Wakeups).dead_messages(after=after, limit=limit)]


async def look_at_keys(engine: Engine, after: Row | None, limit: int) -> Sequence[Row]:
    return [(one.created_at, one.id) for one in await engine.keys.list_keys(None, after=after, limit=limit)]


async def look_at_schedules(engine: Engine, after: Row | None, limit: int) -> Sequence[Row]:
    return [(one.created_at, one.id) for one in await engine.schedules.page(after=after, limit=limit)]


async def look_at_effects(engine: Engine, after: Row | None, limit: int) -> Sequence[Row]:
    return [(one.created_at, one.id) for one in await engine.parts.repair.effects(after=after, limit=limit)]


def shuffled(count: int) -> list[UUID]:
    return [derived_id("child", n) for n in range(count)]


async def all_pages(engine: Engine, look: Look) -> list[UUID]:
    found: list[UUID] = []
    after = None
    while page := await look(engine, after, 5):
        found += [id_ for _, id_ in page]
        after = page[-1]
    return found


@pytest.mark.parametrize(
    ("make", "look"),
    [(make_tasks, look_at_tasks), (make_tasks, look_at_a_run), (make_runs, look_at_runs)],
    ids=["tasks", "tasks of a run", "runs"],
)
async def test_what_was_made_last_comes_first(engine: Engine, clock: VirtualClock, make: Any, look: Look) -> None:
    ids = shuffled(COUNT)
    await make(engine, ids, clock)
    assert await all_pages(engine, look) == ids[::-1]


MAKERS: dict[str, Callable[[Engine, int], Awaitable[Any]]] = {
    "letters": lambda engine, n: engine.service(Wakeups).dead_letter(
        "default", "default", message_id=f"m{n}", task_id=None, body=b"", deliveries=1, reason="nobody knows it"
    ),
    "keys": lambda engine, n: engine.keys.create_key(name=f"k{n}", role=Role.VIEWER, namespace="default"),
    "schedules": lambda engine, n: engine.schedules.create(ScheduleSpec(kind="job", cron="@daily")),
    "workers": lambda engine, n: engine.workers.register(
        Registration(namespace="default", queue="q", kinds=("job",), host="h", pid=n + 1)
    ),
}
LOOKS: dict[str, Look] = {"letters": look_at_letters, "keys": look_at_keys, "schedules": look_at_schedules}


@pytest.mark.parametrize("what", [*LOOKS, "workers"])
async def test_ids_that_were_drawn_elsewhere_do_not_decide(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection, what: str
) -> None:
    """Another server has another clock: as if each row had been made by one whose clock is off."""
    table, at = TIMES[what]
    for n, id_ in enumerate(shuffled(COUNT)):
        await MAKERS[what](engine, n)
        await clock.advance(1)
        await other_connection.execute(
            f"update windlass.{table} set id = $1 where {at} = (select max({at}) from windlass.{table})", id_
        )
    if what == "workers":
        found, after = [], None
        while True:
            page = await engine.workers.page(after=after, limit=5)
            found += [worker.id for worker in page.workers]
            if (after := page.next) is None:
                break
    else:
        found = await all_pages(engine, LOOKS[what])
    assert found == shuffled(COUNT)[::-1]


async def test_effects_are_listed_newest_first(
    engine: Engine, clock: VirtualClock, other_connection: asyncpg.Connection
) -> None:
    ids = shuffled(COUNT)
    for id_ in ids:
        await other_connection.execute(
            """insert into windlass.outbox (id, kind, namespace, task_id, attempt, body, available_at, created_at)
               values ($1, 'push', 'default', $1, 1, '{}', windlass.now(), windlass.now())""",
            id_,
        )
        await clock.advance(1)
    assert await all_pages(engine, look_at_effects) == ids[::-1]


async def test_a_worker_that_registers_again_keeps_its_place_in_the_list(engine: Engine, clock: VirtualClock) -> None:
    for n in range(3):
        await MAKERS["workers"](engine, n)
        await clock.advance(1)
    first = await engine.workers.page(limit=2)
    await MAKERS["workers"](engine, 0)
    rest = await engine.workers.page(limit=2, after=first.next)
    assert [worker.name for worker in (*first.workers, *rest.workers)] == ["h:3", "h:2", "h:1"]
