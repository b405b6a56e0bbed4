from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.contracts.lease.world import TlsFiles, make_tls_files, open_world
from tests.datasets.lake_world import COLD, LakeWorld
from tests.datasets.sink_world import SinkWorld
from tests.datasets.world import World
from tests.kit.s3 import S3Server, open_s3
from tests.kit.world import open_still

from windlass.blobs.address import read_address
from windlass.blobs.object_store import open_store
from windlass.serve import use_lake
from windlass.testing.clock import VirtualClock


@pytest.fixture(scope="session")
def tls_files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return make_tls_files(tmp_path_factory.mktemp("certs"))


@pytest.fixture
async def world(database: str, clock: VirtualClock, tls_files: TlsFiles) -> AsyncIterator[World]:
    """An engine whose loops do not run, with the routes of lease holders: a test moves everything by hand."""
    async with open_still(database, clock) as engine, open_world(engine, clock, tls_files) as leases:
        yield World(engine, leases)


@pytest.fixture
def sinks(world: World, tmp_path: Path) -> SinkWorld:
    """The same, with a scratch folder and a sink."""
    return SinkWorld.of(world, tmp_path)


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    with open_s3() as server:
        yield server


@pytest.fixture(params=["folder", "s3"])
async def lake_world(request: pytest.FixtureRequest, world: World, tmp_path: Path) -> LakeWorld:
    """The same with a lake: a folder, and a real S3 server. `cold` is deployed."""
    if request.param == "folder":
        url = f"file://{tmp_path}/lake"
    else:
        server: S3Server = request.getfixturevalue("s3")
        url = server.url(f"{tmp_path.name}/lake")
    use_lake(world.engine, url)
    found = LakeWorld(world.engine, world.leases, open_store(url), read_address(url).root.rstrip("/"))
    assert (await found.deploy(COLD, "cold")).state == "active"
    return found
