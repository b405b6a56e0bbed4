"""Limits are exact, whoever claims at the same time: decided under the lock of the queue's row, counted after it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from itertools import chain
from typing import Any

import pytest
from tests.kit.work import CRASH, begin, job, jobs, soon, worker

from windlass import Claimed, Engine, Invalid, NotFound, Policy, Rate
from windlass.core.command import Park
from windlass.testing.clock import VirtualClock

pytestmark = pytest.mark.slow


@pytest.fixture
async def engines(new_engine: Any) -> list[Engine]:
    return [await new_engine() for _ in range(4)]


async def storm(engines: Sequence[Engine], claims: int = 100, limit: int = 3) -> list[Claimed]:
    """So many claims at once, spread over the engines."""
    leases = [await worker(engine) for engine in engines]
    calls = (engines[i % len(engines)].claim(leases[i % len(engines)], limit) for i in range(claims))
    return list(chain(*await soon(asyncio.gather(*calls), 60)))


async def finish(engine: Engine, claimed: Sequence[Claimed]) -> None:
    for one in claimed:
        await engine.complete(one)


async def test_a_queues_limit_is_exact_under_a_hundred_claims(engines: list[Engine]) -> None:
    await engines[0].configure_queue("default", max_running=7)
    await engines[0].submit_many(jobs(50))
    claimed = await storm(engines)
    assert len(claimed) == 7
    await finish(engines[1], claimed[:3])
    assert len(await storm(engines)) == 3


async def test_a_kinds_limit_is_exact_under_a_hundred_claims(engines: list[Engine]) -> None:
    await engines[0].configure_queue("default", max_running_per_kind={"scarce": 2, "rare": 3})
    await engines[0].submit_many([job(i, kind=kind) for kind in ("scarce", "rare", "plenty") for i in range(20)])
    claimed = Counter(c.task.kind for c in await storm(engines, limit=5))
    assert claimed == {"scarce": 2, "rare": 3, "plenty": 20}


async def test_a_keys_limit_is_exact_under_a_hundred_claims(engines: list[Engine]) -> None:
    await engines[0].configure_queue("default", max_running_per_key=2)
    await engines[0].submit_many([job(i, concurrency_key=key) for key in ("a", "b", "") for i in range(20)])
    claimed = Counter(c.task.concurrency_key for c in await storm(engines, limit=5))
    assert claimed == {"a": 2, "b": 2, "": 20}, "tasks without a key have no limit by key"


async def test_a_keys_limit_holds_across_priorities(engine: Engine) -> None:
    await engine.configure_queue("default", max_running_per_key=3)
    for priority in (-1, 0, 1):
        await engine.submit_many(jobs(4, concurrency_key="a", priority=priority))
    claimed = await engine.claim(await worker(engine), 100)
    assert [c.task.priority for c in claimed] == [-1] * 3


async def test_all_limits_hold_together_while_tasks_come_and_go(engines: list[Engine]) -> None:
    """Counted by the workers themselves: up after a claim, down before the report, so never more than really run."""
    randomness = random.Random(7)
    await engines[0].configure_queue(
        "default", max_running=9, max_running_per_kind={"scarce": 2}, max_running_per_key=3
    )
    await engines[0].submit_many(
        [
            job(i, kind=randomness.choice(["scarce", "plenty"]), concurrency_key=randomness.choice("abc"))
            for i in range(150)
        ]
    )
    running: Counter[tuple[str, str]] = Counter()
    highest: Counter[tuple[str, str]] = Counter()
    left = 150

    def count(claimed: Sequence[Claimed], step: int) -> None:
        for task in (one.task for one in claimed):
            for name in (("all", ""), ("kind", task.kind), ("key", task.concurrency_key)):
                running[name] += step
                highest[name] = max(highest[name], running[name])

    async def work(engine: Engine, lease: Any) -> None:
        nonlocal left
        while left:
            claimed = await engine.claim(lease, randomness.randint(1, 4))
            count(claimed, 1)
            await asyncio.sleep(0)
            for one in claimed:
                count([one], -1)
                left -= 1
                await engine.complete(one)

    await soon(asyncio.gather(*[work(e, await worker(e)) for e in engines for _ in range(3)]), 60)
    assert highest["all", ""] <= 9
    assert highest["kind", "scarce"] <= 2
    assert max(highest["key", key] for key in "abc") <= 3


@pytest.mark.parametrize("freed_by", ["complete", "fail", "release", "sleep", "park", "expire", "timeout", "force"])
async def test_whatever_ends_an_attempt_frees_its_place(engine: Engine, clock: VirtualClock, freed_by: str) -> None:
    await engine.configure_queue("default", max_running=1)
    lease = await worker(engine, ttl_s=3600)
    held = await begin(engine, await worker(engine, ttl_s=5), policy=Policy(timeout_s=60, retry_delay_s=100))
    await engine.submit(job())
    assert await engine.claim(lease) == []
    if freed_by == "complete":
        await engine.complete(held)
    elif freed_by == "fail":
        await engine.fail(held, CRASH)
    elif freed_by == "release":
        await engine.release(held)
    elif freed_by == "sleep":
        await engine.sleep(held, None)
    elif freed_by == "park":
        await engine.report([Park(held.task.id, held.task.attempt, held.task.lease_id, CRASH)])
    elif freed_by == "expire":
        await clock.advance(5)
        await engine.loops.expire_tick()
    elif freed_by == "timeout":
        await clock.advance(60)
        await engine.loops.timer_tick()
    else:
        await engine.cancel(held.task.id, force=True)
    assert len(await engine.claim(lease)) == 1


async def test_the_rate_is_not_exceeded_by_a_hundred_claims(engines: list[Engine], clock: VirtualClock) -> None:
    await engines[0].configure_queue("default", rate=Rate(5, 10.0))
    await engines[0].submit_many(jobs(50))
    assert len(await storm(engines)) == 5
    await clock.advance(9.9)
    assert await storm(engines) == []
    await clock.advance(0.2)
    assert len(await storm(engines)) == 5


async def test_no_window_of_the_rate_ever_holds_more_than_its_count(engine: Engine, clock: VirtualClock) -> None:
    await engine.configure_queue("default", rate=Rate(7, 10.0))
    await engine.submit_many(jobs(200))
    lease, randomness = await worker(engine, ttl_s=86400), random.Random(3)
    starts = []
    for _ in range(60):
        now = await clock.advance(randomness.choice([0.1, 0.5, 1.0, 3.0, 9.9]))
        starts += [now] * len(await engine.claim(lease, randomness.randint(1, 9)))
    period = timedelta(seconds=10)
    assert all(sum(at <= other < at + period for other in starts) <= 7 for at in starts)
    assert len(starts) > 60, "and it is used, not only kept"


@pytest.mark.parametrize("wrong", [{"queue": ""}, {"queue": "a\x00"}, {"namespace": ""}, {"paused": "no"}])
async def test_what_the_queues_of_an_engine_store_is_checked(engine: Engine, wrong: dict[str, Any]) -> None:
    """`Engine` is public, and so are its queues: a queue without a name could not be read or removed over HTTP."""
    with pytest.raises(Invalid, match=next(iter(wrong))):
        await engine.queues.pause(**{"queue": "mail", **wrong})
    with pytest.raises(NotFound):
        await engine.queues.get("mail")


async def test_a_paused_queue_gives_nothing_and_what_runs_goes_on(engine: Engine) -> None:
    lease = await worker(engine)
    running = await begin(engine, lease)
    await engine.submit(job())
    await engine.pause_queue("default")
    assert await engine.claim(lease) == []
    assert (await engine.complete(running)).terminal
    await engine.pause_queue("default", paused=False)
    assert len(await engine.claim(lease)) == 1


async def test_pausing_and_resuming_keeps_the_limits(engine: Engine) -> None:
    before = await engine.configure_queue(
        "default", max_running=3, max_running_per_kind={"job": 2}, max_running_per_key=1, rate=Rate(4, 5.0)
    )
    await engine.pause_queue("default")
    assert await engine.pause_queue("default", paused=False) == before


async def test_a_limit_is_of_its_own_queue_and_namespace(engine: Engine) -> None:
    await engine.configure_queue("default", max_running=0)
    await engine.submit_many([job(), job(queue="other"), job(namespace="other")])
    lease = await worker(engine, "default", "other")
    elsewhere = await worker(engine, namespace="other")
    assert [c.task.queue for c in await engine.claim(lease, 9)] == ["other"]
    assert len(await engine.claim(elsewhere, 9)) == 1


async def test_a_limit_lowered_below_what_runs_lets_nothing_new_start(engine: Engine) -> None:
    lease = await worker(engine)
    await engine.submit_many(jobs(6))
    running = await engine.claim(lease, 4)
    await engine.configure_queue("default", max_running=2, max_running_per_kind={"job": 1})
    await finish(engine, running[:2])
    assert await engine.claim(lease, 9) == []
    await finish(engine, running[2:])
    assert len(await engine.claim(lease, 9)) == 1
