"""Heartbeats of all sessions of a server, gathered: a thousand idle workers cost one small transaction now and then.

A beat waits a moment for others, no longer than a small part of its lease; the engine then extends them together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

from windlass.core.lease import Extension, Lease
from windlass.engine.engine import Engine

GATHER_S = 0.5
PART_OF_LEASE = 0.05  # of a lease, at most, does its beat wait


class Beats:
    """Whoever comes first sets the moment; who comes before it goes along."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: asyncio.Event | None = None

    async def extend(self, lease: Lease, active: Sequence[UUID] | None) -> Extension:
        if lease.ttl_s * PART_OF_LEASE >= GATHER_S:
            await self._together()
        return await self._engine.extend_lease(lease, active)

    async def _together(self) -> None:
        if self._waiting is None:
            self._waiting = asyncio.Event()
            asyncio.get_running_loop().call_later(GATHER_S, self._go, self._waiting)
        await self._waiting.wait()

    def _go(self, moment: asyncio.Event) -> None:
        self._waiting = None
        moment.set()
