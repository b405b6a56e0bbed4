"""Reads jobs of DAGs, their tasks, and how far a deployment is built, for people. Takes no locks."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from windlass.core.position import Position
from windlass.datasets.deployments import new_jobs
from windlass.datasets.rules.always_on import Condition, condition
from windlass.datasets.rules.dag import Source, SourceKind
from windlass.datasets.rules.deployment import DeploymentState
from windlass.datasets.tables.always_on import AlwaysOnTable
from windlass.datasets.tables.dags import BuildProgress, DagTable, DagView, DeploymentRow
from windlass.datasets.tables.job_views import JobViewTable, TaskOfJob
from windlass.datasets.tables.jobs import JobCounts, JobTable
from windlass.engine.engine import Engine
from windlass.errors import NotFound

__all__ = ["JobView", "JobViews", "TaskOfJob"]

PAGE_DEFAULT = 50
OPEN = frozenset(
    {DeploymentState.BUILDING, DeploymentState.READY, DeploymentState.FAILED}
)  # deployments that still have something to build
NO_TASKS = JobCounts(held=False, behind=False, queued=0, running=0, failed=0)


class Definition(msgspec.Struct, frozen=True):
    """What people want to know of the definition of a job."""

    operator: str
    runtime: str
    source: Source | None = None

    @property
    def always_on(self) -> bool:
        return self.source is not None and self.source.kind is SourceKind.ALWAYS_ON


class JobView(msgspec.Struct, frozen=True):
    """A job of a deployment, with the number of its tasks. `condition` is of a job that always runs."""

    name: str
    definition: Definition
    queue: str
    counts: JobCounts
    condition: Condition | None = None


class JobViews:
    """Jobs of DAGs for people."""

    def __init__(self, engine: Engine) -> None:
        self._store = engine.parts.store

    async def jobs(
        self, dag: str, *, namespace: str = "default", after: str | None = None, limit: int = PAGE_DEFAULT
    ) -> list[JobView]:
        """The jobs of the active deployment by name; of the newest one, if none is active."""
        async with self._store.begin() as tx:
            dags = DagTable(tx.session)
            view = await _dag(dags, namespace, dag)
            shown = view.active_version
            if shown is None:
                shown = next((one.id for one in await dags.deployments(namespace, dag, None, 1)), None)
            found = [] if shown is None else await dags.jobs(shown)
            page = [job for job in found if after is None or job.name > after][:limit]
            counts = await JobTable(tx.session).counts([job.job_id for job in page])
            decode = msgspec.json.Decoder(Definition).decode
            definitions = {job.job_id: decode(job.definition) for job in page}
            endless = [id_ for id_, definition in definitions.items() if definition.always_on]
            tasks = await AlwaysOnTable(tx.session).tasks(endless) if endless else {}
        return [
            JobView(
                job.name, definitions[job.job_id], job.queue, counts.get(job.job_id, NO_TASKS),
                condition(tasks.get(job.job_id)) if job.job_id in endless else None,
            )
            for job in page
        ]  # fmt: skip

    async def tasks(
        self,
        dag: str,
        job: str,
        *,
        namespace: str = "default",
        after: Position | None = None,
        limit: int = PAGE_DEFAULT,
    ) -> list[TaskOfJob]:
        """The tasks of a job in all deployments of its DAG, newest first."""
        async with self._store.begin() as tx:
            await _dag(DagTable(tx.session), namespace, dag)
            table = JobViewTable(tx.session)
            ids = await table.job_ids(namespace, dag, job)
            if not ids:
                raise NotFound(f"DAG {dag} has no job {job}", job=job)
            return await table.tasks(ids, after, limit)

    async def built(self, deployments: Sequence[DeploymentRow]) -> dict[UUID, dict[str, BuildProgress]]:
        """How far deployments of one DAG are built: the tasks of their new jobs, by name. Those that have been active,
        or never will be, have nothing to build."""
        opened = [one for one in deployments if one.state in OPEN]
        if not opened:
            return {}
        built = {}
        async with self._store.begin() as tx:
            dags = DagTable(tx.session)
            row = await _dag(dags, opened[0].namespace, opened[0].dag)
            for one in opened:
                names = await new_jobs(dags, row, one)
                progress = await dags.progress(names)
                built[one.id] = {names[id_]: done for id_, done in progress.items()}
        return built


async def _dag(dags: DagTable, namespace: str, dag: str) -> DagView:
    found = await dags.get(namespace, dag)
    if found is None:
        raise NotFound(f"there is no DAG {dag} in {namespace}", dag=dag)
    return found
