"""Runs: fan-out and fan-in are exact, whatever happens to those that are waited for."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from tests.kit.work import CRASH, FATAL, held, job, settle, soon, state, task, work_off, worker

from windlass import Category, Engine, Failure, Invalid, Lease, Policy, State, StoreBusy, Submission
from windlass.core.command import Park
from windlass.store.tables import task as task_table

ONCE = Policy(max_attempts=1)


class Run:
    """Tasks by name, and who comes after whom."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.id = engine, engine.parts.randomness.new_id()
        self.ids: dict[str, UUID] = {}

    def task(self, name: str, *after: str, **fields: Any) -> Submission:
        self.ids[name] = self.engine.parts.randomness.new_id()
        upstream = tuple(self.ids[other] for other in after)
        return job(**{"id": self.ids[name], "run_id": self.id, "after": upstream, "policy": ONCE, **fields})

    async def states(self) -> dict[str, str]:
        return {name: (await state(self.engine, id_)).value for name, id_ in self.ids.items()}


@pytest.fixture
def run(engine: Engine) -> Run:
    return Run(engine)


@pytest.fixture
async def lease(engine: Engine) -> Lease:
    return await worker(engine)


async def end(engine: Engine, lease: Lease, task_id: UUID, how: State) -> None:
    """Bring a queued task to this end."""
    if how is State.CANCELLED:
        await engine.cancel(task_id)
        return
    [claimed] = await engine.claim(lease)
    assert claimed.task.id == task_id
    await (engine.complete(claimed) if how is State.SUCCEEDED else engine.fail(claimed, FATAL))


async def test_a_chain_runs_one_after_another(engine: Engine, run: Run, lease: Lease) -> None:
    names = [f"link {i}" for i in range(6)]
    await engine.submit_many([run.task(name, *names[max(0, i - 1) : i]) for i, name in enumerate(names)])
    assert await work_off(engine, lease) == [run.ids[name] for name in names]


async def test_a_diamond_joins_once(engine: Engine, run: Run, lease: Lease) -> None:
    await engine.submit_many(
        [run.task("top"), run.task("left", "top"), run.task("right", "top"), run.task("bottom", "left", "right")]
    )
    order = await work_off(engine, lease)
    assert Counter(order) == Counter(run.ids.values())
    assert (order[0], order[-1]) == (run.ids["top"], run.ids["bottom"])


async def test_a_join_waits_for_the_last_of_its_tasks(engine: Engine, run: Run, lease: Lease) -> None:
    await engine.submit_many([*(run.task(n) for n in "abc"), run.task("join", *"abc")])
    for claimed in await engine.claim(lease, 3):
        assert await state(engine, run.ids["join"]) is State.BLOCKED
        await engine.complete(claimed)
        await settle(engine)
    assert await state(engine, run.ids["join"]) is State.QUEUED


@pytest.mark.parametrize("members", [0, 1, 300])
async def test_fan_out_and_fan_in_are_exact(engine: Engine, run: Run, lease: Lease, members: int) -> None:
    names = [f"member {i}" for i in range(members)]
    await engine.submit_many(
        [run.task("start"), *(run.task(name, "start") for name in names), run.task("end", *(names or ["start"]))]
    )
    order = await work_off(engine, lease)
    assert Counter(order) == Counter(run.ids.values())
    assert order[-1] == run.ids["end"]


@pytest.mark.slow
async def test_fan_in_of_ten_thousand_is_exact(
    engine: Engine, run: Run, lease: Lease, other_connection: asyncpg.Connection
) -> None:
    members = [run.task(f"member {i}") for i in range(10_000)]
    await engine.submit_many([*members, run.task("end", *(f"member {i}" for i in range(10_000)))])
    for _ in range(10):
        claimed = await engine.claim(lease, 1000)
        await soon(asyncio.gather(*map(engine.complete, claimed)), 120)
        await settle(engine)
    assert [c.task.id for c in await engine.claim(lease, 1000)] == [run.ids["end"]]
    assert await other_connection.fetchval("select count(*) from windlass.edge") == 0
    assert await engine.tasks.run_totals(run.id) == {State.SUCCEEDED: 10_000, State.RUNNING: 1}


