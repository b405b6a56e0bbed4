"""A clock for tests: the database's time and the engine's timers stand still until a test moves them.

`windlass.now()` has no hook in production; here its body is replaced in one database by a read of a clock table. It
stays STABLE, since queries rely on that to bound their index scans.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import asyncpg

_REPLACE = """
create table if not exists windlass.test_clock (now timestamptz not null);
insert into windlass.test_clock select windlass.now() where not exists (select from windlass.test_clock);
create or replace function windlass.now() returns timestamptz
language sql stable parallel safe
as $$ select c.now from windlass.test_clock c $$;
"""


class Alarm:
    """A callback that is due at a moment of the virtual clock."""

    __slots__ = ("callback", "cancelled", "due_s")

    def __init__(self, due_s: float, callback: Callable[[], None]) -> None:
        self.due_s, self.callback, self.cancelled = due_s, callback, False

    def cancel(self) -> None:
        self.cancelled = True

    def ring(self) -> None:
        if not self.cancelled:
            self.callback()


class VirtualClock:
    """Get it from `virtual_clock`. `Engine(store, timers=clock, stopwatch=clock.stopwatch)` waits by it too."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._lock = asyncio.Lock()
        self._elapsed_s = 0.0
        self._alarms: list[Alarm] = []

    async def now(self) -> datetime:
        async with self._lock:
            now = await self._connection.fetchval("select windlass.now()")
        assert isinstance(now, datetime), now
        return now

    async def advance(self, seconds: float) -> datetime:
        """Move the time of the database, then ring the alarms that are due, in order."""
        async with self._lock:
            now = await self._connection.fetchval(
                "update windlass.test_clock set now = now + $1::interval returning now", timedelta(seconds=seconds)
            )
        assert isinstance(now, datetime), now
        self._elapsed_s += seconds
        due = [alarm for alarm in self._alarms if alarm.due_s <= self._elapsed_s]
        self._alarms = [alarm for alarm in self._alarms if alarm.due_s > self._elapsed_s]
        for alarm in sorted(due, key=lambda alarm: alarm.due_s):
            alarm.ring()
        return now

    def stopwatch(self) -> float:
        """Seconds by which this clock was moved in total."""
        return self._elapsed_s

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Alarm:
        """Call back when the clock has moved this far; without a delay, in the next iteration of the event loop."""
        alarm = Alarm(self._elapsed_s + delay_s, callback)
        if delay_s <= 0:
            asyncio.get_running_loop().call_soon(alarm.ring)
            return alarm
        self._alarms = [*(other for other in self._alarms if not other.cancelled), alarm]
        return alarm

    @property
    def alarms(self) -> list[float]:
        """Seconds until each alarm rings, the next one first."""
        return sorted(alarm.due_s - self._elapsed_s for alarm in self._alarms if not alarm.cancelled)

    async def close(self) -> None:
        """Close the connection; the clock of the database keeps its time."""
        await self._connection.close()


async def virtual_clock(dsn: str) -> VirtualClock:
    """Stop the time of this database, for all its clients. For databases of tests only: it cannot be undone."""
    connection = await asyncpg.connect(dsn, statement_cache_size=0)
    await connection.execute(_REPLACE)
    return VirtualClock(connection)
