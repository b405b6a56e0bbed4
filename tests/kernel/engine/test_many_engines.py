"""Several engines on one database: NOTIFY carries wake-ups between them; without LISTEN each polls once for all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from tests.kit.database import Server
from tests.kit.outage import hang_up
from tests.kit.work import begin, job, jobs, only_direct, poll, settle, soon, until, waiting, worker

from windlass import Engine, State
from windlass.store import store as store_module
from windlass.store.store import Store
from windlass.testing.clock import VirtualClock


@pytest.fixture
async def listener(gateway: str, clock: VirtualClock) -> AsyncIterator[Engine]:
    """An engine that listens. Its loops do not run: only what it hears can wake it."""
    engine = Engine(Store(gateway), timers=clock, stopwatch=clock.stopwatch, listen=True)
    yield engine
    await engine.close()


@only_direct
async def test_a_submit_in_one_engine_wakes_a_claim_in_the_other(engine: Engine, listener: Engine) -> None:
    async with poll(listener, await worker(listener)) as waits:
        id_ = await engine.submit(job())
        assert [c.task.id for c in await soon(waits)] == [id_]


@only_direct
@pytest.mark.parametrize("freed_by", ["complete", "release", "configure", "unpause", "dependency", "sql"])
async def test_whatever_happens_in_one_engine_wakes_a_claim_in_the_other(
    engine: Engine, listener: Engine, other_connection: asyncpg.Connection, freed_by: str
) -> None:
    lease = await worker(listener)
    claimed = await begin(engine, queue="default")
    run_id = engine.parts.randomness.new_id()
    if freed_by in ("complete", "configure"):
        await engine.configure_queue("default", max_running=1)
        await engine.submit(job())
    if freed_by == "unpause":
        await engine.pause_queue("default")
        await engine.submit(job())
    if freed_by == "dependency":
        first = await engine.submit(job(run_id=run_id, queue="elsewhere"))
        await engine.submit(job(run_id=run_id, after=(first,)))
        [upstream] = await engine.claim(await worker(engine, "elsewhere"))
    async with poll(listener, lease) as waits:
        if freed_by == "complete":
            await engine.complete(claimed)
        elif freed_by == "release":
            await engine.release(claimed)
        elif freed_by == "configure":
            await engine.configure_queue("default", max_running=2)
        elif freed_by == "unpause":
            await engine.pause_queue("default", paused=False)
        elif freed_by == "dependency":
            await engine.complete(upstream)
            await settle(engine)
        else:
            await other_connection.execute("select windlass.submit('job')")
        assert len(await soon(waits)) == 1


@only_direct
async def test_a_task_that_ends_in_one_engine_is_told_to_who_waits_in_the_other(
    engine: Engine, listener: Engine, clock: VirtualClock
) -> None:
    claimed = await begin(engine)
    waits = asyncio.create_task(listener.wait(claimed.task.id, 1000))
    await until(lambda: any(alarm > 500 for alarm in clock.alarms))
    await engine.complete(claimed, b"1")
    assert (await soon(waits)).task.result == b"1"


@only_direct
async def test_a_cancel_in_one_engine_is_news_to_a_worker_of_the_other(
    engine: Engine, listener: Engine, clock: VirtualClock
) -> None:
    lease = await worker(listener)
    claimed = await begin(listener, lease)
    news = asyncio.create_task(listener.await_notification(lease, 1000))
    await until(lambda: any(alarm > 500 for alarm in clock.alarms))
    await engine.cancel(claimed.task.id)
    assert await soon(news) is True


@only_direct
async def test_one_transaction_sends_one_notification_for_a_queue(
    engine: Engine, other_connection: asyncpg.Connection
) -> None:
    heard: list[str] = []
    await other_connection.add_listener("windlass", lambda *args: heard.append(args[-1]))
    await engine.submit_many(jobs(50))
    await engine.submit(job(queue="other"))
    await until(lambda: len(heard) >= 2)
    assert [message.split("\x1f") for message in heard] == [
        ["queue", "default", "default"],
        ["queue", "default", "other"],
    ]


@only_direct
async def test_after_its_connection_was_lost_a_listener_hears_again_and_missed_nothing(
    engine: Engine, listener: Engine, postgres: Server, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "RECONNECT_S", 0.01)
    async with poll(listener, await worker(listener)) as waits:
        await hang_up(postgres, database)
        fresh = Store(database)
        missed = Engine(fresh, listen=False)
        id_ = await soon(missed.submit(job()))
        await missed.close()
        assert [c.task.id for c in await soon(waits)] == [id_]
    async with poll(listener, await worker(listener)) as waits:
        id_ = await soon(engine.submit(job()))
        assert [c.task.id for c in await soon(waits)] == [id_]


async def test_without_listen_one_poll_serves_all_who_wait(engine: Engine, new_engine: Any) -> None:
    other = await new_engine()
    polls = [asyncio.create_task(engine.claim(await worker(engine), wait_s=600)) for _ in range(5)]
    await until(lambda: waiting(engine) == 5)
    await other.submit_many(jobs(5))
    await asyncio.sleep(0.02)
    assert not any(one.done() for one in polls), "nobody told this engine"
    await engine.loops.poll_tick()
    assert sum(len(claimed) for claimed in await soon(asyncio.gather(*polls))) == 5


async def test_without_listen_an_engine_polls_by_itself(new_engine: Any, engine: Engine) -> None:
    polling = await new_engine(poll_s=0.02)
    async with poll(polling, await worker(polling)) as waits:
        id_ = await engine.submit(job())
        assert [c.task.id for c in await soon(waits)] == [id_]


async def test_two_engines_share_the_work_and_do_it_once(new_engine: Any) -> None:
    engines = [await new_engine(poll_s=0.01) for _ in range(2)]
    left = set(await engines[0].submit_many(jobs(200)))
    done: list[Any] = []

    async def work(engine: Engine) -> None:
        lease = await worker(engine, ttl_s=3600)
        while len(done) < 200:
            claimed = await engine.claim(lease, 10)
            await asyncio.gather(*map(engine.complete, claimed))
            done.extend(one.task.id for one in claimed)

    await soon(asyncio.gather(*map(work, engines)), 60)
    assert sorted(done) == sorted(left)
    assert await engines[0].tasks.totals() == {State.SUCCEEDED: 200}
