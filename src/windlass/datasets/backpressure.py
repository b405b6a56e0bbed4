"""Holds jobs of which too many tasks wait, with the jobs upstream that would only add to them, and releases them.

A job that reaches its limit is held in the transaction that makes its last task. The tick does what no new task
brings about: the age of tasks, the jobs upstream, and the release. What is owed to a held job stays owed.
"""

from __future__ import annotations

from uuid import UUID

from windlass.core import schedule as schedule_rules
from windlass.datasets.router import Router
from windlass.datasets.rules.backpressure import held, with_upstream
from windlass.datasets.rules.dag import SourceKind
from windlass.datasets.sources import schedule_id
from windlass.datasets.tables.backpressure import BackpressureTable, Pressure
from windlass.datasets.tables.jobs import JobTable
from windlass.engine.commit.lock_waits import LONG_MS
from windlass.engine.engine import Engine
from windlass.engine.manage.timezones import zone_of
from windlass.store.notify import PendingNotifications
from windlass.store.transaction import Transaction


class Backpressure:
    """The held jobs of one database."""

    def __init__(self, engine: Engine) -> None:
        self._store, self._router = engine.parts.store, engine.service(Router)

    async def holds(self, task_id: UUID) -> bool:
        """Whether the job of a task is held. A server that knows of no DAGs does not ask."""
        if not self._router.has_dags:
            return False
        async with self._store.single() as tx:
            return await BackpressureTable(tx.session).is_task_of_held_job(task_id)

    async def tick(self) -> int:
        """Hold and release jobs. Returns the number of jobs that changed."""
        async with self._store.single() as tx:
            if not await BackpressureTable(tx.session).has_limits():
                return 0
        async with self._store.begin() as tx:
            await BackpressureTable(tx.session).release_left()
            changed = await _changes(tx)
        if not changed:
            return 0
        async with self._store.begin() as tx:
            table = BackpressureTable(tx.session)
            await tx.limit_waits(LONG_MS)
            await _lock_schedules(tx, changed)
            await JobTable(tx.session).lock_jobs(changed)
            # Under the locks of these jobs none of their tasks is made, so their numbers can only fall.
            again = {id_: by for id_, by in (await _changes(tx)).items() if id_ in changed}
            await table.hold({id_: by for id_, by in again.items() if by is not None})
            released = [id_ for id_, by in again.items() if by is None]
            await table.release(released)
            await _pause_schedules(tx, await table.jobs(again))
            await tx.wake(PendingNotifications(effects=bool(released)))
        return len(again)


async def _changes(tx: Transaction) -> dict[UUID, str | None]:
    """The jobs to be held, with the job that is too slow, and those to be released, with None."""
    table = BackpressureTable(tx.session)
    jobs = {one.job_id: one for one in await table.jobs()}
    slow = {id_ for id_, one in jobs.items() if held(one.depth, one.age_s, one.limits, one.was_slow)}
    causes = with_upstream(slow, await table.triggers()) if slow else {}
    wanted = {id_: jobs[causes[id_]].label if id_ in causes else None for id_ in jobs}
    return {id_: by for id_, by in wanted.items() if by != jobs[id_].held_by}


async def _lock_schedules(tx: Transaction, changed: dict[UUID, str | None]) -> None:
    """Schedules come before jobs in the order of locks."""
    crons = [one for one in await BackpressureTable(tx.session).jobs(changed) if _is_cron(one)]
    for one in sorted(crons, key=lambda one: schedule_id(one.namespace, one.dag, one.name)):
        await tx.schedules.lock(schedule_id(one.namespace, one.dag, one.name))


async def _pause_schedules(tx: Transaction, jobs: list[Pressure]) -> None:
    """Let the schedules of held sources stand still. A DAG that is paused keeps its own paused."""
    now = await tx.now()
    for one in jobs:
        if not _is_cron(one):
            continue
        schedule = await tx.schedules.lock(schedule_id(one.namespace, one.dag, one.name))
        live = (await JobTable(tx.session).live_jobs([one.job_id])).get(one.job_id)
        if schedule is None or live is None or schedule.job_id != one.job_id:
            continue
        paused = not live.is_fed
        if schedule.paused != paused:
            zone = zone_of(schedule.timezone)
            await tx.schedules.update(schedule_rules.change(schedule, {"paused": paused}, zone, now))
            await tx.wake(PendingNotifications(schedules=True))


def _is_cron(one: Pressure) -> bool:
    return one.job.source is not None and one.job.source.kind is SourceKind.CRON