async def test_members_that_end_at_once_on_several_engines_release_the_join_once(
    new_engine: Any, engine: Engine, run: Run, lease: Lease
) -> None:
    others = [await new_engine() for _ in range(2)]
    names = [f"member {i}" for i in range(60)]
    await engine.submit_many([*(run.task(name) for name in names), run.task("end", *names)])
    claimed = await engine.claim(lease, 60)

    async def finish(which: Engine, part: Any) -> None:
        for one in part:
            await which.complete(one)
            await which.loops.settle_tick()

    await soon(asyncio.gather(*(finish(e, claimed[i::3]) for i, e in enumerate([engine, *others]))), 60)
    await settle(engine)
    [join] = await engine.claim(lease, 100)
    assert (join.task.id, join.task.attempt) == (run.ids["end"], 1)
    assert await engine.claim(lease, 100) == []


# ------------------------------------------------------------------------------------------------- cascades


async def test_a_failure_skips_all_that_comes_after_and_nothing_else(engine: Engine, run: Run, lease: Lease) -> None:
    await engine.submit_many([run.task("bad"), run.task("then", "bad"), run.task("last", "then"), run.task("apart")])
    for claimed in await engine.claim(lease, 2):
        bad = claimed.task.id == run.ids["bad"]
        await (engine.fail(claimed, FATAL) if bad else engine.complete(claimed))
    await settle(engine)
    assert await run.states() == {"bad": "failed", "then": "skipped", "last": "skipped", "apart": "succeeded"}
    error = (await task(engine, run.ids["then"])).error
    assert error is not None
    assert (error.reason, str(run.ids["bad"]) in error.message) == ("UPSTREAM_NOT_SUCCEEDED", True)


async def test_a_cancel_cancels_all_that_comes_after(engine: Engine, run: Run, lease: Lease) -> None:
    await engine.submit_many([run.task("gone"), run.task("then", "gone"), run.task("last", "then")])
    await engine.cancel(run.ids["gone"])
    await settle(engine)
    assert await run.states() == {"gone": "cancelled", "then": "cancelled", "last": "cancelled"}


async def test_the_first_bad_end_decides_without_waiting_for_the_others(engine: Engine, run: Run, lease: Lease) -> None:
    await engine.submit_many([run.task("bad", priority=-1), run.task("slow"), run.task("join", "bad", "slow")])
    await end(engine, lease, run.ids["bad"], State.FAILED)
    await settle(engine)
    assert await state(engine, run.ids["join"]) is State.SKIPPED
    await end(engine, lease, run.ids["slow"], State.SUCCEEDED)
    await settle(engine)
    assert await state(engine, run.ids["join"]) is State.SKIPPED, "and that is the end"


async def test_a_retry_of_an_upstream_task_keeps_the_others_waiting(
    engine: Engine, clock: Any, run: Run, lease: Lease
) -> None:
    await engine.submit_many([run.task("flaky", policy=Policy(max_attempts=3)), run.task("then", "flaky")])
    [claimed] = await engine.claim(lease)
    await engine.fail(claimed, CRASH)
    await settle(engine)
    assert await state(engine, run.ids["then"]) is State.BLOCKED
    await clock.advance(10)
    await end(engine, lease, run.ids["flaky"], State.SUCCEEDED)
    await settle(engine)
    assert await state(engine, run.ids["then"]) is State.QUEUED


@pytest.mark.parametrize("how", [State.SUCCEEDED, State.FAILED, State.CANCELLED])
async def test_any_outcome_goes_on_however_the_other_ended(engine: Engine, run: Run, lease: Lease, how: State) -> None:
    await engine.submit_many([run.task("first"), run.task("then", "first", after_any_outcome=True)])
    await end(engine, lease, run.ids["first"], how)
    await settle(engine)
    assert await state(engine, run.ids["then"]) is State.QUEUED


async def test_a_blocked_task_that_is_cancelled_stays_so(engine: Engine, run: Run, lease: Lease) -> None:
    await engine.submit_many([run.task("first"), run.task("then", "first"), run.task("last", "then")])
    await engine.cancel(run.ids["then"])
    await settle(engine)
    await end(engine, lease, run.ids["first"], State.SUCCEEDED)
    await settle(engine)
    assert await run.states() == {"first": "succeeded", "then": "cancelled", "last": "cancelled"}


async def test_an_attempt_that_is_lost_for_good_skips_what_comes_after(engine: Engine, clock: Any, run: Run) -> None:
    await engine.submit_many([run.task("lost", policy=Policy(max_losses=1)), run.task("then", "lost")])
    await engine.claim(await worker(engine, ttl_s=5))
    await clock.advance(5)
    await engine.loops.expire_tick()
    await settle(engine)
    assert await run.states() == {"lost": "failed", "then": "skipped"}


