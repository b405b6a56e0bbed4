"""The worker: handlers side by side, cancels, failures, a clean end, and whatever it has to survive."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
from tests.kit.database import Server, temporary_folder
from tests.kit.outage import away
from tests.kit.work import held, job, jobs, soon, state, task, until, waiting

from windlass import Category, Engine, Invalid, Policy, State, Worker
from windlass.core.validation import PAYLOAD_MAX_BYTES
from windlass.sdk.worker import worker as worker_module
from windlass.serve import migrate_database
from windlass.store.embedded.server import EmbeddedServer
from windlass.store.store import Store
from windlass.store.tables import task as task_table

pytestmark = pytest.mark.slow

AT_ONCE = Policy(retry_delay_s=0.0)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "AFTER_ERROR_S", 0.02)


@asynccontextmanager
async def working(engine: Engine, handlers: dict[str, Any] | Any, **options: Any) -> AsyncIterator[Worker]:
    """A worker that runs until the block ends, and then ends cleanly."""
    worker = Worker(engine, handlers if isinstance(handlers, dict) else {"job": handlers}, name="ada", **options)
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await soon(running, 30)


async def ended(engine: Engine, *ids: Any) -> list[State]:
    return [(await soon(engine.wait(id_, 60), 60)).task.state for id_ in ids]


# ------------------------------------------------------------------------------------------------- handlers


async def test_handlers_run_side_by_side(live_engine: Engine) -> None:
    meeting = asyncio.Barrier(10)

    async def meet(number: int) -> int:
        await meeting.wait()  # nobody leaves before all ten are there
        return number * 2

    ids = await live_engine.submit_many(jobs(10))
    async with working(live_engine, meet):
        assert await ended(live_engine, *ids) == [State.SUCCEEDED] * 10
    assert [(await task(live_engine, id_)).result for id_ in ids] == [str(i * 2).encode() for i in range(10)]


async def test_never_more_run_at_a_time_than_the_worker_was_told(live_engine: Engine) -> None:
    running = highest = 0

    async def count(_: Any) -> None:
        nonlocal running, highest
        running += 1
        highest = max(highest, running)
        await asyncio.sleep(0.001)
        running -= 1

    ids = await live_engine.submit_many(jobs(60))
    async with working(live_engine, count, concurrency=7):
        await ended(live_engine, *ids)
    assert highest == 7


async def test_a_worker_takes_its_kinds_from_its_queues(live_engine: Engine) -> None:
    seen: list[str] = []

    async def note(word: str) -> None:
        seen.append(word)

    await live_engine.submit_many(
        [
            job(kind="a", queue="one", payload=b'"yes"'), job(kind="b", queue="two", payload=b'"yes"'),
            job(kind="c", queue="one", payload=b'"no"'), job(kind="a", queue="three", payload=b'"no"'),
        ]
    )  # fmt: skip
    async with working(live_engine, {"a": note, "b": note}, queues=["one", "two"]):
        await until(lambda: len(seen) == 2)
    assert seen == ["yes", "yes"]
    assert await live_engine.tasks.totals() == {State.SUCCEEDED: 2, State.QUEUED: 2}


async def test_a_failure_is_told_with_its_traceback_and_tried_again(live_engine: Engine) -> None:
    tries = 0

    async def flaky(_: Any) -> str:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise ValueError(f"not yet: {tries}")
        return "at last"

    id_ = await live_engine.submit(job(policy=AT_ONCE))
    async with working(live_engine, flaky):
        assert await ended(live_engine, id_) == [State.SUCCEEDED]
    lines = await live_engine.tasks.timeline(id_)
    assert [line.what for line in lines] == ["submitted", "failed", "failed", "succeeded"]
    detail = lines[1].detail or {}
    assert (detail["error"], detail["reason"]) == ("not yet: 1", "ValueError")
    assert 'raise ValueError(f"not yet: {tries}")' in str(detail["trace"])
    assert (await task(live_engine, id_)).failures == 2


@pytest.mark.parametrize(
    ("bad", "category"),
    [
        pytest.param(object, Category.DATA_QUALITY, id="no JSON"),
        pytest.param(lambda: "x" * PAYLOAD_MAX_BYTES, Category.CONFIGURATION, id="too large"),
        pytest.param(lambda: "\ud800", Category.DATA_QUALITY, id="no UTF-8"),
    ],
)
async def test_a_result_that_cannot_be_kept_is_a_failure_and_the_worker_goes_on(
    live_engine: Engine, bad: Any, category: Category
) -> None:
    async def handle(number: int) -> Any:
        return bad() if number == 0 else number

    first, *others = await live_engine.submit_many([job(0, policy=Policy(max_attempts=1)), *jobs(5)[1:]])
    async with working(live_engine, handle):
        assert await ended(live_engine, first) == [State.FAILED]
        assert await ended(live_engine, *others) == [State.SUCCEEDED] * 4
    error = (await task(live_engine, first)).error
    assert error is not None
    assert error.category is category


async def test_a_handler_that_is_cancelled_by_itself_has_failed(live_engine: Engine) -> None:
    """It awaited something that was cancelled; nobody asked the task to stop, so that it must cost a try."""

    async def cancelled(_: Any) -> None:
        raise asyncio.CancelledError

    id_ = await live_engine.submit(job(policy=Policy(max_attempts=2, retry_delay_s=0)))
    async with working(live_engine, cancelled):
        assert await ended(live_engine, id_) == [State.FAILED]
    assert (await task(live_engine, id_)).attempt == 2


# ------------------------------------------------------------------------------------------------- cancel and timeout


async def test_a_cancel_reaches_the_handler_and_ends_the_task(live_engine: Engine) -> None:
    began, cleaned_up = asyncio.Event(), asyncio.Event()

    async def patient(_: Any) -> None:
        began.set()
        try:
            await asyncio.sleep(3600)
        finally:
            cleaned_up.set()

    id_ = await live_engine.submit(job())
    async with working(live_engine, patient):
        await soon(began.wait())
        await live_engine.cancel(id_, "no longer needed")
        assert await ended(live_engine, id_) == [State.CANCELLED]
    assert cleaned_up.is_set()
    assert (await task(live_engine, id_)).error.message == "no longer needed"  # type: ignore[union-attr]


async def test_a_handler_that_finishes_although_it_was_told_to_stop_has_succeeded(live_engine: Engine) -> None:
    began = asyncio.Event()

    async def stubborn(_: Any) -> str:
        began.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            return "done all the same"
        return "not told"

    id_ = await live_engine.submit(job())
    async with working(live_engine, stubborn):
        await soon(began.wait())
        await live_engine.cancel(id_)
        assert await ended(live_engine, id_) == [State.SUCCEEDED]


async def test_an_attempt_that_took_too_long_does_not_disturb_the_next_one(live_engine: Engine, pace: float) -> None:
    """Both are attempts of one task in one worker; the old one is refused, and no slot is lost."""
    attempts = 0

    async def slow_once(_: Any) -> int:
        nonlocal attempts
        attempts += 1
        mine = attempts
        if mine == 1:
            await asyncio.sleep(3600)
        return mine

    id_ = await live_engine.submit(job(policy=Policy(timeout_s=0.2 * pace, retry_delay_s=0)))
    async with working(live_engine, slow_once, concurrency=2, lease_ttl_s=0.6 * pace):
        assert await ended(live_engine, id_) == [State.SUCCEEDED]
        more = await live_engine.submit_many(jobs(6))
        assert await ended(live_engine, *more) == [State.SUCCEEDED] * 6
    assert (await task(live_engine, id_)).result == b"2"


# ------------------------------------------------------------------------------------------------- its end


async def test_a_worker_that_stops_finishes_what_runs_and_takes_nothing_more(live_engine: Engine) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    async def wait(_: Any) -> str:
        began.set()
        await go_on.wait()
        return "finished"

    worker = Worker(live_engine, {"job": wait}, concurrency=1)
    running = asyncio.create_task(worker.run())
    first = await live_engine.submit(job())
    await soon(began.wait())
    worker.stop()
    second = await live_engine.submit(job())
    await asyncio.sleep(0.05)
    assert not running.done()
    go_on.set()
    await soon(running)
    assert (await task(live_engine, first)).result == b'"finished"'
    assert await state(live_engine, second) is State.QUEUED
    async with live_engine.store.views() as views:
        assert await views.list_leases("default") == []


async def test_what_was_claimed_and_not_begun_when_a_worker_stops_is_given_back_at_no_cost(live_engine: Engine) -> None:
    """The first of a batch tells the worker to stop: what has begun comes to its end, and the rest is in line again."""
    ran: list[int] = []

    async def stop(number: int) -> None:
        ran.append(number)
        worker.stop()

    ids = await live_engine.submit_many(jobs(400))
    worker = Worker(live_engine, {"job": stop}, name="ada", concurrency=400)
    await soon(worker.run(), 30)
    found = [await task(live_engine, id_) for id_ in ids]
    assert Counter(one.state for one in found) == {State.SUCCEEDED: len(ran), State.QUEUED: 400 - len(ran)}
    assert len(ran) == len(set(ran)) < 400
    assert all(one.losses == one.failures == 0 for one in found)


async def test_a_batch_of_short_tasks_is_reported_at_once(live_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Handlers are started a few at a time; a report waits for those that will have ended in a moment."""
    sizes: list[int] = []
    report = live_engine.report

    async def counted(reports: Any) -> Any:
        sizes.append(len(reports))
        return await report(reports)

    async def nothing(_: Any) -> None: ...

    monkeypatch.setattr(live_engine, "report", counted)
    ids = await live_engine.submit_many(jobs(300))
    async with working(live_engine, nothing, concurrency=300):
        await ended(live_engine, *ids)
    assert sum(sizes) == 300
    assert len(sizes) <= 3, sizes


