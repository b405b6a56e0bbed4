"""Tasks: locks, writes and adds them. The rules of `core` decide what is written, under the locks taken here."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from windlass.core.command import Complete
from windlass.core.queue import QueueName
from windlass.core.retry import DEFAULT_POLICY, Policy
from windlass.core.states import Entry, Transition, Verb
from windlass.core.submission import Batch, Submission
from windlass.core.task import Task
from windlass.store import records
from windlass.store.records import Row, tasks_with_time
from windlass.store.table import Table
from windlass.store.task_columns import changed_values, submitted_values

LOCK_TIMEOUT_MS = 2000


class Finished(NamedTuple):
    """A successful attempt, for metrics."""

    queue: str
    kind: str
    started_at: datetime
    finished_at: datetime


class Completed(NamedTuple):
    """What `complete_at_once` did: tasks that ended, their metrics, and queues that were notified."""

    ids: set[UUID]
    finished: list[Finished]
    woken: set[QueueName]


class Written(NamedTuple):
    """What the database decides for plain tasks that are added together: their time, and the policy of their queue."""

    at: datetime
    policy: Policy


class TaskTable(Table):
    """Tasks within a transaction."""

    async def load_tasks(self, ids: Sequence[UUID]) -> tuple[dict[UUID, Task], datetime | None]:
        """Lock those that are not locked, without waiting. Also returns the time, None without a task."""
        rows = await self.session.fetch("load_tasks", ids)
        return {row[0]: records.task_from(row) for row in rows}, rows[0][-1] if rows else None

    async def lock_tasks(self, ids: Sequence[UUID], lock_wait_ms: int = LOCK_TIMEOUT_MS) -> dict[UUID, Task]:
        """Wait for the locks, but not longer than this: LockHeld."""
        await self.session.limit_lock_wait(lock_wait_ms)
        rows = await self.session.fetch("lock_tasks", ids)
        return {row[0]: records.task_from(row) for row in rows}

    async def existing_tasks(self, ids: Sequence[UUID]) -> set[UUID]:
        return {row[0] for row in await self.session.fetch("existing_tasks", ids)}

    async def due_timers(self, limit: int) -> tuple[list[Task], datetime | None]:
        return tasks_with_time(await self.session.fetch("due_timers", limit))

    async def insert_history(self, entries: Sequence[Entry]) -> None:
        if entries:
            await self.session.fetch(
                "insert_history", [e.task_id for e in entries], [e.at for e in entries], [e.attempt for e in entries],
                [e.what for e in entries], [e.worker for e in entries], [records.as_json(e.detail) for e in entries],
            )  # fmt: skip

    async def await_task(self, task_id: UUID) -> None:
        await self.session.fetch("await_task", task_id)

    async def write(self, moves: list[Transition], freed: set[QueueName], claim_id: UUID | None) -> set[QueueName]:
        """Write moves with one statement for each kind. Notifies those of the `freed` queues that have limits, and
        returns them. `claim_id` is the claim that begins attempts here."""
        # An attempt that is dispatched has no worker yet: `update_tasks` writes it.
        starts, completions, others = list[Task](), list[Task](), list[Task]()
        for move in moves:
            if move.verb is Verb.COMPLETE:
                completions.append(move.after)
            elif move.verb is Verb.CLAIM and move.after.worker is not None:
                starts.append(move.after)
            else:
                others.append(move.after)
        by_lease: dict[UUID | None, list[Task]] = {}
        for task in starts:
            by_lease.setdefault(task.lease_id, []).append(task)
        for batch in by_lease.values():
            first = batch[0]  # tasks of one lease share its worker and the time
            await self.session.fetch(
                "start_tasks", [t.id for t in batch], [t.attempt for t in batch], [t.timer_at for t in batch],
                first.lease_id, first.worker, first.started_at, claim_id,
            )  # fmt: skip
        if others:
            await self.session.fetch("update_tasks", *changed_values(others))
        names = sorted(freed)
        queues = [n for n, _ in names], [q for _, q in names]
        woken: Sequence[Row] = ()
        if completions:
            woken = await self.session.fetch(
                "complete_tasks", [t.id for t in completions], [t.result for t in completions],
                completions[0].finished_at, *queues,
            )  # fmt: skip
        elif freed:
            woken = await self.session.fetch("notify_freed", *queues)
        return {(row[0], row[1]) for row in woken}

    async def complete_at_once(self, reports: Sequence[Complete], counted: bool) -> Completed:
        """End those of these attempts for which there is nothing to decide. Takes one report per task."""
        ids = [c.task_id for c in reports]
        [row] = await self.session.fetch(
            "complete_at_once", ids, [c.attempt for c in reports], [c.lease_id for c in reports],
            [c.result for c in reports], counted,
        )  # fmt: skip
        done, namespaces, names, queues, kinds, starts, now = row
        finished = [Finished(*one, now) for one in zip(queues, kinds, starts, strict=True)] if counted else []
        return Completed(set(ids if done is None else done), finished, set(zip(namespaces, names, strict=True)))

    # ----------------------------------------------------------------------------------------- submissions

    async def insert_tasks(
        self, submissions: Sequence[Submission], upstream: frozenset[UUID], blocked: frozenset[UUID]
    ) -> set[UUID]:
        """Add new tasks; returns the ids that were new."""
        rows = await self.session.fetch(
            "insert_tasks", ["blocked" if s.id in blocked else "queued" for s in submissions],
            [s.available_at for s in submissions], [s.delay_s for s in submissions],
            [s.id in upstream for s in submissions], [records.LABELS.join(s.requires) for s in submissions],
            [records.policy_as_json(s.policy) for s in submissions], *submitted_values(submissions),
        )  # fmt: skip
        return {row[0] for row in rows}

    async def insert_plain_tasks(self, batch: Batch) -> Written:
        """Add tasks that differ in id and payload only. Raises Duplicate if an id exists."""
        shared = batch.shared
        [row] = await self.session.fetch(
            "insert_plain_tasks", batch.ids, batch.payloads, shared.namespace, shared.queue, shared.kind
        )
        return _written(row[0], row[1])

    async def insert_plain_task(self, new: Submission) -> Written:
        """The same for one task."""
        [row] = await self.session.fetch("insert_plain_task", new.id, new.payload, new.namespace, new.queue, new.kind)
        return _written(row[0], row[1])

    async def insert_started_tasks(
        self, submissions: Sequence[Submission], begun: Task, delivery: str
    ) -> tuple[bool, Written]:
        """Add plain tasks, as running like `begun` if they overtake no older task. Returns whether they run."""
        first = submissions[0]
        [[started, at, policy, _]] = await self.session.fetch(
            "insert_started_tasks", [s.id for s in submissions], [s.payload for s in submissions],
            first.namespace, first.queue, first.kind, begun.lease_id, begun.worker, begun.state, begun.attempt,
            delivery,
        )  # fmt: skip
        return started, _written(at, policy)

    async def same_tasks(self, ids: Sequence[UUID]) -> dict[UUID, tuple[str, str, str, bytes]]:
        """Namespace, queue, kind and payload of these tasks."""
        rows = await self.session.fetch("same_tasks", ids)
        return {id_: (namespace, queue, kind, payload) for id_, namespace, queue, kind, payload in rows}

    async def take_idempotency_keys(self, wanted: Sequence[tuple[str, str, UUID]]) -> set[tuple[str, str]]:
        """Take the keys (namespace, key, task) that are free. Returns their namespaces and keys."""
        rows = await self.session.fetch("insert_idempotency_keys", *zip(*wanted, strict=True))
        return {(row[0], row[1]) for row in rows}

    async def find_idempotency_keys(
        self, keys: Sequence[tuple[str, str]]
    ) -> dict[tuple[str, str], tuple[UUID, str, str, bytes]]:
        """Id, queue, kind and payload of the tasks with these keys."""
        rows = await self.session.fetch("find_idempotency_keys", [k[0] for k in keys], [k[1] for k in keys])
        return {(row[0], row[1]): (row[2], row[3], row[4], row[5]) for row in rows}


def _written(at: datetime, policy: str | None) -> Written:
    return Written(at, DEFAULT_POLICY if policy is None else records.policy_from(policy))
