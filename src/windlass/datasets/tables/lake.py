"""The lake in PostgreSQL: which store it is, and what may be deleted from it."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from windlass.datasets.rules.staging import Recorded, Staging
from windlass.store.queries import register_queries
from windlass.store.table import Table

register_queries(__package__, "lake.sql")


class LakeTable(Table):
    """The lake within a transaction."""

    async def lake(self) -> tuple[UUID, str] | None:
        """The id and the URL of the store that is the lake; None if none was used yet."""
        rows = await self.session.fetch("get_lake")
        return (rows[0][0], rows[0][1]) if rows else None

    async def choose(self, id_: UUID, url: str) -> tuple[UUID, str]:
        """Record the lake, unless there is one. Returns the one that is recorded then."""
        await self.session.fetch("choose_lake", id_, url)
        found = await self.lake()
        assert found is not None
        return found

    async def move(self, url: str) -> None:
        await self.session.fetch("move_lake", url)

    # ----------------------------------------------------------------------------------------- clean-up

    async def begin_clean_up(self, turn_s: float) -> tuple[str, int] | None:
        """Take the turn to clean up. Returns the last key that was looked at and the bytes found; None if it is not
        due, or another server's turn."""
        rows = await self.session.fetch("begin_clean_up", turn_s)
        return (rows[0][0], rows[0][1]) if rows else None

    async def is_missing(self) -> bool:
        """Whether there are datasets for a lake, and no lake was used yet."""
        return bool(await self.session.fetchval("lake_is_missing"))

    async def end_clean_up(self, began: str, place: str, walk_bytes: int, *, whole: bool, pause_s: float) -> None:
        """End the turn. `whole`: the walk is at its end, the next one begins after the pause."""
        await self.session.fetch("end_clean_up", began, place, walk_bytes, whole, pause_s)

    async def staging_bytes(self) -> int | None:
        """How much the last walk found that is not committed; None if there was none."""
        rows = await self.session.fetch("staging_bytes")
        return rows[0][0] if rows else None

    async def recorded(self, folders: Sequence[Staging]) -> list[Recorded]:
        """What is known of staging folders, all in one snapshot."""
        columns = [
            (place, one.key, one.dataset_uuid, one.dataset_version, one.task_id, one.attempt)
            for place, one in enumerate(folders)
        ]
        rows = await self.session.fetch("recorded_staging", *zip(*columns, strict=True)) if columns else ()
        found = {row[0]: Recorded(*row[1:]) for row in rows}
        return [found[place] for place in range(len(folders))]

    async def lock(self, staging: Staging) -> bool:
        """Lock the task of a staging folder; if it does not exist, the jobs that could make it again. Waits for
        nobody. Returns whether all is locked."""
        exists, locked = (await self.session.fetch("lock_staging_task", staging.task_id))[0]
        if exists:
            return bool(locked)
        return bool(await self.session.fetchval("lock_writers", staging.dataset_version))
