"""Payloads as workers get them that have no engine to ask: whole, wherever they are kept, and with what other tasks
returned in its place."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from windlass.core.handover import handover_of
from windlass.engine.objects import Objects
from windlass.engine.view import TaskViews


class Payloads:
    """The payloads and results of one database."""

    def __init__(self, views: TaskViews, objects: Objects) -> None:
        self._views, self._objects = views, objects

    async def results(self, ids: Sequence[UUID]) -> dict[UUID, bytes]:
        """What those of these tasks that succeeded returned, as JSON text."""
        found = await self._views.results(ids)
        return {task_id: await self._objects.load(text) for task_id, text in found.items()}

    async def whole(self, kept: bytes) -> bytes:
        """`kept` is what the row holds. Raises Invalid or NotFound where something of it is there no longer."""
        payload = await self._objects.load(kept)
        asked = handover_of(payload)
        return payload if asked is None else asked.filled(await self.results(asked.ids))
