"""Heartbeats of all sessions of a server, gathered: a beat waits a moment for others, no longer than a small part of
its lease; the engine then extends them together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

from windlass.core.lease import Activity, Extension, Lease
from windlass.engine.engine import Engine
from windlass.engine.gather import Gather

GATHER_S = 1.0
PART_OF_LEASE = 0.05  # of a lease, at most, does its beat wait


class Beats:
    """The heartbeats of one server."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._gather = engine, Gather(GATHER_S)

    async def extend(self, lease: Lease, active: Sequence[UUID] | None, activity: Activity) -> Extension:
        asked_s = asyncio.get_running_loop().time()
        if lease.ttl_s * PART_OF_LEASE >= GATHER_S:
            await self._gather.together()
        return await self._engine.leases.extend(lease, active, activity, asked_s=asked_s)
