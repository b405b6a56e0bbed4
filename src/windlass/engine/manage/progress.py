"""Progress, checkpoints and log lines of running attempts, read by clients and by the next attempt.

Progress reports are written in groups and fenced like every report. They touch no task row and take no lock. Nothing is
written for an attempt that is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from windlass.core.progress import LogLine, Progress, ProgressReport, checked_progress_report
from windlass.core.validation import check_count, check_ids, check_list, check_type
from windlass.engine.commit.committer import Committer, Pause
from windlass.errors import Invalid, LeaseLost, WindlassError
from windlass.store.store import Store
from windlass.store.tables.progress import ProgressTable

PAGE_DEFAULT, PAGE_MAX = 500, 5000


class LogPage(msgspec.Struct, frozen=True):
    """Log lines in their order. `next` is the position of the next page, None at the end."""

    lines: list[LogLine]
    next: tuple[int, int] | None


class ProgressReports:
    """The progress reports of one database."""

    def __init__(self, store: Store, *, pause: Pause) -> None:
        self._store = store
        self._writes: Committer[ProgressReport, None] = Committer(self._commit, pause=pause)

    async def write(self, notes: Sequence[ProgressReport]) -> list[WindlassError | None]:
        """Write progress reports. Returns None for each, or LeaseLost if the attempt is over."""
        return await self._writes.call_all([checked_progress_report(note) for note in check_list("notes", notes)])  # type: ignore[arg-type]

    async def close(self) -> None:
        await self._writes.close()

    async def _commit(self, notes: list[ProgressReport]) -> list[WindlassError | None]:
        async with self._store.begin() as tx:
            table = ProgressTable(tx.session)
            live = await table.live_attempts(notes)
            await table.write_progress_reports([note for note, alive in zip(notes, live, strict=True) if alive])
        return [
            None if alive else LeaseLost("the attempt is over", task_id=note.task_id, attempt=note.attempt)
            for note, alive in zip(notes, live, strict=True)
        ]

    # ----------------------------------------------------------------------------------------- reading

    async def progress(self, ids: Sequence[UUID]) -> dict[UUID, Progress]:
        """The progress of these tasks. Those that reported none, or do not exist, are left out."""
        check_ids("ids", ids)
        async with self._store.begin() as tx:
            return await ProgressTable(tx.session).task_progress(ids)

    async def checkpoint(self, task_id: UUID) -> bytes | None:
        """The last checkpoint of a task, as JSON text."""
        check_type("task_id", task_id, UUID)
        async with self._store.begin() as tx:
            return await ProgressTable(tx.session).task_checkpoint(task_id)

    async def log(
        self,
        task_id: UUID,
        *,
        attempt: int | None = None,
        after: tuple[int, int] | None = None,
        limit: int = PAGE_DEFAULT,
    ) -> LogPage:
        """The stored log lines of one attempt or of all; `after` is the `next` of the page before."""
        check_type("task_id", task_id, UUID)
        if attempt is not None:
            check_count("attempt", attempt, most=2**31 - 1)
        if after is not None:
            _check_position(after)
        check_count("limit", limit, least=1, most=PAGE_MAX)
        async with self._store.begin() as tx:
            lines = await ProgressTable(tx.session).task_log(task_id, attempt, after or (0, -1), limit + 1)
        page = lines[:limit]
        return LogPage(page, (page[-1].attempt, page[-1].number) if len(lines) > limit else None)


def _check_position(after: object) -> None:
    if not isinstance(after, tuple) or len(after) != 2:
        raise Invalid("must be a pair of attempt and number", field="after")
    check_count("after", after[0], most=2**31 - 1)
    check_count("after", after[1], least=-1, most=2**31 - 1)