async def test_a_worker_that_is_torn_away_gives_back_what_it_ran(live_engine: Engine) -> None:
    began = asyncio.Event()

    async def wait(_: Any) -> None:
        began.set()
        await asyncio.sleep(3600)

    id_ = await live_engine.submit(job())
    running = asyncio.create_task(Worker(live_engine, {"job": wait}).run())
    await soon(began.wait())
    running.cancel()
    await soon(asyncio.gather(running, return_exceptions=True))
    kept = await task(live_engine, id_)
    assert (kept.state, kept.failures, kept.losses) == (State.QUEUED, 0, 0)


async def test_a_worker_stops_at_once_while_it_has_nothing_to_do(live_engine: Engine) -> None:
    async def nothing(_: Any) -> None: ...

    async with working(live_engine, nothing):
        await until(lambda: waiting(live_engine) == 1)


# ------------------------------------------------------------------------------------------------- what it survives


async def test_a_lease_that_was_lost_is_replaced(
    live_engine: Engine, other_connection: asyncpg.Connection, pace: float
) -> None:
    runs: Counter[int] = Counter()
    began = asyncio.Event()

    async def handle(number: int) -> int:
        runs[number] += 1
        if number == 1 and runs[1] == 1:
            began.set()
            await asyncio.sleep(3600)
        return number

    lost = await live_engine.submit(job(1, policy=AT_ONCE))
    async with working(live_engine, handle, lease_ttl_s=0.6 * pace):
        await soon(began.wait())
        await other_connection.execute("update windlass.lease set expires_at = windlass.now()")
        assert await ended(live_engine, lost) == [State.SUCCEEDED]
        assert await ended(live_engine, await live_engine.submit(job(2))) == [State.SUCCEEDED]
    assert runs == {1: 2, 2: 1}


