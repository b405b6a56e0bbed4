"""The outbox: effects, written in the transaction that decides them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from windlass.core.states import Effect
from windlass.store import records
from windlass.store.table import Table


class OutboxTable(Table):
    """The outbox within a transaction."""

    async def insert_outbox(self, effects: Sequence[Effect]) -> None:
        if effects:
            await self.session.fetch(
                "insert_outbox", [e.id for e in effects], [e.kind for e in effects], [e.namespace for e in effects],
                [e.task_id for e in effects], [e.attempt for e in effects], [records.as_json(e.body) for e in effects],
            )  # fmt: skip

    async def take_effects(
        self, kinds: Sequence[str], limit: int, hold_s: float, some: Sequence[str] = (), some_s: float = 0.0
    ) -> list[tuple[Effect, int]]:
        """Take due effects, each with the number of this try. No other process takes them for `hold_s`, or `some_s` for
        those of the kinds in `some`."""
        rows = await self.session.fetch("take_effects", kinds, limit, hold_s, list(some), some_s)
        return [records.effect_from(row) for row in rows]

    async def lock_effects(self, kind: str, limit: int) -> list[Effect]:
        return [records.effect_from(row)[0] for row in await self.session.fetch("lock_effects", kind, limit)]

    async def delete_effects(self, ids: Iterable[UUID]) -> None:
        await self.session.fetch("delete_effects", list(ids))

    async def delay_effect(self, effect_id: UUID, delay_s: float, error: str) -> None:
        await self.session.fetch("delay_effect", effect_id, delay_s, error)

    async def put_off_effect(self, effect_id: UUID, delay_s: float, error: str, longest_s: float) -> bool:
        """Returns whether the effect is older than `longest_s`."""
        rows = await self.session.fetch("put_off_effect", effect_id, delay_s, error, longest_s)
        return bool(rows and rows[0][0])

    async def delay_effects(self, ids: Sequence[UUID], delay_s: float) -> None:
        await self.session.fetch("delay_effects", ids, delay_s)

    async def revive_effect(self, effect_id: UUID) -> bool:
        """Returns whether the effect was dead; it will be tried again."""
        return bool(await self.session.fetch("revive_effect", effect_id))

    async def discard_effect(self, effect_id: UUID) -> bool:
        """Returns whether the effect was dead; it is deleted."""
        return bool(await self.session.fetch("discard_effect", effect_id))

    async def dead_letter_effect(self, effect_id: UUID, error: str) -> None:
        await self.session.fetch("dead_letter_effect", effect_id, error)
