"""The live feed: what happens to tasks, for those who follow it, without a gap and without a repeat.

A reader's position is a snapshot of PostgreSQL: which transactions it has been told of. What became visible since is
told next, whichever transaction began first; nothing waits for the slowest one. Readers pull: one that is slow holds
nothing of ours but its position. Changes are recorded from the first time that somebody follows, and no longer when
nobody has for a day.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from windlass.core.check import check_name
from windlass.core.error import Expired, Invalid, Malformed, StoreBusy, Unavailable
from windlass.core.transition import State
from windlass.store.change_table import ChangeRow, ChangeTable
from windlass.store.fault import LockHeld
from windlass.store.store import Store

ROWS = 20
LOOK_S = 0.2
KEEP_S = 86400.0
FORGET_BATCH = 5000
SWITCH_TRIES, SWITCH_PATIENCE_MS, SWITCH_PAUSE_S = 50, 200, 0.3
_SNAPSHOT = r"\d{1,20}:\d{1,20}:(?:\d{1,20}(?:,\d{1,20})*)?"
_POSITION = re.compile(rf"({_SNAPSHOT})(?:;({_SNAPSHOT});(\d{{1,18}})\.(\d{{1,9}}))?", re.ASCII)


class Change(msgspec.Struct, frozen=True):
    """A task came into a state. `position` is where to go on after it."""

    position: str
    task_id: UUID
    namespace: str
    queue: str
    kind: str
    state: State
    attempt: int
    at: datetime


class Position(msgspec.Struct, frozen=True):
    """All that was visible at `since` has been told, and of what is visible at `upto` all before place `place` of row
    `row`."""

    since: str
    upto: str | None = None
    row: int = 0
    place: int = 0

    def __str__(self) -> str:
        return self.since if self.upto is None else f"{self.since};{self.upto};{self.row}.{self.place}"


def read_position(text: str) -> Position:
    found = _POSITION.fullmatch(text)
    if found is None:
        raise Malformed("is not a position in the feed", field="Last-Event-ID")
    since, upto, row, place = found.groups()
    return Position(since) if upto is None else Position(since, upto, int(row), int(place))


class Changes:
    """The feed of one database, as one engine reads it."""

    def __init__(self, store: Store, *, pause: Callable[[float], Awaitable[None]]) -> None:
        self._store, self._pause = store, pause
        self._news = asyncio.Condition()
        self._generation = 0
        self._waiting = 0
        self._looking: asyncio.Task[None] | None = None

    async def begin(self, position: str | None = None) -> Position:
        """Where to read from: now, or where somebody left off. Expired if what followed is no longer kept."""
        await self._record()
        async with self._store.begin() as tx:
            table = ChangeTable(tx.session)
            if position is None:
                return Position(await table.feed_position())
            known = read_position(position)
            try:
                reached = await table.feed_reaches(known.since)
            except Invalid:
                raise Malformed("is not a position in the feed", field="Last-Event-ID") from None
        if not reached:
            raise Expired("what followed this position is no longer kept: begin anew", position=position)
        return known

    async def read(self, position: Position, namespace: str | None = None) -> tuple[list[Change], Position]:
        """What follows a position, as much as fits a page, and the position after it; nothing if nothing does."""
        if namespace is not None:
            check_name("namespace", namespace)
        async with self._store.begin() as tx:
            upto, rows = await ChangeTable(tx.session).list_changes(
                namespace, position.since, position.upto, position.row, ROWS
            )
        changes = [change for row in rows for change in _told(row, position, upto)]
        if len(rows) < ROWS:  # all that was visible then has been read
            return changes, Position(upto)
        return changes, Position(position.since, upto, rows[-1].id + 1, 0)

    async def touch(self) -> None:
        """Somebody still reads."""
        async with self._store.begin() as tx:
            await ChangeTable(tx.session).touch_feed()

    # ----------------------------------------------------------------------------------------- waiting

    @property
    def generation(self) -> int:
        """Goes up when there may be something to read. Taken before a read that finds nothing, it cannot miss any."""
        return self._generation

    async def news(self, generation: int, timeout_s: float) -> None:
        """Until there may be something that came after this generation, or the time is over."""
        self._waiting += 1
        if self._looking is None:
            self._looking = asyncio.create_task(self._look(), name="windlass changes")
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s), self._news:
                    await self._news.wait_for(lambda: self._generation > generation)
        finally:
            self._waiting -= 1

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _look(self) -> None:
        """One look per engine, not one per reader, as long as anybody waits. The first one wakes everybody: what came
        before it, nobody looked for."""
        position: str | None = None
        try:
            while self._waiting:
                with contextlib.suppress(Unavailable):
                    position, some = await self._look_once(position)
                    if some:
                        async with self._news:
                            self._generation += 1
                            self._news.notify_all()
                await self._pause(LOOK_S)
        finally:
            self._looking = None

    async def _look_once(self, position: str | None) -> tuple[str, bool]:
        async with self._store.begin() as tx:
            table = ChangeTable(tx.session)
            if position is None:
                return await table.feed_position(), True
            return await table.has_changes(position)

    # ----------------------------------------------------------------------------------------- recording

    async def _record(self) -> None:
        for _ in range(SWITCH_TRIES):
            with contextlib.suppress(LockHeld):
                async with self._store.begin() as tx:
                    table = ChangeTable(tx.session)
                    await table.touch_feed()  # before the look, so that it is not switched off behind us
                    if not await table.feed_is_on():
                        await table.switch_feed(on=True, patience_ms=SWITCH_PATIENCE_MS)
                return
            await self._pause(SWITCH_PAUSE_S)
        raise StoreBusy("somebody's open transaction keeps the feed from beginning")

    async def forget(self) -> None:
        """For retention: old changes go, and when nobody has read for as long, recording ends."""
        async with self._store.begin() as tx:
            table = ChangeTable(tx.session)
            before = await tx.now() - timedelta(seconds=KEEP_S)
            if not await table.feed_is_on():
                return
            while await table.forget_changes(before, FORGET_BATCH) == FORGET_BATCH:
                pass
        with contextlib.suppress(LockHeld):
            async with self._store.begin() as tx:
                table = ChangeTable(tx.session)
                if await table.feed_is_unread(before):
                    await table.switch_feed(on=False, patience_ms=SWITCH_PATIENCE_MS)


def _told(row: ChangeRow, position: Position, upto: str) -> list[Change]:
    """The changes of a row, each with the position after it; without those that were told before."""
    first = position.place if row.id == position.row else 0
    return [
        Change(
            str(Position(position.since, upto, row.id, place + 1)),
            row.task_ids[place], row.namespace, row.queue, row.kind, row.state, row.attempts[place], row.at,
        )
        for place in range(first, len(row.task_ids))
    ]  # fmt: skip
