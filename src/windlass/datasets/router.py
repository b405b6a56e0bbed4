"""Routing: data events make the tasks of the jobs that read them, each once.

An event only makes a task sooner. What is owed to a job is what is committed and was not given to it: the reconcile
tick compares the two for jobs that are `behind` (new, resumed, rolled back, no longer held), and routes events whose
effect was lost. All ticks may run on any number of servers: the row of a job is the lock under which its tasks are
made.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

import msgspec
from msgspec.structs import replace

from windlass.core.states import Effect, State, Transition, Verb, move
from windlass.core.submission import Submission
from windlass.core.task import JOB, Task
from windlass.datasets.owed import by_job, owed_data, owed_to_all
from windlass.datasets.rules.backpressure import held
from windlass.datasets.rules.events import ROUTE
from windlass.datasets.rules.job import LEFT, JobRef, owed_task, queue_limits, room, with_given
from windlass.datasets.rules.owed import BUILD, EVENT, Owed, TaskKey, Trigger, coalesced, merged, next_task_id
from windlass.datasets.rules.route import Event, Route, route
from windlass.datasets.tables.backfills import BackfillTable
from windlass.datasets.tables.backpressure import BackpressureTable
from windlass.datasets.tables.jobs import Consumption, JobTable, JobTask, LiveEdge, Load
from windlass.datasets.upgrades import carry_over
from windlass.engine.commit.lock_waits import LONG_MS
from windlass.engine.engine import Engine
from windlass.store.transaction import Transaction

log = logging.getLogger("windlass.datasets")

BATCH = 200
BEHIND_BATCH = 20


class Made(NamedTuple):
    """The tasks that are new, by job and key; those that are made later, since too many of their job wait; and the jobs
    that get none now, since they are paused or held."""

    new: dict[TaskKey, UUID]
    later: frozenset[TaskKey] = frozenset()
    waiting: frozenset[UUID] = frozenset()

    @property
    def full(self) -> set[UUID]:
        """The jobs that get more tasks later."""
        return {job_id for job_id, _ in self.later}


class Routed(NamedTuple):
    """What became of events, and the number of tasks that were made."""

    routings: tuple[str, ...] = ()
    tasks: int = 0


class Router:
    """Makes the tasks of jobs, for one engine."""

    def __init__(self, engine: Engine) -> None:
        self._store = engine.parts.store
        self.lost_s = 15.0  # an event that is not routed for so long has lost its effect
        self.routed: Counter[str] = Counter()  # events by what became of them, for metrics
        self.tasks_made = 0
        self.has_dags = False  # without DAGs there is nothing to do, and notifications of others mean nothing

    async def has_work(self) -> bool:
        """Whether there are DAGs, or events to be routed. Remembers it."""
        async with self._store.single() as tx:
            self.has_dags = await JobTable(tx.session).has_work()
        return self.has_dags

    # ----------------------------------------------------------------------------------------- events

    async def route_tick(self) -> int:
        """Route the events whose effects are due. Returns the number of effects carried out."""
        async with self._store.begin() as tx:
            effects = await tx.outbox.lock_effects(ROUTE, BATCH)
            if not effects:
                return 0
            routed = await self._route(tx, [UUID(str(effect.body["event_id"])) for effect in effects])
            await tx.outbox.delete_effects([effect.id for effect in effects])
        self._count(routed)
        return len(effects)

    def _count(self, routed: Routed) -> None:
        """Count what was committed."""
        self.routed.update(routed.routings)
        self.tasks_made += routed.tasks

    async def _route(self, tx: Transaction, event_ids: Sequence[UUID]) -> Routed:
        jobs = JobTable(tx.session)
        events = await jobs.events_to_route(event_ids)
        if not events:
            return Routed()
        reading = {edge.job_id for edge in await jobs.edges_on({event.dataset_uuid for event in events})}
        edges = await self._lock(tx, reading)
        live = await jobs.live_versions({(event.dataset_version, event.dataset_uuid) for event in events})
        unfed = {edge.job_id for edge in edges if not edge.is_fed}
        by_dataset: dict[UUID, list[LiveEdge]] = {}
        for edge in edges:
            by_dataset.setdefault(edge.dataset_uuid, []).append(edge)
        routes = {event.id: route(event, by_dataset.get(event.dataset_uuid, ()), live, unfed) for event in events}
        owed = [one for found in routes.values() for one in found.owed]
        owed += await self._complete(jobs, events, routes, edges)
        made = await self._make(tx, owed, edges)
        await jobs.mark_behind({job_id for found in routes.values() for job_id in found.blocked} | made.full)
        routing = {event_id: found.routing(made.new, made.later) for event_id, found in routes.items()}
        await jobs.mark_routed(routing)
        return Routed(tuple(routing.values()), len(made.new))

    async def _complete(
        self, jobs: JobTable, events: Sequence[Event], routes: Mapping[UUID, Route], edges: Sequence[LiveEdge]
    ) -> list[Owed]:
        """The tasks of jobs that wait for all of their inputs, if these events were the last that they needed."""
        found, inputs, seen = [], by_job(edges), set[TaskKey]()
        for event in events:
            trigger = Trigger(EVENT, event_id=event.id)
            for candidate in routes[event.id].candidates:
                key = candidate.partitions
                if not isinstance(key, str) or (candidate.job_id, key) in seen:
                    continue
                seen.add((candidate.job_id, key))
                found += await owed_to_all(jobs, inputs[candidate.job_id], [key], 1, trigger, event.trace)
        return found

    # ----------------------------------------------------------------------------------------- tasks

    async def make_tasks(self, tx: Transaction, owed: Sequence[Owed]) -> Made:
        """Make the tasks of jobs that do not exist yet, whatever triggers them. Jobs that are paused or held, or that
        no live deployment has, get none; the others get all of these, and are held if too many wait then. A cutover
        locks the jobs that it ends: what is no longer live under the lock of its job is not made after its tasks were
        cancelled."""
        if not owed:
            return Made({})
        ids = {one.job_id for one in owed}
        edges = await self._lock(tx, ids)
        live = await JobTable(tx.session).live_jobs(ids)
        fed = {job_id: job.deployment_id for job_id, job in live.items() if job.is_fed}
        chosen = [replace(one, deployment_id=fed[one.job_id]) for one in owed if one.job_id in fed]
        made = await self._make(tx, chosen, edges, bounded=False)
        return made._replace(waiting=frozenset(live.keys() - fed.keys()))

    async def _lock(self, tx: Transaction, ids: Collection[UUID]) -> list[LiveEdge]:
        """Lock jobs. Returns their edges, as they are under the lock."""
        if not ids:
            return []
        jobs = JobTable(tx.session)
        await tx.limit_waits(LONG_MS)
        await jobs.lock_jobs(ids)
        return await jobs.edges_of(ids)

    async def _make(
        self, tx: Transaction, seen: Sequence[Owed], edges: Sequence[LiveEdge], *, bounded: bool = True
    ) -> Made:
        """Make the tasks of locked jobs that do not exist yet, if they read what the edges of the jobs read now. With
        `bounded`, a job gets as many as may wait, and the caller has to keep it behind for the others."""
        versions: dict[UUID, dict[int, UUID | None]] = {}
        for edge in edges:
            versions.setdefault(edge.job_id, {})[edge.input_index] = edge.dataset_version
        owed = merged(one for one in seen if _is_live(one, versions.get(one.job_id, {})))
        taken = await self._give_to_backfills(tx, owed)
        owed = {key: one for key, one in owed.items() if key not in taken}
        owed = await self._coalesce(tx, owed, {edge.job_id for edge in edges if edge.coalesces})
        if not owed:
            return Made(taken)
        jobs = JobTable(tx.session)
        new = await jobs.insert_job_tasks([_record(one) for one in owed.values()])
        await jobs.insert_consumptions([each for one in owed.values() for each in _consumptions(one)])
        fresh = sorted((one for one in owed.values() if one.task_id in new), key=_turn)
        if not fresh:
            return Made(taken)
        specs = await jobs.specs({(one.deployment_id, one.job_id) for one in fresh})
        refs = {one.job_id: specs[one.deployment_id, one.job_id] for one in fresh}
        loads = await self._loads(jobs, refs)
        fresh, later = await self._hold_full(tx, fresh, refs, loads, bounded)
        blocked = _blocked(fresh, refs, loads)
        submissions = [owed_task(refs[one.job_id], one, versions.get(one.job_id, {})) for one in fresh]
        renamed = await self._add(tx, submissions, blocked)
        return Made({one.key: renamed.get(one.task_id, one.task_id) for one in fresh} | taken, later)

    async def _coalesce(
        self, tx: Transaction, owed: Mapping[TaskKey, Owed], jobs: Collection[UUID]
    ) -> dict[TaskKey, Owed]:
        """Leave out the windows of jobs that coalesce, if a task waits which will read them too: it reads up to the
        newest cursor when it starts."""
        kept, newest = coalesced(owed, jobs)
        table = JobTable(tx.session)
        waiting = await table.waiting_windows(newest)
        await table.raise_windows({task_id: newest[place].cursor for place, task_id in waiting.items()})
        return kept | {newest[place].key: newest[place].owed for place in newest if place not in waiting}

    async def _give_to_backfills(self, tx: Transaction, owed: Mapping[TaskKey, Owed]) -> dict[TaskKey, UUID]:
        """Give partitions to the tasks of backfills that wait for them, under the lock of their job. What is given so
        needs no task of its own. Returns the task of each."""
        wanted = {
            (one.job_id, one.partition.key): one
            for one in owed.values()
            if one.partition is not None and one.trigger.kind in (EVENT, BUILD.kind)
        }
        table = BackfillTable(tx.session)
        waiting = await table.waiting(wanted) if wanted else {}
        if not waiting:
            return {}
        tasks = await tx.tasks.lock_tasks(sorted(id_ for ids in waiting.values() for id_ in ids), LONG_MS)
        blocked = {id_ for id_, task in tasks.items() if task.state is State.BLOCKED}  # a person may have cancelled it
        wires = await table.wires(blocked)
        taken: dict[TaskKey, UUID] = {}
        for place, ids in waiting.items():
            one = wanted[place]
            for task_id in blocked.intersection(ids):
                wires[task_id] = with_given(wires[task_id], one.given)
                taken[one.key] = task_id
        await table.stop_waiting(wires)
        jobs = JobTable(tx.session)
        await jobs.insert_consumptions([each for key, id_ in taken.items() for each in _consumptions(owed[key], id_)])
        await self._unblock(tx, {job_id for job_id, _ in taken}, await self._loads(jobs, {key[0] for key in taken}))
        return taken

    async def _hold_full(
        self,
        tx: Transaction,
        fresh: Sequence[Owed],
        refs: Mapping[UUID, JobRef],
        loads: Mapping[UUID, Load],
        bounded: bool,
    ) -> tuple[list[Owed], frozenset[TaskKey]]:
        """Hold locked jobs that reach the number of tasks that may wait. Returns those of these tasks that are made
        now, all of them unless `bounded`; what is recorded of the others is taken back."""
        kept: list[Owed] = []
        later: list[Owed] = []
        full: dict[UUID, str] = {}
        depths = {job_id: loads.get(job_id, Load()).depth for job_id in refs}
        for one in fresh:
            if one.job_id in full and bounded:
                later.append(one)
                continue
            kept.append(one)
            if one.waits:
                continue
            depths[one.job_id] += 1
            ref = refs[one.job_id]
            if held(depths[one.job_id], None, queue_limits(ref.job), was_held=False):
                full[one.job_id] = f"{ref.dag}/{ref.name}"
        if full:
            await BackpressureTable(tx.session).hold(full)
            await JobTable(tx.session).take_back([one.task_id for one in later])
        return kept, frozenset(one.key for one in later)

    async def _add(
        self, tx: Transaction, submissions: Sequence[Submission], blocked: Collection[UUID]
    ) -> dict[UUID, UUID]:
        """Add tasks. One whose id is taken was cancelled when its job left: it is made once more under another id.
        Returns those ids."""
        renamed: dict[UUID, UUID] = {}
        added = await tx.add_missing(submissions, blocked=frozenset(blocked))
        while taken := [one for one in submissions if one.id not in added]:
            ids = {one.id: next_task_id(one.id) for one in taken if one.id is not None}
            await JobTable(tx.session).rename_tasks(ids)
            submissions = [replace(one, id=ids[one.id]) for one in taken if one.id is not None]
            blocked = {new for old, new in ids.items() if old in blocked}
            renamed = {old: ids.get(new, new) for old, new in renamed.items()} | ids
            added = await tx.add_missing(submissions, blocked=frozenset(blocked))
        return renamed

    async def _loads(self, jobs: JobTable, ids: Collection[UUID]) -> dict[UUID, Load]:
        """The open tasks of locked jobs. Before, their cursors are moved past the windows of all tasks that have ended,
        also of those whose effect no tick has carried out yet: the next window must not begin earlier. The tasks are
        counted first, or one could end in between."""
        loads = await jobs.load(ids)
        await jobs.move_cursors(await jobs.ended_windows(ids))
        return loads

    # ----------------------------------------------------------------------------------------- the end of a task

    async def advance_tick(self) -> int:
        """Move jobs on whose tasks have ended: their cursors, and the tasks whose turn it is. Returns the number of
        effects carried out."""
        async with self._store.begin() as tx:
            effects = await tx.outbox.lock_effects(JOB, BATCH)
            if not effects:
                return 0
            await self._advance(tx, effects)
            await tx.outbox.delete_effects([effect.id for effect in effects])
        return len(effects)

    async def _advance(self, tx: Transaction, effects: Sequence[Effect]) -> None:
        jobs = JobTable(tx.session)
        ids = {UUID(str(effect.body["job_id"])) for effect in effects}
        await tx.limit_waits(LONG_MS)
        await jobs.lock_jobs(ids)
        await jobs.mark_behind(await jobs.forget_tasks(ids, LEFT) | await jobs.cut_windows(ids))
        loads = await self._loads(jobs, ids)
        waiting = {job_id for job_id, load in loads.items() if load.waiting}
        if waiting:
            await self._unblock(tx, waiting, loads)

    async def _unblock(self, tx: Transaction, job_ids: Collection[UUID], loads: dict[UUID, Load]) -> None:
        """Let the next tasks of these jobs start, as many as there is room for. The rows of the jobs are locked. If a
        claim or a cancel holds the row of a task, this waits for it, since no other tick would come back to it."""
        jobs = JobTable(tx.session)
        wanted: list[UUID] = []
        for job_id, slots in (await jobs.slots(job_ids)).items():
            load = loads[job_id]
            room = load.waiting if slots is None else slots - load.started
            if room > 0:
                wanted += await jobs.next_tasks(job_id, room)
        if wanted:
            tasks = await tx.tasks.lock_tasks(sorted(wanted), LONG_MS)
            await tx.apply([_unblocked(task) for task in tasks.values() if task.state is State.BLOCKED])

    # ----------------------------------------------------------------------------------------- what is owed

    async def reconcile_tick(self) -> int:
        """Make what is owed to jobs that are behind, and route events whose effect was lost. Returns 0 if there was
        nothing to do."""
        return await self._catch_up() + await self._route_lost()

    async def _catch_up(self) -> int:
        async with self._store.begin() as tx:
            jobs = JobTable(tx.session)
            behind = await jobs.lock_behind(BEHIND_BATCH)
            if not behind:
                return 0
            edges = await jobs.edges_of(behind)
            unfinished = {edge.job_id for edge in edges if not edge.is_fed}  # since its row was locked
            upgrade = await carry_over(jobs, [edge for edge in edges if edge.is_fed])
            if upgrade.changed:
                edges = await jobs.edges_of(behind)
            waiting = unfinished | (upgrade.unfinished - upgrade.reading)
            unfinished |= upgrade.unfinished
            owed, more = await owed_data(jobs, [edge for edge in edges if edge.job_id not in waiting])
            await tx.limit_waits(LONG_MS)
            made = await self._make(tx, owed, edges)
            unfinished |= made.full | more
            await jobs.caught_up(set(behind) - unfinished)
        self._count(Routed(tasks=len(made.new)))
        return max(len(made.new), len(behind) - len(unfinished), int(upgrade.changed))

    async def _route_lost(self) -> int:
        async with self._store.begin() as tx:
            lost, routed = await JobTable(tx.session).unrouted_events(self.lost_s, BATCH), Routed()
            if lost:
                log.warning("routing %d events whose effect was lost", len(lost))
                routed = await self._route(tx, lost)
        self._count(routed)
        return len(lost)


def _is_live(one: Owed, versions: Mapping[int, UUID | None]) -> bool:
    """Whether the inputs of a job still read what a task of it would be given."""
    return all(versions.get(given.input_index) == given.dataset_version for given in one.given)


def _blocked(fresh: Sequence[Owed], refs: Mapping[UUID, JobRef], loads: Mapping[UUID, Load]) -> set[UUID]:
    """The tasks that have to wait for their turn."""
    left = {job_id: room(ref.job, *loads.get(job_id, Load())[:2]) for job_id, ref in refs.items()}
    blocked = set()
    for one in fresh:
        places = left[one.job_id]
        if one.waits:
            blocked.add(one.task_id)
        elif places is not None:
            left[one.job_id] = places - 1
            if places <= 0:
                blocked.add(one.task_id)
    return blocked


def _turn(one: Owed) -> tuple[int, str]:
    """The order in which tasks of a job start."""
    return (one.window.cursor or 0) if one.window is not None else 0, one.dedupe_key


def _record(one: Owed) -> JobTask:
    first = one.window or (one.given[0] if one.given else None)
    return JobTask(
        one.job_id, one.dedupe_key, one.task_id, one.deployment_id, msgspec.json.encode(one.trigger).decode(),
        None if first is None else first.dataset_version, None if first is None else first.cursor,
    )  # fmt: skip


def _consumptions(one: Owed, task_id: UUID | None = None) -> list[Consumption]:
    return [
        Consumption(
            one.job_id, given.input_index, given.dataset_version, given.partition.key, given.partition.revision,
            task_id or one.task_id,
        )
        for given in one.given
        if given.partition is not None and given.partition.revision is not None
    ]  # fmt: skip


def _unblocked(task: Task) -> Transition:
    return move(Verb.UNBLOCK, task, replace(task, state=State.QUEUED))
