"""Brings deployments forward: from building to ready when nothing is owed, and from ready to active. Cancels the tasks
of jobs that no live deployment has any more. Any server may do it: the row of the DAG is the lock."""

from __future__ import annotations

import logging
from uuid import UUID

from windlass.core import task as task_rules
from windlass.core.states import Effect
from windlass.datasets.dags import LEAVE, Dags
from windlass.datasets.rules.deployment import Actor, Built, DeploymentState, build_state
from windlass.datasets.rules.job import LEFT
from windlass.datasets.tables.dags import DagRow, DagTable, DeploymentRow
from windlass.datasets.tables.jobs import JobTable
from windlass.datasets.tables.sink import SinkTable
from windlass.engine.engine import Engine
from windlass.errors import Rejected
from windlass.store.transaction import Transaction

log = logging.getLogger("windlass.datasets")

BATCH, CANCEL_BATCH = 50, 200


class Deployments:
    """The deployments of one database."""

    def __init__(self, engine: Engine) -> None:
        self._store, self._dags = engine.parts.store, engine.service(Dags)

    async def tick(self) -> int:
        """Bring every open deployment forward by one state, and cancel what leaves. Returns the number of changes."""
        async with self._store.begin() as tx:
            waiting = await DagTable(tx.session).open_deployments(BATCH)
        moved = 0
        for deployment in waiting:
            moved += await self._forward(deployment)
        return moved + await self._leave_tick()

    async def _forward(self, seen: DeploymentRow) -> bool:
        try:
            async with self._store.begin() as tx:
                dags = DagTable(tx.session)
                row = await dags.lock(seen.namespace, seen.dag)
                found = await dags.deployment(seen.namespace, seen.dag, seen.id)
                if row is None or found is None or row.retired_at is not None:
                    return False
                if found.state in (DeploymentState.BUILDING, DeploymentState.FAILED):
                    return await self._build(tx, row, found)
                if found.state == DeploymentState.READY and found.auto_cutover:
                    await self._dags.cut_over(tx, row, found, by=Actor.LOOP)
                    return True
        except Rejected as error:
            log.warning("version %d of DAG %s is not activated: %s", seen.number, seen.dag, error)
        return False

    async def _build(self, tx: Transaction, row: DagRow, deployment: DeploymentRow) -> bool:
        """Move a deployment on whose new jobs are owed nothing. The evidence is of one snapshot."""
        dags = DagTable(tx.session)
        jobs = await new_jobs(dags, row, deployment)
        built = {
            jobs[job_id]: Built(
                owed=int(one.behind), unfinished=one.owed - one.done, done=one.done - one.failed, failed=one.failed,
                reason=one.reason,
            )
            for job_id, one in (await dags.progress(jobs)).items()
        }  # fmt: skip
        state, reason = build_state(built)
        if state is DeploymentState.READY and await SinkTable(tx.session).versions_without_table(deployment.id):
            state = DeploymentState.BUILDING  # the data database was away when it was deployed
        if deployment.state == DeploymentState.FAILED and state is DeploymentState.READY:
            state = DeploymentState.BUILDING  # a person has retried the task that failed
        if state == deployment.state:
            return False
        if deployment.state == DeploymentState.FAILED:
            await dags.mark_behind(jobs)  # routing did not feed it meanwhile
        await dags.move(deployment.id, state, reason or None)
        return True

    async def _leave_tick(self) -> int:
        async with self._store.begin() as tx:
            effects = await tx.outbox.lock_effects(LEAVE, 1)
            if not effects:
                return 0
            done = await self._cancel(tx, effects[0])
            if done:
                await tx.outbox.delete_effects([effects[0].id])
        return 1

    async def _cancel(self, tx: Transaction, effect: Effect) -> bool:
        """Cancel open tasks of jobs that left. Returns whether none is left. A job that came back is left alone."""
        names = effect.body["jobs"]
        assert isinstance(names, list), effect
        jobs = {UUID(str(name)) for name in names}
        await JobTable(tx.session).lock_jobs(jobs)  # a cutover that brings one back waits, or is seen by the next read
        jobs -= (await JobTable(tx.session).live_jobs(jobs)).keys()
        ids = await DagTable(tx.session).open_tasks(jobs, CANCEL_BATCH)
        tasks = await tx.tasks.lock_tasks(ids) if ids else {}
        now = await tx.now()
        await tx.apply(
            [task_rules.cancel(task, LEFT, now) for task in tasks.values() if task.cancel is None and not task.terminal]
        )
        return len(ids) < CANCEL_BATCH


async def new_jobs(dags: DagTable, row: DagRow, deployment: DeploymentRow) -> dict[UUID, str]:
    """The jobs of a deployment that the active one does not have: their names by id."""
    kept = {job.job_id for job in await dags.jobs(row.active_version)} if row.active_version is not None else set()
    return {job.job_id: job.name for job in await dags.jobs(deployment.id) if job.job_id not in kept}
