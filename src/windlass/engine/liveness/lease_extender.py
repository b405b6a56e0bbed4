"""Extends a lease from another process: imported by the heartbeat process of a worker that uses the database itself.

Blocking, since that process does nothing else. Its errors are those of the standard library, the only ones that the
process knows: LookupError when the lease is gone, OSError when the database cannot be reached now.
"""

from __future__ import annotations

import asyncio
from uuid import UUID

from windlass.core.lease import Lease
from windlass.engine.liveness.leases import Leases
from windlass.engine.randomness import SystemRandomness
from windlass.errors import LeaseLost, NotFound, Unavailable
from windlass.store.store import Store

TIMEOUT_S = 10.0


class LeaseExtender:
    """One connection, opened when first needed and again after it broke."""

    def __init__(self, dsn: str, pooled: bool) -> None:
        self._runner = asyncio.Runner()
        self._leases = Leases(Store(dsn, pooled=pooled, connections=1), SystemRandomness(), pause=asyncio.sleep)
        self._lease: Lease | None = None

    def extend(self, lease_id: str) -> list[tuple[str, int]]:
        """Extend the lease; returns the attempts under it that are to stop."""
        try:
            return self._runner.run(self._extend(UUID(lease_id)))
        except (LeaseLost, NotFound) as error:
            raise LookupError(error.message) from error
        except Unavailable as error:
            raise OSError(error.message) from error

    def lose(self, lease_id: str, last_output: str) -> int:
        """The worker of the lease died: recover its attempts. Returns their number."""
        return self._runner.run(self._lose(UUID(lease_id), last_output))

    async def _lose(self, lease_id: UUID, last_output: str) -> int:
        async with asyncio.timeout(TIMEOUT_S):
            return await self._leases.lose(await self._leases.get(lease_id), last_output)

    async def _extend(self, lease_id: UUID) -> list[tuple[str, int]]:
        async with asyncio.timeout(TIMEOUT_S):
            if self._lease is None or self._lease.id != lease_id:
                self._lease = await self._leases.get(lease_id)
            extension = await self._leases.extend(self._lease)
        return [(str(cancel.task_id), cancel.attempt) for cancel in extension.cancels]
