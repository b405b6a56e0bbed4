"""Progress, checkpoints and log lines of attempts, written many at a time."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from uuid import UUID

from windlass.core.progress import ATTEMPTS_KEPT, LINES_MAX, LogLine, Progress, ProgressReport
from windlass.store.table import Table

_Rows = dict[Hashable, tuple[object, ...]]


class ProgressTable(Table):
    """Progress reports within a transaction."""

    async def live_attempts(self, reports: Sequence[ProgressReport]) -> list[bool]:
        """For each report, whether its attempt runs now."""
        attempts = [(report.task_id, report.attempt, report.lease_id) for report in reports]
        live = {row[0] for row in await self.session.fetch("live_attempts", *zip(*attempts, strict=True))}
        return [place in live for place in range(1, len(reports) + 1)]

    async def write_progress_reports(self, reports: Sequence[ProgressReport]) -> None:
        """Write reports in their order: of two reports on one task, the later one counts."""
        progress: _Rows = {}
        checkpoints: _Rows = {}
        lines: _Rows = {}
        old: _Rows = {}
        for report in reports:
            attempt = report.task_id, report.attempt
            if report.progress is not None:
                amount = report.progress
                progress[report.task_id] = (*attempt, amount.current, amount.maximum, amount.message)
            if report.checkpoint is not None:
                checkpoints[report.task_id] = (*attempt, report.checkpoint)
            for line in report.lines:
                place = line.number % LINES_MAX
                lines[*attempt, place] = (*attempt, place, line.number, line.level, line.message, line.age_s)
            # The first line of an attempt deletes those of attempts long ago; most tasks never have so many.
            if report.lines and report.attempt > ATTEMPTS_KEPT and report.lines[0].number == 0:
                old[attempt] = (report.task_id, report.attempt - ATTEMPTS_KEPT)
        for query, rows in (
            ("write_progress", progress), ("write_checkpoints", checkpoints), ("write_log_lines", lines),
            ("delete_log_lines", old),
        ):  # fmt: skip
            if rows:
                await self.session.fetch(query, *zip(*rows.values(), strict=True))

    # ----------------------------------------------------------------------------------------- reading

    async def task_progress(self, ids: Sequence[UUID]) -> dict[UUID, Progress]:
        return {row[0]: Progress(*row[1:]) for row in await self.session.fetch("task_progress", ids)}

    async def task_checkpoint(self, task_id: UUID) -> bytes | None:
        rows = await self.session.fetch("task_checkpoint", task_id)
        return rows[0][0] if rows else None

    async def task_log(self, task_id: UUID, attempt: int | None, after: tuple[int, int], limit: int) -> list[LogLine]:
        return [LogLine(*row) for row in await self.session.fetch("task_log", task_id, attempt, *after, limit)]
