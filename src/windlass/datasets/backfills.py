"""Backfills: people let partitions of a job be made again. A loop makes the tasks page by page and counts how they end.

Each page is one transaction: its tasks, the mark of the next page, and the progress. Any server may go on from there.
At most `OPEN_MAX` tasks of a backfill are open at a time, so that a million partitions neither fill the queue nor slow
down the job. Locks are taken in the order backfill, job, task.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from msgspec.structs import replace

from windlass.core import task as task_rules
from windlass.core.ids import derived_id
from windlass.core.position import Position
from windlass.datasets.catalog import declared_scheme, status_page
from windlass.datasets.requests import Order, known, remember
from windlass.datasets.router import Router
from windlass.datasets.rules import backfill as rules
from windlass.datasets.rules.backfill import BEGIN, OPEN, BackfillState, Chosen, Mark, Selection
from windlass.datasets.rules.job import LEFT, JobRef
from windlass.datasets.rules.owed import BACKFILL, Given, Owed, Partition, Trigger, backfill_task
from windlass.datasets.rules.partition import BIGINT_MIN, Run, Scheme, Span, range_span
from windlass.datasets.rules.status import Place
from windlass.datasets.tables.backfills import BackfillRow, BackfillTable, JobProgress, NewTask
from windlass.datasets.tables.dags import DagTable
from windlass.datasets.tables.jobs import Consumption, JobTable, LiveEdge
from windlass.engine.engine import Engine
from windlass.errors import Conflict, InvalidState, NotFound, Rejected
from windlass.store.notify import PendingNotifications
from windlass.store.transaction import Transaction

log = logging.getLogger("windlass.datasets")

PAGE = 500  # tasks that one transaction makes
OPEN_MAX = 5_000  # tasks of one backfill that are open at a time
COUNT_MAX = 20_000  # partitions that are counted before a backfill begins, where that needs a scan
BACKFILLS_MAX, COUNT_BATCH, CANCEL_BATCH = 50, 1_000, 200
PAGE_DEFAULT = 50


class BackfillView(NamedTuple):
    """A backfill and its progress: its own job first, then those below."""

    row: BackfillRow
    jobs: Sequence[JobProgress]


class Target(NamedTuple):
    """The job of a backfill: as its active deployment has it, the versions that trigger it by the index of the input,
    and the partitions that it declares."""

    ref: JobRef
    inputs: Mapping[int, UUID]
    scheme: Scheme | None


class Backfills:
    """The backfills of one database."""

    def __init__(self, engine: Engine) -> None:
        self._store, self._randomness = engine.parts.store, engine.parts.randomness
        self._router = engine.service(Router)

    # ----------------------------------------------------------------------------------------- for people

    async def start(
        self,
        dag: str,
        job: str,
        selection: Selection,
        *,
        namespace: str = "default",
        downstream: bool = False,
        dry_run: bool = False,
        key: str | None = None,
        created_by: str = "",
    ) -> BackfillView:
        """Start a backfill of a job of the active deployment; with `dry_run` only count its partitions. The same key is
        the same backfill. Raises Invalid, NotFound, InvalidState and Conflict."""
        id_ = self._randomness.new_id() if key is None else derived_id("backfill", namespace, key)
        async with self._store.begin() as tx:
            table = BackfillTable(tx.session)
            if key is not None and not dry_run and (known := await table.get(id_)) is not None:
                return await self._repeated(tx, known, (namespace, dag, job, selection, downstream))
            target = await _find_target(tx, namespace, dag, job)
            rules.check(selection, target.ref.job, target.scheme)
            counts, truncated = await _count(tx, target, selection, downstream)
            place = (namespace, dag, job, target.ref.job_id)
            if dry_run:
                planned = BackfillRow(
                    id_, *place, selection, downstream, BackfillState.PLANNED, None, truncated, None, created_by,
                    await tx.now(), None,
                )  # fmt: skip
                return BackfillView(planned, [JobProgress(name, count) for name, count in counts.items()])
            if await table.insert(id_, place, selection, downstream, truncated, created_by):
                await table.put_jobs(id_, counts)
                await tx.wake(PendingNotifications(effects=True))
            made = await table.get(id_)
            assert made is not None, id_
            return await self._repeated(tx, made, (namespace, dag, job, selection, downstream))

    async def get(self, id_: UUID) -> BackfillView:
        async with self._store.begin() as tx:
            row = await BackfillTable(tx.session).get(id_)
            if row is None:
                raise _no_backfill(id_)
            return await _view(tx, row)

    async def page(
        self,
        *,
        namespace: str = "default",
        dag: str | None = None,
        after: Position | None = None,
        limit: int = PAGE_DEFAULT,
    ) -> list[BackfillView]:
        """Backfills of a namespace, newest first."""
        async with self._store.begin() as tx:
            table = BackfillTable(tx.session)
            rows = await table.page(namespace, dag, after, limit)
            jobs = await table.jobs([row.id for row in rows])
        return [BackfillView(row, jobs.get(row.id, [])) for row in rows]

    async def cancel(self, id_: UUID, reason: str = "", *, order: Order | None = None) -> BackfillView:
        """Make no more tasks, and cancel those that have not ended. Tasks below are not cancelled: what they make is
        owed. Raises InvalidState if the backfill has ended."""
        async with self._store.begin() as tx:
            table = BackfillTable(tx.session)
            row = await table.lock(id_, wait=True)
            if row is None:
                raise _no_backfill(id_)
            if await known(tx, row.namespace, order) is not None:
                return await _view(tx, row)
            await remember(tx, row.namespace, order, id_)
            if row.state is BackfillState.RUNNING:
                row = replace(row, state=BackfillState.CANCELLING, reason=reason or "cancelled by a person")
                await table.update(row)
                await tx.wake(PendingNotifications(effects=True))
            elif row.state not in (BackfillState.CANCELLING, BackfillState.CANCELLED):
                raise InvalidState(f"the backfill has already {row.state}", state=row.state)
            return await _view(tx, row)

    async def _repeated(self, tx: Transaction, known: BackfillRow, order: tuple[object, ...]) -> BackfillView:
        if known.content != order:
            raise Conflict("another backfill was started with this Idempotency-Key")
        return await _view(tx, known)

    # ----------------------------------------------------------------------------------------- the loop

    async def tick(self) -> int:
        """Bring every open backfill forward by one step. Returns the number of changes."""
        async with self._store.single() as tx:
            ids = await BackfillTable(tx.session).unfinished(BACKFILLS_MAX)
        changes = 0
        for id_ in ids:
            try:
                changes += await self._make(id_) + await self._cancel(id_) + await self._count(id_)
            except Rejected as error:  # its DAG is as it was not when it began
                log.warning("backfill %s is cancelled: %s", id_, error)
                await self._give_up(id_, str(error))
                changes += 1
        return changes

    async def _make(self, id_: UUID) -> int:
        """Make the tasks of the next page."""
        async with self._store.begin() as tx:
            table = BackfillTable(tx.session)
            row = await table.lock(id_)
            if row is None or row.state is not BackfillState.RUNNING or row.mark is None:
                return 0
            target = await _target_of(tx, row)
            if target is None:
                return 0
            room = OPEN_MAX - await table.count_open(id_)
            if room <= 0:
                return 0
            chosen = await _choose(tx, target, row.selection, row.mark, min(PAGE, room))
            if not await self._make_tasks(tx, row, target, chosen.keys):
                return 0  # held or paused since
            await table.update(replace(row, mark=chosen.mark))
        return 1

    async def _make_tasks(self, tx: Transaction, row: BackfillRow, target: Target, keys: Sequence[str]) -> bool:
        """Make the tasks of a page. Returns False if the job gets none now: then nothing was made."""
        table = BackfillTable(tx.session)
        committed = await table.committed(target.inputs, keys) if keys else {}
        owed = {key: _owed(row, target, key, committed[key]) for key in keys}
        made = await self._router.make_tasks(tx, list(owed.values()))
        active = await table.active_job(row.job_id)  # now that it is locked
        if made.waiting or active is None or not active[1]:
            return False
        new = {key: made.new[one.key] for key, one in owed.items() if one.key in made.new}
        await table.insert_tasks(row, [NewTask(id_, key, owed[key].waits) for key, id_ in new.items()])
        await table.give(
            [
                Consumption(
                    row.job_id, given.input_index, given.dataset_version, key, given.partition.revision, id_
                )
                for key, id_ in new.items()
                for given in owed[key].given
                if given.partition is not None and given.partition.revision is not None
            ]
        )  # fmt: skip
        return True

    async def _cancel(self, id_: UUID) -> int:
        """Cancel tasks of a backfill that is to be cancelled. Those of the jobs below are left alone."""
        async with self._store.begin() as tx:
            table = BackfillTable(tx.session)
            row = await table.lock(id_)
            if row is None or row.state is not BackfillState.CANCELLING:
                return 0
            ids = await table.tasks_to_cancel(row, CANCEL_BATCH)
            tasks = await tx.tasks.lock_tasks(ids) if ids else {}
            now = await tx.now()
            open_tasks = [task for task in tasks.values() if task.cancel is None and not task.terminal]
            await tx.apply([task_rules.cancel(task, row.reason or "", now) for task in open_tasks])
        return len(open_tasks)

    async def _count(self, id_: UUID) -> int:
        """Count tasks that have ended, and end the backfill after the last of them."""
        async with self._store.begin() as tx:
            table = BackfillTable(tx.session)
            row = await table.lock(id_)
            if row is None or row.state not in OPEN:
                return 0
            cancelling = row.state is BackfillState.CANCELLING
            active = await table.active_job(row.job_id)
            below = active[0] if active is not None and row.downstream and not cancelling else None
            ended = await table.count_ended(id_, below, COUNT_BATCH)
            state = rules.end_state(row.state, row.mark is None, await table.tally(row, own=cancelling))
            if state is row.state and active is None:
                state = BackfillState.CANCELLING
            if state is not row.state:
                reason = LEFT if active is None and state is not BackfillState.SUCCEEDED else None
                await table.update(replace(row, state=state, reason=row.reason or reason))
            if state not in OPEN:
                await table.forget_tasks(id_)
        return len(ended) or int(state is not row.state)

    async def _give_up(self, id_: UUID, reason: str) -> None:
        async with self._store.begin() as tx:
            table = BackfillTable(tx.session)
            row = await table.lock(id_, wait=True)
            if row is not None and row.state is BackfillState.RUNNING:
                await table.update(replace(row, state=BackfillState.CANCELLING, reason=reason))


# --------------------------------------------------------------------------------------------- the job


async def _find_target(tx: Transaction, namespace: str, dag: str, job: str) -> Target:
    """The job of an active deployment. Raises NotFound and InvalidState."""
    dags = DagTable(tx.session)
    view = await dags.get(namespace, dag)
    if view is None:
        raise NotFound(f"there is no DAG {dag} in {namespace}", dag=dag)
    if view.active_version is None or view.retired_at is not None:
        raise InvalidState(f"no version of {dag} is active", dag=dag)
    named = {each.name: each.job_id for each in await dags.jobs(view.active_version)}
    if job not in named:
        raise NotFound(f"DAG {dag} has no job {job}", job=job)
    return await _target(tx, view.active_version, named[job])


async def _target_of(tx: Transaction, row: BackfillRow) -> Target | None:
    """The job of a backfill, if it gets tasks now."""
    active = await BackfillTable(tx.session).active_job(row.job_id)
    return await _target(tx, active[0], row.job_id) if active and active[1] else None


async def _target(tx: Transaction, deployment_id: UUID, job_id: UUID) -> Target:
    jobs = JobTable(tx.session)
    [ref] = (await jobs.specs([(deployment_id, job_id)])).values()
    edges: list[LiveEdge] = await jobs.edges_of([job_id])
    inputs = {edge.input_index: edge.dataset_version for edge in edges if edge.trigger and edge.dataset_version}
    return Target(ref, inputs, declared_scheme(ref.job))


def _owed(row: BackfillRow, target: Target, key: str, committed: Mapping[int, Partition]) -> Owed:
    """The task for a partition. Without the input that it needs it waits, with the partition that is to come."""
    there = rules.is_there(target.ref.job.when, target.inputs, committed)
    expected = range_span(key) or (None, None)
    given = tuple(
        Given(index, version, partition=committed.get(index) or Partition(key, *expected))
        for index, version in target.inputs.items()
        if index in committed or not there
    )
    return Owed(
        row.job_id, target.ref.deployment_id, backfill_task(row.id, key), Trigger(BACKFILL, backfill_id=row.id), given,
        waits=not there,
    )  # fmt: skip


# --------------------------------------------------------------------------------------------- the partitions


async def _choose(tx: Transaction, target: Target, selection: Selection, mark: Mark, limit: int) -> Chosen:
    """The next page of a selection."""
    if selection.keys:
        return rules.keys_page(selection.keys, mark, limit)
    if selection.status:
        return await _choose_by_status(tx, target, selection, mark, limit)
    found = rules.bounds(selection, target.scheme)
    if isinstance(found, Run) or found is None:
        return rules.run_page(found, mark, limit)
    return await _choose_between(tx, target, found, mark, limit)


async def _choose_between(tx: Transaction, target: Target, span: Span, mark: Mark, limit: int) -> Chosen:
    """Partitions of the inputs, one input after the other. A key that two of them have makes one task."""
    versions = list(target.inputs.values())
    if mark.part >= len(versions):
        return Chosen([], None)
    found = await BackfillTable(tx.session).keys_between(versions[mark.part], span, mark, limit)
    if len(found) == limit:
        key, first = found[-1]
        return Chosen([key for key, _ in found], Mark(mark.part, first, key))
    more = mark.part + 1 < len(versions)
    return Chosen([key for key, _ in found], Mark(mark.part + 1) if more else None)


async def _choose_by_status(tx: Transaction, target: Target, selection: Selection, mark: Mark, limit: int) -> Chosen:
    """Partitions of the job's own outputs, one output after the other."""
    versions = [UUID(str(output["dataset_version"])) for output in target.ref.outputs]
    if mark.part >= len(versions):
        return Chosen([], None)
    after = Place(BIGINT_MIN, "") if mark == Mark(mark.part) else Place(mark.number, mark.key)
    page, end = await status_page(tx, versions[mark.part], selection.status, after, limit)
    keys = [view.key for view in page]
    if end is not None:
        return Chosen(keys, Mark(mark.part, end.first, end.key))
    return Chosen(keys, Mark(mark.part + 1) if mark.part + 1 < len(versions) else None)


