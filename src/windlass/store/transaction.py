"""The unit of work: load under lock, apply what the rules decided, commit.

`apply` writes the transitions of a batch with one statement per table. It decides nothing: it writes what a rule
returned, under row locks of the same transaction. Notifications are collected here and sent with the commit. The tables
of the kernel are attributes; a contract makes its own from `tx.session`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from operator import attrgetter
from typing import Generic, TypeVar, cast
from uuid import UUID

from windlass.core.command import Complete
from windlass.core.delivery import QueueSettings
from windlass.core.queue import QueueConfig
from windlass.core.replay import turn_of
from windlass.core.retry import DEFAULT_POLICY
from windlass.core.states import Transition, Verb
from windlass.core.submission import Batch, Submission
from windlass.core.task import Task
from windlass.store.errors import Duplicate
from windlass.store.notify import PendingNotifications, wakes_of
from windlass.store.pool import Session
from windlass.store.table import Table
from windlass.store.tables.access import AccessTable
from windlass.store.tables.kind import KindTable
from windlass.store.tables.lease import LeaseTable
from windlass.store.tables.object import ObjectTable
from windlass.store.tables.outbox import OutboxTable
from windlass.store.tables.outgoing import HeartbeatTable
from windlass.store.tables.queue import QueueTable
from windlass.store.tables.retention import RetentionTable
from windlass.store.tables.run import RunTable
from windlass.store.tables.schedule import ScheduleTable
from windlass.store.tables.step import StepTable
from windlass.store.tables.task import Finished, TaskTable, Written
from windlass.store.tables.view import GaugeView
from windlass.store.tables.worker import WorkerTable
from windlass.store.writers import write_records

T = TypeVar("T", bound=Table)


class TableAttribute(Generic[T]):
    """A table of a transaction. It is made at each use, since most transactions use one or two of them."""

    def __init__(self, table: type[T]) -> None:
        self._table = table

    def __get__(self, tx: Transaction, _owner: type[Transaction]) -> T:
        return self._table(tx.session)


class Transaction:
    """One transaction. Get it from `Store.begin`."""

    __slots__ = ("claim_id", "counted", "finished", "moves", "session", "wakes")

    access = TableAttribute(AccessTable)
    gauges = TableAttribute(GaugeView)
    heartbeats = TableAttribute(HeartbeatTable)
    kinds = TableAttribute(KindTable)
    leases = TableAttribute(LeaseTable)
    objects = TableAttribute(ObjectTable)
    outbox = TableAttribute(OutboxTable)
    queues = TableAttribute(QueueTable)
    retention = TableAttribute(RetentionTable)
    runs = TableAttribute(RunTable)
    schedules = TableAttribute(ScheduleTable)
    steps = TableAttribute(StepTable)
    tasks = TableAttribute(TaskTable)
    workers = TableAttribute(WorkerTable)

    def __init__(self, session: Session, *, counted: bool = True) -> None:
        self.session = session
        self.counted = counted  # whether metrics need the successful attempts
        self.claim_id: UUID | None = None  # of the claim that this transaction carries out
        self.wakes = PendingNotifications()
        self.moves: list[Transition] = []
        self.finished: list[Finished] = []

    async def now(self) -> datetime:
        now: datetime = await self.session.fetchval("now")
        return now

    async def due_work(self) -> tuple[bool, bool, bool]:
        """Whether leases have expired, timers are due, effects are due."""
        [[leases, timers, effects]] = await self.session.fetch("due_work")
        return leases, timers, effects

    async def limit_waits(self, lock_wait_ms: int) -> None:
        await self.session.limit_lock_wait(lock_wait_ms)

    async def apply(self, moves: Sequence[Transition]) -> None:
        """Write what the rules decided. A task may have several moves, in their order."""
        changed = [move for move in moves if move.changed]
        if changed:
            wakes, freed = wakes_of(changed)
            self.wakes.queues |= await self.tasks.write(_folded(changed), freed, self.claim_id)
            await self.wake(wakes)
            self.moves += changed
        await self.tasks.insert_history([entry for move in moves for entry in move.history])
        await self.outbox.insert_outbox([effect for move in moves for effect in move.effects])
        await write_records(self.session, moves)
        self.wakes.effects = self.wakes.effects or any(move.effects for move in moves)

    async def complete(self, reports: Sequence[Complete]) -> set[UUID]:
        """End attempts that succeeded, where there is nothing to decide. Returns the ids of their tasks."""
        done = await self.tasks.complete_at_once(reports, self.counted)
        self.wakes.queues |= done.woken
        self.finished += done.finished
        return done.ids

    async def add(self, submissions: Sequence[Submission]) -> None:
        """Add new tasks. Raises Duplicate if one exists; roll back then."""
        if len(await self.add_missing(submissions)) < len(submissions):
            raise Duplicate

    async def add_plain(self, submissions: Sequence[Submission]) -> Written:
        """The same for plain tasks: see `is_plain`."""
        first = submissions[0]
        if len(submissions) == 1:
            self.wakes.queues.add((first.namespace, first.queue))
            return await self.tasks.insert_plain_task(first)
        ids = cast("list[UUID]", [s.id for s in submissions])
        return await self.add_batch(Batch(first, ids, [s.payload for s in submissions]))

    async def add_batch(self, batch: Batch) -> Written:
        self.wakes.queues.add((batch.shared.namespace, batch.shared.queue))
        return await self.tasks.insert_plain_tasks(batch)

    async def add_started(self, submissions: Sequence[Submission], begun: Task, delivery: str) -> tuple[bool, Written]:
        """Add plain tasks, as running if they overtake no older task; otherwise queue them and notify their queue."""
        started, written = await self.tasks.insert_started_tasks(submissions, begun, delivery)
        if not started:
            self.wakes.queues.add((submissions[0].namespace, submissions[0].queue))
        return started, written

    async def add_missing(
        self,
        submissions: Sequence[Submission],
        *,
        upstream: frozenset[UUID] = frozenset(),
        blocked: frozenset[UUID] = frozenset(),
    ) -> set[UUID]:
        """Add the tasks that do not exist yet. Returns their ids. The replay of a job's task waits for its turn, as the
        task that it replays did."""
        replays = {s.id: s for s in submissions if s.replay_of is not None and s.job_id is not None}
        blocked |= {s.id for s in replays.values() if s.id is not None}
        self.wakes.queues.update((s.namespace, s.queue) for s in submissions if s.id not in blocked)
        added = await self.tasks.insert_tasks(submissions, upstream, blocked)
        if replays:
            await self.outbox.insert_outbox([turn_of(s) for id_, s in replays.items() if id_ in added])
            await self.wake(PendingNotifications(effects=True))
        return added

    async def configure(self, namespace: str, queue: str, config: QueueConfig) -> None:
        await self.queues.put_queue(namespace, queue, config)
        self.wakes.queues.add((namespace, queue))

    async def set_up(self, namespace: str, queue: str, settings: QueueSettings) -> None:
        await self.queues.put_settings(namespace, queue, settings)
        self.wakes.everything = True  # the dispatchers have to reload the settings

    async def wake(self, wakes: PendingNotifications) -> None:
        """Announce with the commit: to the other engines by NOTIFY, to our own directly."""
        if messages := wakes.messages():
            await self.session.fetch("notify", messages)
        self.wakes.queues |= wakes.queues
        self.wakes.tasks |= wakes.tasks
        self.wakes.leases |= wakes.leases
        self.wakes.effects |= wakes.effects
        self.wakes.wakeup_messages |= wakes.wakeup_messages
        self.wakes.schedules |= wakes.schedules


def _folded(moves: list[Transition]) -> list[Transition]:
    """One write per task: the moves of one task in a batch become one, from the first `before` to the last `after`."""
    by_task: dict[UUID, Transition] = {}
    for move in moves:
        earlier = by_task.get(move.after.id)
        by_task[move.after.id] = move if earlier is None else Transition(Verb.NOTE, earlier.before, move.after)
    return list(by_task.values())


_REQUIRED = {"id", "payload", "kind", "queue", "namespace"}
_options = attrgetter(*(name for name in Submission.__struct_fields__ if name not in _REQUIRED))
_NO_OPTIONS = _options(Submission(kind=""))


def is_plain(submissions: Sequence[Submission]) -> bool:
    """Whether they have no options and share queue, kind and namespace. A given policy is an option, even if it equals
    the default."""
    first = submissions[0]
    return all(
        s.queue == first.queue and s.kind == first.kind and s.namespace == first.namespace
        and s.policy is DEFAULT_POLICY and _options(s) == _NO_OPTIONS
        for s in submissions
    )  # fmt: skip
