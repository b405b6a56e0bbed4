from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.contracts.lease.world import TlsFiles, World, make_tls_files, open_world
from tests.kit.world import open_still

from windlass.testing.clock import VirtualClock


@pytest.fixture(scope="session")
def tls_files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    """Certificates of an authority, of another one, and some that are no good."""
    return make_tls_files(tmp_path_factory.mktemp("certs"))


@pytest.fixture
async def world(database: str, clock: VirtualClock, tls_files: TlsFiles) -> AsyncIterator[World]:
    """An engine whose loops do not run, served by TLS to callers with certificates, with a queue of wake-ups."""
    async with open_still(database, clock) as engine, open_world(engine, clock, tls_files) as world:
        await world.queue()
        yield world