async def _count(
    tx: Transaction, target: Target, selection: Selection, downstream: bool
) -> tuple[dict[str, int], bool]:
    """The number of partitions of each job, and whether there may be more. What has to be scanned is counted up to
    `COUNT_MAX`; keys and ranges are counted as a whole."""
    job, table = target.ref.name, BackfillTable(tx.session)
    known = await _known_count(tx, target, selection)
    below = await table.jobs_below(target.ref.deployment_id, target.ref.job_id) if downstream else []
    counts = {job: known or 0, **dict.fromkeys(below, 0)}
    if known is not None and not below:
        return counts, False
    found, mark = 0, BEGIN
    while found < COUNT_MAX:
        chosen = await _choose(tx, target, selection, mark, PAGE)
        found += len(chosen.keys)
        if below and chosen.keys:
            made = await table.count_made_from(target.ref.job_id, target.ref.deployment_id, chosen.keys)
            counts |= {name: counts[name] + made.get(name, 0) for name in below}
        if chosen.mark is None:
            return {**counts, job: found if known is None else known}, False
        mark = chosen.mark
    return {**counts, job: found if known is None else known}, True


async def _known_count(tx: Transaction, target: Target, selection: Selection) -> int | None:
    """The number of partitions, if it is known without a scan."""
    if selection.status:
        return None
    if selection.keys:
        return len(selection.keys)
    found = rules.bounds(selection, target.scheme)
    if isinstance(found, Span):
        return await BackfillTable(tx.session).count_between(list(target.inputs.values()), found)
    return 0 if found is None else found.count


async def _view(tx: Transaction, row: BackfillRow) -> BackfillView:
    return BackfillView(row, (await BackfillTable(tx.session).jobs([row.id])).get(row.id, []))


def _no_backfill(id_: UUID) -> NotFound:
    return NotFound(f"there is no backfill {id_}", backfill_id=id_)
