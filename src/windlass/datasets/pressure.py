"""How many things jobs are owed, and which are held, for metrics. Read at most every few seconds."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from windlass.datasets.tables.jobs import JobTable, LiveEdge
from windlass.engine.engine import Engine
from windlass.engine.read.metrics import SERIES_MAX, SHARE

KEEP_S = 5.0
COUNTED_MAX = 10_000  # of one input

JobLabel = tuple[str, str]  # DAG and job


class PressureGauges(NamedTuple):
    """Jobs by DAG and name: whether each is held, and what it is owed and has no task for."""

    held: dict[JobLabel, bool]
    owed: dict[JobLabel, int]


class Pressures:
    """Reads the gauges of one database. Jobs of the same name in two namespaces are added up."""

    def __init__(self, engine: Engine, stopwatch: Callable[[], float] = time.monotonic) -> None:
        self._store, self._stopwatch = engine.parts.store, stopwatch
        self._known, self._stale_at_s = PressureGauges({}, {}), 0.0
        self._turn = asyncio.Lock()

    async def read(self) -> PressureGauges:
        async with self._turn:
            began_s = self._stopwatch()
            if began_s >= self._stale_at_s:
                self._known = await self._load()
                ended_s = self._stopwatch()
                self._stale_at_s = ended_s + max(KEEP_S, SHARE * (ended_s - began_s))
            return self._known

    async def _load(self) -> PressureGauges:
        held: dict[JobLabel, bool] = {}
        owed: Counter[JobLabel] = Counter()
        async with self._store.begin() as tx:
            jobs = JobTable(tx.session)
            found = await jobs.with_pressure(SERIES_MAX)
            labels = {job_id: (dag, name) for job_id, dag, name, _ in found}
            for job_id, *_, is_held in found:
                held[labels[job_id]] = held.get(labels[job_id], False) or is_held
            for edge in await jobs.edges_of(labels):
                owed[labels[edge.job_id]] += await _owed_on(jobs, edge)
        return PressureGauges(held, dict(owed))


async def _owed_on(jobs: JobTable, edge: LiveEdge) -> int:
    if not edge.trigger or edge.dataset_version is None:
        return 0
    if edge.by_partition:
        return await jobs.count_owed(edge.job_id, edge.dataset_version, edge.input_index, COUNTED_MAX)
    return int(await jobs.owed_cursor(edge.job_id, edge.dataset_version) is not None)
