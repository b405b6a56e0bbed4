"""The test kit: time jumps, faults come when they are asked for, and what is promised of workflows holds."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest

from windlass import State
from windlass.sdk import App, StepFailed, TaskFailed, WorkflowContext, current
from windlass.sdk.workflow.drift import check_app
from windlass.testing import Stuck
from windlass.testing.kit import OpenKit

pytestmark = pytest.mark.slow

# ------------------------------------------------------------------------------------------------- time


async def test_a_workflow_of_thirty_days_takes_a_second(app: App, windlass_kit: OpenKit) -> None:
    tries: list[str] = []

    async def remind(day: int) -> int:
        tries.append(current().idempotency_key)
        if tries.count(tries[-1]) < 3:
            raise OSError("the mail server is away")
        return day

    @app.workflow
    async def trial(ctx: WorkflowContext) -> dict[str, Any]:
        began = await ctx.now()
        for day in range(1, 30):
            await ctx.sleep("1d")
            if day % 7 == 0:
                await ctx.options(max_attempts=5, retry_delay="1h").step(remind, day)
        try:
            answer = await ctx.wait_signal("answer", type=str, timeout="2d")
        except TimeoutError:
            answer = "none"
        return {"answer": answer, "days": (await ctx.now() - began) / timedelta(days=1)}

    async with windlass_kit(app) as kit:
        work_s = time.process_time()
        handle, silent = await trial.submit(), await trial.submit()
        await kit.advance("29d12h")
        await handle.signal("answer", "yes")
        kept = await kit.result(handle)
        late = await kit.result(silent)
        work_s = time.process_time() - work_s
    assert (kept["answer"], late["answer"]) == ("yes", "none")
    assert 29 < kept["days"] < 30 < late["days"] < 32
    assert len(tries) == 2 * 4 * 3
    assert work_s < 10, "about a second; what others do on this machine does not count"


async def test_a_sleep_holds_no_worker_and_uses_no_budget(app: App, windlass_kit: OpenKit) -> None:
    @app.workflow(max_attempts=1, max_losses=1)
    async def nap(ctx: WorkflowContext) -> int:
        for _ in range(10):
            await ctx.sleep("1h")
        return ctx.attempt

    async with windlass_kit(app) as kit:
        handle = await nap.submit()  # type: ignore[call-arg]
        await kit.until(handle, "sleeping")
        view = await kit.engine.tasks.get(handle.id)
        assert [why.reason for why in await kit.engine.tasks.why_waiting(handle.id)] == ["sleeping"]
        assert await kit.result(handle) == 11
        assert ((await kit.engine.tasks.get(handle.id)).task.failures, view.task.losses) == (0, 0)


async def test_what_will_never_happen_is_told(app: App, windlass_kit: OpenKit) -> None:
    @app.workflow
    async def patient(ctx: WorkflowContext) -> None:
        await ctx.wait_signal("approval")

    async with windlass_kit(app) as kit:
        handle = await patient.submit()
        with pytest.raises(Stuck, match="waits for the signal approval"):
            await kit.result(handle)
        await handle.signal("approval")
        await kit.result(handle)


async def test_side_by_side_a_sleep_a_signal_and_a_child_are_waited_for_at_once(
    app: App, windlass_kit: OpenKit
) -> None:
    @app.task(queue="other")
    async def double(number: int) -> int:
        return 2 * number

    @app.workflow
    async def fan_out(ctx: WorkflowContext) -> list[Any]:
        child = await ctx.submit(double, 4)
        results = await ctx.gather(ctx.sleep("3h"), ctx.wait_signal("go"), ctx.options(queue="other").step(double, 1))
        return [*results, await child.result()]

    async with windlass_kit(app) as kit:
        began = await kit.now()
        handle = await fan_out.submit()
        await kit.advance("1h")
        await handle.signal("go", "now")
        assert await kit.result(handle) == [None, "now", 2, 8]
        assert await kit.now() - began == timedelta(hours=3)


# ------------------------------------------------------------------------------------------------- faults


async def test_no_recorded_step_is_run_again_wherever_the_worker_is_killed(app: App, windlass_kit: OpenKit) -> None:
    calls: list[int] = []

    async def work(number: int) -> int:
        calls.append(number)
        return number

    @app.workflow(max_losses=100, retry_delay="1s", retry_factor=1.0)
    async def long(ctx: WorkflowContext) -> list[int]:
        return [await ctx.step(work, number) for number in range(20)]

    async with windlass_kit(app) as kit:
        for occurrence in range(1, 21):
            kit.kill_after_step("work", occurrence=occurrence)
        handle = await long.submit()  # type: ignore[call-arg]
        assert await kit.result(handle) == list(range(20))
        task = (await kit.engine.tasks.get(handle.id)).task
    assert calls == list(range(20))
    assert (task.attempt, task.losses) == (21, 20)


async def test_a_step_whose_record_is_missing_is_run_again_with_the_same_key(app: App, windlass_kit: OpenKit) -> None:
    keys: list[str] = []

    async def charge() -> str:
        keys.append(current().idempotency_key)
        return "paid"

    @app.workflow
    async def checkout(ctx: WorkflowContext) -> str:
        return await ctx.step(charge)

    async with windlass_kit(app) as kit:
        kit.kill_before_record("charge")
        handle = await checkout.submit()
        assert await kit.result(handle) == "paid"
    assert keys == [f"windlass-{handle.id}-charge-1"] * 2


@pytest.mark.parametrize("moment", ["kill_before_record", "kill_after_step"])
async def test_a_transaction_is_carried_out_once_whenever_the_worker_is_killed(
    app: App, windlass_kit: OpenKit, moment: str
) -> None:
    calls: list[int] = []

    async def debit(connection: Any, amount: int) -> int:
        calls.append(amount)
        return int(await connection.fetchval("update account set balance = balance - $1 returning balance", amount))

    @app.workflow
    async def pay(ctx: WorkflowContext) -> int:
        return await ctx.transaction(debit, 3)

    async with windlass_kit(app) as kit:
        async with kit.engine.store.begin() as tx:
            await tx.session.execute("create table account as select 10 as balance")
        getattr(kit, moment)("debit")
        handle = await pay.submit()
        assert await kit.result(handle) == 7
        async with kit.engine.store.begin() as tx:
            assert await tx.session.connection.fetchval("select balance from account") == 7
    assert len(calls) == (2 if moment == "kill_before_record" else 1)


async def test_an_attempt_that_is_delivered_twice_has_one_record(app: App, windlass_kit: OpenKit) -> None:
    calls: list[int] = []

    async def pick() -> int:
        calls.append(len(calls))
        return len(calls)

    @app.workflow
    async def choose(ctx: WorkflowContext) -> list[int]:
        return [await ctx.step(pick), await ctx.step(pick)]

    async with windlass_kit(app) as kit:
        kit.duplicate_delivery()
        handle = await choose.submit()
        result = await kit.result(handle)
        steps = await kit.engine.tasks.steps(handle.id)
    assert len(calls) >= 3, "both have run"
    assert [int(step.result or b"0") for step in steps] == result


async def test_a_worker_without_heartbeats_is_replaced_and_changes_nothing_any_more(
    app: App, windlass_kit: OpenKit
) -> None:
    go_on, ran = asyncio.Event(), []

    async def slow() -> str:
        ran.append(current().worker)
        if len(ran) == 1:
            await go_on.wait()
        return current().worker

    @app.workflow
    async def checkout(ctx: WorkflowContext) -> str:
        return await ctx.step(slow)

    async with windlass_kit(app) as kit:
        handle = await checkout.submit()
        async with asyncio.timeout(60):
            while not ran:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        kit.drop_heartbeats()
        assert await kit.result(handle) == "worker-2"
        go_on.set()
        await kit.settle()
        assert await handle.result(0) == "worker-2"
    assert ran == ["worker-1", "worker-2"]


# ------------------------------------------------------------------------------------------------- changed code


def named(name: str) -> Any:
    async def step() -> str:
        return name

    step.__name__ = name
    return step


CHANGES = {
    "inserted": ["charge", "gift", "pack", "wait", "ship"],
    "renamed": ["charge", "wrap", "wait", "ship"],
    "reordered": ["pack", "charge", "wait", "ship"],
    "removed": ["charge", "wait", "ship"],
    "cut off": ["charge"],
}


@pytest.mark.parametrize("change", CHANGES)
async def test_changed_code_parks_a_workflow_which_goes_on_when_the_code_is_back(
    app: App, windlass_kit: OpenKit, change: str
) -> None:
    deployed = first = ["charge", "pack", "wait", "ship"]
    calls: list[str] = []

    @app.workflow
    async def order(ctx: WorkflowContext) -> list[str]:
        done = []
        for name in deployed:
            if name == "wait":
                await ctx.sleep("1d")
            else:
                done.append(await ctx.step(named(name)))
                calls.append(name)
        return done

    async with windlass_kit(app) as kit:
        handle = await order.submit()
        await kit.until(handle, "sleeping")
        assert await check_app(app, kit.engine) == []
        deployed = CHANGES[change]
        [drift] = await check_app(app, kit.engine)
        assert (drift.task_id, drift.state) == (handle.id, State.SLEEPING)

        await kit.until(handle, "parked")
        task = (await kit.engine.tasks.get(handle.id)).task
        assert task.error is not None
        assert (task.error.reason, task.error.message) == ("CODE_MISMATCH", drift.difference)
        deployed = first
        await kit.engine.resume(handle.id)
        assert await kit.result(handle) == ["charge", "pack", "ship"]
    assert "- recorded, + called now" in drift.difference


async def test_the_difference_is_readable(app: App, windlass_kit: OpenKit) -> None:
    names = ["charge", "pack"]

    @app.workflow
    async def order(ctx: WorkflowContext) -> None:
        for name in names:
            await ctx.step(named(name))
        await ctx.sleep("1d")

    async with windlass_kit(app) as kit:
        handle = await order.submit()
        await kit.until(handle, "sleeping")
        names = ["charge", "wrap"]
        [drift] = await check_app(app, kit.engine)
    assert drift.difference.splitlines() == [
        "the code no longer matches the recorded steps of this workflow (- recorded, + called now):",
        "       1  charge",
        "  -    2  pack, succeeded in attempt 1",
        "  -    3  sleep, waiting in attempt 1",
        "  +    2  wrap",
        "Roll the code back and resume the task, or fork it from a step before the difference.",
    ]


async def test_a_check_runs_nothing(app: App, windlass_kit: OpenKit) -> None:
    calls: list[str] = []

    async def work(name: str) -> str:
        calls.append(name)
        return name

    @app.workflow
    async def order(ctx: WorkflowContext) -> None:
        await ctx.step(work, "first")
        await ctx.wait_signal("go")
        await ctx.step(work, "second")

    async with windlass_kit(app) as kit:
        handle = await order.submit()
        await kit.until(handle, "sleeping")
        before = calls.copy()
        assert await check_app(app, kit.engine) == []
        await handle.signal("go")
        await kit.result(handle)
    assert (before, calls) == (["first"], ["first", "second"])


async def test_a_fork_does_again_what_comes_after_a_step(app: App, windlass_kit: OpenKit) -> None:
    calls: list[str] = []
    broken = True

    async def work(name: str, key: str) -> str:
        calls.append(name)
        if name == "ship" and broken:
            raise ValueError("no such address")
        return f"{name} {key}"

    @app.workflow
    async def order(ctx: WorkflowContext) -> list[str]:
        key = str(ctx.uuid())
        names = ("charge", "pack", "ship")
        return [await ctx.options(name=name, max_attempts=1).step(work, name, key) for name in names]

    async with windlass_kit(app) as kit:
        handle = await order.submit()
        with pytest.raises(TaskFailed, match="no such address"):
            await kit.result(handle)
        broken = False
        fork = app.handle(await kit.engine.fork(handle.id, "ship"))
        charge, pack, ship = await kit.result(fork)
    assert calls == ["charge", "pack", "ship", "ship"]
    assert charge.split()[1] == pack.split()[1] == ship.split()[1], "values go on as they were"


async def test_a_step_that_failed_for_good_fails_in_the_same_way_when_it_is_replayed(
    app: App, windlass_kit: OpenKit
) -> None:
    calls: list[int] = []

    async def charge() -> None:
        calls.append(1)
        raise ValueError("declined")

    @app.workflow
    async def checkout(ctx: WorkflowContext) -> str:
        try:
            await ctx.options(max_attempts=2, retry_delay="1h").step(charge)
        except StepFailed as failed:
            await ctx.sleep("1d")
            return str(failed)
        return "paid"

    async with windlass_kit(app) as kit:
        assert await kit.result(await checkout.submit()) == "step charge failed: declined"
    assert len(calls) == 2


async def test_the_timeline_tells_of_steps(app: App, windlass_kit: OpenKit) -> None:
    @app.workflow
    async def order(ctx: WorkflowContext) -> None:
        await ctx.step(named("charge"))
        await ctx.sleep("1d")

    async with windlass_kit(app) as kit:
        handle = await order.submit()
        await kit.result(handle)
        lines = await kit.engine.tasks.timeline(handle.id)
    assert [line.what for line in lines if line.what.startswith("step")] == ["step_succeeded", "step_waiting"]
    assert [line.what for line in lines][-1] == "succeeded"
