"""What people see: exact pages, counts, the timeline of a task, and every reason why it waits."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from tests.kit.work import CRASH, FATAL, begin, job, jobs, soon, worker

from windlass import Category, Engine, Failure, NotFound, Policy, Rate, State
from windlass.core.command import Cancelled, Complete, Park
from windlass.testing.clock import VirtualClock


async def pages(engine: Engine, limit: int, **filters: Any) -> list[list[UUID]]:
    found, after = [], None
    while True:
        page = await engine.tasks.page(limit=limit, after=after, **filters)
        found.append([row.task.id for row in page.tasks])
        if page.next is None:
            return found
        after = page.next


# ------------------------------------------------------------------------------------------------- lists


async def test_pages_go_from_the_newest_to_the_oldest_and_miss_nothing(engine: Engine) -> None:
    ids = await engine.submit_many(jobs(25))
    found = await pages(engine, 10)
    assert [len(page) for page in found] == [10, 10, 5]
    assert [id_ for page in found for id_ in page] == sorted(ids, reverse=True)


@pytest.mark.parametrize("count", [0, 10, 20])
async def test_a_last_page_that_is_full_says_that_it_is_the_last(engine: Engine, count: int) -> None:
    await engine.submit_many(jobs(count))
    assert [len(page) for page in await pages(engine, 10)] == ([10] * (count // 10) or [0])


async def test_pages_are_exact_while_others_submit(engine: Engine) -> None:
    """Whatever was there when the first page was read is seen exactly once."""
    before = await engine.submit_many(jobs(60))
    await asyncio.sleep(0.002)  # ids have the real clock, in milliseconds
    seen: list[UUID] = []
    page = await engine.tasks.page(limit=7)
    while True:
        seen += [row.task.id for row in page.tasks]
        await soon(asyncio.gather(*(engine.submit(job()) for _ in range(5))))
        if page.next is None:
            break
        page = await engine.tasks.page(limit=7, after=page.next)
    assert sorted(seen) == sorted(before)


async def test_filters_narrow_a_list(engine: Engine) -> None:
    run_id = engine.parts.randomness.new_id()
    by = {
        "queue": await engine.submit(job(queue="q")),
        "kind": await engine.submit(job(kind="k")),
        "run": await engine.submit(job(run_id=run_id)),
        "namespace": await engine.submit(job(namespace="n")),
    }
    plain = await engine.submit(job())
    await engine.cancel(plain)
    assert await pages(engine, 10, queue="q") == [[by["queue"]]]
    assert await pages(engine, 10, kind="k") == [[by["kind"]]]
    assert await pages(engine, 10, run_id=run_id) == [[by["run"]]]
    assert await pages(engine, 10, namespace="n") == [[by["namespace"]]]
    assert await pages(engine, 10, states=[State.CANCELLED]) == [[plain]]
    assert await pages(engine, 10, states=[State.CANCELLED, State.QUEUED], queue="q") == [[by["queue"]]]
    assert await pages(engine, 10, states=[State.FAILED]) == [[]]


async def test_a_list_has_what_the_tasks_are(engine: Engine, clock: VirtualClock) -> None:
    claimed = await begin(engine)
    [row] = (await engine.tasks.page()).tasks
    assert (row.task, row.created_at) == (claimed.task, await clock.now())


# ------------------------------------------------------------------------------------------------- counts


async def test_counts_are_by_queue_and_state_and_totals_count_everything(engine: Engine) -> None:
    lease = await worker(engine, "a", "b")
    await engine.submit_many([*jobs(4, queue="a"), *jobs(2, queue="b"), job(namespace="other")])
    claimed = await engine.claim(lease, 6)
    await engine.complete(claimed[0])
    await engine.fail(claimed[1], FATAL)
    await engine.sleep(claimed[2], None)
    await engine.submit_many(jobs(3, queue="c"))
    counts = await engine.tasks.counts()
    flat: dict[State, int] = {}
    for by_state in counts.values():
        for state, count in by_state.items():
            flat[state] = flat.get(state, 0) + count
    assert flat == {State.FAILED: 1, State.SLEEPING: 1, State.RUNNING: 3, State.QUEUED: 3}
    assert counts["c"] == {State.QUEUED: 3}
    assert await engine.tasks.totals() == {**flat, State.SUCCEEDED: 1}
    assert await engine.tasks.totals("other") == {State.QUEUED: 1}
    assert await engine.tasks.counts("nobody") == {}


async def test_a_run_is_counted_by_state(engine: Engine) -> None:
    run_id = engine.parts.randomness.new_id()
    first = engine.parts.randomness.new_id()
    await engine.submit_many([job(id=first, run_id=run_id), job(run_id=run_id, after=(first,)), job()])
    assert await engine.tasks.run_totals(run_id) == {State.QUEUED: 1, State.BLOCKED: 1}
    assert await engine.tasks.run_totals(engine.parts.randomness.new_id()) == {}


# ------------------------------------------------------------------------------------------------- timeline


async def test_a_timeline_tells_of_every_attempt(engine: Engine, clock: VirtualClock) -> None:
    policy = Policy(max_attempts=9, max_losses=9, retry_delay_s=0, timeout_s=600)
    id_ = await engine.submit(job(policy=policy))
    names = ["ada", "bob", "cyd", "dan", "eve", "fay", "gil"]

    async def claim(ttl_s: float = 3600) -> Any:
        await clock.advance(1)
        lease = await engine.open_lease(names.pop(0), ["default"], ttl_s=ttl_s)
        [claimed] = await engine.claim(lease)
        await clock.advance(1)
        return claimed

    await engine.fail(await claim(), Failure(Category.USER_CODE, "it crashed", "ValueError", trace="line 1"))
    await claim(ttl_s=0.5)
    await engine.loops.expire_tick()
    await engine.release(await claim())
    await engine.sleep(await claim(), await clock.now() + timedelta(seconds=5))
    await clock.advance(5)
    await engine.loops.timer_tick()
    await claim()
    await clock.advance(600)
    await engine.loops.timer_tick()
    parked = await claim()
    await engine.report([Park(id_, 6, parked.task.lease_id, Failure(Category.CONFIGURATION, "no such step"))])
    await engine.resume(id_)
    last = await claim()
    await engine.complete(last, b"1")
    await clock.advance(1)
    await engine.report([Complete(id_, 7, last.task.lease_id, b"2")])

    lines = await engine.tasks.timeline(id_)
    assert [(line.what, line.attempt, line.worker) for line in lines] == [
        ("submitted", 0, None),
        ("failed", 1, "ada"),
        ("lost", 2, "bob"),
        ("released", 3, "cyd"),
        ("slept", 4, "dan"),
        ("timed_out", 5, "eve"),
        ("parked", 6, "fay"),
        ("resumed", 6, "fay"),
        ("succeeded", 7, "gil"),
        ("refused", 7, "gil"),
    ]
    assert [line.at for line in lines] == sorted(line.at for line in lines)
    details = [line.detail or {} for line in lines]
    assert (details[1]["error"], details[1]["reason"], details[1]["trace"]) == ("it crashed", "ValueError", "line 1")
    for line, detail in zip(lines[1:9], details[1:9], strict=True):
        assert "started_at" in detail, line.what


async def test_a_timeline_of_a_task_that_runs_says_since_when(engine: Engine, clock: VirtualClock) -> None:
    claimed = await begin(engine)
    lines = await engine.tasks.timeline(claimed.task.id)
    assert [(line.what, line.attempt, line.worker) for line in lines] == [("submitted", 0, None), ("started", 1, "ada")]


async def test_a_timeline_tells_of_a_cancel_when_it_was_asked_told_and_obeyed(engine: Engine) -> None:
    lease = await worker(engine)
    claimed = await begin(engine, lease)
    await engine.cancel(claimed.task.id, "no longer needed")
    await engine.extend_lease(lease)
    await engine.report([Cancelled(claimed.task.id, 1, lease.id)])
    lines = await engine.tasks.timeline(claimed.task.id)
    assert [line.what for line in lines] == ["submitted", "cancel_requested", "cancel_signalled", "cancelled"]


async def test_an_unknown_task_has_no_timeline_and_no_reasons(engine: Engine) -> None:
    for ask in (engine.tasks.get, engine.tasks.timeline, engine.tasks.why_waiting):
        with pytest.raises(NotFound):
            await ask(engine.parts.randomness.new_id())


# ------------------------------------------------------------------------------------------------- why it waits


async def reasons(engine: Engine, task_id: UUID) -> list[str]:
    return [waiting.reason for waiting in await engine.tasks.why_waiting(task_id)]


async def test_it_waits_for_its_time(engine: Engine, clock: VirtualClock) -> None:
    await worker(engine)
    at = await clock.now() + timedelta(seconds=60)
    [waiting] = await engine.tasks.why_waiting(await engine.submit(job(available_at=at)))
    assert (waiting.reason, waiting.until) == ("scheduled", at)


async def test_it_waits_for_another_task(engine: Engine) -> None:
    run_id, first, second = (engine.parts.randomness.new_id() for _ in range(3))
    await engine.submit_many([job(id=first, run_id=run_id), job(id=second, run_id=run_id, after=(first,))])
    [waiting] = await engine.tasks.why_waiting(second)
    assert waiting.reason == "dependency"
    assert str(first) in waiting.message


@pytest.mark.parametrize(
    "limit", [{"max_running": 1}, {"max_running_per_kind": {"job": 1}}, {"max_running_per_key": 1}]
)
async def test_it_waits_for_a_place(engine: Engine, limit: dict[str, Any]) -> None:
    await engine.configure_queue("default", **limit)
    await begin(engine, concurrency_key="k")
    waiting = await engine.submit(job(concurrency_key="k"))
    assert await reasons(engine, waiting) == ["concurrency_limit"]


async def test_it_waits_for_the_rate(engine: Engine, clock: VirtualClock) -> None:
    await engine.configure_queue("default", rate=Rate(1, 10.0))
    started = await begin(engine)
    [waiting] = await engine.tasks.why_waiting(await engine.submit(job()))
    assert waiting.reason == "rate_limit"
    assert waiting.until == started.task.started_at + timedelta(seconds=10)  # type: ignore[operator]


async def test_it_waits_because_its_queue_is_paused(engine: Engine) -> None:
    await worker(engine)
    await engine.pause_queue("default")
    assert await reasons(engine, await engine.submit(job())) == ["paused"]


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        pytest.param(None, {}, id="no worker at all"),
        pytest.param({"kinds": ["other"]}, {}, id="kind"),
        pytest.param({"labels": ["cpu"]}, {"requires": ("gpu",)}, id="label"),
        pytest.param({"namespace": "other"}, {}, id="namespace"),
        pytest.param({}, {"queue": "other"}, id="queue"),
    ],
)
async def test_it_waits_for_a_worker_that_can_take_it(engine: Engine, options: Any, fields: Any) -> None:
    if options is not None:
        await worker(engine, **options)
    assert await reasons(engine, await engine.submit(job(**fields))) == ["no_capable_worker"]


@pytest.mark.parametrize(
    ("options", "fields", "told"),
    [
        pytest.param({}, {"queue": "mial"}, "; there are workers that take it from default", id="queue"),
        pytest.param({"labels": ["cpu"]}, {"requires": ("gpu",)}, " with what it requires: gpu", id="label"),
        pytest.param({}, {"kind": "jbo"}, "", id="kind"),
    ],
)
async def test_it_is_told_of_workers_that_nearly_can(engine: Engine, options: Any, fields: Any, told: str) -> None:
    await worker(engine, kinds=["job"], **options)
    task = job(**fields)
    [waiting] = await engine.tasks.why_waiting(await engine.submit(task))
    assert waiting.message == f"no live worker takes {task.kind} from the queue {task.queue}{told}"


async def test_a_worker_whose_lease_has_run_out_is_no_worker(engine: Engine, clock: VirtualClock) -> None:
    await worker(engine, ttl_s=5)
    id_ = await engine.submit(job())
    assert await reasons(engine, id_) == ["in_line"]
    await clock.advance(5)
    assert await reasons(engine, id_) == ["no_capable_worker"]


async def test_it_waits_asleep_or_parked(engine: Engine, clock: VirtualClock) -> None:
    until = await clock.now() + timedelta(seconds=5)
    asleep = await begin(engine)
    await engine.sleep(asleep, until)
    [waiting] = await engine.tasks.why_waiting(asleep.task.id)
    assert (waiting.reason, waiting.until) == ("sleeping", until)
    parked = await begin(engine)
    await engine.report([Park(parked.task.id, 1, parked.task.lease_id, Failure(Category.CONFIGURATION, "no step"))])
    [waiting] = await engine.tasks.why_waiting(parked.task.id)
    assert (waiting.reason, waiting.message) == ("parked", "no step")


async def test_several_reasons_are_all_told(engine: Engine, clock: VirtualClock) -> None:
    await engine.pause_queue("default")
    id_ = await engine.submit(job(available_at=await clock.now() + timedelta(seconds=60)))
    assert await reasons(engine, id_) == ["scheduled", "paused", "no_capable_worker"]


async def test_what_runs_or_has_ended_waits_for_nothing(engine: Engine) -> None:
    claimed = await begin(engine)
    assert await reasons(engine, claimed.task.id) == []
    await engine.complete(claimed)
    assert await reasons(engine, claimed.task.id) == []


async def test_a_retry_waits_for_its_time(engine: Engine) -> None:
    lease = await worker(engine)
    claimed = await begin(engine, lease)
    failed = await engine.fail(claimed, CRASH)
    [waiting] = await engine.tasks.why_waiting(claimed.task.id)
    assert (waiting.reason, waiting.until) == ("scheduled", failed.available_at)