async def test_a_deadline_that_passes_skips_what_comes_after(engine: Engine, clock: Any, run: Run) -> None:
    await engine.submit_many([run.task("late", deadline_at=await clock.advance(1)), run.task("then", "late")])
    await engine.loops.timer_tick()
    await settle(engine)
    assert await run.states() == {"late": "failed", "then": "skipped"}


# ------------------------------------------------------------------------------------------------- joining later


@pytest.mark.parametrize(
    ("how", "expected"),
    [(State.SUCCEEDED, State.QUEUED), (State.FAILED, State.SKIPPED), (State.CANCELLED, State.CANCELLED)],
)
@pytest.mark.parametrize("any_outcome", [False, True])
async def test_joining_a_run_whose_upstream_task_has_ended_already(
    engine: Engine, run: Run, lease: Lease, how: State, expected: State, any_outcome: bool
) -> None:
    await engine.submit(run.task("first"))
    await end(engine, lease, run.ids["first"], how)
    await settle(engine)
    await engine.submit(run.task("late", "first", after_any_outcome=any_outcome))
    await settle(engine)
    assert await state(engine, run.ids["late"]) is (State.QUEUED if any_outcome else expected)


async def test_joining_behind_a_task_that_was_skipped(engine: Engine, run: Run, lease: Lease) -> None:
    await engine.submit_many([run.task("bad"), run.task("skipped", "bad")])
    await end(engine, lease, run.ids["bad"], State.FAILED)
    await settle(engine)
    await engine.submit(run.task("late", "skipped"))
    await settle(engine)
    assert await state(engine, run.ids["late"]) is State.SKIPPED


@pytest.mark.parametrize("before", ["queued", "running", "sleeping", "parked", "blocked"])
async def test_joining_behind_a_task_that_has_not_ended(engine: Engine, run: Run, lease: Lease, before: str) -> None:
    await engine.submit_many([run.task("first"), run.task("second", "first")])
    upstream = "second" if before == "blocked" else "first"
    if before in ("running", "sleeping", "parked"):
        [claimed] = await engine.claim(lease)
        if before == "sleeping":
            await engine.sleep(claimed, None)
        if before == "parked":
            await engine.report([Park(claimed.task.id, 1, lease.id, Failure(Category.CONFIGURATION, "no"))])
    await engine.submit(run.task("late", upstream))
    assert await state(engine, run.ids["late"]) is State.BLOCKED
    if before == "sleeping":
        await engine.wake(run.ids["first"])
    if before == "parked":
        await engine.resume(run.ids["first"])
    if before == "running":
        await engine.complete(claimed)
    await work_off(engine, lease)
    assert set((await run.states()).values()) == {"succeeded"}


async def test_joining_while_the_upstream_task_ends_misses_nothing(engine: Engine, lease: Lease) -> None:
    """The race of a submit with the end of the task that it waits for, both ways round."""
    for i in range(20):
        run = Run(engine)
        await engine.submit(run.task("first"))
        [claimed] = await engine.claim(lease)
        join = run.task("late", "first")
        pair = (engine.complete(claimed), engine.submit(join))
        await soon(asyncio.gather(*(pair if i % 2 else reversed(pair))))
        await settle(engine)
        assert await state(engine, run.ids["late"]) is State.QUEUED
        [late] = await engine.claim(lease)
        await engine.complete(late)


async def test_a_group_may_repeat_a_task_that_is_there_and_add_one_after_it(
    engine: Engine, run: Run, lease: Lease
) -> None:
    first = run.task("first")
    await engine.submit(first)
    await end(engine, lease, run.ids["first"], State.SUCCEEDED)
    await engine.submit_many([first, run.task("then", "first")])
    await settle(engine)
    assert await state(engine, run.ids["then"]) is State.QUEUED


async def test_a_repeat_brings_back_no_edge_that_was_settled(engine: Engine, run: Run, lease: Lease) -> None:
    group = [run.task("a"), run.task("b", queue="idle"), run.task("join", "a", "b")]
    await engine.submit_many(group)
    await end(engine, lease, run.ids["a"], State.SUCCEEDED)
    await settle(engine)
    await engine.submit_many(group)
    [claimed] = await engine.claim(await worker(engine, "idle"))
    await engine.complete(claimed)
    await settle(engine)
    assert await state(engine, run.ids["join"]) is State.QUEUED


