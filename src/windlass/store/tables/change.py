"""The live feed: recorded changes, and the triggers that record them."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from windlass.core.states import State
from windlass.store.pool import Session


class ChangeRow(msgspec.Struct, frozen=True):
    """Tasks that came into a state together."""

    id: int
    at: datetime
    namespace: str
    queue: str
    kind: str
    state: State
    task_ids: list[UUID]
    attempts: list[int]


class ChangeTable:
    """The feed within a transaction. A position is a snapshot of PostgreSQL, as text."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    async def feed_is_on(self) -> bool:
        [[on]] = await self._session.fetch("feed_is_on")
        return bool(on)

    async def switch_feed(self, *, on: bool, lock_wait_ms: int) -> None:
        """Waits for all who write tasks just now, and they for us, but not longer than this: LockHeld. What somebody
        else has switched meanwhile stays as it is: the feed has one beginning."""
        await self._session.execute(f"set local lock_timeout = {lock_wait_ms}")
        # At once the lock that making a trigger takes, or dropping one: two who raise theirs would wait for each other.
        mode = "share row exclusive" if on else "access exclusive"
        await self._session.execute(f"lock table windlass.task in {mode} mode")
        if await self.feed_is_on() is on:
            return
        await self._session.fetch("record_changes", on)
        if on:
            await self._session.fetch("begin_feed")

    async def touch_feed(self) -> None:
        await self._session.fetch("touch_feed")

    async def feed_position(self) -> str:
        [[position]] = await self._session.fetch("feed_position")
        return str(position)

    async def feed_reaches(self, position: str) -> bool:
        [[reaches]] = await self._session.fetch("feed_reaches", position)
        return bool(reaches)

    async def list_changes(
        self, namespace: str | None, since: str, upto: str | None, row: int, limit: int
    ) -> tuple[str, list[ChangeRow]]:
        """The position up to which was read (now, if none is given), and the rows from `row` on."""
        rows = await self._session.fetch("list_changes", namespace, since, upto, row, limit)
        found = [
            ChangeRow(id_, at, space, queue, kind, State(state), list(task_ids), list(attempts))
            for _, id_, at, space, queue, kind, state, task_ids, attempts in rows
            if id_ is not None
        ]
        return str(rows[0][0]), found

    async def forget_changes(self, before: datetime, limit: int) -> int:
        [[gone]] = await self._session.fetch("forget_changes", before, limit)
        return int(gone)

    async def feed_is_unread(self, since: datetime) -> bool:
        [[unread]] = await self._session.fetch("feed_is_unread", since)
        return bool(unread)
