from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.contracts.lease.world import TlsFiles, make_tls_files, open_world
from tests.datasets.world import World
from tests.kit.world import open_still

from windlass.testing.clock import VirtualClock


@pytest.fixture(scope="session")
def tls_files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return make_tls_files(tmp_path_factory.mktemp("certs"))


@pytest.fixture
async def world(database: str, clock: VirtualClock, tls_files: TlsFiles) -> AsyncIterator[World]:
    """An engine whose loops do not run, with the routes of lease holders: a test moves everything by hand."""
    async with open_still(database, clock) as engine, open_world(engine, clock, tls_files) as leases:
        yield World(engine, leases)
