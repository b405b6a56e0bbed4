from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.contracts.callback.world import World, open_world

from windlass import Engine
from windlass.store.store import Store
from windlass.testing.clock import VirtualClock


@pytest.fixture
async def world(database: str, clock: VirtualClock) -> AsyncIterator[World]:
    """An engine whose loops do not run, served by HTTP, with a queue that pushes to a worker that listens."""
    options: dict[str, Any] = {"timers": clock, "stopwatch": clock.stopwatch, "listen": False, "poll_s": 3600.0}
    engine = Engine(Store(database), **options)
    async with open_world(engine, clock) as world:
        await world.queue()
        yield world
    await engine.close()