async def test_a_report_on_a_row_that_somebody_holds_is_sent_again(
    live_engine: Engine, other_connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_table, "LOCK_TIMEOUT_MS", 30)
    began, go_on, runs = asyncio.Event(), asyncio.Event(), 0

    async def handle(_: Any) -> str:
        nonlocal runs
        runs += 1
        began.set()
        await go_on.wait()
        return "done"

    id_ = await live_engine.submit(job())
    async with working(live_engine, handle):
        await soon(began.wait())
        async with held(other_connection, id_):
            go_on.set()
            await asyncio.sleep(0.2)  # more than one try is refused
        assert await ended(live_engine, id_) == [State.SUCCEEDED]
    assert (await task(live_engine, id_)).attempt == runs == 1


async def test_a_database_that_is_away_for_a_while_costs_no_task(
    live_engine: Engine, postgres: Server, database: str
) -> None:
    runs: Counter[int] = Counter()

    async def handle(number: int) -> None:
        runs[number] += 1
        await asyncio.sleep(0.005)

    ids = await live_engine.submit_many(jobs(200))
    async with working(live_engine, handle, concurrency=5):
        await until(lambda: len(runs) > 20)
        async with away(postgres, database):
            await asyncio.sleep(0.1)
        assert await ended(live_engine, *ids) == [State.SUCCEEDED] * 200
    assert set(runs.values()) == {1}, "and none was run twice, since the leases lived on"


async def test_a_restart_of_the_database_costs_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: Counter[int] = Counter()

    async def handle(number: int) -> None:
        runs[number] += 1
        await asyncio.sleep(0.005)

    with temporary_folder() as folder, EmbeddedServer.open(folder / "own") as server:
        await migrate_database(server.dsn)
        async with Engine(Store(server.dsn)) as engine:
            ids = await engine.submit_many(jobs(200))
            async with working(engine, handle, concurrency=5):
                await until(lambda: len(runs) > 20)
                await asyncio.to_thread(server.stop)
                with await asyncio.to_thread(EmbeddedServer.open, folder / "own"):
                    assert await ended(engine, *ids) == [State.SUCCEEDED] * 200
    assert len(runs) == 200


# ------------------------------------------------------------------------------------------------- what it refuses


async def nothing(_: Any) -> None: ...


@pytest.mark.parametrize(
    ("handlers", "options"),
    [
        pytest.param({}, {}, id="no handlers"),
        pytest.param({"job": "no function"}, {}, id="no function"),
        pytest.param({"": nothing}, {}, id="no name"),
        pytest.param({"job": nothing}, {"queues": []}, id="no queue"),
        pytest.param({"job": nothing}, {"concurrency": 0}, id="no slot"),
        pytest.param({"job": nothing}, {"lease_ttl_s": 0.1}, id="too short"),
        pytest.param({"job": nothing}, {"name": "a\x00"}, id="no name that can be kept"),
    ],
)
async def test_a_worker_that_could_not_work_is_refused_when_it_is_made(handlers: Any, options: Any) -> None:
    with pytest.raises(Invalid):
        Worker(object(), handlers, **options)  # type: ignore[arg-type]
