"""Objects that rows refer to: which blob store holds them, and their deletions, which are in the outbox."""

from __future__ import annotations

from uuid import UUID

from windlass.core.states import Effect
from windlass.store import records
from windlass.store.table import Table


class ObjectTable(Table):
    """Objects within a transaction."""

    async def blob_store(self) -> tuple[UUID, str] | None:
        """The id and the URL of the store that this database uses; None if it never used one."""
        rows = await self.session.fetch("blob_store")
        return (rows[0][0], rows[0][1]) if rows else None

    async def choose_blob_store(self, id_: UUID, url: str) -> tuple[UUID, str]:
        """Choose this store, unless one was chosen before. Returns the chosen one."""
        await self.session.fetch("choose_blob_store", id_, url)
        [row] = await self.session.fetch("blob_store")
        return row[0], row[1]

    async def move_blob_store(self, url: str) -> None:
        await self.session.fetch("move_blob_store", url)

    async def insert_deletion(self, effect: Effect, delay_s: float) -> None:
        await self.session.fetch(
            "insert_deletion", effect.id, effect.kind, effect.namespace, effect.task_id, records.as_json(effect.body),
            delay_s,
        )  # fmt: skip

    async def deletion_begun(self, effect_id: UUID) -> bool:
        """Whether an engine began the deletion, or finished it. Until the commit no engine begins it."""
        rows = await self.session.fetch("lock_deletion", effect_id)
        return not rows or rows[0][0] > 0

    async def hasten(self, effect_id: UUID) -> None:
        await self.session.fetch("hasten_deletion", effect_id)

    async def lock_deletion(self, effect_id: UUID) -> bool:
        """Whether the deletion was begun and is not finished. Until the commit it cannot be withdrawn."""
        rows = await self.session.fetch("lock_deletion", effect_id)
        return bool(rows) and rows[0][0] > 0

    async def task_namespace(self, task_id: UUID) -> str | None:
        rows = await self.session.fetch("task_namespaces", [task_id])
        return rows[0][1] if rows else None

    async def referred_to(self, task_id: UUID, text: bytes) -> bool:
        return bool(await self.session.fetchval("referred_to", task_id, text))
