"""Counters and the gauge of sinks: rows by dataset and outcome, and how long the oldest batch has waited."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable

from windlass.datasets.tables.sink import SinkTable
from windlass.engine.engine import Engine
from windlass.engine.read.metrics import OTHER, SERIES_MAX, SHARE

KEEP_S = 5.0
WRITTEN, DUPLICATE, REFUSED = "written", "duplicate", "refused"


class SinkRows:
    """The rows that sinks of this engine have handled. `written` are new in their table, `duplicate` were there already
    and are left or replaced, `refused` are those of dead letters."""

    def __init__(self, _engine: Engine) -> None:
        self.rows: Counter[tuple[str, str]] = Counter()

    def add(self, dataset: str | None, outcome: str, rows: int) -> None:
        name = dataset or OTHER
        if (name, outcome) not in self.rows and len(self.rows) >= SERIES_MAX:
            name = OTHER
        self.rows[name, outcome] += rows


class SinkLag:
    """How long the oldest batch has waited for a sink, by any server. Read at most every few seconds."""

    def __init__(self, engine: Engine, stopwatch: Callable[[], float] = time.monotonic) -> None:
        self._store, self._stopwatch = engine.parts.store, stopwatch
        self._known_s, self._stale_at_s = 0.0, 0.0
        self._turn = asyncio.Lock()

    async def read(self) -> float:
        async with self._turn:
            began_s = self._stopwatch()
            if began_s >= self._stale_at_s:
                async with self._store.single() as tx:
                    self._known_s = await SinkTable(tx.session).lag_s()
                ended_s = self._stopwatch()
                self._stale_at_s = ended_s + max(KEEP_S, SHARE * (ended_s - began_s))
            return self._known_s
