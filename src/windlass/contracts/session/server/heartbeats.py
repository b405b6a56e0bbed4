"""Batches the heartbeats of all sessions of a server: each waits a moment for others, at most a small part of its
lease, and the engine then extends the leases together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

from windlass.core.lease import Activity, Extension, Lease
from windlass.engine.debounce import Debounce
from windlass.engine.engine import Engine

GATHER_S = 1.0
PART_OF_LEASE = 0.05  # longest wait of a heartbeat, as a part of its lease


class SessionHeartbeats:
    """The heartbeats of one server."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._gather = engine, Debounce(GATHER_S)

    async def extend(self, lease: Lease, active: Sequence[UUID] | None, activity: Activity) -> Extension:
        received_s = asyncio.get_running_loop().time()
        if lease.ttl_s * PART_OF_LEASE >= GATHER_S:
            await self._gather.together()
        return await self._engine.parts.leases.extend(lease, active, activity, received_s=received_s)
