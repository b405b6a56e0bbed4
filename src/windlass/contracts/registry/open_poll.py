"""Workers that wait in a poll live: their leases are extended, whether or not they send heartbeats.

However many polls a worker has open, it is extended once, and only if nothing else was heard of it meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from uuid import UUID

from windlass.core.error import NotFound, Unavailable
from windlass.core.worker import Beat
from windlass.engine.engine import Engine
from windlass.engine.gather import Gather

KNOWN_MAX = 1000  # leases without an open poll of which the last sign is remembered


class OpenPolls:
    """The polls that wait on one server. `every_s` is how long a worker may be without a sign of life."""

    def __init__(self, engine: Engine, beats: Gather, every_s: float) -> None:
        self._engine, self._beats, self._every_s = engine, beats, every_s
        self._last_s: dict[UUID, float] = {}
        self._open: Counter[UUID] = Counter()
        self._keeping: dict[UUID, asyncio.Task[None]] = {}

    def note(self, lease_id: UUID) -> None:
        """Something was heard of the worker of this lease."""
        now_s = asyncio.get_running_loop().time()
        if lease_id not in self._last_s and len(self._last_s) >= KNOWN_MAX + len(self._open):
            fresh_s = now_s - self._every_s
            self._last_s = {id_: at_s for id_, at_s in self._last_s.items() if at_s > fresh_s or id_ in self._open}
        self._last_s[lease_id] = now_s

    @contextlib.contextmanager
    def keep(self, worker_id: UUID, lease_id: UUID) -> Iterator[None]:
        """While a poll waits."""
        self._open[lease_id] += 1
        if lease_id not in self._keeping:
            self._keeping[lease_id] = asyncio.create_task(self._keep(worker_id, lease_id))
        try:
            yield
        finally:
            self._open[lease_id] -= 1
            if not self._open[lease_id]:
                del self._open[lease_id]
                self._keeping.pop(lease_id).cancel()

    async def _keep(self, worker_id: UUID, lease_id: UUID) -> None:
        """Until the last poll is over, or the worker is gone, which its polls find out by themselves."""
        while True:
            due_s = self._last_s.get(lease_id, -self._every_s) + self._every_s
            wait_s = due_s - asyncio.get_running_loop().time()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
                continue
            self.note(lease_id)
            await self._beats.together()
            with contextlib.suppress(Unavailable):
                try:
                    await self._engine.workers.beat(Beat(worker_id, lease_id=lease_id))
                except NotFound:
                    return
