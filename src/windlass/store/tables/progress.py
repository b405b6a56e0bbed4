"""Progress, checkpoints and log lines of attempts, written many at a time."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from windlass.core.progress import ATTEMPTS_KEPT, LINES_MAX, LogLine, Progress, ProgressReport
from windlass.store.pool import Session


class NoteTable:
    """Progress reports within a transaction."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    async def live_attempts(self, notes: Sequence[ProgressReport]) -> list[bool]:
        """For each note whether its attempt runs now."""
        columns = [note.task_id for note in notes], [note.attempt for note in notes], [note.lease_id for note in notes]
        live = {row[0] for row in await self._session.fetch("live_attempts", *columns)}
        return [place in live for place in range(1, len(notes) + 1)]

    async def write_progress_reports(self, notes: Sequence[ProgressReport]) -> None:
        """In their order: of two notes on one task, the later one counts."""
        await self._write_progress({note.task_id: note for note in notes if note.progress is not None})
        await self._write_checkpoints({note.task_id: note for note in notes if note.checkpoint is not None})
        await self._write_log_lines([note for note in notes if note.lines])

    async def _write_progress(self, notes: dict[UUID, ProgressReport]) -> None:
        rows = [(n.task_id, n.attempt, p.current, p.maximum, p.message) for n in notes.values() if (p := n.progress)]
        if rows:
            await self._session.fetch("write_progress", *zip(*rows, strict=True))

    async def _write_checkpoints(self, notes: dict[UUID, ProgressReport]) -> None:
        rows = [(note.task_id, note.attempt, note.checkpoint) for note in notes.values()]
        if rows:
            await self._session.fetch("write_checkpoints", *zip(*rows, strict=True))

    async def _write_log_lines(self, notes: Sequence[ProgressReport]) -> None:
        rows = {
            (note.task_id, note.attempt, line.number % LINES_MAX): (line.number, line.level, line.message, line.age_s)
            for note in notes
            for line in note.lines
        }
        if rows:
            await self._session.fetch("write_log_lines", *zip(*((*k, *v) for k, v in rows.items()), strict=True))
        # With the first line of an attempt, those of long ago go; most tasks never come to that.
        old = [
            (n.task_id, n.attempt - ATTEMPTS_KEPT)
            for n in notes
            if n.attempt > ATTEMPTS_KEPT and n.lines[0].number == 0
        ]
        if old:
            await self._session.fetch("delete_log_lines", *zip(*old, strict=True))

    # ----------------------------------------------------------------------------------------- reading

    async def task_progress(self, ids: Sequence[UUID]) -> dict[UUID, Progress]:
        return {row[0]: Progress(*row[1:]) for row in await self._session.fetch("task_progress", ids)}

    async def task_checkpoint(self, task_id: UUID) -> bytes | None:
        rows = await self._session.fetch("task_checkpoint", task_id)
        return rows[0][0] if rows else None

    async def task_log(self, task_id: UUID, attempt: int | None, after: tuple[int, int], limit: int) -> list[LogLine]:
        return [LogLine(*row) for row in await self._session.fetch("task_log", task_id, attempt, *after, limit)]
