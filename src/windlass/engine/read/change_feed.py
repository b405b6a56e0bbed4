"""The live feed of changes of tasks, without gaps and without repeats.

A reader's position is a snapshot of PostgreSQL: the transactions whose changes it has received. It gets next what
became visible since, whichever transaction began first; nothing waits for the slowest transaction.

One query serves all readers of an engine. Its changes are cached as a piece, from one position to the next; a reader at
the first position takes the piece from memory. A reader at another position, or behind the cached pieces, reads from
the database until it has caught up; few may do so at once. Readers pull, so a slow reader costs only its position.

Recording begins with the first reader, and ends when there was no reader for a day.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from windlass.core.states import State
from windlass.errors import Expired, Invalid, Malformed, StoreBusy, Unavailable
from windlass.store.errors import LockHeld
from windlass.store.store import Store
from windlass.store.tables.change import ChangeRow, ChangeTable

ROWS = 20
POLL_S = 0.2
EMPTY_READS = 25  # reads without changes after which the shared position moves on
PIECES_KEPT, CHANGES_KEPT = 512, 10_000
ALONE_MAX = 4  # readers that read by themselves at once
KEEP_S = 86400.0
FORGET_BATCH = 5000
SWITCH_TRIES, SWITCH_WAIT_MS, SWITCH_PAUSE_S = 50, 200, 0.3
_SNAPSHOT = r"\d{1,20}:\d{1,20}:(?:\d{1,20}(?:,\d{1,20})*)?"
_POSITION = re.compile(rf"({_SNAPSHOT})(?:;({_SNAPSHOT});(\d{{1,18}})\.(\d{{1,9}}))?", re.ASCII)


class Change(msgspec.Struct, frozen=True):
    """A task entered a state. `position` is the position after this change."""

    position: str
    task_id: UUID
    namespace: str
    queue: str
    kind: str
    state: State
    attempt: int
    at: datetime


class Position(msgspec.Struct, frozen=True):
    """A reader has received everything visible at `since`, and of what is visible at `upto` everything before place
    `place` of row `row`."""

    since: str
    upto: str | None = None
    row: int = 0
    place: int = 0

    def __str__(self) -> str:
        return self.since if self.upto is None else f"{self.since};{self.upto};{self.row}.{self.place}"


class Piece(msgspec.Struct, frozen=True):
    """The changes from one position to the next. `frames` are the same changes as the server sends them, by namespace:
    encoded once for many readers."""

    changes: list[Change]
    next: Position
    namespaces: frozenset[str]
    frames: dict[str | None, bytes] = {}

    def concerns(self, namespace: str | None) -> bool:
        return bool(self.changes) if namespace is None else namespace in self.namespaces

    def of(self, namespace: str | None) -> list[Change]:
        return [change for change in self.changes if namespace is None or change.namespace == namespace]


def piece_of(changes: list[Change], next_: Position) -> Piece:
    return Piece(changes, next_, frozenset(change.namespace for change in changes), {})


def covers(later: str, earlier: str) -> bool:
    """Whether everything visible in the earlier snapshot is visible in the later one."""
    _, most, open_ = _snapshot(later)
    least, last, hidden = _snapshot(earlier)
    seen = {number for number in open_ if number < least or (number < last and number not in hidden)}
    return last <= most and not seen


def _snapshot(text: str) -> tuple[int, int, frozenset[int]]:
    """The first transaction that was open, the first that had not begun, and those between them that were open."""
    first, after_last, between = text.split(":")
    return int(first), int(after_last), frozenset(int(number) for number in between.split(",") if number)


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
        self._polling: asyncio.Task[None] | None = None
        self._head: Position | None = None
        self._pieces: dict[str, Piece] = {}
        self._order: deque[str] = deque()
        self._kept = self._empty = self._followers = 0
        self._extending, self._alone = asyncio.Lock(), asyncio.Semaphore(ALONE_MAX)

    async def begin(self, position: str | None = None) -> Position:
        """The position to read from: now, or a given one. Raises Expired if its changes are no longer stored."""
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
            raise Expired("the changes after this position are no longer stored: start again", position=position)
        return known

    async def read(
        self, position: Position, namespace: str | None = None, upto: str | None = None
    ) -> tuple[list[Change], Position]:
        """A page of the changes after a position, and the position after them."""
        async with self._store.begin() as tx:
            upto, rows = await ChangeTable(tx.session).list_changes(
                namespace, position.since, position.upto or upto, position.row, ROWS
            )
        changes = [change for row in rows for change in _changes_of(row, position, upto)]
        if len(rows) < ROWS:  # everything visible at `upto` has been read
            return changes, Position(upto)
        return changes, Position(position.since, upto, rows[-1].id + 1, 0)

    @contextlib.contextmanager
    def following(self) -> Iterator[None]:
        """While this block runs, the engine reads the feed for its readers."""
        self._followers += 1
        try:
            yield
        finally:
            self._followers -= 1

    async def page(self, position: Position, namespace: str | None = None) -> tuple[Piece | None, Position]:
        """The changes after a position, and the position after them: from memory if they are cached, else from the
        database up to the shared position. None if there are none: wait for news."""
        while True:
            while (piece := self._pieces.get(str(position))) is not None:
                position = piece.next
                if piece.concerns(namespace):
                    return piece, position
            if self._head is not None and position == self._head:
                return None, position
            async with self._alone:
                if str(position) in self._pieces:
                    continue
                changes, position = await self._catch_up(position, namespace)
            if changes:
                return piece_of(changes, position), position

    async def _catch_up(self, position: Position, namespace: str | None) -> tuple[list[Change], Position]:
        """Read a page, at most up to the shared position, which is moved on if it is behind this one."""
        if position.upto is not None:
            return await self.read(position, namespace)
        async with self._extending:
            self._watch()
            if not self._is_ahead_of(position):
                await self._extend(True)  # a read that begins now sees everything that any reader has received
            upto = self._head.since if self._head is not None and self._is_ahead_of(position) else None
        return await self.read(position, namespace, upto)

    def _is_ahead_of(self, position: Position) -> bool:
        head = self._head
        return head is not None and head.upto is None and covers(head.since, position.since)

    async def touch(self) -> None:
        """Record that the feed still has a reader."""
        async with self._store.begin() as tx:
            await ChangeTable(tx.session).touch_feed()

    # ----------------------------------------------------------------------------------------- waiting

    @property
    def generation(self) -> int:
        """Goes up when there may be something to read. Taken before a read that finds nothing, it cannot miss any."""
        return self._generation

    async def news(self, generation: int, timeout_s: float) -> None:
        """Wait until there may be changes after this generation, at most `timeout_s`."""
        self._waiting += 1
        self._watch()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s), self._news:
                    await self._news.wait_for(lambda: self._generation > generation)
        finally:
            self._waiting -= 1

    async def close(self) -> None:
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)

    def _watch(self) -> None:
        if self._polling is None:
            self._polling = asyncio.create_task(self._poll(), name="windlass changes")

    async def _poll(self) -> None:
        """Read the feed once for all readers of this engine, as long as there are any."""
        try:
            while self._waiting or self._followers:
                with contextlib.suppress(Unavailable):
                    async with self._extending:
                        await self._extend(self._empty >= EMPTY_READS)
                await self._pause(POLL_S)
        finally:
            self._polling, self._head = None, None
            self._pieces.clear()
            self._order.clear()
            self._kept = self._empty = 0

    async def _extend(self, move: bool) -> None:
        """Read what has come since the last read. The first read wakes all readers, since nothing before it was
        read. Without changes, the shared position stays where it is unless it is to `move`."""
        if self._head is None:
            async with self._store.begin() as tx:
                self._head = Position(await ChangeTable(tx.session).feed_position())
            await self._announce()
            return
        begun = head = self._head
        while head is begun or head.upto is not None:  # until all that was visible at the first read has been read
            changes, position = await self.read(head, None)
            self._empty += 1
            if not changes and position.upto is None and not move:
                return
            self._keep(head, piece_of(changes, position))
            self._head = head = position
            self._empty = 0
            if changes:
                await self._announce()

    async def _announce(self) -> None:
        async with self._news:
            self._generation += 1
            self._news.notify_all()

    def _keep(self, position: Position, piece: Piece) -> None:
        """Cache a piece and drop the oldest ones. A reader that has not read those reads by itself."""
        self._pieces[str(position)] = piece
        self._order.append(str(position))
        self._kept += len(piece.changes)
        while len(self._order) > 1 and (len(self._order) > PIECES_KEPT or self._kept > CHANGES_KEPT):
            self._kept -= len(self._pieces.pop(self._order.popleft()).changes)

    # ----------------------------------------------------------------------------------------- recording

    async def _record(self) -> None:
        for _ in range(SWITCH_TRIES):
            with contextlib.suppress(LockHeld):
                async with self._store.begin() as tx:
                    table = ChangeTable(tx.session)
                    await table.touch_feed()  # before the check, so that the feed is not switched off meanwhile
                    if not await table.feed_is_on():
                        await table.switch_feed(on=True, lock_wait_ms=SWITCH_WAIT_MS)
                return
            await self._pause(SWITCH_PAUSE_S)
        raise StoreBusy("the feed cannot begin while another transaction holds a lock on the tasks")

    async def forget(self) -> None:
        """For retention: delete old changes, and stop recording when there was no reader for as long."""
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
                    await table.switch_feed(on=False, lock_wait_ms=SWITCH_WAIT_MS)


def _changes_of(row: ChangeRow, position: Position, upto: str) -> list[Change]:
    """The changes of a row after a position, each with the position after it."""
    first = position.place if row.id == position.row else 0
    return [
        Change(
            str(Position(position.since, upto, row.id, place + 1)),
            row.task_ids[place], row.namespace, row.queue, row.kind, row.state, row.attempts[place], row.at,
        )
        for place in range(first, len(row.task_ids))
    ]  # fmt: skip
