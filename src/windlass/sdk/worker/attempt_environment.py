"""What an attempt needs besides its payload: a sink for its progress, the last checkpoint, results of other tasks.

A worker that claims tasks reads the last two from its engine. A worker that receives pushed tasks finds them in the
request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from windlass.core.command import Claimed
from windlass.errors import Unavailable
from windlass.sdk.worker.asyncio_tools import AFTER_ERROR_S
from windlass.sdk.worker.progress import AttemptProgress, ProgressSink

if TYPE_CHECKING:
    from windlass.sdk.app import App

log = logging.getLogger("windlass.worker")


class AttemptEnvironment(Protocol):
    """All that a handler needs besides its payload."""

    @property
    def progress(self) -> ProgressSink: ...

    async def last_checkpoint(self) -> bytes | None: ...
    async def results(self, ids: Sequence[UUID]) -> dict[UUID, bytes]: ...
    async def close(self) -> None: ...


class ClaimedEnvironment:
    """The environment of an attempt that this worker claimed."""

    __slots__ = ("_app", "_claimed", "progress")

    def __init__(self, app: App, claimed: Claimed) -> None:
        self._app, self._claimed = app, claimed
        self.progress: AttemptProgress = app.progress_sender.attempt(claimed)

    async def last_checkpoint(self) -> bytes | None:
        """The checkpoint of an earlier attempt. The first attempt has none, so it makes no call."""
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
        await self.progress.close()
