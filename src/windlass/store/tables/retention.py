"""Retention: deletes finished tasks in batches and history by the day. Only this module creates and drops tables at
run time.

The partition of a day is created before the day begins. Without it, the default partition takes the rows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import date, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from windlass.store.pool import Session
from windlass.store.table import Table

LOCK_TIMEOUT_MS = 1000

# Deletes at most `limit` rows of a contract that are older than an instant.
Forget = Callable[[Session, datetime, int], Awaitable[None]]
_FORGET: list[Forget] = []


def register_retention(forget: Forget) -> None:
    """Register the retention of a table whose rows are not deleted with their tasks."""
    _FORGET.append(forget)


class Walked(NamedTuple):
    """The position of a walk through old tasks: namespace by namespace, the oldest first."""

    namespace: str
    created_at: datetime
    id: UUID


class RetentionTable(Table):
    """Retention within a transaction."""

    async def forget_registered(self, before: datetime, limit: int) -> None:
        for forget in _FORGET:
            await forget(self.session, before, limit)

    async def delete_finished(
        self, before: datetime, after: Walked | None, limit: int
    ) -> tuple[int, int, Walked | None]:
        """Returns the number of tasks deleted, the number read, and the last task read."""
        position = ("", None, None) if after is None else after
        [[gone, seen, *reached]] = await self.session.fetch("delete_finished", before, *position, limit)
        return gone, seen, Walked(*reached) if seen else None

    async def delete_empty_runs(self, before: datetime, limit: int) -> None:
        await self.session.fetch("delete_empty_runs", before, limit)

    async def keep_partitions(self, today: date, days_ahead: int, oldest: date) -> None:
        """Create the partitions of the coming days, drop those before `oldest`. Does nothing while another engine does
        it."""
        if not await self.session.fetchval("try_retention_lock"):
            return
        await self.session.limit_lock_wait(LOCK_TIMEOUT_MS)
        known = {row[0] for row in await self.session.fetch("history_partitions")}
        # If the clock was set back, the default partition may hold entries of coming days; these days stay there.
        taken = {row[0] for row in await self.session.fetch("default_history_days", today)}
        for ahead in range(1, days_ahead + 1):
            day = today + timedelta(days=ahead)
            if _name(day) not in known and day not in taken:
                await self.session.execute(
                    f"create table windlass.{_name(day)} partition of windlass.history "
                    f"for values from ('{day} 00:00+00') to ('{day + timedelta(days=1)} 00:00+00')"
                )
        for name in sorted(known):
            if name.startswith("history_2") and name < _name(oldest):
                await self.session.execute(f"drop table windlass.{name}")

    async def delete_default_history(self, before: datetime) -> None:
        await self.session.fetch("delete_default_history", before)


def _name(day: date) -> str:
    return f"history_{day:%Y%m%d}"
