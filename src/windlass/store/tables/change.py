"""The live feed: recorded changes, and the triggers that record them."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from windlass.core.states import State
from windlass.store.table import Table


class ChangeRow(msgspec.Struct, frozen=True):
    """Tasks that entered a state by one statement."""

    id: int
    at: datetime
    namespace: str
    queue: str
    kind: str
    state: State
    task_ids: list[UUID]
    attempts: list[int]


class ChangeTable(Table):
    """The feed within a transaction. A position is a snapshot of PostgreSQL, as text."""

    async def feed_is_on(self) -> bool:
        return bool(await self.session.fetchval("feed_is_on"))

    async def switch_feed(self, *, on: bool, lock_wait_ms: int) -> None:
        """Wait for all transactions that write tasks, but not longer than this: LockHeld. Does nothing if another
        process has switched the feed meanwhile, so that the feed has one beginning."""
        await self.session.limit_lock_wait(lock_wait_ms)
        # Take the lock of the later DDL at once: two transactions that upgrade a weaker lock would deadlock.
        mode = "share row exclusive" if on else "access exclusive"
        await self.session.execute(f"lock table windlass.task in {mode} mode")
        if await self.feed_is_on() is on:
            return
        await self.session.fetch("record_changes", on)
        if on:
            await self.session.fetch("begin_feed")

    async def touch_feed(self) -> None:
        await self.session.fetch("touch_feed")

    async def feed_position(self) -> str:
        return str(await self.session.fetchval("feed_position"))

    async def feed_reaches(self, position: str) -> bool:
        return bool(await self.session.fetchval("feed_reaches", position))

    async def list_changes(
        self, namespace: str | None, since: str, upto: str | None, row: int, limit: int
    ) -> tuple[str, list[ChangeRow]]:
        """Returns the position up to which it read (now, if none is given), and the changes from `row` on."""
        rows = await self.session.fetch("list_changes", namespace, since, upto, row, limit)
        found = [
            ChangeRow(id_, at, space, queue, kind, State(state), list(task_ids), list(attempts))
            for _, id_, at, space, queue, kind, state, task_ids, attempts in rows
            if id_ is not None
        ]
        return str(rows[0][0]), found

    async def forget_changes(self, before: datetime, limit: int) -> int:
        return int(await self.session.fetchval("forget_changes", before, limit))

    async def feed_is_unread(self, since: datetime) -> bool:
        return bool(await self.session.fetchval("feed_is_unread", since))
