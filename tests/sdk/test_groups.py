"""Tasks put together: results in order, exact fan-in, failures that are told once, and all or nothing."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from windlass import (
    App,
    Category,
    Conflict,
    Context,
    Fail,
    Invalid,
    State,
    Submission,
    TaskFailed,
    WorkflowContext,
    chain,
    group,
)
from windlass.core.upstream import results_payload
from windlass.sdk import Handler


@pytest.fixture
def shop(app: App) -> App:
    """Some handlers; what ran is kept in `ran`."""

    @app.task
    async def square(number: int) -> int:
        if number == 1313:
            raise Fail("unlucky", category=Category.DATA_QUALITY)
        return number * number

    @app.task
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    @app.task(retry_delay="1ms")
    async def words(ctx: Context, number: int, unit: str = "cm") -> str:
        if ctx.attempt == 1:
            raise OSError("once more")
        return f"{number} {unit}"

    return app


def handler(app: App, name: str) -> Handler[..., Any]:
    return app.handlers[f"shop.{name}"]


async def states(app: App, run_id: Any) -> dict[State, int]:
    engine: Any = app.client
    return dict(await engine.tasks.run_totals(run_id))


async def test_map_gives_results_in_the_order_of_the_items(shop: App, working: Any) -> None:
    async with working():
        done = await handler(shop, "square").map(range(50))
        assert await done.results("30s") == [number * number for number in range(50)]
        assert len(done) == 50


async def test_a_group_runs_different_handlers_side_by_side(shop: App, working: Any) -> None:
    async with working():
        done = await group(handler(shop, "square").bind(3), handler(shop, "total").bind([1, 2])).submit()
        assert await done.results("30s") == [9, 3]


async def test_a_chain_hands_each_result_on_also_to_a_second_attempt(shop: App, working: Any) -> None:
    async with working():
        done = await chain(handler(shop, "square").bind(3), handler(shop, "square"), handler(shop, "words")).submit()
        assert await done.result("30s") == "81 cm"
        assert [await part.result(0) for part in done.parts] == [9, 81, "81 cm"]


async def test_what_follows_a_group_gets_all_results_in_order_and_runs_once(shop: App, working: Any) -> None:
    seen: list[list[int]] = []

    @shop.task
    async def keep(numbers: list[int]) -> int:
        seen.append(numbers)
        return len(numbers)

    square = handler(shop, "square")
    async with working():
        done = await chain(group(*(square.bind(number) for number in range(30))), keep, square).submit()
        assert await done.result("30s") == 900
    assert seen == [[number * number for number in range(30)]]


async def test_the_failure_of_a_group_is_that_of_the_first_in_order_and_the_rest_can_be_had(
    shop: App, working: Any
) -> None:
    async with working():
        done = await handler(shop, "square").map([1, 1313, 2])
        with pytest.raises(TaskFailed, match="unlucky"):
            await done.results("30s")
        first, failed, last = await done.outcomes("30s")
    assert (first, last) == (1, 4)
    assert isinstance(failed, TaskFailed)
    assert failed.category is Category.DATA_QUALITY


async def test_a_chain_that_breaks_skips_what_follows_and_tells_the_failure_itself(shop: App, working: Any) -> None:
    square = handler(shop, "square")
    async with working():
        done = await chain(square.bind(1313), square, square).submit()
        with pytest.raises(TaskFailed, match="unlucky") as failed:
            await done.result("30s")
        assert await states(shop, done.run_id) == {State.FAILED: 1, State.SKIPPED: 2}
    assert failed.value.task_id == done.parts[0].id


async def test_a_group_with_one_failure_skips_what_waits_for_all_of_it(shop: App, working: Any) -> None:
    square, total = handler(shop, "square"), handler(shop, "total")
    async with working():
        done = await chain(group(square.bind(1), square.bind(1313), square.bind(2)), total).submit()
        with pytest.raises(TaskFailed, match="unlucky"):
            await done.result("30s")
        assert await states(shop, done.run_id) == {State.SUCCEEDED: 2, State.FAILED: 1, State.SKIPPED: 1}


async def test_cancel_reaches_every_part(shop: App) -> None:
    square = handler(shop, "square")
    async with shop:
        one, many = await chain(square.bind(1), square, square).submit(), await square.map([1, 2])
        forced = await chain(square.bind(1), square).submit()
        await one.cancel("enough")
        await many.cancel("enough")
        await forced.cancel("now", force=True)
        for handle in (one, forced):
            with pytest.raises(TaskFailed, match="was cancelled"):
                await handle.result("20s")
        assert await states(shop, many.run_id) == {State.CANCELLED: 2}


async def test_the_same_key_again_is_the_same_run_and_other_content_is_a_conflict(shop: App, working: Any) -> None:
    square = handler(shop, "square")
    async with working():
        first = await chain(square.bind(3), square).submit(key="order 7")
        assert await first.result("30s") == 81
        again = await chain(square.bind(3), square).submit(key="order 7")
        assert [part.id for part in again.parts] == [part.id for part in first.parts]
        assert await again.result(0) == 81
        with pytest.raises(Conflict):
            await chain(square.bind(4), square).submit(key="order 7")
        many = await square.map([1, 2], key="order 8")
        assert [h.id for h in (await square.map([1, 2], key="order 8")).handles] == [h.id for h in many.handles]


async def test_nothing_is_submitted_when_one_of_them_is_wrong(shop: App, other_connection: asyncpg.Connection) -> None:
    square, total = handler(shop, "square"), handler(shop, "total")
    other = App("other", "postgresql://localhost/nowhere")

    @other.task
    async def stranger(number: int) -> int:
        return number

    @shop.task
    async def two(a: int, b: int) -> int:
        return a + b

    @shop.workflow
    async def long(ctx: WorkflowContext, number: int) -> int:
        return number

    async with shop:
        for wrong in (
            lambda: chain(square.bind(1), long).submit(),
            lambda: square.map([1, "x"]),
            lambda: square.map("12"),
            lambda: square.map(7),
            lambda: square.map([]),
            lambda: group().submit(),
            lambda: group(square).submit(),
            lambda: group(square.bind(1), stranger.bind(1)).submit(),
            lambda: chain(square.bind(1), stranger).submit(),  # type: ignore[arg-type]
            lambda: chain(square.bind(1), two).submit(),
            lambda: chain().submit(),
            lambda: chain(square, total).submit(),
            lambda: chain(square.bind(1), len).submit(),
            lambda: chain(square.options(idempotency_key="k").bind(1), total).submit(),
            lambda: chain(square.bind(1), total.options(connection=other_connection)).submit(),
            lambda: group(square.bind(1)).submit(key=""),
        ):
            with pytest.raises(Invalid):
                await wrong()
    assert await other_connection.fetchval("select count(*) from windlass.task") == 0


async def test_a_result_that_is_no_longer_kept_fails_the_task_that_needs_it(shop: App, working: Any) -> None:
    async with working():
        forgotten = Submission(kind="shop.square", payload=results_payload("number", uuid4()))
        with pytest.raises(TaskFailed, match="no longer stored") as failed:
            await shop.handle(await shop.client.submit(forgotten)).result("20s")
    assert failed.value.category is Category.DATA_QUALITY


async def test_a_payload_of_the_users_own_with_the_same_word_is_left_alone(app: App, working: Any) -> None:
    @app.task
    async def echo(value: dict[str, str]) -> dict[str, str]:
        return value

    async with working():
        assert await (await echo.submit({"$from": "ada"})).result("20s") == {"$from": "ada"}


def test_scripts_without_an_event_loop_do_the_same(shop: App) -> None:
    square = handler(shop, "square")

    async def work() -> None:
        app = shop
        worker = app.worker()
        app.stop_worker = worker.stop  # type: ignore[attr-defined]
        app.working = asyncio.create_task(worker.run())  # type: ignore[attr-defined]

    shop.call_sync(work)
    assert square.map_sync([1, 2, 3]).results_sync("20s") == [1, 4, 9]
    assert chain(square.bind(2), square).submit_sync().result_sync("20s") == 16
    done = group(square.bind(1313), square.bind(2)).submit_sync()
    assert [type(outcome) for outcome in done.outcomes_sync("20s")] == [TaskFailed, int]
    done.cancel_sync()
    assert [handle.result_sync("20s") for handle in square.submit_many_sync([(5,), (6,)])] == [25, 36]

    async def end() -> None:
        shop.stop_worker()  # type: ignore[attr-defined]
        await shop.working  # type: ignore[attr-defined]

    shop.call_sync(end)
    shop.close_sync()
