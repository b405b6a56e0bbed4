"""Workflows: steps are remembered, sleeps and waits hold no worker, and the code is held against the record."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from windlass import Category, Invalid, State
from windlass.sdk import Cancel, Fail, StepFailed, TaskFailed, WorkflowContext, current
from windlass.sdk.client import workflow_source
from windlass.serve import App


@dataclass
class Receipt:
    order: int
    paid: float


async def test_what_a_step_returned_is_kept_with_its_type(app: App, working: Any) -> None:
    async def charge(order: int, amount: float = 1.5) -> Receipt:
        return Receipt(order, amount)

    def double(receipt: Receipt) -> tuple[Receipt, Receipt]:
        return receipt, receipt

    @app.workflow
    async def checkout(order: int, ctx: WorkflowContext) -> tuple[Receipt, Receipt]:
        receipt = await ctx.step(charge, order, amount=2.5)
        return await ctx.step(double, receipt)

    async with working():
        assert await (await checkout.submit(7)).result("10s") == (Receipt(7, 2.5), Receipt(7, 2.5))  # type: ignore[call-arg]


async def test_what_is_recorded_can_be_looked_at(app: App, working: Any) -> None:
    async def charge(order: int) -> int:
        return order

    @app.workflow
    async def checkout(ctx: WorkflowContext) -> None:
        await ctx.step(charge, 1)
        await ctx.step(charge, 2)
        await ctx.options(name="ship it").step(charge, 3)
        await ctx.sleep("1ms")

    async with working():
        handle = await checkout.submit()
        await handle.result("10s")
        steps = await workflow_source(app.client).load_steps(handle.id)
    assert [(s.name, s.occurrence, s.position, s.kind, s.result) for s in steps] == [
        ("charge", 1, 0, "step", b"1"),
        ("charge", 2, 1, "step", b"2"),
        ("ship it", 1, 2, "step", b"3"),
        ("sleep", 1, 3, "sleep", None),
    ]


async def test_a_step_that_fails_is_tried_again_by_its_own_budget(app: App, working: Any) -> None:
    tries, attempts = [], set()

    async def flaky() -> str:
        tries.append(current().idempotency_key)
        attempts.add(current().attempt)
        if len(tries) < 3:
            raise OSError("not yet")
        return "done"

    @app.workflow(max_attempts=1)
    async def checkout(ctx: WorkflowContext) -> str:
        return await ctx.options(max_attempts=3, retry_delay="1ms").step(flaky)

    async with working():
        assert await (await checkout.submit()).result("10s") == "done"  # type: ignore[call-arg]
    assert (len(tries), len(set(tries)), attempts) == (3, 1, {1})


async def test_a_step_that_fails_for_good_can_be_caught(app: App, working: Any) -> None:
    async def charge() -> None:
        raise Fail("the card was stolen", category=Category.DATA_QUALITY)

    async def apologise() -> str:
        return "sorry"

    @app.workflow
    async def checkout(ctx: WorkflowContext) -> str:
        try:
            await ctx.step(charge)
        except StepFailed as failed:
            return f"{await ctx.step(apologise)}: {failed.failure.message if failed.failure else ''}"
        return "paid"

    async with working():
        assert await (await checkout.submit()).result("10s") == "sorry: the card was stolen"


async def test_a_step_that_fails_for_good_fails_its_workflow_without_another_try(app: App, working: Any) -> None:
    tries = []

    async def charge() -> None:
        tries.append(1)
        raise OSError("no")

    @app.workflow
    async def checkout(ctx: WorkflowContext) -> None:
        await ctx.options(max_attempts=2, retry_delay="1ms").step(charge)

    async with working():
        with pytest.raises(TaskFailed, match="step charge failed: no") as failed:
            await (await checkout.submit()).result("10s")
    assert (len(tries), failed.value.state) == (2, State.FAILED)


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (object, "cannot be written as JSON"),
        (lambda: "x" * 3_000_000, "a row has room for 2097152"),
    ],
)
async def test_what_cannot_be_kept_fails_the_step_for_good(app: App, working: Any, step: Any, says: str) -> None:
    @app.workflow
    async def checkout(ctx: WorkflowContext) -> None:
        await ctx.options(name="make").step(step)

    async with working():
        with pytest.raises(TaskFailed, match=says) as failed:
            await (await checkout.submit()).result("10s")
    assert failed.value.category is Category.DATA_QUALITY


async def test_a_step_takes_no_longer_than_it_may(app: App, working: Any) -> None:
    async def hang() -> None:
        await asyncio.sleep(3600)

    @app.workflow
    async def checkout(ctx: WorkflowContext) -> None:
        await ctx.options(timeout="10ms", max_attempts=1).step(hang)

    async with working():
        with pytest.raises(TaskFailed) as failed:
            await (await checkout.submit()).result("10s")
    assert failed.value.category is Category.TIMEOUT


async def test_cancel_in_a_step_cancels_the_workflow(app: App, working: Any) -> None:
    async def stop() -> None:
        raise Cancel("not wanted")

    @app.workflow
    async def checkout(ctx: WorkflowContext) -> None:
        await ctx.step(stop)

    async with working():
        with pytest.raises(TaskFailed) as failed:
            await (await checkout.submit()).result("10s")
    assert failed.value.state is State.CANCELLED


async def test_suspension_is_not_swallowed_by_except_exception(app: App, working: Any) -> None:
    swallowed = []

    @app.workflow
    async def patient(ctx: WorkflowContext) -> str:
        try:
            return str(await ctx.wait_signal("approval"))
        except Exception as error:
            swallowed.append(error)
            raise

    async with working():
        handle = await patient.submit()
        await workflow_source(app.client).signal(handle.id, "other")
        await handle.signal("approval", {"by": "ada"})
        assert await handle.result("10s") == "{'by': 'ada'}"
    assert swallowed == []


async def test_what_runs_side_by_side_is_told_apart_by_the_order_in_which_it_was_asked_for(
    app: App, working: Any
) -> None:
    together = asyncio.Barrier(3)

    async def fetch(number: int) -> int:
        async with asyncio.timeout(60):
            await together.wait()
        return number

    @app.workflow
    async def fan_out(ctx: WorkflowContext) -> list[int]:
        return await ctx.gather(*(ctx.step(fetch, number) for number in (3, 1, 2)))

    async with working():
        handle = await fan_out.submit()
        assert await handle.result("10s") == [3, 1, 2]
        steps = await workflow_source(app.client).load_steps(handle.id)
    assert [(s.occurrence, s.result) for s in steps] == [(1, b"3"), (2, b"1"), (3, b"2")]


async def test_gather_ends_when_all_have_ended_and_raises_the_first_failure_in_order(app: App, working: Any) -> None:
    done = []

    async def run(name: str) -> str:
        done.append(name)
        if name != "good":
            raise Fail(name)
        return name

    @app.workflow
    async def both(ctx: WorkflowContext) -> list[str]:
        kept = await ctx.gather(*(ctx.step(run, name) for name in ("good", "bad")), return_exceptions=True)
        assert kept[0] == "good"
        assert isinstance(kept[1], StepFailed)
        return await ctx.gather(*(ctx.step(run, name) for name in ("first", "good", "second")))

    async with working():
        with pytest.raises(TaskFailed, match="first"):
            await (await both.submit()).result("10s")
    assert done == ["good", "bad", "first", "good", "second"]


async def test_a_forgotten_await_is_told(app: App, working: Any) -> None:
    async def charge() -> None: ...

    @app.workflow
    async def checkout(ctx: WorkflowContext) -> None:
        ctx.step(charge)

    async with working():
        with pytest.raises(TaskFailed, match="without `await` for: charge"):
            await (await checkout.submit()).result("10s")


async def test_steps_in_a_queue_and_child_tasks_run_as_tasks_of_their_own(app: App, working: Any) -> None:
    @app.step(queue="gpu")
    async def paint(number: int) -> str:
        return f"{current().queue} {number}"

    @app.task(queue="mail")
    async def send(number: int) -> str:
        return f"{current().queue} {number}"

    @app.task
    async def fail() -> None:
        raise Fail("no")

    @app.workflow
    async def parent(ctx: WorkflowContext) -> list[str]:
        painted = await ctx.step(paint, 1)
        child = await ctx.submit(send, 2)
        inline = await ctx.step(send, 3)
        other = await ctx.options(queue="mail").step(send, 4)
        with pytest.raises(StepFailed, match="no"):
            await (await ctx.submit(fail)).result()
        return [painted, await child.result(), inline, other]

    async with working():
        handle = await parent.submit()
        assert await handle.result("20s") == ["gpu 1", "mail 2", "default 3", "mail 4"]


async def test_now_random_and_uuid_are_the_same_in_every_attempt(app: App, working: Any) -> None:
    seen: list[tuple[datetime, float, UUID, UUID]] = []

    @app.workflow(retry_delay="1ms")
    async def randomness(ctx: WorkflowContext) -> None:
        seen.append((await ctx.now(), ctx.random(), ctx.uuid(), ctx.uuid()))
        if len(seen) < 3:
            raise OSError("again")

    async with working():
        await (await randomness.submit()).result("10s")  # type: ignore[call-arg]
        await (await randomness.submit()).result("10s")  # type: ignore[call-arg]
    assert seen[0] == seen[1] == seen[2] != seen[3]
    assert len({seen[0][2], seen[0][3], seen[3][2], seen[3][3]}) == 4


async def test_the_effect_and_the_record_of_a_transaction_are_one(
    app: App, working: Any, other_connection: asyncpg.Connection
) -> None:
    await other_connection.execute(
        "create table account (name text, balance int); insert into account values ('ada', 10)"
    )
    tries = []

    async def debit(connection: Any, amount: int) -> int:
        balance = await connection.fetchval("update account set balance = balance - $1 returning balance", amount)
        tries.append(balance)
        if len(tries) == 1:
            raise OSError("after the effect")
        return int(balance)

    @app.workflow
    async def pay(ctx: WorkflowContext) -> int:
        return await ctx.options(retry_delay="1ms").transaction(debit, 3)

    async with working():
        assert await (await pay.submit()).result("10s") == 7
    assert tries == [7, 7]
    assert await other_connection.fetchval("select balance from account") == 7


def test_a_workflow_is_an_async_function_with_a_context(app: App) -> None:
    with pytest.raises(Invalid, match="WorkflowContext"):

        @app.workflow
        async def without() -> None: ...

    with pytest.raises(Invalid, match="async"):

        @app.workflow  # type: ignore[call-overload]
        def blocking(ctx: WorkflowContext) -> None: ...


def test_a_step_without_a_name_has_to_be_given_one(app: App) -> None:
    from windlass.sdk.workflow.step import make_plan

    with pytest.raises(Invalid, match="give it one"):
        make_plan(lambda: 1, {})
    with pytest.raises(Invalid, match="must be declared with"):
        make_plan(test_a_workflow_is_an_async_function_with_a_context, {"queue": "mail"})


def test_a_worker_that_cannot_record_steps_takes_no_workflows(app: App, caplog: pytest.LogCaptureFixture) -> None:
    from windlass.sdk.workflow.handler import supported_handlers

    @app.task
    async def send() -> None: ...

    @app.workflow
    async def checkout(ctx: WorkflowContext) -> None: ...

    assert list(supported_handlers(object(), app.handlers)) == ["shop.send"]
    assert "leaves out: shop.checkout" in caplog.text
