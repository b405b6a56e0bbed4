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

    async def results(self, ids: Sequence[UUID], namespace: str | None = None) -> dict[UUID, bytes]:
        """What those of these tasks that succeeded returned, as JSON text; of one namespace, or of all."""
        found = await self._views.results(ids, namespace)
        return {task_id: await self._objects.load(text) for task_id, text in found.items()}

    async def whole(self, kept: bytes, namespace: str) -> bytes:
        """`kept` is what the row of a task of this namespace holds. Raises Invalid or NotFound where something of it is
        there no longer; what tasks of another namespace returned is not there."""
        payload = await self._objects.load(kept)
        asked = handover_of(payload)
        return payload if asked is None else asked.filled(await self.results(asked.ids, namespace))
