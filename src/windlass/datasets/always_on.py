"""Starts and drains the tasks of jobs that always run. Any server may do it: the row of the job is the lock."""

from __future__ import annotations

from windlass.core import task as task_rules
from windlass.datasets.rules.always_on import PAUSED, Step, next_task, step
from windlass.datasets.tables.always_on import AlwaysOnJob, AlwaysOnTable
from windlass.datasets.tables.jobs import JobTable
from windlass.engine.commit.lock_waits import LONG_MS
from windlass.engine.engine import Engine
from windlass.store.transaction import Transaction


class AlwaysOn:
    """The jobs that always run, of one database."""

    def __init__(self, engine: Engine) -> None:
        self._store = engine.parts.store

    async def tick(self) -> int:
        """Start what should run, and drain what should not. Returns the number of tasks that it started or
        cancelled."""
        async with self._store.single() as tx:
            found = await AlwaysOnTable(tx.session).jobs()
        wanted = [job.job_id for job in found if _step(job) is not Step.NOTHING]
        if not wanted:
            return 0
        async with self._store.begin() as tx:
            await tx.limit_waits(LONG_MS)
            await JobTable(tx.session).lock_jobs(wanted)
            # A cutover locks the jobs that leave, so what is active under this lock stays so until the task is made.
            jobs = await AlwaysOnTable(tx.session).jobs(wanted)
            await self._start(tx, [job for job in jobs if _step(job) is Step.START])
            await self._drain(tx, [job for job in jobs if _step(job) is Step.DRAIN])
        return len(wanted)

    async def _start(self, tx: Transaction, jobs: list[AlwaysOnJob]) -> None:
        table = AlwaysOnTable(tx.session)
        refs = await JobTable(tx.session).specs([(job.deployment_id, job.job_id) for job in jobs])
        for job in jobs:
            made = next_task(refs[job.deployment_id, job.job_id], job.task)
            assert made.id is not None, job
            await table.put(job.job_id, made.id, job.deployment_id)
            await tx.add_missing([made])

    async def _drain(self, tx: Transaction, jobs: list[AlwaysOnJob]) -> None:
        ids = sorted(job.task.id for job in jobs if job.task is not None)
        tasks = await tx.tasks.lock_tasks(ids, LONG_MS) if ids else {}
        now = await tx.now()
        await tx.apply(
            [
                task_rules.cancel(task, PAUSED, now)
                for task in tasks.values()
                if task.cancel is None and not task.terminal
            ]
        )


def _step(job: AlwaysOnJob) -> Step:
    return step(job.task, paused=job.paused, held=job.held, waits=job.waits)
