"""Routing: data events make the tasks of the jobs that read them, each once.

An event only makes a task sooner. What is owed to a job is what is committed and was not given to it: the reconcile
tick compares the two for jobs that are `behind` (new, resumed, rolled back, no longer held), and routes events whose
effect was lost. All ticks may run on any number of servers: the row of a job is the lock under which its tasks are
made.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

import msgspec
from msgspec.structs import replace

from windlass.core.states import Effect, State, Transition, Verb, move
from windlass.core.submission import Submission
from windlass.core.task import JOB, Task
from windlass.datasets.rules.events import ROUTE
from windlass.datasets.rules.job import LEFT, JobRef, Owed, Partition, next_task_id, owed_task, slots_of
from windlass.datasets.tables.jobs import Consumption, JobTable, JobTask, LiveEdge, Load, UnroutedEvent
from windlass.engine.commit.lock_waits import LONG_MS
from windlass.engine.engine import Engine
from windlass.store.transaction import Transaction

log = logging.getLogger("windlass.datasets")

BATCH = 200
BEHIND_BATCH, OWED_MAX = 20, 500
EFFECT_LOST_S = 30.0  # an event that is not routed for so long has lost its effect

ROUTED, DUPLICATE, HELD, NO_CONSUMER, OLD_VERSION = "routed", "duplicate", "held", "no_consumer", "old_version"


class Router:
    """Makes the tasks of jobs, for one engine."""

    def __init__(self, engine: Engine) -> None:
        self._store = engine.parts.store
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
            await self._route(tx, [UUID(str(effect.body["event_id"])) for effect in effects])
            await tx.outbox.delete_effects([effect.id for effect in effects])
        return len(effects)

    async def _route(self, tx: Transaction, event_ids: Sequence[UUID]) -> None:
        jobs = JobTable(tx.session)
        events = await jobs.events_to_route(event_ids)
        if not events:
            return
        edges = await jobs.edges_on({event.dataset_uuid for event in events})
        live = await jobs.live_versions({(event.dataset_version, event.dataset_uuid) for event in events})
        wanted: dict[UUID, list[LiveEdge]] = {
            event.id: [edge for edge in edges if _reads(edge, event)] if event.dataset_version in live else []
            for event in events
        }
        owed = [_owed(edge, event) for event in events for edge in wanted[event.id] if not (edge.held or edge.paused)]
        later = {edge.job_id for found in wanted.values() for edge in found if edge.held or edge.paused}
        made = await self._make(tx, owed)
        await jobs.mark_behind(later)
        await jobs.mark_routed(
            {event.id: _routing(event, event.dataset_version in live, wanted[event.id], made) for event in events}
        )

    # ----------------------------------------------------------------------------------------- tasks

    async def _make(self, tx: Transaction, seen: Sequence[Owed]) -> set[UUID]:
        """Make the tasks that do not exist yet. Returns their ids. A cutover locks the jobs that it ends: what is no
        longer live under the lock of its job is not made after its tasks were cancelled."""
        if not seen:
            return set()
        jobs = JobTable(tx.session)
        ids = {one.job_id for one in seen}
        await tx.limit_waits(LONG_MS)
        await jobs.lock_jobs(ids)
        live = {(edge.job_id, edge.input_index): edge for edge in await jobs.edges_of(ids)}
        owed = [replace(one, deployment_id=live[one.edge].deployment_id) for one in seen if _is_live(one, live)]
        specs = await jobs.specs({(one.deployment_id, one.job_id) for one in owed})
        versions: dict[UUID, dict[int, UUID | None]] = {}
        for edge in live.values():
            versions.setdefault(edge.job_id, {})[edge.input_index] = edge.dataset_version
        unique = {one.task_id: one for one in owed}
        encode = msgspec.json.Encoder().encode
        new = await jobs.insert_job_tasks(
            [
                JobTask(one.job_id, one.dedupe_key, one.task_id, one.deployment_id, encode(one.trigger).decode(),
                        one.dataset_version, one.cursor)
                for one in unique.values()
            ]
        )  # fmt: skip
        await jobs.insert_consumptions(
            [
                Consumption(one.job_id, one.input_index, one.dataset_version, one.partition.key, one.partition.revision,
                            one.task_id)
                for one in owed
                if one.partition is not None
            ]
        )  # fmt: skip
        fresh = sorted((unique[id_] for id_ in new), key=lambda one: (one.cursor or 0, one.dedupe_key))
        refs: dict[UUID, JobRef] = {one.job_id: specs[one.deployment_id, one.job_id] for one in fresh}
        loads = await self._loads(jobs, refs)
        room = {job_id: _room(ref, loads.get(job_id, Load())) for job_id, ref in refs.items()}
        blocked = set()
        for one in fresh:
            left = room[one.job_id]
            if left is not None:
                if left <= 0:
                    blocked.add(one.task_id)
                room[one.job_id] = left - 1
        submissions = [owed_task(refs[one.job_id], one, versions.get(one.job_id, {})) for one in fresh]
        if submissions:
            await self._add(tx, submissions, blocked)
        return new

    async def _add(self, tx: Transaction, submissions: Sequence[Submission], blocked: Collection[UUID]) -> None:
        """Add tasks. One whose id is taken was cancelled when its job left: it is made once more under another id."""
        added = await tx.add_missing(submissions, blocked=frozenset(blocked))
        while taken := [one for one in submissions if one.id not in added]:
            ids = {one.id: next_task_id(one.id) for one in taken if one.id is not None}
            await JobTable(tx.session).rename_tasks(ids)
            submissions = [replace(one, id=ids[one.id]) for one in taken if one.id is not None]
            blocked = {new for old, new in ids.items() if old in blocked}
            added = await tx.add_missing(submissions, blocked=frozenset(blocked))

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
        await jobs.mark_behind(await jobs.forget_tasks(ids, LEFT))
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
            edges = [edge for edge in await jobs.edges_of(behind) if edge.trigger]
            owed: list[Owed] = []
            unfinished: set[UUID] = set()
            for edge in edges:
                if edge.held or edge.paused:  # since its row was locked
                    unfinished.add(edge.job_id)
                    continue
                found = await self._owed_on(jobs, edge)
                owed += found
                if len(found) >= OWED_MAX:
                    unfinished.add(edge.job_id)
            made = await self._make(tx, owed)
            await jobs.caught_up(set(behind) - unfinished)
        return max(len(made), len(behind) - len(unfinished))

    async def _owed_on(self, jobs: JobTable, edge: LiveEdge) -> list[Owed]:
        if edge.dataset_version is None:
            return []
        about = (edge.job_id, edge.deployment_id, edge.input_index, edge.dataset_uuid, edge.dataset_version)
        if not edge.by_partition:
            cursor = await jobs.owed_cursor(edge.job_id, edge.dataset_version)
            return [] if cursor is None else [Owed(*about, cursor=cursor)]
        found = await jobs.owed_partitions(edge.job_id, edge.dataset_version, edge.input_index, OWED_MAX)
        return [Owed(*about, partition=Partition(*part)) for part in found]

    async def _route_lost(self) -> int:
        async with self._store.begin() as tx:
            lost = await JobTable(tx.session).unrouted_events(EFFECT_LOST_S, BATCH)
            if lost:
                log.warning("routing %d events whose effect was lost", len(lost))
                await self._route(tx, lost)
        return len(lost)


def _reads(edge: LiveEdge, event: UnroutedEvent) -> bool:
    """Whether an event wakes the job of an edge. A partition wakes no reader of windows, nor a cursor one of
    partitions."""
    return (
        edge.trigger
        and edge.dataset_uuid == event.dataset_uuid
        and edge.dataset_version == event.dataset_version
        and edge.by_partition == (event.partition_key is not None)
    )


def _is_live(one: Owed, live: Mapping[tuple[UUID, int], LiveEdge]) -> bool:
    edge = live.get(one.edge)
    return edge is not None and edge.dataset_version == one.dataset_version


def _owed(edge: LiveEdge, event: UnroutedEvent) -> Owed:
    partition = None
    if event.partition_key is not None:
        partition = Partition(event.partition_key, event.first, event.last, event.revision or 1)
    return Owed(
        edge.job_id, edge.deployment_id, edge.input_index, event.dataset_uuid, event.dataset_version, event.cursor,
        partition, event.id, event.traceparent,
    )  # fmt: skip


def _routing(event: UnroutedEvent, live: bool, edges: Sequence[LiveEdge], made: Collection[UUID]) -> str:
    if not live:
        return OLD_VERSION
    if not edges:
        return NO_CONSUMER
    if any(edge.held or edge.paused for edge in edges):
        return HELD
    return ROUTED if any(_owed(edge, event).task_id in made for edge in edges) else DUPLICATE


def _room(ref: JobRef, load: Load) -> int | None:
    """How many more tasks of a job may start now. None: any number. Tasks that wait come first."""
    slots = slots_of(ref.job)
    return None if slots is None else slots - load.started - load.waiting


def _unblocked(task: Task) -> Transition:
    return move(Verb.UNBLOCK, task, replace(task, state=State.QUEUED))
