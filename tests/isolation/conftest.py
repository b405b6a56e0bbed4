"""An engine whose loops do not run, with a victim and others."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.isolation.subject import Victim, populated

from windlass import Engine
from windlass.store.store import Store


@pytest.fixture
async def world(database: str) -> AsyncIterator[Victim]:
    engine = Engine(Store(database), listen=False, poll_s=3600.0)
    engine.keys.accept_root("root")
    yield await populated(engine)
    await engine.close()
