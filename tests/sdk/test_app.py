"""An app: functions become handlers, stay callable, submit themselves, and are run by its worker."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import threading
import time
from datetime import timedelta
from typing import Any

import pytest

from windlass import Category, Conflict, Draining, Invalid, InvalidState, State, Submission
from windlass.sdk import Cancel, Context, Fail, Retry, TaskFailed, current
from windlass.serve import App
from windlass.testing.clock import VirtualClock


async def test_a_handler_is_still_the_function(app: App) -> None:
    @app.task
    async def double(number: int) -> int:
        """Twice as much."""
        return 2 * number

    @app.task
    def half(number: int) -> int:
        return number // 2

    assert await double(4) == 8
    assert half(4) == 2
    assert double.__name__ == "double"  # type: ignore[attr-defined]
    assert double.__doc__ == "Twice as much."
    assert double.kind == "shop.double"


async def test_what_is_submitted_is_run_and_its_result_comes_back(app: App, working: Any) -> None:
    @app.task
    async def add(a: int, b: int = 2) -> int:
        return a + b

    async with working():
        assert await (await add.submit(1)).result("10s") == 3
        assert await (await add.submit(1, b=5)).result("10s") == 6
        handles = await add.submit_many([(number,) for number in range(20)])
        assert [await handle.result("10s") for handle in handles] == list(range(2, 22))


async def test_blocking_functions_run_in_threads_side_by_side(app: App, working: Any) -> None:
    together = threading.Barrier(3)

    @app.task
    def meet() -> str:
        together.wait(10)
        return threading.current_thread().name

    async with working():
        handles = [await meet.submit() for _ in range(3)]
        names = {await handle.result("20s") for handle in handles}
    assert len(names) == 3
    assert threading.current_thread().name not in names


async def test_a_failing_handler_is_tried_again_and_knows_its_attempt(app: App, working: Any) -> None:
    @app.task(retry_delay="1ms")
    async def third_time_lucky(ctx: Context) -> tuple[int, int]:
        if ctx.attempt < 3:
            raise OSError("not yet")
        return current().attempt, ctx.failures

    async with working():
        assert await (await third_time_lucky.submit()).result("20s") == (3, 2)


async def test_only_what_retry_on_names_is_tried_again(app: App, working: Any) -> None:
    attempts = []

    @app.task(retry_on=(OSError,), retry_delay="1ms")
    async def unlucky(ctx: Context) -> None:
        attempts.append(ctx.attempt)
        raise OSError("again") if ctx.attempt == 1 else ValueError("for good")

    async with working():
        with pytest.raises(TaskFailed, match="for good") as failed:
            await (await unlucky.submit()).result("20s")
    assert attempts == [1, 2]
    assert failed.value.category is Category.USER_CODE
    assert 'raise OSError("again") if' in failed.value.remote_traceback


@pytest.mark.parametrize(
    ("signal", "state", "category", "attempts"),
    [
        (lambda: Fail("bad rows", category="DATA_QUALITY"), State.FAILED, Category.DATA_QUALITY, 1),
        (lambda: Fail("no key", category=Category.CONFIGURATION), State.FAILED, Category.CONFIGURATION, 1),
        (lambda: Fail("once more", retryable=True), State.FAILED, Category.USER_CODE, 2),
        (lambda: Retry("busy", after="1ms"), State.FAILED, Category.USER_CODE, 2),
        (lambda: Cancel("not needed"), State.CANCELLED, Category.CANCELLED, 1),
    ],
)
async def test_a_handler_says_how_its_attempt_ends(
    app: App, working: Any, signal: Any, state: State, category: Category, attempts: int
) -> None:
    seen = []

    @app.task(max_attempts=2, retry_delay="1ms")
    async def speak(ctx: Context) -> None:
        seen.append(ctx.attempt)
        raise signal()

    async with working():
        with pytest.raises(TaskFailed) as failed:
            await (await speak.submit()).result("20s")
    assert (failed.value.state, failed.value.category, len(seen)) == (state, category, attempts)


async def test_cancel_interrupts_async_code_and_is_seen_by_threads_that_ask(app: App, working: Any) -> None:
    begun = asyncio.Event()
    running = threading.Event()
    loop = asyncio.get_running_loop()

    @app.task
    async def wait_long() -> None:
        begun.set()
        await asyncio.sleep(3600)

    @app.task
    def ask(ctx: Context) -> str:
        loop.call_soon_threadsafe(running.set)
        while not ctx.cancelled:
            time.sleep(0.01)
        raise Cancel("as you wish")

    async with working():
        sleeper, asker = await wait_long.submit(), await ask.submit()
        await begun.wait()
        await asyncio.to_thread(running.wait, 10)
        for handle in (sleeper, asker):
            await handle.cancel("enough")
            with pytest.raises(TaskFailed) as failed:
                await handle.result("20s")
            assert failed.value.state is State.CANCELLED


async def test_options_of_one_submission_do_not_touch_the_handler(app: App, database: str) -> None:
    @app.task(queue="mail", priority=5, timeout="10m", concurrency_key=lambda to: to.split("@")[1])
    async def send(to: str) -> None: ...

    urgent = send.options(priority=-5, idempotency_key="order 7", queue="fast")
    async with app:
        first, again = await urgent.submit("ada@example.org"), await urgent.submit("ada@example.org")
        plain = await send.submit("ada@example.org")
        tasks = [(await app.client.wait(handle.id, 0)).task for handle in (first, plain)]
        with pytest.raises(Conflict):
            await urgent.submit("bob@example.org")
    assert first.id == again.id != plain.id
    assert [(t.queue, t.priority, t.concurrency_key, t.policy.timeout_s) for t in tasks] == [
        ("fast", -5, "example.org", 600.0),
        ("mail", 5, "example.org", 600.0),
    ]


async def test_a_result_that_does_not_come_in_time_is_a_timeout(app: App) -> None:
    @app.task
    async def nobody_runs_this() -> None: ...

    async with app:
        handle = await nobody_runs_this.submit()
        with pytest.raises(TimeoutError, match="still queued"):
            await handle.result(0)
        assert await handle.state() is State.QUEUED


async def test_hooks_run_when_the_app_is_opened_and_closed(app: App) -> None:
    seen = []

    @app.on_start
    async def started() -> None:
        seen.append("start")

    @app.on_end
    async def ended() -> None:
        seen.append("end")

    async with app:
        assert seen == ["start"]
    assert seen == ["start", "end"]


def test_programs_without_an_event_loop_submit_and_wait_too(database: str) -> None:
    app = App("script", database)

    @app.task
    def nothing() -> None: ...

    handle = nothing.submit_sync()
    with pytest.raises(TimeoutError):
        handle.result_sync(0)
    handle.cancel_sync("never mind")
    with pytest.raises(TaskFailed, match="was cancelled: never mind"):
        handle.result_sync("10s")
    app.close_sync()


async def test_mistakes_are_named_before_anything_is_written(app: App) -> None:
    @app.task
    async def add(a: int, b: int = 2) -> int:
        return a + b

    with pytest.raises(InvalidState, match="not open"):
        await add.submit(1)
    async with app:
        for wrong in (lambda: add.submit("x"), add.submit, lambda: add.submit(1, c=3)):  # type: ignore[call-arg, arg-type]
            with pytest.raises(Invalid, match="add"):
                await wrong()  # type: ignore[call-arg]
    with pytest.raises(Conflict, match="already"):
        app.task(kind="shop.add")(add)
    for options in ({"tmeout": "1s"}, {"timeout": "soon"}, {"max_attempts": 0}, {"priority": 1000}, {"queue": ""}):
        with pytest.raises(Invalid):
            app.task(**options)(lambda: None)  # type: ignore[arg-type]


def test_a_signature_that_cannot_be_sent_by_name_is_refused(app: App) -> None:
    with pytest.raises(Invalid, match="cannot be sent by name"):

        @app.task
        async def many(*numbers: int) -> None: ...


async def test_a_delay_runs_by_the_clock_of_the_database(app: App, clock: VirtualClock) -> None:
    @app.task
    async def later() -> None: ...

    async with app:
        handle = await later.options(delay="10m").submit()
        task = (await app.client.wait(handle.id, 0)).task
        assert task.available_at == await clock.now() + timedelta(minutes=10)
        with pytest.raises(Invalid, match="not both"):
            await later.options(delay="10m", available_at=await clock.now()).submit()


async def test_a_payload_that_does_not_fit_the_handler_is_bad_data_and_not_tried_again(app: App, working: Any) -> None:
    @app.task
    async def add(a: int) -> int:
        return a

    async with working():
        task_id = await app.client.submit(Submission(kind="shop.add", payload=b'{"a": "many"}'))
        with pytest.raises(TaskFailed, match="Expected `int`") as failed:
            await app.handle(task_id).result("20s")
    assert failed.value.category is Category.DATA_QUALITY


async def test_a_handler_in_a_thread_submits_with_the_sync_methods(app: App, working: Any) -> None:
    @app.task
    def double(number: int) -> int:
        return 2 * number

    @app.task
    def ask(number: int) -> int:
        return double.submit_sync(number).result_sync("10s") + 1

    async with working():
        assert await (await ask.submit(4)).result("20s") == 9
        with pytest.raises(InvalidState, match="inside an event loop"):
            double.submit_sync(1)


async def test_a_call_that_still_waits_when_the_app_is_closed_is_told_so(app: App) -> None:
    @app.task
    def nobody_runs_this() -> None: ...

    async with app:
        handle = await nobody_runs_this.submit()
        listening = asyncio.get_running_loop().create_future()
        waiting = asyncio.create_task(asyncio.to_thread(app.call_sync, lambda: said_and_waited(listening, handle)))
        await listening
    with pytest.raises(Draining, match="closed"):
        await waiting


async def said_and_waited(listening: asyncio.Future[None], handle: Any) -> None:
    listening.set_result(None)
    await handle.result()


async def test_an_app_whose_start_fails_is_closed_and_can_be_opened_again(app: App) -> None:
    problems = [OSError("no network")]

    @app.on_start
    def connect() -> None:
        if problems:
            raise problems.pop()

    with pytest.raises(OSError, match="no network"):
        await app.__aenter__()
    with pytest.raises(InvalidState, match="not open"):
        _ = app.client
    async with app:
        assert app.client


async def test_every_end_hook_runs_the_last_one_first_also_after_one_that_failed(app: App) -> None:
    seen = []

    @app.on_end
    async def last() -> None:
        seen.append("last")

    @app.on_end
    def failing() -> None:
        seen.append("failing")
        raise OSError("cannot close")

    with pytest.raises(OSError, match="cannot close"):
        async with app:
            pass
    assert seen == ["failing", "last"]
    with pytest.raises(InvalidState, match="not open"):
        _ = app.client


def test_settings_and_options_that_do_not_exist_are_named(database: str) -> None:
    with pytest.raises(Invalid, match="there is no setting colour"):
        App("shop", database, colour="red")  # type: ignore[call-arg]
    with pytest.raises(Invalid, match="retry_on"):
        App("shop", database).task(retry_on=[OSError])(lambda: None)  # type: ignore[typeddict-item]


async def test_a_schedule_is_checked_where_it_is_declared_and_kept(app: App) -> None:
    @app.schedule("0 9 * * MON", timezone="Europe/Rome", arguments={"to": "ada"})
    @app.task
    async def report(to: str, copies: int = 1) -> None: ...

    kept = app.schedules["shop.report"]
    assert (kept.name, kept.kind, kept.timezone, kept.payload) == (
        "shop.report", "shop.report", "Europe/Rome", b'{"to":"ada"}',
    )  # fmt: skip
    assert (kept.cron.text, kept.cron.weekdays, kept.cron.hours) == ("0 9 * * MON", (1,), (9,))
    app.schedule("@daily", name="again", arguments={"to": "bob"})(report)
    assert list(app.schedules) == ["shop.report", "again"]

    for wrong in (
        lambda: app.schedule("0 9 * * MOON"),
        lambda: app.schedule("@daily", name="x")(report),  # `to` is missing
        lambda: app.schedule("@daily", name="x", arguments={"to": 7})(report),
        lambda: app.schedule("@daily", name="x", timezone="Mars/Base", arguments={"to": "ada"})(report),
        lambda: app.schedule("@daily", name="x", timezone="../etc/passwd", arguments={"to": "ada"})(report),
        lambda: app.schedule("@daily", name="", arguments={"to": "ada"})(report),
        lambda: app.schedule("@daily", name="x", overlap="never", arguments={"to": "ada"})(report),
        lambda: app.schedule("@daily", name="x", max_catchup=-1, arguments={"to": "ada"})(report),
        lambda: app.schedule("@daily")(lambda: None),  # type: ignore[type-var]
        lambda: App("other").schedule("@daily", arguments={"to": "ada"})(report),
    ):
        with pytest.raises(Invalid):
            wrong()
    with pytest.raises(Conflict, match="again"):
        app.schedule("@daily", name="again", arguments={"to": "ada"})(report)


@pytest.mark.parametrize(
    ("missing", "arguments", "extra"),
    [
        ("grpc", "'shop', server='http://127.0.0.1:1', api_key='key'", "windlass-engine[remote]"),
        ("asyncpg", "'shop'", "windlass-engine[server]"),
    ],
)
def test_an_app_says_what_has_to_be_installed_for_the_way_to_its_engine(
    missing: str, arguments: str, extra: str
) -> None:
    program = (
        f"import asyncio, sys\nsys.modules[{missing!r}] = None\nimport windlass\n"
        f"async def main():\n    async with windlass.App({arguments}): pass\n"
        "try:\n    asyncio.run(main())\nexcept windlass.InvalidState as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert extra in done.stdout


async def test_numbers_that_json_does_not_have_are_refused_wherever_they_are_said(app: App, working: Any) -> None:
    @app.task(kind="mean")
    async def mean(values: list[float]) -> float:
        return sum(values) / len(values) if len(values) > 1 else math.nan

    @app.task(kind="rows", max_attempts=3)
    def rows(ctx: Context) -> dict[str, Any]:
        calls.append(ctx.attempt)
        for said in (lambda: ctx.checkpoint({"at": math.inf}), lambda: ctx.progress(math.nan)):
            with pytest.raises(Invalid):
                said()
        return {"rows": [{"mean": math.nan, "name": None}]}

    calls: list[int] = []
    async with working():
        with pytest.raises(Invalid, match=r"values\[1\] is NaN"):
            await mean.submit([1.0, math.nan])
        with pytest.raises(Invalid, match=r"values\[0\] is -Infinity"):
            await mean.submit_many([([-math.inf],)])
        with pytest.raises(TaskFailed, match="NaN, which JSON has no number for") as failed:
            await (await mean.submit([1.0])).result("30s")
        assert failed.value.category is Category.DATA_QUALITY
        handle = await rows.submit()
        with pytest.raises(TaskFailed, match=r"rows\[0\]\.mean is NaN"):
            await handle.result("30s")
        with pytest.raises(Invalid, match="NaN"):
            await handle.signal("go", {"x": math.nan})
    assert calls == [1], "the same again would not be another number"
