"""Notes of running attempts: written in groups, fenced like every report, and read by clients and by the next attempt.

A note touches no task: it is written beside them, without a lock. Of an attempt that is over, nothing is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from windlass.core.check import check_count, check_list, check_type
from windlass.core.error import Invalid, LeaseLost, WindlassError
from windlass.core.note import LogLine, Note, Progress, checked_note
from windlass.engine.committer import Committer, Pause
from windlass.store.note_table import NoteTable
from windlass.store.store import Store

PAGE_DEFAULT, PAGE_MAX = 500, 5000
BEFORE_ALL = (0, -1)


class LogPage(msgspec.Struct, frozen=True):
    """Lines in the order in which they were said. `next` is the position to go on from, None at the end."""

    lines: list[LogLine]
    next: tuple[int, int] | None


class Notes:
    """What attempts said through any engine on this database."""

    def __init__(self, store: Store, *, pause: Pause) -> None:
        self._store = store
        self._writes: Committer[Note, None] = Committer(self._commit, pause=pause)

    async def write(self, notes: Sequence[Note]) -> list[WindlassError | None]:
        """One answer each: None, or LeaseLost for an attempt that is over."""
        return await self._writes.call_all([checked_note(note) for note in check_list("notes", notes)])  # type: ignore[arg-type]

    async def close(self) -> None:
        await self._writes.close()

    async def _commit(self, notes: list[Note]) -> list[WindlassError | None]:
        async with self._store.begin() as tx:
            table = NoteTable(tx.session)
            live = await table.live_attempts(notes)
            await table.write_notes([note for note, alive in zip(notes, live, strict=True) if alive])
        return [
            None if alive else LeaseLost("the attempt is over", task_id=note.task_id, attempt=note.attempt)
            for note, alive in zip(notes, live, strict=True)
        ]

    # ----------------------------------------------------------------------------------------- reading

    async def progress(self, ids: Sequence[UUID]) -> dict[UUID, Progress]:
        """How far these tasks are. Those that never said so, or do not exist, are left out."""
        for task_id in check_list("ids", ids):
            check_type("ids", task_id, UUID)
        async with self._store.begin() as tx:
            return await NoteTable(tx.session).task_progress(ids)

    async def checkpoint(self, task_id: UUID) -> bytes | None:
        """The last checkpoint of a task, as JSON text."""
        check_type("task_id", task_id, UUID)
        async with self._store.begin() as tx:
            return await NoteTable(tx.session).task_checkpoint(task_id)

    async def log(
        self,
        task_id: UUID,
        *,
        attempt: int | None = None,
        after: tuple[int, int] | None = None,
        limit: int = PAGE_DEFAULT,
    ) -> LogPage:
        """Lines that are kept, of one attempt or of all; `after` is the `next` of the page before."""
        check_type("task_id", task_id, UUID)
        if attempt is not None:
            check_count("attempt", attempt, most=2**31 - 1)
        position = BEFORE_ALL if after is None else _position(after)
        check_count("limit", limit, least=1, most=PAGE_MAX)
        async with self._store.begin() as tx:
            lines = await NoteTable(tx.session).task_log(task_id, attempt, position, limit + 1)
        page = lines[:limit]
        return LogPage(page, (page[-1].attempt, page[-1].number) if len(lines) > limit else None)


def _position(after: object) -> tuple[int, int]:
    match after:
        case (int(attempt), int(number)):
            check_count("after", attempt, most=2**31 - 1)
            check_count("after", number, least=-1, most=2**31 - 1)
            return attempt, number
    raise Invalid("must be a pair of attempt and number", field="after")
