from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.contracts.callback.world import World, open_world
from tests.kit.world import open_still

from windlass.testing.clock import VirtualClock


@pytest.fixture
async def world(database: str, clock: VirtualClock) -> AsyncIterator[World]:
    """An engine whose loops do not run, served by HTTP, with a queue that pushes to a worker that listens."""
    async with open_still(database, clock) as engine, open_world(engine, clock) as world:
        await world.queue()
        yield world
