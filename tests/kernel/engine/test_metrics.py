"""What is counted, and what somebody who scrapes reads."""

from __future__ import annotations

import asyncio
import re

import pytest
from tests.conftest import NewEngine
from tests.kit.work import CRASH, FATAL, begin, job, jobs, poll, soon, worker

from windlass import Conflict, Engine, LeaseLost, Policy
from windlass.api.metrics import metrics_text
from windlass.contracts.lease.wakeups.planner import Wakeups
from windlass.core import task as rules
from windlass.engine.read import metrics
from windlass.engine.read.metrics import Tally
from windlass.testing.clock import VirtualClock


@pytest.fixture
async def counted(new_engine: NewEngine) -> Engine:
    engine = await new_engine(tally=Tally())
    assert isinstance(engine, Engine)
    return engine


async def scraped(engine: Engine) -> dict[str, float]:
    """Every sample, as `name{labels}`."""
    lines = (await metrics_text(engine)).decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


async def test_ends_durations_and_start_latencies_are_counted(counted: Engine, clock: VirtualClock) -> None:
    lease = await worker(counted, "mail", ttl_s=100)
    await counted.submit_many(jobs(3, queue="mail", kind="send"))
    await clock.advance(2)
    one, two, three = await counted.claim(lease, 3)
    await clock.advance(4)
    await counted.complete(one)
    await counted.fail(two, FATAL)
    await counted.fail(three, CRASH)

    seen = await scraped(counted)

    assert seen['windlass_tasks_total{kind="send",outcome="succeeded",queue="mail"}'] == 1
    assert seen['windlass_tasks_total{kind="send",outcome="failed",queue="mail"}'] == 1
    assert seen['windlass_task_duration_seconds_count{kind="send",queue="mail"}'] == 2
    assert seen['windlass_task_duration_seconds_sum{kind="send",queue="mail"}'] == 8
    assert seen['windlass_task_start_latency_seconds_sum{queue="mail"}'] == 6
    assert seen['windlass_task_start_latency_seconds_bucket{le="1",queue="mail"}'] == 0
    assert seen['windlass_task_start_latency_seconds_bucket{le="2.5",queue="mail"}'] == 3
    assert seen['windlass_task_start_latency_seconds_bucket{le="+Inf",queue="mail"}'] == 3


async def test_lost_leases_and_late_results_are_counted(counted: Engine, clock: VirtualClock) -> None:
    claimed = await begin(counted, await worker(counted, ttl_s=5), policy=Policy(retry_delay_s=0))
    await clock.advance(6)
    assert await counted.loops.expire_tick() == 1
    again = await worker(counted, ttl_s=50)
    [second] = await counted.claim(again)
    with pytest.raises(LeaseLost):
        await counted.complete(claimed, b"1")
    await counted.complete(second, b"2")
    with pytest.raises(Conflict):
        await counted.complete(second, b"3")
    await counted.complete(second, b"2")

    seen = await scraped(counted)

    assert seen['windlass_leases_expired_total{queue="default"}'] == 1
    assert seen["windlass_late_results_total"] == 2
    assert seen['windlass_tasks_total{kind="job",outcome="succeeded",queue="default"}'] == 1


async def test_depth_age_and_workers_are_read_from_the_database(counted: Engine, clock: VirtualClock) -> None:
    await worker(counted, "mail", ttl_s=5)
    await worker(counted, "mail", ttl_s=500)
    await counted.submit_many(jobs(4, queue="mail"))
    await counted.submit(job(queue="mail", delay_s=3600))
    await clock.advance(30)

    seen = await scraped(counted)

    assert seen['windlass_queue_depth{queue="mail",state="queued"}'] == 4
    assert seen['windlass_queue_depth{queue="mail",state="scheduled"}'] == 1
    assert seen['windlass_queue_oldest_age_seconds{queue="mail"}'] == 30
    assert seen['windlass_workers{state="alive"}'] == 1
    assert seen['windlass_workers{state="lost"}'] == 1


async def test_many_who_look_within_a_second_cost_one_query(counted: Engine, clock: VirtualClock) -> None:
    await counted.submit(job())
    depth = 'windlass_queue_depth{queue="default",state="queued"}'
    assert {seen[depth] for seen in await asyncio.gather(*(scraped(counted) for _ in range(5)))} == {1}
    await counted.submit(job())
    assert (await scraped(counted))[depth] == 1
    await clock.advance(1)
    assert (await scraped(counted))[depth] == 2


async def test_a_task_that_was_handed_over_with_its_submission_did_not_wait(counted: Engine) -> None:
    async with poll(counted, await worker(counted)) as waiting:
        await counted.submit(job())
        assert len(await soon(waiting)) == 1

    assert counted.tally is not None
    assert counted.tally.latencies["default"].counts[0] == 1


async def test_a_transaction_that_was_rolled_back_is_not_counted(counted: Engine) -> None:
    claimed = await begin(counted)

    async def complete_and_think_better() -> None:
        async with counted.store.begin() as tx:
            tasks, now = await tx.tasks.load_tasks([claimed.task.id])
            assert now is not None
            assert claimed.task.lease_id is not None
            await tx.apply([rules.complete(tasks[claimed.task.id], 1, claimed.task.lease_id, None, now)])
            raise RuntimeError("never mind")

    with pytest.raises(RuntimeError, match="never mind"):
        await complete_and_think_better()
    assert counted.tally is not None
    assert counted.tally.ended == {}


async def test_letters_are_counted_by_queue(engine: Engine) -> None:
    for place, queue in enumerate(("mail", "mail", "images")):
        await engine.service(Wakeups).dead_letter(
            "default", queue, message_id=str(place), task_id=None, body=b"x", deliveries=1, reason="poison"
        )
    lines = await scraped(engine)
    assert lines['windlass_dead_letters{queue="mail"}'] == 2.0
    assert lines['windlass_dead_letters{queue="images"}'] == 1.0


async def test_without_a_tally_only_what_stands_still_is_told(engine: Engine) -> None:
    await begin(engine)
    names = {re.split(r"[{ ]", line)[0] for line in await scraped(engine)}
    assert names == {
        "windlass_dataset_sink_lag_seconds", "windlass_queue_depth", "windlass_scheduler_lag_seconds",
        "windlass_workers",
    }  # fmt: skip


def test_kinds_without_end_become_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "SERIES_MAX", 3)
    tally = Tally()
    assert [tally._kind("q", f"kind-{n}") for n in range(5)] == ["kind-0", "kind-1", "kind-2", "(other)", "(other)"]
    for n in range(5):
        tally._latency(f"q{n}").add(1.0)
    assert {queue: found.sum_s for queue, found in tally.latencies.items()} == {"q0": 1, "q1": 1, "q2": 1, "(other)": 2}
