"""Counters and gauges: a port for exporters (`api.metrics` speaks Prometheus), which knows none of them.

`Tally` counts every batch after its commit: about two microseconds a task, nothing without a tally. Gauges (depth, age,
workers) are read from the database on request. They are cached, the longer the more the query cost, so that many
readers cost no more than one.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from windlass.core.attempt import CLOCK_SKEW
from windlass.core.command import Claimed
from windlass.core.states import State, Transition, Verb
from windlass.store.store import Store
from windlass.store.tables.task import Finished
from windlass.store.tables.view import QueueGauge

BUCKETS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
SERIES_MAX = 2000  # kinds are named by programs; one that invents a kind a task must not fill our memory
OTHER = "(other)"
KEEP_S, SHARE = 1.0, 20.0

Series = tuple[str, str]


class Histogram:
    """The number of values between the bounds, and the sum of all values."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.sum_s += seconds


class Tally:
    """The counters of one engine, since it began."""

    def __init__(self) -> None:
        self.ended: Counter[tuple[str, str, str]] = Counter()
        self.durations: dict[Series, Histogram] = {}
        self.latencies: dict[str, Histogram] = {}
        self.leases_expired: Counter[str] = Counter()
        self.late_results = 0
        self.clock_skews = 0
        self.fires: Counter[str] = Counter()
        self.lateness = Histogram()

    def moved(self, moves: Sequence[Transition]) -> None:
        """Count committed transitions."""
        for move in moves:
            task = move.after
            if move.history:
                self.clock_skews += sum(CLOCK_SKEW in (entry.detail or ()) for entry in move.history)
            if move.verb is Verb.EXPIRE:
                self.leases_expired[task.queue] += 1
            if task.terminal:
                kind = self._kind(task.queue, task.kind)
                self.ended[task.queue, kind, task.state.value] += 1
                if task.started_at is not None and task.finished_at is not None:
                    seconds = (task.finished_at - task.started_at).total_seconds()
                    self.durations[task.queue, kind].add(max(0.0, seconds))

    def finished(self, finished: Sequence[Finished]) -> None:
        """These succeeded."""
        for queue, kind, started_at, finished_at in finished:
            known = self._kind(queue, kind)
            self.ended[queue, known, State.SUCCEEDED.value] += 1
            self.durations[queue, known].add(max(0.0, (finished_at - started_at).total_seconds()))

    def started(self, claimed: Sequence[Claimed]) -> None:
        """Count attempts that were given to a worker, from the line or with their submission."""
        for one in claimed:
            task = one.task
            assert task.started_at is not None, task.id
            self._latency(task.queue).add(max(0.0, (task.started_at - task.available_at).total_seconds()))

    def came_late(self, count: int) -> None:
        """Count refused reports of attempts that were superseded or had ended otherwise."""
        self.late_results += count

    def fired(self, late_s: Sequence[float], skipped: int) -> None:
        """Count fires with their lateness, and fires skipped because an earlier task had not ended."""
        self.fires["submitted"] += len(late_s)
        self.fires["skipped"] += skipped
        for seconds in late_s:
            self.lateness.add(max(0.0, seconds))

    def _latency(self, queue: str) -> Histogram:
        found = self.latencies.get(queue)
        if found is None:
            known = queue if len(self.latencies) < SERIES_MAX else OTHER
            found = self.latencies.setdefault(known, Histogram())
        return found

    def _kind(self, queue: str, kind: str) -> str:
        if (queue, kind) in self.durations:
            return kind
        known = kind if len(self.durations) < SERIES_MAX else OTHER
        self.durations.setdefault((queue, known), Histogram())
        return known


class Snapshot(msgspec.Struct, frozen=True):
    """The gauges at one moment."""

    queues: tuple[QueueGauge, ...]
    workers: dict[str, int]
    schedule_lag_s: float = 0.0
    dead_letters: dict[str, int] = {}


class Gauges:
    """Reads a snapshot, at most once a second and for at most a twentieth of the time."""

    def __init__(self, store: Store, stopwatch: Callable[[], float] = time.monotonic) -> None:
        self._store, self._stopwatch = store, stopwatch
        self._known: Snapshot | None = None
        self._stale_at_s = 0.0
        self._turn = asyncio.Lock()

    async def read(self) -> Snapshot:
        async with self._turn:
            began_s = self._stopwatch()
            if self._known is None or began_s >= self._stale_at_s:
                async with self._store.begin() as tx:
                    self._known = Snapshot(
                        await tx.gauges.queue_gauges(), await tx.gauges.worker_gauges(), await tx.gauges.schedule_lag(),
                        await tx.gauges.dead_letter_gauges(SERIES_MAX),
                    )  # fmt: skip
                ended_s = self._stopwatch()
                self._stale_at_s = ended_s + max(KEEP_S, SHARE * (ended_s - began_s))
            return self._known
