"""Puts the lease contract on an engine: its routes, and what becomes of the events and batches that holders tell of."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from windlass.contracts.lease.app import LeaseApp
from windlass.contracts.lease.service import Service
from windlass.contracts.lease.wakeup import WakeupRoutes
from windlass.core.dataset import BUFFER, ROUTE
from windlass.engine.engine import Engine


def make_lease_app(engine: Engine, version: str, scratch_uri: str) -> LeaseApp:
    return LeaseApp(Service(engine, scratch_uri), WakeupRoutes(engine), version)


@asynccontextmanager
async def holding(engine: Engine) -> AsyncIterator[None]:
    """Until the block ends, look after those who hold tasks, and carry on what they tell of. Any server may do it."""
    async with (
        engine.sent.carrying(ROUTE, engine.holders.route),
        engine.sent.carrying(BUFFER, engine.holders.queue_batch),
    ):
        yield
