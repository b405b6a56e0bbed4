"""Payloads for workers without an engine: loaded from the blob store, and with results of other tasks filled in."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from windlass.core.upstream import handover_of
from windlass.engine.payloads.objects import Objects
from windlass.engine.read.tasks import TaskViews


class Payloads:
    """The payloads and results of one database."""

    def __init__(self, views: TaskViews, objects: Objects) -> None:
        self._views, self._objects = views, objects

    async def results(self, ids: Sequence[UUID], namespace: str | None = None) -> dict[UUID, bytes]:
        """The results of those of these tasks that succeeded, as JSON text; of one namespace, or of all."""
        found = await self._views.results(ids, namespace)
        return {task_id: await self._objects.load(text) for task_id, text in found.items()}

    async def whole(self, kept: bytes, namespace: str) -> bytes:
        """The payload behind `kept`, which the row of a task of this namespace holds. Raises Invalid or NotFound where
        a part of it is gone; results of tasks of another namespace are never filled in."""
        payload = await self._objects.load(kept)
        wanted = handover_of(payload)
        return payload if wanted is None else wanted.filled(await self.results(wanted.ids, namespace))
