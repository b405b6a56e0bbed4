"""Mounts the lease contract on an engine: its routes, and the effects of events and batches."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from windlass.api.framework.application import Application
from windlass.contracts.lease.claim_by_id import Holders
from windlass.contracts.lease.server.app import make_app
from windlass.contracts.lease.server.service import Service
from windlass.contracts.lease.server.wakeups import WakeupRoutes
from windlass.datasets.rules.events import BUFFER, ROUTE
from windlass.engine.engine import Engine


def make_lease_app(engine: Engine, version: str, scratch_uri: str) -> Application:
    return make_app(Service(engine, scratch_uri), WakeupRoutes(engine), version)


@asynccontextmanager
async def holding(engine: Engine) -> AsyncIterator[None]:
    """Route the events and queue the batches of lease holders until the block ends. Any server may do it."""
    async with (
        engine.parts.outgoing.carrying(ROUTE, engine.service(Holders).route),
        engine.parts.outgoing.carrying(BUFFER, engine.service(Holders).queue_batch),
    ):
        yield
