"""Extends the leases of workers that wait in a poll, whether or not they send heartbeats.

The lease of a worker is extended once, however many polls it has open, and only if no heartbeat has extended it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from uuid import UUID

from windlass.core.worker import WorkerHeartbeat
from windlass.engine.debounce import Debounce
from windlass.engine.engine import Engine
from windlass.errors import NotFound, Unavailable

KNOWN_MAX = 1000  # leases without an open poll whose last extension is remembered


class OpenPolls:
    """The open polls of one server. `every_s` is the interval of extensions."""

    def __init__(self, engine: Engine, heartbeats: Debounce, every_s: float) -> None:
        self._engine, self._heartbeats, self._every_s = engine, heartbeats, every_s
        self._last_s: dict[UUID, float] = {}
        self._open: Counter[UUID] = Counter()
        self._extenders: dict[UUID, asyncio.Task[None]] = {}

    def note(self, lease_id: UUID) -> None:
        """Remembers that the lease was extended now."""
        now_s = asyncio.get_running_loop().time()
        if lease_id not in self._last_s and len(self._last_s) >= KNOWN_MAX + len(self._open):
            fresh_s = now_s - self._every_s
            self._last_s = {id_: at_s for id_, at_s in self._last_s.items() if at_s > fresh_s or id_ in self._open}
        self._last_s[lease_id] = now_s

    @contextlib.contextmanager
    def extending(self, worker_id: UUID, lease_id: UUID) -> Iterator[None]:
        """Extends the lease while the block runs."""
        self._open[lease_id] += 1
        if lease_id not in self._extenders:
            self._extenders[lease_id] = asyncio.create_task(self._extend(worker_id, lease_id))
        try:
            yield
        finally:
            self._open[lease_id] -= 1
            if not self._open[lease_id]:
                del self._open[lease_id]
                self._extenders.pop(lease_id).cancel()

    async def _extend(self, worker_id: UUID, lease_id: UUID) -> None:
        """Runs until the last poll ends, or the worker is offline, which its polls notice themselves."""
        while True:
            due_s = self._last_s.get(lease_id, -self._every_s) + self._every_s
            wait_s = due_s - asyncio.get_running_loop().time()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
                continue
            self.note(lease_id)
            await self._heartbeats.together()
            with contextlib.suppress(Unavailable):
                try:
                    await self._engine.workers.heartbeat(WorkerHeartbeat(worker_id, lease_id=lease_id))
                except NotFound:
                    return
