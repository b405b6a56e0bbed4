"""The database's clock, read or estimated. It alone decides about deadlines and leases."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from windlass.store.store import Store

FRESH_S = 5.0


class DatabaseClock:
    """The time of the database as one engine knows it."""

    def __init__(self, store: Store, stopwatch: Callable[[], float]) -> None:
        self._store, self._stopwatch = store, stopwatch
        self._last: tuple[datetime, float] | None = None

    async def now(self) -> datetime:
        """Read from the database."""
        async with self._store.single() as tx:
            now = await tx.now()
        self.learn(now)
        return now

    async def about_now(self) -> datetime:
        """Estimate the time by our own stopwatch since the last read. It may be off by the drift of a few seconds."""
        if self._last is None or self._stopwatch() - self._last[1] > FRESH_S:
            return await self.now()
        return self._last[0] + timedelta(seconds=self._stopwatch() - self._last[1])

    def learn(self, now: datetime) -> None:
        """Record a time that a statement has just returned."""
        self._last = (now, self._stopwatch())
