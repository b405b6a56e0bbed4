"""Sources: what starts the first tasks of a DAG. Schedules, webhooks, and people.

The schedules and webhooks of a DAG are those of its active deployment: a cutover replaces them in its transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec

from windlass.core import schedule as schedule_rules
from windlass.core.ids import derived_id
from windlass.core.schedule import Overlap, ScheduleSpec
from windlass.datasets.rules.dag import Dag, SourceKind
from windlass.datasets.rules.job import JobRef, task_id_of, task_of
from windlass.datasets.tables.dags import DagRow, DagTable, DeploymentRow
from windlass.datasets.tables.jobs import JobTable, JobTask
from windlass.engine.engine import Engine
from windlass.engine.manage.timezones import zone_of
from windlass.errors import Conflict, InvalidState, NotFound
from windlass.store.notify import PendingNotifications
from windlass.store.transaction import Transaction


class Sources:
    """The sources of one database."""

    def __init__(self, engine: Engine) -> None:
        self._store, self._randomness = engine.parts.store, engine.parts.randomness

    async def emit(
        self, dag: str, job: str, *, namespace: str = "default", key: str | None = None, **trigger: Any
    ) -> UUID:
        """Start a task of a source by hand. `trigger` may have a payload, and a cursor or a partition."""
        async with self._store.begin() as tx:
            row = await locked_dag(tx, namespace, dag)
            if row.active_version is None or row.retired_at is not None:
                raise InvalidState(f"no version of {dag} is active", dag=dag)
            named = {each.name: each for each in await DagTable(tx.session).jobs(row.active_version)}
            if job not in named:
                raise NotFound(f"DAG {dag} has no job {job}", job=job)
            [ref] = (await JobTable(tx.session).specs([(row.active_version, named[job].job_id)])).values()
            if ref.job.source is None:
                raise InvalidState(f"job {job} is not a source: it starts when its inputs have new data", job=job)
            unique = key or str(self._randomness.new_id())
            given = {name: value for name, value in trigger.items() if value is not None}
            source = {"kind": "source", "source": ref.job.source.kind, **given}
            return await start_task(tx, ref, f"emit:{unique}", source)

    async def receive_webhook(
        self, namespace: str, path: str, *, id_: str, headers: Mapping[str, str], body: str
    ) -> UUID:
        """Start a task of the webhook with this path. The same id is the same task."""
        async with self._store.begin() as tx:
            jobs = JobTable(tx.session)
            found = await jobs.find_webhook(namespace, path)
            if found is None:
                raise NotFound("there is no such webhook")
            [ref] = (await jobs.specs([found[:2]])).values()
            trigger = {"kind": "source", "source": "webhook", "webhook": {"id": id_, "headers": headers, "body": body}}
            return await start_task(tx, ref, f"webhook:{id_}", trigger)


async def take_over_sources(tx: Transaction, row: DagRow, target: DeploymentRow, dag: Dag, *, paused: bool) -> None:
    """Let the schedules and webhooks of a DAG be those of this deployment."""
    dags, jobs = DagTable(tx.session), JobTable(tx.session)
    deployed = {job.name: job.job_id for job in await dags.jobs(target.id)}
    refs = await jobs.specs([(target.id, deployed[job.name]) for job in dag.jobs if job.source is not None])
    specs: dict[UUID, ScheduleSpec] = {}
    webhooks: dict[str, UUID] = {}
    for ref in refs.values():
        source = ref.job.source
        assert source is not None, ref.name
        if source.kind is SourceKind.CRON:
            specs[_schedule_id(ref)] = _schedule(ref, paused)
        elif source.kind is SourceKind.WEBHOOK and source.path is not None:
            webhooks[source.path] = ref.job_id
    await _put_schedules(tx, row, specs)
    taken = set(webhooks) - await dags.put_webhooks(row.namespace, row.name, target.id, webhooks)
    if taken:
        raise Conflict(f"another DAG has the webhook {min(taken)}", path=min(taken))


async def _put_schedules(tx: Transaction, row: DagRow, specs: Mapping[UUID, ScheduleSpec]) -> None:
    """Replace the schedules of a DAG. They belong to it, as those of an app belong to its code."""
    app = f"dag/{row.name}"
    found = await tx.schedules.lock_declared(row.namespace, app, [spec.name or "" for spec in specs.values()])
    known = {schedule.id: schedule for schedule in found}
    if others := [schedule.name for schedule in found if schedule.app != app]:
        raise Conflict(f"there is a schedule {others[0]} already", name=others[0])
    now = await tx.now()
    await tx.schedules.delete([id_ for id_ in known if id_ not in specs])
    for id_, spec in specs.items():
        zone = zone_of(spec.timezone)
        if id_ in known:
            changes = {name: getattr(spec, name) for name in schedule_rules.SPEC_FIELDS}
            await tx.schedules.update(schedule_rules.change(known[id_], changes, zone, now))
        else:
            await tx.schedules.insert(schedule_rules.create(spec, id_, row.namespace, zone, now, app=app))
    if specs or known:
        await tx.wake(PendingNotifications(schedules=True))


async def start_task(tx: Transaction, ref: JobRef, dedupe_key: str, trigger: Mapping[str, Any]) -> UUID:
    """Make a task of a source. The same key is the same task."""
    jobs, task_id = JobTable(tx.session), task_id_of(ref.job_id, dedupe_key)
    await jobs.lock_jobs([ref.job_id])
    text = msgspec.json.encode(trigger).decode()
    if await jobs.insert_job_tasks([JobTask(ref.job_id, dedupe_key, task_id, ref.deployment_id, text)]):
        await tx.add_missing([task_of(ref, task_id, trigger)])
    return task_id


async def locked_dag(tx: Transaction, namespace: str, dag: str) -> DagRow:
    """Lock a DAG. Raises NotFound."""
    row = await DagTable(tx.session).lock(namespace, dag)
    if row is None:
        raise no_dag(namespace, dag)
    return row


def no_dag(namespace: str, dag: str) -> NotFound:
    return NotFound(f"there is no DAG {dag} in {namespace}", dag=dag)


def _schedule_id(ref: JobRef) -> UUID:
    return derived_id("dag_schedule", ref.namespace, ref.dag, ref.name)


def _schedule(ref: JobRef, paused: bool) -> ScheduleSpec:
    """The schedule of a cron source: each fire is a task of the job."""
    source = ref.job.source
    assert source is not None, ref.name
    assert source.schedule is not None, ref.name
    task = task_of(ref, ref.job_id, {"kind": "source", "source": "cron"})
    return ScheduleSpec(
        kind=task.kind, cron=source.schedule, name=f"dag/{ref.dag}/{ref.name}", timezone=source.timezone or "UTC",
        queue=task.queue, payload=task.payload, priority=task.priority, policy=task.policy, wire=task.wire,
        overlap=Overlap.ALLOW, paused=paused, job_id=ref.job_id,
    )  # fmt: skip
