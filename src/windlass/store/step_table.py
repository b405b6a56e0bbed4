"""Steps and signals of workflows. What is written was decided by a rule of `core` under the lock of the task's row."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from uuid import UUID

from windlass.core.step import Signal, Step
from windlass.core.task import Task
from windlass.store import record
from windlass.store.session import Session

Key = tuple[UUID, str, int]


class StepTable:
    """Steps and signals within a transaction."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    async def put_steps(self, steps: Sequence[Step]) -> None:
        """Of several about one step, the last counts."""
        last = list({step.key: step for step in steps}.values())
        if last:
            await self._session.fetch(
                "put_steps", [s.task_id for s in last], [s.name for s in last], [s.occurrence for s in last],
                [s.position for s in last], [s.kind for s in last], [s.state for s in last], [s.attempt for s in last],
                [s.recorded_at for s in last], [s.took_s for s in last], [s.failures for s in last],
                [s.wake_at for s in last], [s.child_id for s in last], [record.as_json(s.error) for s in last],
                [s.result for s in last],
            )  # fmt: skip

    async def known_steps(self, keys: Collection[Key]) -> list[Step]:
        if not keys:
            return []
        rows = await self._session.fetch(
            "known_steps", [k[0] for k in keys], [k[1] for k in keys], [k[2] for k in keys]
        )
        return [record.step_from(row) for row in rows]

    async def task_steps(self, task_ids: Collection[UUID]) -> list[Step]:
        return [record.step_from(row) for row in await self._session.fetch("task_steps", list(task_ids))]

    async def insert_signals(self, signals: Sequence[Signal]) -> None:
        if signals:
            await self._session.fetch(
                "insert_signals", [s.id for s in signals], [s.task_id for s in signals], [s.name for s in signals],
                [s.sent_at for s in signals], [s.payload for s in signals],
            )  # fmt: skip

    async def sent_signals(self, ids: Collection[UUID]) -> set[UUID]:
        """Those that are there, consumed or not."""
        return {row[0] for row in await self._session.fetch("sent_signals", list(ids))} if ids else set()

    async def pending_signals(self, wanted: Collection[tuple[UUID, str]]) -> list[Signal]:
        if not wanted:
            return []
        rows = await self._session.fetch("pending_signals", [w[0] for w in wanted], [w[1] for w in wanted])
        return [Signal(*row) for row in rows]

    async def consume_signals(self, signals: Sequence[Signal]) -> None:
        if signals:
            await self._session.fetch("consume_signals", [s.id for s in signals])

    async def awaited_signals(self, asked: Collection[tuple[UUID, str]]) -> set[tuple[UUID, str]]:
        if not asked:
            return set()
        rows = await self._session.fetch("awaited_signals", [a[0] for a in asked], [a[1] for a in asked])
        return {(row[0], row[1]) for row in rows}

    async def child_tasks(self, ids: Collection[UUID]) -> list[Task]:
        if not ids:
            return []
        return [record.task_from(row) for row in await self._session.fetch("child_tasks", list(ids))]

    async def begin_fork(self, task_id: UUID) -> None:
        await self._session.fetch("begin_fork", task_id)
