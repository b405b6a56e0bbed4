"""What the simulation has found, each told again in a few lines, so that it stays fixed whatever the seeds do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from windlass.core.command import Claimed
from windlass.core.fairness import Lane
from windlass.core.lease import Lease
from windlass.core.submission import Submission
from windlass.engine.claim.claimer import Claimer
from windlass.engine.claim.cursor import FULL_READ_PAUSE_MAX_S, ClaimCursor
from windlass.engine.claim.strategies import ClaimResult, ClaimStrategies
from windlass.engine.engine import Engine
from windlass.engine.notifications import LoopTimers, Notifications
from windlass.engine.randomness import SystemRandomness
from windlass.store.store import Store

LEASE = Lease(UUID(int=1), "default", "w", ("q0", "q1"), None, (), 30.0, datetime.max.replace(tzinfo=UTC))


async def give_back(_: Sequence[Claimed]) -> None: ...


class EmptyQueues(ClaimStrategies):
    """Finds nothing, and counts how often each queue was read."""

    def __init__(self) -> None:
        self.queues_read: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def claim_from_queue(self, lease: Lease, queue: str, limit: int) -> ClaimResult:
        self.queues_read.append(queue)
        await asyncio.sleep(0)
        await self.gate.wait()
        return ClaimResult([])


def claimer_of_empty_queues() -> tuple[Claimer, Notifications, EmptyQueues]:
    notifications, empty = Notifications(LoopTimers()), EmptyQueues()
    store: Any = None
    claimer = Claimer(
        store, notifications, SystemRandomness(), give_back, pause=asyncio.sleep, stopwatch=time.monotonic
    )
    claimer.strategies = empty
    return claimer, notifications, empty


async def settle() -> None:
    """Until nobody has anything to do at once."""
    for _ in range(100):
        await asyncio.sleep(0)


async def test_two_polls_do_not_wake_each_other_for_ever() -> None:
    claimer, notifications, empty = claimer_of_empty_queues()
    polls = [asyncio.ensure_future(claimer.claim(LEASE, 1, 60.0)) for _ in range(2)]
    await settle()
    empty.queues_read.clear()
    notifications.wake_queue("default", "q0")
    await settle()
    assert len(empty.queues_read) <= 2 * len(LEASE.queues)
    for poll in polls:
        poll.cancel()
    await asyncio.gather(*polls, return_exceptions=True)


async def test_a_poll_that_leaves_empty_handed_passes_on_the_wake_up_it_got() -> None:
    claimer, notifications, empty = claimer_of_empty_queues()
    empty.gate.clear()
    hasty = asyncio.ensure_future(claimer.claim(LEASE, 1, 0.0))
    await settle()
    empty.gate.set()
    patient = asyncio.ensure_future(claimer.claim(LEASE, 1, 60.0))
    empty.gate.clear()
    notifications.wake_queue("default", "q0")  # the hasty one is first in line, and has read already
    empty.gate.set()
    await settle()
    assert await hasty == []
    assert empty.queues_read.count("q0") >= 3, "the patient one was not woken"
    patient.cancel()
    await asyncio.gather(patient, return_exceptions=True)


async def test_claims_at_the_same_time_leave_out_no_queue() -> None:
    claimer, _, empty = claimer_of_empty_queues()
    await asyncio.gather(claimer.claim_now(LEASE, 1), claimer.claim_now(LEASE, 1))
    assert sorted(empty.queues_read) == ["q0", "q0", "q1", "q1"]


class ClosedQueues(ClaimStrategies):
    def __init__(self) -> None:
        self._notifications, self._stopwatch = Notifications(LoopTimers()), lambda: 0.0

    async def claim_from_known_lanes(self, *_: Any) -> ClaimResult:
        return ClaimResult([], 0.5, closed=True)


async def test_a_short_read_keeps_the_moment_at_which_its_queue_opens() -> None:
    tx: Any = None
    cursor = ClaimCursor(lanes=[Lane(0, ""), Lane(1, "")], full_read_at_s=100.0)
    result = await ClosedQueues().claim_within(tx, LEASE, "q0", 1, cursor)
    assert result.retry_in_s == 0.5


def test_a_read_that_met_a_standstill_does_not_put_off_the_next_full_one_for_minutes() -> None:
    cursor = ClaimCursor(lanes=[Lane(0, "")])
    cursor.record_full_read(60.0, now_s=1000.0)
    assert cursor.full_read_at_s <= 1000.0 + FULL_READ_PAUSE_MAX_S


def test_a_short_read_that_misses_nothing_needs_no_full_one() -> None:
    cursor = ClaimCursor()
    cursor.record_lanes([Lane(0, "")], 256, news=3)
    assert cursor.misses_nothing(3)
    assert not cursor.misses_nothing(4), "something was announced since"
    cursor.floors[Lane(0, "")] = datetime.now(UTC)
    assert not cursor.misses_nothing(3), "what lies before the floor was not read"


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
