"""Steps and signals of workflows: their table, their writers, and the loader of their context.

The rules of `core` decide what is written, under the lock of the task's row.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from uuid import UUID

from windlass.core.command import Sleep
from windlass.core.step import ConsumeSignal, Signal, Step, StepCommandContext
from windlass.core.step_command import SendSignal, StepChild, StepCommand, StepSignal
from windlass.core.task import Task
from windlass.store import records
from windlass.store.contexts import register_loader
from windlass.store.pool import Session
from windlass.store.table import Table
from windlass.store.writers import register_writer

Key = tuple[UUID, str, int]


class StepTable(Table):
    """Steps and signals within a transaction."""

    async def put_steps(self, steps: Sequence[Step]) -> None:
        """Write the last of the records of each step."""
        last = list({step.key: step for step in steps}.values())
        await self.session.fetch(
            "put_steps", [s.task_id for s in last], [s.name for s in last], [s.occurrence for s in last],
            [s.position for s in last], [s.kind for s in last], [s.state for s in last], [s.attempt for s in last],
            [s.recorded_at for s in last], [s.took_s for s in last], [s.failures for s in last],
            [s.wake_at for s in last], [s.child_id for s in last], [records.as_json(s.error) for s in last],
            [s.result for s in last],
        )  # fmt: skip

    async def known_steps(self, keys: Collection[Key]) -> list[Step]:
        if not keys:
            return []
        return [records.step_from(row) for row in await self.session.fetch("known_steps", *zip(*keys, strict=True))]

    async def task_steps(self, task_ids: Collection[UUID]) -> list[Step]:
        return [records.step_from(row) for row in await self.session.fetch("task_steps", list(task_ids))]

    async def insert_signals(self, signals: Sequence[Signal]) -> None:
        await self.session.fetch(
            "insert_signals", [s.id for s in signals], [s.task_id for s in signals], [s.name for s in signals],
            [s.sent_at for s in signals], [s.payload for s in signals],
        )  # fmt: skip

    async def sent_signals(self, ids: Collection[UUID]) -> set[UUID]:
        """Those of these signals that exist, consumed or not."""
        return {row[0] for row in await self.session.fetch("sent_signals", list(ids))} if ids else set()

    async def pending_signals(self, wanted: Collection[tuple[UUID, str]]) -> list[Signal]:
        if not wanted:
            return []
        return [Signal(*row) for row in await self.session.fetch("pending_signals", *zip(*wanted, strict=True))]

    async def consume_signals(self, consumed: Sequence[ConsumeSignal]) -> None:
        await self.session.fetch("consume_signals", [c.signal.id for c in consumed])

    async def awaited_signals(self, wanted: Collection[tuple[UUID, str]]) -> set[tuple[UUID, str]]:
        if not wanted:
            return set()
        return {(row[0], row[1]) for row in await self.session.fetch("awaited_signals", *zip(*wanted, strict=True))}

    async def child_tasks(self, ids: Collection[UUID]) -> list[Task]:
        if not ids:
            return []
        return [records.task_from(row) for row in await self.session.fetch("child_tasks", list(ids))]

    async def begin_fork(self, task_id: UUID) -> None:
        await self.session.fetch("begin_fork", task_id)


async def load_step_command_context(
    session: Session, commands: Sequence[StepCommand | Sleep | SendSignal]
) -> StepCommandContext:
    steps: set[Key] = set()
    signals: set[tuple[UUID, str]] = set()
    children: set[UUID] = set()
    sent: list[SendSignal] = []
    for command in commands:
        match command:
            case Sleep():
                signals.update((command.task_id, name) for name in command.signals)
                children.update(command.children)
                continue
            case SendSignal():
                sent.append(command)
                continue
            case StepSignal():
                signals.add((command.task_id, command.signal))
            case StepChild():
                children.add(command.child_id)
        steps.add((command.task_id, command.place.name, command.place.occurrence))
    table = StepTable(session)
    return StepCommandContext(
        await table.known_steps(steps),
        await table.pending_signals(signals),
        await table.awaited_signals({(command.task_id, command.name) for command in sent}),
        await table.child_tasks(children),
        await table.sent_signals([command.signal_id for command in sent]),
    )


# In this order, since one batch may send a signal and consume it.
register_writer(Step, lambda session, steps: StepTable(session).put_steps(steps))
register_writer(Signal, lambda session, signals: StepTable(session).insert_signals(signals))
register_writer(ConsumeSignal, lambda session, consumed: StepTable(session).consume_signals(consumed))
register_loader(StepCommandContext, load_step_command_context)
