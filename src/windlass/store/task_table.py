"""Tasks: locked, written, added. What is written was decided by a rule of `core` under the locks taken here."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from windlass.core.command import Complete
from windlass.core.queue import QueueName
from windlass.core.submission import Batch, Submission
from windlass.core.task import Task
from windlass.core.transition import Entry, Transition, Verb
from windlass.store import record
from windlass.store.record import Row, tasks_with_time
from windlass.store.session import Session

LOCK_TIMEOUT_MS = 2000


class Finished(NamedTuple):
    """What is counted of an attempt that succeeded."""

    queue: str
    kind: str
    started_at: datetime
    finished_at: datetime


class Completed(NamedTuple):
    """What became of reports that were written at once: whose tasks ended, what is counted of them, whom it woke."""

    ids: set[UUID]
    finished: list[Finished]
    woken: set[QueueName]


class TaskTable:
    """Tasks within a transaction."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    async def load_tasks(self, ids: Sequence[UUID]) -> tuple[dict[UUID, Task], datetime | None]:
        """Lock those that can be locked at once. With no row there is no time either."""
        rows = await self._session.fetch("load_tasks", ids)
        return {row[0]: record.task_from(row) for row in rows}, rows[0][-1] if rows else None

    async def load_tasks_patiently(self, ids: Sequence[UUID], patience_ms: int | None = None) -> dict[UUID, Task]:
        """Wait for the locks, but not for ever: StoreBusy after a while."""
        await self._session.execute(f"set local lock_timeout = {patience_ms or LOCK_TIMEOUT_MS}")
        rows = await self._session.fetch("load_tasks_patiently", ids)
        return {row[0]: record.task_from(row) for row in rows}

    async def existing_tasks(self, ids: Sequence[UUID]) -> set[UUID]:
        return {row[0] for row in await self._session.fetch("existing_tasks", ids)}

    async def due_timers(self, limit: int) -> tuple[list[Task], datetime | None]:
        return tasks_with_time(await self._session.fetch("due_timers", limit))

    async def insert_history(self, entries: Sequence[Entry]) -> None:
        if entries:
            await self._session.fetch(
                "insert_history", [e.task_id for e in entries], [e.at for e in entries], [e.attempt for e in entries],
                [e.what for e in entries], [e.worker for e in entries], [record.as_json(e.detail) for e in entries],
            )  # fmt: skip

    async def await_task(self, task_id: UUID) -> None:
        await self._session.fetch("await_task", task_id)

    async def write(self, moves: list[Transition], freed: set[QueueName]) -> set[QueueName]:
        """One statement for each way to write a move. Wakes those of the `freed` queues that somebody configured;
        returns them."""
        starts = [m.after for m in moves if m.verb is Verb.CLAIM]
        completions = [m.after for m in moves if m.verb is Verb.COMPLETE]
        others = [m.after for m in moves if m.verb is not Verb.CLAIM and m.verb is not Verb.COMPLETE]
        for batch in _by_lease(starts):
            first = batch[0]
            await self._session.fetch(
                "start_tasks", [t.id for t in batch], [t.attempt for t in batch], [t.timer_at for t in batch],
                first.lease_id, first.worker, first.started_at,
            )  # fmt: skip
        if others:
            await self._session.fetch("update_tasks", *_columns(others))
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

    async def complete_at_once(self, said: Sequence[Complete], counted: bool) -> Completed:
        """End those of these attempts about which there is nothing to decide. No task may be there twice."""
        ids = [c.task_id for c in said]
        [row] = await self._session.fetch(
            "complete_at_once", ids, [c.attempt for c in said], [c.lease_id for c in said],
            [c.result for c in said], counted,
        )  # fmt: skip
        done, namespaces, names, queues, kinds, starts, now = row
        finished = [Finished(*one, now) for one in zip(queues, kinds, starts, strict=True)] if counted else []
        return Completed(set(ids if done is None else done), finished, set(zip(namespaces, names, strict=True)))

    # ----------------------------------------------------------------------------------------- submissions

    async def insert_tasks(
        self, submissions: Sequence[Submission], upstream: frozenset[UUID], blocked: frozenset[UUID]
    ) -> set[UUID]:
        """Add new tasks; returns the ids that were new."""
        columns = _submission_columns(submissions, upstream, blocked)
        rows = await self._session.fetch("insert_tasks", *columns)
        return {row[0] for row in rows}

    async def insert_plain_tasks(self, batch: Batch) -> None:
        """The short way for tasks that differ in id and payload only. Raises Duplicate if an id is there already."""
        shared = batch.shared
        await self._session.fetch(
            "insert_plain_tasks", batch.ids, batch.payloads, shared.namespace, shared.queue, shared.kind
        )

    async def insert_plain_task(self, new: Submission) -> None:
        """The same for one."""
        await self._session.fetch("insert_plain_task", new.id, new.payload, new.namespace, new.queue, new.kind)

    async def insert_started_tasks(
        self, submissions: Sequence[Submission], begun: Task, delivery: str
    ) -> tuple[bool, datetime]:
        """Add plain tasks, begun as `begun` is if nobody is passed by. Says whether they were, and when."""
        first = submissions[0]
        [[started, at, _]] = await self._session.fetch(
            "insert_started_tasks", [s.id for s in submissions], [s.payload for s in submissions],
            first.namespace, first.queue, first.kind, begun.lease_id, begun.worker, begun.state, begun.attempt,
            delivery,
        )  # fmt: skip
        return started, at

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


def _by_lease(tasks: list[Task]) -> list[list[Task]]:
    """Claims for one worker share lease, name and time, so that they are written as scalars."""
    batches: dict[UUID | None, list[Task]] = {}
    for task in tasks:
        batches.setdefault(task.lease_id, []).append(task)
    return list(batches.values())


def _columns(tasks: list[Task]) -> list[list[object]]:
    """The arguments of `update_tasks`, one list a column."""
    return [
        [t.id for t in tasks], [t.state.value for t in tasks], [t.available_at for t in tasks],
        [t.attempt for t in tasks], [t.failures for t in tasks], [t.losses for t in tasks],
        [t.outcome for t in tasks], [t.lease_id for t in tasks], [t.worker for t in tasks],
        [t.started_at for t in tasks], [t.finished_at for t in tasks], [t.timer_at for t in tasks],
        [record.as_json(t.cancel) for t in tasks], [record.as_json(t.error) for t in tasks],
        [t.result for t in tasks],
    ]  # fmt: skip


def _submission_columns(
    submissions: Sequence[Submission], upstream: frozenset[UUID], blocked: frozenset[UUID]
) -> list[list[object]]:
    """The arguments of `insert_tasks`, one list a column."""
    s = submissions
    return [
        [x.id for x in s], [x.namespace for x in s], [x.queue for x in s], [x.kind for x in s],
        ["blocked" if x.id in blocked else "queued" for x in s], [x.available_at for x in s],
        [x.priority for x in s], [x.concurrency_key for x in s], [x.deadline_at for x in s], [x.run_id for x in s],
        [x.id in upstream for x in s], [record.LABELS.join(x.requires) for x in s],
        [x.idempotency_key for x in s], [record.policy_as_json(x.policy) for x in s], [x.payload for x in s],
        [x.delay_s for x in s], [x.trace for x in s], [x.wire for x in s], [x.replay_of for x in s],
        [x.parent_id for x in s], [x.schedule_id for x in s],
    ]  # fmt: skip
