"""Objects that rows refer to: which blob store keeps them, and their deletion, which waits in the outbox."""

from __future__ import annotations

from uuid import UUID

from windlass.core.states import Effect
from windlass.store import records
from windlass.store.pool import Session


class ObjectTable:
    """Objects within a transaction."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    async def blob_store(self) -> tuple[UUID, str] | None:
        """The id and the URL of the store that this database uses, if it ever used one."""
        rows = await self._session.fetch("blob_store")
        return (rows[0][0], rows[0][1]) if rows else None

    async def choose_blob_store(self, id_: UUID, url: str) -> tuple[UUID, str]:
        """This one, unless another was chosen before; returns the one that stands."""
        await self._session.fetch("choose_blob_store", id_, url)
        [row] = await self._session.fetch("blob_store")
        return row[0], row[1]

    async def move_blob_store(self, url: str) -> None:
        await self._session.fetch("move_blob_store", url)

    async def insert_deletion(self, effect: Effect, delay_s: float) -> None:
        await self._session.fetch(
            "insert_deletion", effect.id, effect.kind, effect.namespace, effect.task_id, records.as_json(effect.body),
            delay_s,
        )  # fmt: skip

    async def deletion_begun(self, effect_id: UUID) -> bool:
        """Whether somebody began to carry it out, or did. From here to the commit nobody does."""
        rows = await self._session.fetch("lock_deletion", effect_id)
        return not rows or rows[0][0] > 0

    async def hasten(self, effect_id: UUID) -> None:
        await self._session.fetch("hasten_deletion", effect_id)

    async def lock_deletion(self, effect_id: UUID) -> bool:
        """Whether it still is to happen, and is the one that was begun; nobody can take it back until the commit."""
        rows = await self._session.fetch("lock_deletion", effect_id)
        return bool(rows) and rows[0][0] > 0

    async def task_namespace(self, task_id: UUID) -> str | None:
        rows = await self._session.fetch("task_namespace", task_id)
        return rows[0][0] if rows else None

    async def referred_to(self, task_id: UUID, text: bytes) -> bool:
        [[found]] = await self._session.fetch("referred_to", task_id, text)
        return bool(found)
