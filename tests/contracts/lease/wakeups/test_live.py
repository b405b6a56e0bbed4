"""Wake-ups with all loops, in real time: workers that only know messages run everything, and no more is sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest
from tests.contracts.lease.wakeups.side import Internal
from tests.kit.work import jobs, soon

from windlass.contracts.lease.claim_by_id import Held, Holders
from windlass.contracts.lease.delivery import Wakeup
from windlass.contracts.lease.rules import Caller, LeaseCredential, LeaseReport
from windlass.contracts.lease.wakeups.carriers.drivers import make_consumer
from windlass.contracts.lease.wakeups.carriers.internal import fetch_route
from windlass.contracts.lease.wakeups.messages import Messages
from windlass.contracts.lease.wakeups.planner import Wakeups
from windlass.contracts.lease.wakeups.table import WakeupTable
from windlass.contracts.lease.wire.wakeup import task_of
from windlass.core.queue import QueueConfig
from windlass.core.task import Outcome
from windlass.engine.engine import Engine
from windlass.errors import Unavailable
from windlass.serve import open_carriers
from windlass.store.store import Store

pytestmark = pytest.mark.slow

CALLER = Caller("CN=wrapper", "00")
QUEUE = "live"


@pytest.fixture
async def live(database: str) -> AsyncIterator[Engine]:
    async with Engine(Store(database)) as engine, open_carriers(engine):
        yield engine


async def work(engine: Engine, done: list[object], count: int) -> None:
    call = Internal(engine)
    consumer = make_consumer(await fetch_route(call, QUEUE), call)
    while len(done) < count:
        for message in await consumer.receive(10, 1.0):
            held = await engine.service(Holders).claim(task_of(message.body), "w", CALLER)
            if isinstance(held, Held):
                task = held.task
                shown = LeaseCredential(task.id, attempt=task.attempt, token=task.lease_id, caller=CALLER)
                await engine.service(Holders).finish(LeaseReport(shown, Outcome.SUCCEEDED, b"1"))
                done.append(held.task.id)
            await consumer.ack(message)


@pytest.mark.parametrize("limits", [QueueConfig(), QueueConfig(max_running=7)], ids=["open", "limited"])
async def test_workers_that_are_woken_run_everything_and_no_message_is_sent_twice(
    live: Engine, other_connection: asyncpg.Connection, limits: QueueConfig
) -> None:
    await live.queues.put(QUEUE, delivery=Wakeup(), limits=limits)
    count = 400
    done: list[object] = []
    await other_connection.execute(
        "create table windlass.sent (id uuid); create function note() returns trigger language plpgsql as "
        "$$ begin insert into windlass.sent values (new.task_id); return new; end $$;"
        "create trigger note after insert or update of times on windlass.wakeup for each row execute function note()"
    )
    for _ in range(0, count, 100):
        await live.submit_many(jobs(100, queue=QUEUE))
    await soon(asyncio.gather(*(work(live, done, count) for _ in range(4))))

    assert len(set(done)) == count
    sent = await other_connection.fetchval("select count(*) from windlass.sent")
    assert count <= sent <= count + 10  # one that a claim of another's message overtook may be announced once more
    assert await live.service(Wakeups).dead_messages() == []


async def test_a_look_that_failed_is_taken_again_without_being_told(
    live: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await live.queues.put(QUEUE, delivery=Wakeup(), limits=QueueConfig())
    failed = asyncio.Event()
    real = WakeupTable.put_wakeups

    async def fails_once(*said: object) -> None:
        if not failed.is_set():
            failed.set()
            raise Unavailable("the database was away")
        await real(*said)  # type: ignore[arg-type]

    monkeypatch.setattr(WakeupTable, "put_wakeups", fails_once)
    [task_id] = await live.submit_many(jobs(1, queue=QUEUE))
    await soon(failed.wait())
    [message] = await soon(live.service(Messages).receive("default", QUEUE, limit=1, visibility_s=60.0, wait_s=600.0))
    assert task_of(message.body) == task_id
