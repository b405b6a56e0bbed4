"""Progress, checkpoints and log lines of attempts, written many at a time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from uuid import UUID

from windlass.core.progress import ATTEMPTS_KEPT, LINES_MAX, LogLine, Progress, ProgressReport
from windlass.store.table import Table


class NoteTable(Table):
    """Progress reports within a transaction."""

    async def live_attempts(self, notes: Sequence[ProgressReport]) -> list[bool]:
        """For each report, whether its attempt runs now."""
        attempts = [(note.task_id, note.attempt, note.lease_id) for note in notes]
        live = {row[0] for row in await self.session.fetch("live_attempts", *zip(*attempts, strict=True))}
        return [place in live for place in range(1, len(notes) + 1)]

    async def write_progress_reports(self, notes: Sequence[ProgressReport]) -> None:
        """Write reports in their order: of two reports on one task, the later one counts."""
        progress = {
            note.task_id: (note.task_id, note.attempt, amount.current, amount.maximum, amount.message)
            for note in notes
            if (amount := note.progress) is not None
        }
        checkpoints = {
            note.task_id: (note.task_id, note.attempt, note.checkpoint) for note in notes if note.checkpoint is not None
        }
        lines = {
            (note.task_id, note.attempt, line.number % LINES_MAX): (line.number, line.level, line.message, line.age_s)
            for note in notes
            for line in note.lines
        }
        # The first line of an attempt deletes those of attempts long ago; most tasks never have so many.
        old = [
            (note.task_id, note.attempt - ATTEMPTS_KEPT)
            for note in notes
            if note.lines and note.attempt > ATTEMPTS_KEPT and note.lines[0].number == 0
        ]
        await self._write("write_progress", progress.values())
        await self._write("write_checkpoints", checkpoints.values())
        await self._write("write_log_lines", [(*key, *line) for key, line in lines.items()])
        await self._write("delete_log_lines", old)

    async def _write(self, query: str, rows: Collection[tuple[object, ...]]) -> None:
        if rows:
            await self.session.fetch(query, *zip(*rows, strict=True))

    # ----------------------------------------------------------------------------------------- reading

    async def task_progress(self, ids: Sequence[UUID]) -> dict[UUID, Progress]:
        return {row[0]: Progress(*row[1:]) for row in await self.session.fetch("task_progress", ids)}

    async def task_checkpoint(self, task_id: UUID) -> bytes | None:
        rows = await self.session.fetch("task_checkpoint", task_id)
        return rows[0][0] if rows else None

    async def task_log(self, task_id: UUID, attempt: int | None, after: tuple[int, int], limit: int) -> list[LogLine]:
        return [LogLine(*row) for row in await self.session.fetch("task_log", task_id, attempt, *after, limit)]
