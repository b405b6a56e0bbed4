"""How old the data of datasets is, and how much of the lake is not committed, for metrics. Read at most every few
seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

from windlass.datasets.tables.health import HealthTable
from windlass.datasets.tables.lake import LakeTable
from windlass.engine.engine import Engine
from windlass.engine.read.metrics import SERIES_MAX, SHARE

KEEP_S = 5.0


class DataGauges(NamedTuple):
    """Seconds since the newest event of each dataset, by name, and the bytes in the lake that are not committed; None
    if no clean-up has looked yet."""

    freshness_s: dict[str, float]
    staging_bytes: int | None


class DataGaugeReader:
    """Reads the gauges of one database."""

    def __init__(self, engine: Engine, stopwatch: Callable[[], float] = time.monotonic) -> None:
        self._store, self._stopwatch = engine.parts.store, stopwatch
        self._known, self._stale_at_s = DataGauges({}, None), 0.0
        self._turn = asyncio.Lock()

    async def read(self) -> DataGauges:
        async with self._turn:
            began_s = self._stopwatch()
            if began_s >= self._stale_at_s:
                async with self._store.begin() as tx:
                    ages = await HealthTable(tx.session).dataset_ages(SERIES_MAX)
                    self._known = DataGauges(ages, await LakeTable(tx.session).staging_bytes())
                ended_s = self._stopwatch()
                self._stale_at_s = ended_s + max(KEEP_S, SHARE * (ended_s - began_s))
            return self._known
