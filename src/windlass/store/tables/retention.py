"""What is forgotten: finished tasks in batches, history by the day. Only here are tables made and dropped at run time.

A daily partition is there before its day begins; should one be missing, the default partition takes its rows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import date, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from windlass.store.pool import Session

LOCK_TIMEOUT_MS = 1000

# Deletes at most `limit` rows of a contract that are older than an instant.
Forget = Callable[[Session, datetime, int], Awaitable[None]]
_FORGET: list[Forget] = []


def register_retention(forget: Forget) -> None:
    """Call this in every round of retention, for a table that does not go with its tasks."""
    _FORGET.append(forget)


class Walked(NamedTuple):
    """How far a walk through old tasks has come: namespace by namespace, the oldest first."""

    namespace: str
    created_at: datetime
    id: UUID


class RetentionTable:
    """Retention within a transaction."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    async def forget_registered(self, before: datetime, limit: int) -> None:
        for forget in _FORGET:
            await forget(self._session, before, limit)

    async def delete_finished(
        self, before: datetime, after: Walked | None, limit: int
    ) -> tuple[int, int, Walked | None]:
        """How many are gone, how many were looked at, and the last of those."""
        position = ("", None, None) if after is None else after
        [[gone, seen, *reached]] = await self._session.fetch("delete_finished", before, *position, limit)
        return gone, seen, Walked(*reached) if seen else None

    async def delete_empty_runs(self, before: datetime, limit: int) -> None:
        await self._session.fetch("delete_empty_runs", before, limit)

    async def keep_partitions(self, today: date, days_ahead: int, oldest: date) -> None:
        """Make those for the coming days, drop those before `oldest`. One engine at a time; the others skip it."""
        [[ours]] = await self._session.fetch("try_retention_lock")
        if not ours:
            return
        await self._session.execute(f"set local lock_timeout = {LOCK_TIMEOUT_MS}")
        known = {row[0] for row in await self._session.fetch("history_partitions")}
        # A clock that went back has left history of days to come in the default partition; those days stay there.
        taken = {row[0] for row in await self._session.fetch("default_history_days", today)}
        for ahead in range(1, days_ahead + 1):
            day = today + timedelta(days=ahead)
            if _name(day) not in known and day not in taken:
                await self._session.execute(_create(day))
        for name in sorted(known):
            if name.startswith("history_2") and name < _name(oldest):
                await self._session.execute(f"drop table windlass.{name}")

    async def delete_default_history(self, before: datetime) -> None:
        await self._session.fetch("delete_default_history", before)


def _name(day: date) -> str:
    return f"history_{day:%Y%m%d}"


def _create(day: date) -> str:
    following = day + timedelta(days=1)
    return (
        f"create table windlass.{_name(day)} partition of windlass.history "
        f"for values from ('{day} 00:00+00') to ('{following} 00:00+00')"
    )
