"""Sources: what starts the first tasks of a DAG. Schedules, webhooks, and people.

The schedules and webhooks of a DAG are those of its active deployment: a cutover replaces them in its transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from windlass.core import schedule as schedule_rules
from windlass.core.ids import derived_id
from windlass.core.schedule import Overlap, ScheduleSpec
from windlass.datasets.requests import known, order_of, remember
from windlass.datasets.router import Router
from windlass.datasets.rules.dag import Dag, SourceKind
from windlass.datasets.rules.job import JobRef, task_of
from windlass.datasets.rules.owed import Owed, Trigger, emit_task, webhook_task
from windlass.datasets.tables.dags import DagRow, DagTable, DeploymentRow
from windlass.datasets.tables.jobs import JobTable
from windlass.engine.engine import Engine
from windlass.engine.manage.timezones import zone_of
from windlass.errors import Conflict, Held, InvalidState, NotFound
from windlass.store.notify import PendingNotifications
from windlass.store.transaction import Transaction


class Sources:
    """The sources of one database."""

    def __init__(self, engine: Engine) -> None:
        self._store, self._randomness = engine.parts.store, engine.parts.randomness
        self._router = engine.service(Router)

    async def emit(
        self, dag: str, job: str, *, namespace: str = "default", key: str | None = None, **trigger: Any
    ) -> UUID:
        """Start a task of a source by hand. `trigger` may have a payload, and a cursor or a partition. The same key is
        the same task."""
        order = order_of(key, "emit", dag, job, trigger)
        async with self._store.begin() as tx:
            row = await locked_dag(tx, namespace, dag)
            if (earlier := await known(tx, namespace, order)) is not None:
                return earlier
            if row.active_version is None or row.retired_at is not None:
                raise InvalidState(f"no version of {dag} is active", dag=dag)
            named = {each.name: each for each in await DagTable(tx.session).jobs(row.active_version)}
            if job not in named:
                raise NotFound(f"DAG {dag} has no job {job}", job=job)
            [ref] = (await JobTable(tx.session).specs([(row.active_version, named[job].job_id)])).values()
            if ref.job.source is None:
                raise InvalidState(f"job {job} is not a source: it starts when its inputs have new data", job=job)
            if ref.job.source.kind is SourceKind.ALWAYS_ON:
                raise InvalidState(f"job {job} always runs: it has one task, which reports events itself", job=job)
            unique = emit_task(key or self._randomness.new_id())
            task_id = await self._start(tx, ref, unique, Trigger("source", source=ref.job.source.kind, **trigger))
            await remember(tx, namespace, order, task_id)
            return task_id

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
            webhook: dict[str, object] = {"id": id_, "headers": headers, "body": body}
            return await self._start(
                tx, ref, webhook_task(id_), Trigger("source", source=SourceKind.WEBHOOK, webhook=webhook)
            )

    async def _start(self, tx: Transaction, ref: JobRef, dedupe_key: str, trigger: Trigger) -> UUID:
        """Make a task of a source. The same key is the same task, also while its DAG is paused."""
        owed = Owed(ref.job_id, ref.deployment_id, dedupe_key, trigger)
        made = await self._router.make_tasks(tx, [owed])
        if owed.key in made.new:
            return made.new[owed.key]
        known = await JobTable(tx.session).find_task(ref.job_id, dedupe_key)
        if known is not None:
            return known
        live = (await JobTable(tx.session).live_jobs([ref.job_id])).get(ref.job_id)
        if live is None:
            raise InvalidState(f"no version of {ref.dag} is active", dag=ref.dag)
        if live.paused:
            raise InvalidState(f"DAG {ref.dag} is paused: resume it first", dag=ref.dag)
        raise Held(
            f"job {ref.name} of {ref.dag} is held, because too many tasks wait", dag=ref.dag,
            job=ref.name,
        )  # fmt: skip


async def take_over_sources(tx: Transaction, row: DagRow, target: DeploymentRow, dag: Dag, *, paused: bool) -> None:
    """Let the schedules and webhooks of a DAG be those of this deployment."""
    dags, jobs = DagTable(tx.session), JobTable(tx.session)
    deployed = {job.name: job.job_id for job in await dags.jobs(target.id)}
    refs = await jobs.specs([(target.id, deployed[job.name]) for job in dag.jobs if job.source is not None])
    held = {id_ for id_, job in (await jobs.live_jobs([ref.job_id for ref in refs.values()])).items() if job.held}
    specs: dict[UUID, ScheduleSpec] = {}
    webhooks: dict[str, UUID] = {}
    for ref in refs.values():
        source = ref.job.source
        assert source is not None, ref.name
        if source.kind is SourceKind.CRON:
            unfed = paused or ref.job_id in held
            specs[schedule_id(ref.namespace, ref.dag, ref.name)] = _schedule(ref, unfed)
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


async def locked_dag(tx: Transaction, namespace: str, dag: str) -> DagRow:
    """Lock a DAG. Raises NotFound."""
    row = await DagTable(tx.session).lock(namespace, dag)
    if row is None:
        raise no_dag(namespace, dag)
    return row


def no_dag(namespace: str, dag: str) -> NotFound:
    return NotFound(f"there is no DAG {dag} in {namespace}", dag=dag)


def schedule_id(namespace: str, dag: str, job: str) -> UUID:
    """The schedule of a cron source."""
    return derived_id("dag_schedule", namespace, dag, job)


def _schedule(ref: JobRef, paused: bool) -> ScheduleSpec:
    """The schedule of a cron source: each fire is a task of the job."""
    source = ref.job.source
    assert source is not None, ref.name
    assert source.schedule is not None, ref.name
    task = task_of(ref, ref.job_id, Trigger("source", source=SourceKind.CRON))
    return ScheduleSpec(
        kind=task.kind, cron=source.schedule, name=f"dag/{ref.dag}/{ref.name}", timezone=source.timezone or "UTC",
        queue=task.queue, payload=task.payload, priority=task.priority, policy=task.policy, wire=task.wire,
        overlap=Overlap.ALLOW, paused=paused, job_id=ref.job_id,
    )  # fmt: skip
