from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.contracts.lease.world import Papers, World, make_papers, open_world

from windlass import Engine
from windlass.store.store import Store
from windlass.testing.clock import VirtualClock


@pytest.fixture(scope="session")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    """Certificates of an authority, of another one, and some that are no good."""
    return make_papers(tmp_path_factory.mktemp("certs"))


@pytest.fixture
async def world(database: str, clock: VirtualClock, papers: Papers) -> AsyncIterator[World]:
    """An engine whose loops do not run, served by TLS to callers with certificates, with a queue of wake-ups."""
    options: dict[str, Any] = {"timers": clock, "stopwatch": clock.stopwatch, "listen": False, "poll_s": 3600.0}
    engine = Engine(Store(database), **options)
    async with open_world(engine, clock, papers) as world:
        await world.queue()
        yield world
    await engine.close()
