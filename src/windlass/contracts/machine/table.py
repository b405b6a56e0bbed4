"""The tables of machines and of the objects that they uploaded."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from windlass.core.task import Task
from windlass.store import records
from windlass.store.pool import Session
from windlass.store.queries import register_queries

register_queries(__package__, "table.sql")


class MachineRow(msgspec.Struct, frozen=True):
    """The machine of an attempt. It may exist until `ended_at` is set."""

    task_id: UUID
    attempt: int
    launcher: str
    place: str
    machine_id: str | None
    instance_id: str | None
    launched_at: datetime | None
    deadline_at: datetime | None
    ended_at: datetime | None
    exit_code: int | None
    reason: str | None


_WIDTH = len(MachineRow.__struct_fields__)


class MachineTable:
    """Machines within a transaction."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    async def installation(self) -> UUID:
        id_: UUID
        [[id_]] = await self._session.fetch("installation")
        return id_

    async def request_machine(self, task: Task, launcher: str, place: str) -> None:
        await self._session.fetch("request_machine", task.id, task.attempt, task.namespace, task.queue, launcher, place)

    async def keep_objects(self, task_id: UUID, prefix: str, keep_s: float) -> None:
        await self._session.fetch("keep_objects", task_id, prefix, keep_s)

    async def machine_launched(
        self, task_id: UUID, attempt: int, machine_id: str, instance_id: str | None, run_s: float
    ) -> None:
        await self._session.fetch("machine_launched", task_id, attempt, machine_id, instance_id, run_s)

    async def open_machines(self, launcher: str, place: str) -> list[tuple[MachineRow, Task | None, datetime]]:
        """Machines that may exist, each with its task (None if that was deleted) and the time of the database."""
        rows = await self._session.fetch("open_machines", launcher, place)
        return [
            (MachineRow(*row[:_WIDTH]), records.task_from(row[_WIDTH:-1]) if row[_WIDTH] else None, row[-1])
            for row in rows
        ]

    async def task_machines(self, task_id: UUID) -> list[MachineRow]:
        """The machines of a task, newest first."""
        return [MachineRow(*row) for row in await self._session.fetch("task_machines", task_id)]

    async def close_machine(self, task_id: UUID, attempt: int, exit_code: int | None, reason: str | None) -> None:
        await self._session.fetch("close_machine", task_id, attempt, exit_code, reason)

    async def mark_downloaded(self, task_id: UUID) -> None:
        await self._session.fetch("mark_downloaded", task_id)

    async def due_objects(self, limit: int) -> list[tuple[UUID, str]]:
        return [(row[0], row[1]) for row in await self._session.fetch("due_objects", limit)]

    async def forget_objects(self, task_ids: Sequence[UUID]) -> None:
        await self._session.fetch("forget_objects", task_ids)

    async def forget_machines(self) -> None:
        await self._session.fetch("forget_machines")
