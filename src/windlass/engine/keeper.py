"""A lease kept alive from another process: what the heartbeat process of a worker beside the database imports.

Blocking, since that process does nothing else; its errors are those of the standard library, since it knows no others:
LookupError when the lease is gone, OSError when it could not be reached now.
"""

from __future__ import annotations

import asyncio
from uuid import UUID

from windlass.core.error import LeaseLost, NotFound, Unavailable
from windlass.core.lease import Lease
from windlass.engine.chance import SystemChance
from windlass.engine.lease import Leases
from windlass.store.store import Store

PATIENCE_S = 10.0


class LeaseKeeper:
    """One connection, made when first needed and made again when it broke."""

    def __init__(self, dsn: str, pooled: bool) -> None:
        self._runner = asyncio.Runner()
        self._leases = Leases(Store(dsn, pooled=pooled, connections=1), SystemChance(), pause=asyncio.sleep)
        self._lease: Lease | None = None

    def extend(self, lease_id: str) -> list[tuple[str, int]]:
        """Extend it; returns the attempts under it that are to stop."""
        try:
            return self._runner.run(self._extend(UUID(lease_id)))
        except (LeaseLost, NotFound) as error:
            raise LookupError(error.message) from error
        except Unavailable as error:
            raise OSError(error.message) from error

    def lose(self, lease_id: str, last_output: str) -> int:
        """Its worker was seen to die."""
        return self._runner.run(self._lose(UUID(lease_id), last_output))

    async def _lose(self, lease_id: UUID, last_output: str) -> int:
        async with asyncio.timeout(PATIENCE_S):
            return await self._leases.lose(await self._leases.get(lease_id), last_output)

    async def _extend(self, lease_id: UUID) -> list[tuple[str, int]]:
        async with asyncio.timeout(PATIENCE_S):
            if self._lease is None or self._lease.id != lease_id:
                self._lease = await self._leases.get(lease_id)
            extension = await self._leases.extend(self._lease)
        return [(str(cancel.task_id), cancel.attempt) for cancel in extension.cancels]
