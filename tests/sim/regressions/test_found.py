"""What the simulation has found, each told again in a few lines, so that it stays fixed whatever the seeds do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from windlass.core.command import Claimed
from windlass.core.fairness import Lane
from windlass.core.lease import Lease
from windlass.core.submission import Submission
from windlass.engine.chance import SystemChance
from windlass.engine.claim import Claimer, Look
from windlass.engine.engine import Engine
from windlass.engine.hub import Hub, LoopTimers
from windlass.engine.scan import FULL_LOOK_PAUSE_MAX_S, Scan
from windlass.store.store import Store

LEASE = Lease(UUID(int=1), "default", "w", ("q0", "q1"), None, (), 30.0, datetime.max.replace(tzinfo=UTC))


async def give_back(_: Sequence[Claimed]) -> None: ...


class LookingClaimer(Claimer):
    """Finds nothing, and counts how often it looked and where."""

    def __init__(self, stopwatch: Callable[[], float] = time.monotonic) -> None:
        self.hub = Hub(LoopTimers())
        store: Any = None
        super().__init__(store, self.hub, SystemChance(), give_back, pause=asyncio.sleep, stopwatch=stopwatch)
        self.looked: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def _look_at(self, lease: Lease, queue: str, limit: int) -> Look:
        self.looked.append(queue)
        await asyncio.sleep(0)
        await self.gate.wait()
        return Look([])


async def settle() -> None:
    """Until nobody has anything to do at once."""
    for _ in range(100):
        await asyncio.sleep(0)


async def test_two_polls_do_not_wake_each_other_for_ever() -> None:
    claimer = LookingClaimer()
    polls = [asyncio.ensure_future(claimer.claim(LEASE, 1, 60.0)) for _ in range(2)]
    await settle()
    claimer.looked.clear()
    claimer.hub.wake_queue("default", "q0")
    await settle()
    assert len(claimer.looked) <= 2 * len(LEASE.queues)
    for poll in polls:
        poll.cancel()
    await asyncio.gather(*polls, return_exceptions=True)


async def test_a_poll_that_leaves_empty_handed_passes_on_the_wake_up_it_got() -> None:
    claimer = LookingClaimer()
    claimer.gate.clear()
    hasty = asyncio.ensure_future(claimer.claim(LEASE, 1, 0.0))
    await settle()
    claimer.gate.set()
    patient = asyncio.ensure_future(claimer.claim(LEASE, 1, 60.0))
    claimer.gate.clear()
    claimer.hub.wake_queue("default", "q0")  # the hasty one is first in line, and has looked already
    claimer.gate.set()
    await settle()
    assert await hasty == []
    assert claimer.looked.count("q0") >= 3, "the patient one was not told"
    patient.cancel()
    await asyncio.gather(patient, return_exceptions=True)


async def test_looks_at_the_same_time_leave_out_no_queue() -> None:
    claimer = LookingClaimer()
    await asyncio.gather(claimer.look(LEASE, 1), claimer.look(LEASE, 1))
    assert sorted(claimer.looked) == ["q0", "q0", "q1", "q1"]


class HeldBackClaimer(LookingClaimer):
    async def _take(self, *_: Any) -> Look:
        return Look([], 0.5, held_back=True)


async def test_a_short_look_keeps_the_moment_at_which_its_queue_opens() -> None:
    async def check_claim(*_: Any) -> None: ...

    tx: Any = SimpleNamespace(queues=SimpleNamespace(check_claim=check_claim))
    scan = Scan(lanes=[Lane(0, ""), Lane(1, "")], full_look_at_s=100.0)
    look = await HeldBackClaimer(stopwatch=lambda: 0.0).look_within(tx, LEASE, "q0", 1, scan)
    assert look.next_in_s == 0.5


def test_a_look_that_met_a_standstill_does_not_put_off_the_next_full_one_for_minutes() -> None:
    scan = Scan(lanes=[Lane(0, "")])
    scan.paid(60.0, now_s=1000.0)
    assert scan.full_look_at_s <= 1000.0 + FULL_LOOK_PAUSE_MAX_S


def test_a_short_look_that_misses_nothing_asks_for_no_full_one() -> None:
    scan = Scan()
    scan.looked_fully([Lane(0, "")], 256, news=3)
    assert scan.sees_all(3)
    assert not scan.sees_all(4), "something was announced since"
    scan.floors[Lane(0, "")] = datetime.now(UTC)
    assert not scan.sees_all(3), "what lies before the floor was not seen"


async def test_retention_keeps_an_ended_task_until_those_who_wait_were_told(database: str) -> None:
    engine = Engine(Store(database), keep_finished_s=0.0)
    first, second, run = UUID(int=1), UUID(int=2), UUID(int=3)
    await engine.submit_many(
        [
            Submission(kind="k", id=first, run_id=run),
            Submission(kind="k", id=second, run_id=run, after=(first,)),
        ]
    )
    lease = await engine.open_lease("w", ["default"])
    [claimed] = await engine.claim(lease)
    await engine.complete(claimed)
    await engine.loops.retention_tick()
    await engine.loops.settle_tick()
    [claimed] = await engine.claim(lease)
    assert claimed.task.id == second
    await engine.close()
