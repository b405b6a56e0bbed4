"""The unit of work: load under lock, apply what the rules decided, commit. Speaks the domain; SQL is in the .sql files.

`apply` writes the moves of a batch with one statement per table. It decides nothing: what it writes is what a rule of
`core` returned, under the row locks that were taken in this same transaction. Who has to be woken is collected here and
announced with the commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import cast
from uuid import UUID

from windlass.core.command import Complete
from windlass.core.delivery import QueueSettings
from windlass.core.holder import Finish
from windlass.core.queue import QueueConfig
from windlass.core.retry import DEFAULT_POLICY
from windlass.core.submission import Batch, Submission
from windlass.core.task import Task
from windlass.core.transition import Transition, Verb
from windlass.store.access_table import AccessTable
from windlass.store.attempt_table import AttemptTable
from windlass.store.dataset_table import DatasetTable
from windlass.store.fault import Duplicate
from windlass.store.gauge import GaugeView
from windlass.store.heartbeat_table import HeartbeatTable
from windlass.store.holder_table import HolderTable
from windlass.store.kind_table import KindTable
from windlass.store.lease_table import LeaseTable
from windlass.store.machine_table import MachineTable
from windlass.store.object_table import ObjectTable
from windlass.store.outbox_table import OutboxTable
from windlass.store.queue_table import QueueTable
from windlass.store.retention_table import RetentionTable
from windlass.store.run_table import RunTable
from windlass.store.schedule_table import ScheduleTable
from windlass.store.session import Session
from windlass.store.step_table import StepTable
from windlass.store.task_table import Finished, TaskTable
from windlass.store.wake import Wakes, wakes_of
from windlass.store.wakeup_table import WakeupTable
from windlass.store.worker_table import WorkerTable


class Tx:
    """One transaction. Get it from `Store.begin`."""

    __slots__ = (
        "access",
        "attempts",
        "counted",
        "datasets",
        "finished",
        "gauges",
        "heartbeats",
        "holders",
        "kinds",
        "leases",
        "machines",
        "moves",
        "objects",
        "outbox",
        "queues",
        "retention",
        "runs",
        "schedules",
        "session",
        "started",
        "steps",
        "tasks",
        "wakes",
        "wakeups",
        "workers",
    )

    def __init__(self, session: Session, *, counted: bool = True) -> None:
        self.session = session
        self.counted = counted  # whether anybody wants to know what was finished
        self.wakes = Wakes()
        self.moves: list[Transition] = []
        self.finished: list[Finished] = []
        self.tasks = TaskTable(session)
        self.runs = RunTable(session)
        self.leases = LeaseTable(session)
        self.heartbeats = HeartbeatTable(session)
        self.holders = HolderTable(session)
        self.datasets = DatasetTable(session)
        self.queues = QueueTable(session)
        self.outbox = OutboxTable(session)
        self.objects = ObjectTable(session)
        self.retention = RetentionTable(session)
        self.gauges = GaugeView(session)
        self.access = AccessTable(session)
        self.steps = StepTable(session)
        self.schedules = ScheduleTable(session)
        self.kinds = KindTable(session)
        self.workers = WorkerTable(session)
        self.attempts = AttemptTable(session)
        self.wakeups = WakeupTable(session)
        self.machines = MachineTable(session)

    async def now(self) -> datetime:
        [[now]] = await self.session.fetch("now")
        assert isinstance(now, datetime), now
        return now

    async def pulse(self) -> tuple[bool, bool, bool]:
        """Whether leases have run out, timers rang, effects are due."""
        [[leases, timers, effects]] = await self.session.fetch("pulse")
        return leases, timers, effects

    async def limit_waits(self, patience_ms: int) -> None:
        """From here on no statement of this transaction waits longer than this for a lock: LockHeld instead."""
        await self.session.execute(f"set local lock_timeout = {patience_ms}")

    async def apply(self, moves: Sequence[Transition]) -> None:
        """Write what the rules decided. `moves` may contain several for one task, in their order."""
        changed = [move for move in moves if move.changed]
        if changed:
            wakes, freed = wakes_of(changed)
            self.wakes.queues |= await self.tasks.write(_folded(changed), freed)
            await self.wake(wakes)
            self.moves += changed
        await self.tasks.insert_history([entry for move in moves for entry in move.history])
        await self.outbox.insert_outbox([effect for move in moves for effect in move.effects])
        await self.steps.put_steps([step for move in moves for step in move.steps])
        await self.attempts.put_attempts([attempt for move in moves for attempt in move.attempts])
        await self.steps.insert_signals([signal for move in moves for signal in move.signals])
        await self.steps.consume_signals([signal for move in moves for signal in move.consumed])
        await self.datasets.insert_events([event for move in moves for event in move.events])
        await self.datasets.insert_publishes([publish for move in moves for publish in move.publishes])
        self.wakes.effects = self.wakes.effects or any(move.effects for move in moves)

    async def complete(self, said: Sequence[Complete]) -> set[UUID]:
        """End the attempts that returned, where there is nothing to decide; returns the ids of their tasks."""
        done = await self.tasks.complete_at_once(said, self.counted)
        self.wakes.queues |= done.woken
        self.finished += done.finished
        return done.ids

    async def finish(self, said: Sequence[Finish]) -> set[UUID]:
        """The same for what holders say."""
        finished, woken = await self.holders.finish_at_once(said)
        self.wakes.queues |= woken
        self.finished += finished.values()
        return set(finished)

    async def add(self, submissions: Sequence[Submission]) -> None:
        """Add tasks that are new. Raises Duplicate if one is there already: then nothing was added."""
        added = await self.add_missing(submissions)
        if len(added) < len(submissions):
            raise Duplicate

    async def add_plain(self, submissions: Sequence[Submission]) -> None:
        """The same for tasks that are plain: see `is_plain`."""
        first = submissions[0]
        if len(submissions) == 1:
            self.wakes.queues.add((first.namespace, first.queue))
            await self.tasks.insert_plain_task(first)
        else:
            ids = cast("list[UUID]", [s.id for s in submissions])
            await self.add_batch(Batch(first, ids, [s.payload for s in submissions]))

    async def add_batch(self, batch: Batch) -> None:
        self.wakes.queues.add((batch.shared.namespace, batch.shared.queue))
        await self.tasks.insert_plain_tasks(batch)

    async def add_started(self, submissions: Sequence[Submission], begun: Task, delivery: str) -> tuple[bool, datetime]:
        """Add plain tasks, begun at once if nobody is passed by; otherwise queued, and their queue is woken."""
        started, at = await self.tasks.insert_started_tasks(submissions, begun, delivery)
        if not started:
            self.wakes.queues.add((submissions[0].namespace, submissions[0].queue))
        return started, at

    async def add_missing(
        self,
        submissions: Sequence[Submission],
        *,
        upstream: frozenset[UUID] = frozenset(),
        blocked: frozenset[UUID] = frozenset(),
    ) -> set[UUID]:
        """Add those that are not there yet; returns their ids."""
        self.wakes.queues.update((s.namespace, s.queue) for s in submissions if s.id not in blocked)
        return await self.tasks.insert_tasks(submissions, upstream, blocked)

    async def configure(self, namespace: str, queue: str, config: QueueConfig) -> None:
        await self.queues.put_queue(namespace, queue, config)
        self.wakes.queues.add((namespace, queue))

    async def set_up(self, namespace: str, queue: str, settings: QueueSettings) -> None:
        await self.queues.put_settings(namespace, queue, settings)
        self.wakes.everything = True  # whoever sends tasks out has to know how that is done now

    async def wake(self, wakes: Wakes) -> None:
        """Announce with the commit: to the other engines by NOTIFY, to our own directly."""
        if messages := wakes.messages():
            await self.session.fetch("notify", messages)
        self.wakes.queues |= wakes.queues
        self.wakes.tasks |= wakes.tasks
        self.wakes.leases |= wakes.leases
        self.wakes.effects |= wakes.effects
        self.wakes.letters |= wakes.letters
        self.wakes.schedules |= wakes.schedules


def _folded(moves: list[Transition]) -> list[Transition]:
    """One write per task: the moves of one task in a batch become one, from the first `before` to the last `after`."""
    by_task: dict[UUID, Transition] = {}
    for move in moves:
        earlier = by_task.get(move.after.id)
        by_task[move.after.id] = move if earlier is None else Transition(Verb.NOTE, earlier.before, move.after)
    return list(by_task.values())


def is_plain(submissions: Sequence[Submission]) -> bool:
    """Whether they use nothing but a payload, and share all else."""
    first = submissions[0]
    return all(
        s.queue == first.queue and s.kind == first.kind and s.namespace == first.namespace
        and s.priority == 0 and s.available_at is None and s.delay_s == 0.0 and s.deadline_at is None
        and s.concurrency_key == "" and s.idempotency_key is None and s.policy is DEFAULT_POLICY
        and s.run_id is None and s.requires == () and s.trace is None and s.wire is None
        and s.replay_of is None and s.parent_id is None and s.schedule_id is None
        for s in submissions
    )  # fmt: skip
