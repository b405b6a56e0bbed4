"""The lake in PostgreSQL: which store it is, and what may be deleted from it."""

from __future__ import annotations

from uuid import UUID

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