# ------------------------------------------------------------------------------------------------- what is refused


async def test_tasks_that_wait_for_each_other_are_refused(
    engine: Engine, run: Run, other_connection: asyncpg.Connection
) -> None:
    ids = [engine.parts.randomness.new_id() for _ in range(3)]
    circle = [job(id=ids[i], run_id=run.id, after=(ids[i - 1],)) for i in range(3)]
    with pytest.raises(Invalid, match="circle"):
        await engine.submit_many(circle)
    with pytest.raises(Invalid):
        await engine.submit(job(id=ids[0], run_id=run.id, after=(ids[0],)))
    assert await other_connection.fetchval("select count(*) from windlass.task") == 0
    assert await other_connection.fetchval("select count(*) from windlass.run") == 0


@pytest.mark.parametrize("upstream", ["unknown", "of another run", "of no run"])
async def test_a_task_can_only_wait_for_tasks_of_its_run(
    engine: Engine, run: Run, other_connection: asyncpg.Connection, upstream: str
) -> None:
    other = Run(engine)
    known = {
        "unknown": engine.parts.randomness.new_id(),
        "of another run": await engine.submit(other.task("x")),
        "of no run": await engine.submit(job()),
    }[upstream]
    before = await other_connection.fetchval("select count(*) from windlass.task")
    with pytest.raises(Invalid):
        await engine.submit(job(run_id=run.id, after=(known,)))
    with pytest.raises(Invalid):
        await engine.submit_many([job(run_id=run.id), job(run_id=run.id, after=(known,))])
    assert await other_connection.fetchval("select count(*) from windlass.task") == before


async def test_waiting_without_a_run_is_refused(engine: Engine) -> None:
    with pytest.raises(Invalid):
        await engine.submit(job(after=(await engine.submit(job()),)))


async def test_a_run_belongs_to_one_namespace(engine: Engine, run: Run) -> None:
    await engine.submit(run.task("mine"))
    with pytest.raises(Invalid):
        await engine.submit(job(run_id=run.id, namespace="other"))


# ------------------------------------------------------------------------------------------------- cancel_run


async def test_cancelling_a_run_ends_what_waits_and_asks_what_runs(engine: Engine, run: Run, lease: Lease) -> None:
    await engine.submit_many(
        [run.task("done", priority=-2), run.task("runs", priority=-1), run.task("waits"), run.task("then", "waits")]
    )
    await end(engine, lease, run.ids["done"], State.SUCCEEDED)
    [running] = await engine.claim(lease)
    other = await engine.submit(job())
    assert await engine.cancel_run(run.id, "no longer needed") == 3
    await settle(engine)
    states = await run.states()
    assert states == {"done": "succeeded", "runs": "running", "waits": "cancelled", "then": "cancelled"}
    assert (await task(engine, running.task.id)).cancel is not None
    assert await state(engine, other) is State.QUEUED


async def test_cancelling_a_large_run_reaches_every_task(engine: Engine, run: Run) -> None:
    await engine.submit_many([run.task("first"), *(run.task(f"t {i}", "first") for i in range(1200))])
    await engine.cancel_run(run.id)
    assert await engine.tasks.run_totals(run.id) == {State.CANCELLED: 1201}
    await settle(engine)
    assert await engine.tasks.run_totals(run.id) == {State.CANCELLED: 1201}


async def test_cancelling_a_run_again_changes_nothing(engine: Engine, run: Run) -> None:
    await engine.submit_many([run.task("a"), run.task("b", "a")])
    await engine.cancel_run(run.id)
    assert await engine.cancel_run(run.id) == 0
    assert await engine.cancel_run(engine.parts.randomness.new_id()) == 0


async def test_a_task_of_a_run_that_somebody_holds_is_not_forgotten_by_its_cancel(
    engine: Engine, run: Run, other_connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_table, "LOCK_TIMEOUT_MS", 50)
    await engine.submit_many([run.task("a"), run.task("b")])
    async with held(other_connection, run.ids["a"]):
        with pytest.raises(StoreBusy):
            await engine.cancel_run(run.id)
    assert await state(engine, run.ids["b"]) is State.CANCELLED
    assert await engine.cancel_run(run.id) == 1
