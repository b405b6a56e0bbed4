from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.contracts.machine.world import World, open_world

from windlass.testing.clock import VirtualClock


@pytest.fixture
async def world(database: str, clock: VirtualClock, tmp_path: Path) -> AsyncIterator[World]:
    """An engine whose loops do not run, served by HTTP, with a queue whose machines are real processes."""
    async with open_world(database, clock, tmp_path) as world:
        yield world
