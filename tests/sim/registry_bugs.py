"""Bugs planted in the registry contract and in schedules, each a small change of the real code: see `bugs`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from itertools import count
from typing import Any

from tests.sim.bugs import patched, reworded, together
from tests.sim.share import Plant

from windlass.contracts.registry import rules
from windlass.core import schedule as schedule_rules
from windlass.core.cron import parse_cron
from windlass.core.cron_times import first_fires, newest_fires
from windlass.core.states import Transition
from windlass.core.task import Task
from windlass.engine.liveness.leases import Leases
from windlass.engine.loops import schedule_loop
from windlass.engine.submit.submitter import add_each


def zombies_write() -> AbstractContextManager[None]:
    """Whatever a worker says is taken for the attempt that is current."""

    return patched(rules.RunCredential, "check", lambda *_: None)


def recorded_step_begins_again() -> AbstractContextManager[None]:
    """What a step gave is not looked up when it is to begin."""
    real = rules.begin

    def begin(task: Task, record: Any, *rest: Any, **options: Any) -> Transition:
        known = record.known
        forgotten = None if known is not None and known.attempt < task.attempt else known
        return real(task, record._replace(known=forgotten), *rest, **options)

    return patched(rules, "begin", begin)


def sleep_is_not_recorded() -> AbstractContextManager[None]:
    """A run sleeps, and nothing says that it has."""
    real = rules.sleep

    def sleep(task: Task, _open: Any, *rest: Any) -> Transition:
        return real(task, None, *rest)

    return patched(rules, "sleep", sleep)


def unread_answer_is_kept() -> AbstractContextManager[None]:
    """What a worker does not name stays with it."""

    async def nothing(*_: Any) -> None:
        pass

    return patched(Leases, "_take_forgotten", nothing)


def heartbeat_revives_worker() -> AbstractContextManager[None]:
    """A heartbeat extends a lease that has run out."""
    return reworded(record_worker_heartbeats=("and l.expires_at > windlass.now()", ""))


# --------------------------------------------------------------------------------------------- schedules


def fires_twice() -> AbstractContextManager[None]:
    """A schedule is fired without its lock, and the key of a fire is not the same for all who make it."""
    real, turn = schedule_rules.fire_key, count()
    many = patched(schedule_rules, "fire_key", lambda id_, at: real(id_, at + next(turn) * timedelta(microseconds=1)))
    return together(many, reworded(lock_due_schedules=("for update skip locked", "")))


def fire_lost_in_between() -> AbstractContextManager[None]:
    """That a schedule has fired is written first, and its tasks in the next transaction."""

    async def fire_in_two(self: Any) -> int:
        async with self._store.begin() as tx:
            due, now = await tx.schedules.lock_due(self.pace.batch)
            outages = await tx.schedules.outages()
            planned = [self._planned(one, now, outages, 1000, []) for one in due if now is not None]
            await tx.schedules.settle([after for after, _ in planned])
        async with self._store.begin() as tx:
            made = zip(due, planned, strict=True) if now is not None else ()
            await add_each(
                tx,
                [
                    schedule_rules.submission(one, f.task_id, schedule_rules.fire_key(one.id, f.at), f.after)
                    for one, (_, fires) in made
                    for f in fires
                    if f.task_id is not None
                ],
            )
        return len(due)

    return patched(schedule_loop.ScheduleLoop, "_fire", fire_in_two)


def catches_up_with_the_oldest() -> AbstractContextManager[None]:
    """After an outage the first fires that were missed are made up for, not the last."""

    def oldest(cron: Any, zone: Any, after: datetime, until: datetime, most: int) -> list[datetime]:
        return first_fires(cron, zone, after, most, until)

    return patched(schedule_rules, "newest_fires", oldest)


def drops_what_is_late() -> AbstractContextManager[None]:
    """Fires are dropped although servers ticked all the time."""

    def due_fires(schedule: Any, zone: Any, now: datetime, _outages: Any, _most: int) -> Any:
        return newest_fires(parse_cron(schedule.cron), zone, schedule.settled_at, now, schedule.max_catchup), now

    return patched(schedule_rules, "due_fires", due_fires)


BUGS: list[Plant] = [
    zombies_write, recorded_step_begins_again, sleep_is_not_recorded,
    unread_answer_is_kept, heartbeat_revives_worker,
    fires_twice, fire_lost_in_between, catches_up_with_the_oldest, drops_what_is_late,
]  # fmt: skip
