"""What surrounds an attempt: where what it says goes, what an earlier one left behind, what other tasks returned.

A worker that claims from an engine asks that engine. One that is pushed to was told most of it already.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from windlass.core.command import Claimed
from windlass.core.error import Unavailable
from windlass.sdk.client import Client
from windlass.sdk.note import AttemptNotes, Notes, Saying

log = logging.getLogger("windlass.worker")

AFTER_ERROR_S = 1.0


class Around(Protocol):
    """All that a handler needs besides its payload."""

    @property
    def notes(self) -> Saying: ...

    async def left_behind(self) -> bytes | None: ...
    async def results(self, ids: Sequence[UUID]) -> dict[UUID, bytes]: ...
    async def close(self) -> None: ...


class Host(Protocol):
    """An app that is open."""

    @property
    def client(self) -> Client: ...
    @property
    def notes(self) -> Notes: ...


class AtTheEngine:
    """Of an attempt that was claimed."""

    __slots__ = ("_app", "_claimed", "notes")

    def __init__(self, app: Host, claimed: Claimed) -> None:
        self._app, self._claimed = app, claimed
        self.notes: AttemptNotes = app.notes.of(claimed)

    async def left_behind(self) -> bytes | None:
        """The checkpoint of an earlier attempt. Only an attempt that is not the first one can find any."""
        while self._claimed.task.attempt > 1:
            try:
                return await self._app.client.checkpoint(self._claimed.task.id)
            except Unavailable as error:
                log.warning("cannot read a checkpoint, trying again: %s", error)
                await asyncio.sleep(AFTER_ERROR_S)
        return None

    async def results(self, ids: Sequence[UUID]) -> dict[UUID, bytes]:
        return await self._app.client.results(ids, self._claimed.task.namespace)

    async def close(self) -> None:
        await self.notes.close()
