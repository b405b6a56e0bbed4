"""The tick that fires schedules. What is due, and what becomes of it, is decided in `core.schedule`.

Any number of engines may tick. One transaction under the lock of the schedule writes a fire, its task and the
schedule's own progress; an idempotency key keeps the fire unique even beside a program that submits with the same key.
An engine reads the schedules every few seconds, and in between sleeps until the next one is due. A change wakes it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from msgspec.structs import replace

from windlass.core import schedule as rules
from windlass.core import task as task_rules
from windlass.core.retry import Policy
from windlass.core.schedule import Fire, OpenTask, Outage, Overlap, Schedule
from windlass.core.submission import Submission
from windlass.core.validation import check_count, check_seconds
from windlass.engine.commit.lock_waits import LONG_MS
from windlass.engine.manage.timezones import zone_of
from windlass.engine.notifications import Notifications, Topic
from windlass.engine.randomness import Randomness
from windlass.engine.read.metrics import Tally
from windlass.engine.submit.submitter import add_each
from windlass.errors import Invalid, Rejected, StoreBusy
from windlass.store.errors import LockHeld
from windlass.store.store import Store
from windlass.store.transaction import Transaction

log = logging.getLogger("windlass.schedule")

SILENT_INTERVALS = 6  # a silence of all engines for so many intervals is an outage, even if this one kept running
START_SILENCE_S = 2.0  # the same for an engine that has just started, or could not reach the database
TOUCH_S = 0.5
BYTES_MAX = 16 * 1024 * 1024  # of payloads in one transaction
LOCKED_S = 1.0


class Pace(msgspec.Struct, frozen=True):
    """How an engine reads the schedules that are due."""

    interval_s: float = 5.0  # between two reads; what is due in between is known from the last one
    batch: int = 100  # schedules in one transaction
    fires_max: int = 1000  # tasks in one transaction


STEADY = Pace()


class Settled(NamedTuple):
    """What one transaction did: the number of schedules, the lateness of each task, the number of skipped fires."""

    schedules: int
    late_s: Sequence[float] = ()
    skipped: int = 0


NOTHING = Settled(0)


class ScheduleLoop:
    """Fires the schedules of one database."""

    def __init__(self, store: Store, randomness: Randomness, notifications: Notifications, pace: Pace) -> None:
        check_seconds("pace.interval_s", pace.interval_s, least=0.001, most=86400.0 * 366)
        check_count("pace.batch", pace.batch, least=1)
        check_count("pace.fires_max", pace.fires_max, least=1)
        self._store, self._randomness, self._notifications, self.pace = store, randomness, notifications, pace
        self.tally: Tally | None = None
        self._alarm: Any = None
        self._alive_at: datetime | None = None  # when this engine last read the schedules, unless that failed

    async def tick(self) -> int:
        """Fire what is due, and set the alarm for what comes next. Returns the number of schedules settled."""
        alive_at, self._alive_at = self._alive_at, None
        async with self._store.single() as tx:
            scheduler, now, due_at = await tx.schedules.scheduler()
        done = 0
        if due_at is not None:
            if alive_at is None or now - scheduler.ticked_at >= timedelta(seconds=self.pace.interval_s):
                await self._give_sign(alive_at)
            if due_at > now:
                self._wake_in((due_at - now).total_seconds())
            elif (done := await self._fire()) == 0:
                self._wake_in(LOCKED_S)  # another engine fires it; if that one dies, we try again
        self._alive_at = now
        return done

    async def _give_sign(self, alive_at: datetime | None) -> None:
        """Record that an engine is alive. Fires that a live engine is late with are not missed. An engine that starts
        cannot know of another live one; since those settle what they fire, a short silence counts as an outage."""
        interval_s = self.pace.interval_s
        silence_s = min(START_SILENCE_S, interval_s) if alive_at is None else interval_s * SILENT_INTERVALS
        async with self._store.begin() as tx:
            known = await tx.schedules.lock_scheduler()
            sign = rules.give_sign(known, await tx.now(), timedelta(seconds=silence_s), alive_at)
            await tx.schedules.put_scheduler(sign)

    def _wake_in(self, delay_s: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = None
        if delay_s < self.pace.interval_s:
            due = partial(self._notifications.publish, Topic.SCHEDULES)
            self._alarm = self._notifications.timers.call_later(delay_s, due)

    def close(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()

    async def _fire(self) -> int:
        """Fire all that is due in one transaction; if a task is locked, one schedule at a time."""
        taken: list[UUID] = []
        try:
            async with self._store.begin() as tx:
                due, now = await tx.schedules.lock_due(self.pace.batch)
                taken = [schedule.id for schedule in due]
                settled = NOTHING if now is None else await self._settle(tx, due, now)
            return self._counted(settled)
        except (LockHeld, Rejected):
            return sum([await self._fire_alone(schedule_id) for schedule_id in taken])

    async def _fire_alone(self, schedule_id: UUID) -> int:
        try:
            async with self._store.begin() as tx:
                due, now = await tx.schedules.lock_due_one(schedule_id)
                settled = NOTHING if now is None else await self._settle(tx, due, now)
            return self._counted(settled)
        except StoreBusy as error:
            log.warning("schedule %s could not fire and is tried again: %s", schedule_id, error)
            return 0
        except Rejected as error:
            log.exception("schedule %s cannot fire", schedule_id)
            async with self._store.begin() as tx:  # a defect of ours or a change by hand must not hold up others
                due, now = await tx.schedules.lock_due_one(schedule_id)
                await tx.schedules.settle([rules.set_aside(s, error.message, now) for s in due if now is not None])
            return len(due)

    def _counted(self, settled: Settled) -> int:
        """Count what was committed. Returns the number of schedules."""
        if self.tally is not None and settled.schedules:
            self.tally.fired(settled.late_s, settled.skipped)
        return settled.schedules

    async def _settle(self, tx: Transaction, due: Sequence[Schedule], now: datetime) -> Settled:
        """Settle due schedules, whose rows are locked."""
        await tx.limit_waits(LONG_MS)
        outages = await tx.schedules.outages()
        declared = await tx.kinds.policies({(s.namespace, s.kind) for s in due if s.policy is None})
        unended = await tx.schedules.open_tasks([s.id for s in due if s.overlap is not Overlap.ALLOW])
        settled: list[Schedule] = []
        submissions: list[Submission] = []
        replaced: list[OpenTask] = []
        late_s: list[float] = []
        bytes_left = BYTES_MAX
        for schedule in due:
            most = min(self.pace.fires_max - len(submissions), max(1, bytes_left // (len(schedule.payload) + 1)))
            if most < 1 or (bytes_left <= 0 and submissions):
                break  # this schedule is still due, and comes next
            after, fires = self._planned(schedule, now, outages, most, unended.get(schedule.id, []))
            made = [fire for fire in fires if fire.task_id is not None]
            task = with_policy(schedule, declared)
            submissions += [
                rules.submission(task, fire.task_id, rules.fire_key(schedule.id, fire.at), fire.after)
                for fire in made
                if fire.task_id is not None
            ]
            bytes_left -= len(made) * len(schedule.payload)
            if made and schedule.overlap is Overlap.CANCEL:
                replaced += unended.get(schedule.id, [])
            late_s += [(now - fire.at).total_seconds() for fire in made]
            settled.append(after)
        await add_each(tx, submissions)
        await cancel_replaced(tx, replaced, now)
        await tx.schedules.settle(settled)
        await tx.schedules.touch_scheduler(now, TOUCH_S)
        before = {schedule.id: schedule.skipped for schedule in due}
        return Settled(len(settled), late_s, sum(after.skipped - before[after.id] for after in settled))

    def _planned(
        self, schedule: Schedule, now: datetime, outages: Sequence[Outage], most: int, unended: Sequence[OpenTask]
    ) -> tuple[Schedule, list[Fire]]:
        try:
            zone = zone_of(schedule.timezone)
            due, settled_at = rules.due_fires(schedule, zone, now, outages, most)
        except Invalid as error:
            log.error("schedule %s cannot fire: %s", schedule.id, error)  # noqa: TRY400  # no defect of ours
            return rules.set_aside(schedule, error.message, now), []
        fires = rules.plan_fires(schedule, due, unended, [self._randomness.new_id() for _ in due])
        return rules.settle(schedule, zone, fires, settled_at), fires


def with_policy(schedule: Schedule, declared: Mapping[tuple[str, str], Policy]) -> Schedule:
    """A schedule without a policy gets the one that the workers of its kind declare."""
    policy = declared.get((schedule.namespace, schedule.kind)) if schedule.policy is None else None
    return schedule if policy is None else replace(schedule, policy=policy)


async def cancel_replaced(tx: Transaction, replaced: Sequence[OpenTask], now: datetime) -> None:
    """Cancel the replaced tasks that have not ended. The fires that wait for them are behind them in line."""
    if replaced:
        tasks = await tx.tasks.lock_tasks(sorted(task.id for task in replaced))
        reason = "replaced by the next fire of its schedule"
        await tx.apply([task_rules.cancel(task, reason, now) for task in tasks.values() if not task.terminal])
