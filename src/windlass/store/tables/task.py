"""Tasks: locked, written, added. What is written was decided by a rule of `core` under the locks taken here."""

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
from windlass.store.pool import Session
from windlass.store.records import Row, tasks_with_time
from windlass.store.task_columns import changed_values, submitted_values

LOCK_TIMEOUT_MS = 2000


class Finished(NamedTuple):
    """What is counted of an attempt that succeeded."""

    queue: str
    kind: str
    started_at: datetime
    finished_at: datetime


class Completed(NamedTuple):
    """The effect of reports that were written at once: tasks that ended, what is counted of them, queues to wake."""

    ids: set[UUID]
    finished: list[Finished]
    woken: set[QueueName]


class Written(NamedTuple):
    """What the database decided of plain tasks that were added together: their time, and the policy of their queue."""

    at: datetime
    policy: Policy


class TaskTable:
    """Tasks within a transaction."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    async def load_tasks(self, ids: Sequence[UUID]) -> tuple[dict[UUID, Task], datetime | None]:
        """Lock those that can be locked at once. With no row there is no time either."""
        rows = await self._session.fetch("load_tasks", ids)
        return {row[0]: records.task_from(row) for row in rows}, rows[0][-1] if rows else None

    async def load_tasks_patiently(self, ids: Sequence[UUID], lock_wait_ms: int | None = None) -> dict[UUID, Task]:
        """Wait for the locks, but not for ever: StoreBusy after a while."""
        await self._session.execute(f"set local lock_timeout = {lock_wait_ms or LOCK_TIMEOUT_MS}")
        rows = await self._session.fetch("load_tasks_patiently", ids)
        return {row[0]: records.task_from(row) for row in rows}

    async def existing_tasks(self, ids: Sequence[UUID]) -> set[UUID]:
        return {row[0] for row in await self._session.fetch("existing_tasks", ids)}

    async def due_timers(self, limit: int) -> tuple[list[Task], datetime | None]:
        return tasks_with_time(await self._session.fetch("due_timers", limit))

    async def insert_history(self, entries: Sequence[Entry]) -> None:
        if entries:
            await self._session.fetch(
                "insert_history", [e.task_id for e in entries], [e.at for e in entries], [e.attempt for e in entries],
                [e.what for e in entries], [e.worker for e in entries], [records.as_json(e.detail) for e in entries],
            )  # fmt: skip

    async def await_task(self, task_id: UUID) -> None:
        await self._session.fetch("await_task", task_id)

    async def write(self, moves: list[Transition], freed: set[QueueName]) -> set[QueueName]:
        """One statement for each way to write a move. Wakes those of the `freed` queues that somebody configured;
        returns them."""
        # A dispatched attempt has no worker yet and a lease of its own: it is written by itself.
        starts = [m.after for m in moves if m.verb is Verb.CLAIM and m.after.worker is not None]
        completions = [m.after for m in moves if m.verb is Verb.COMPLETE]
        others = [
            m.after for m in moves if m.verb is not Verb.COMPLETE and (m.verb is not Verb.CLAIM or not m.after.worker)
        ]
        for batch in _by_lease(starts):
            first = batch[0]
            await self._session.fetch(
                "start_tasks", [t.id for t in batch], [t.attempt for t in batch], [t.timer_at for t in batch],
                first.lease_id, first.worker, first.started_at,
            )  # fmt: skip
        if others:
            await self._session.fetch("update_tasks", *changed_values(others))
        names = sorted(freed)
        queues = [n for n, _ in names], [q for _, q in names]
        woken: Sequence[Row] = ()
        if completions:
            woken = await self._session.fetch(
                "complete_tasks", [t.id for t in completions], [t.result for t in completions],
                completions[0].finished_at, *queues,
            )  # fmt: skip
        elif freed:
            woken = await self._session.fetch("notify_freed", *queues)
        return {(row[0], row[1]) for row in woken}

    async def complete_at_once(self, reports: Sequence[Complete], counted: bool) -> Completed:
        """End those of these attempts about which there is nothing to decide. No task may be there twice."""
        ids = [c.task_id for c in reports]
        [row] = await self._session.fetch(
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
        rows = await self._session.fetch(
            "insert_tasks", ["blocked" if s.id in blocked else "queued" for s in submissions],
            [s.available_at for s in submissions], [s.delay_s for s in submissions],
            [s.id in upstream for s in submissions], [records.LABELS.join(s.requires) for s in submissions],
            [records.policy_as_json(s.policy) for s in submissions], *submitted_values(submissions),
        )  # fmt: skip
        return {row[0] for row in rows}

    async def insert_plain_tasks(self, batch: Batch) -> Written:
        """The short way for tasks that differ in id and payload only. Raises Duplicate if an id is there already."""
        shared = batch.shared
        [row] = await self._session.fetch(
            "insert_plain_tasks", batch.ids, batch.payloads, shared.namespace, shared.queue, shared.kind
        )
        return _written(row[0], row[1])

    async def insert_plain_task(self, new: Submission) -> Written:
        """The same for one."""
        [row] = await self._session.fetch("insert_plain_task", new.id, new.payload, new.namespace, new.queue, new.kind)
        return _written(row[0], row[1])

    async def insert_started_tasks(
        self, submissions: Sequence[Submission], begun: Task, delivery: str
    ) -> tuple[bool, Written]:
        """Add plain tasks, begun as `begun` is if no older task is passed by. Returns whether they were begun."""
        first = submissions[0]
        [[started, at, policy, _]] = await self._session.fetch(
            "insert_started_tasks", [s.id for s in submissions], [s.payload for s in submissions],
            first.namespace, first.queue, first.kind, begun.lease_id, begun.worker, begun.state, begun.attempt,
            delivery,
        )  # fmt: skip
        return started, _written(at, policy)

    async def same_tasks(self, ids: Sequence[UUID]) -> dict[UUID, tuple[str, str, str, bytes]]:
        """What was submitted under these ids: namespace, queue, kind and payload."""
        rows = await self._session.fetch("same_tasks", ids)
        return {id_: (namespace, queue, kind, payload) for id_, namespace, queue, kind, payload in rows}

    async def take_idempotency_keys(self, wanted: Sequence[tuple[str, str, UUID]]) -> set[tuple[str, str]]:
        """Returns the (namespace, key) pairs that were free and are ours now."""
        rows = await self._session.fetch(
            "insert_idempotency_keys", [w[0] for w in wanted], [w[1] for w in wanted], [w[2] for w in wanted]
        )
        return {(row[0], row[1]) for row in rows}

    async def find_idempotency_keys(
        self, keys: Sequence[tuple[str, str]]
    ) -> dict[tuple[str, str], tuple[UUID, str, str, bytes]]:
        """What was submitted under these keys: task id, queue, kind and payload."""
        rows = await self._session.fetch("find_idempotency_keys", [k[0] for k in keys], [k[1] for k in keys])
        return {(row[0], row[1]): (row[2], row[3], row[4], row[5]) for row in rows}


def _written(at: datetime, policy: str | None) -> Written:
    return Written(at, DEFAULT_POLICY if policy is None else records.policy_from(policy))


def _by_lease(tasks: list[Task]) -> list[list[Task]]:
    """Claims for one worker share lease, name and time, so that they are written as scalars."""
    batches: dict[UUID | None, list[Task]] = {}
    for task in tasks:
        batches.setdefault(task.lease_id, []).append(task)
    return list(batches.values())
