"""The pytest plugin: `windlass_kit` runs an app on a real engine with a virtual clock. See `testing.kit`.

The fixtures are plain functions, so that they work with any plugin for async tests, or with none. pytest imports this
module in every environment with Windlass installed, so the kit itself is imported when a test uses it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from windlass.testing.database import TestServer
    from windlass.testing.kit import OpenKit
    from windlass.testing.loops import OpenSyncKit


@pytest.fixture(scope="session")
def windlass_server() -> Iterator[TestServer]:
    """One PostgreSQL for the session: that of WINDLASS_TEST_DATABASE_URL, else an embedded one."""
    from windlass.testing.database import open_test_server

    with open_test_server() as server:
        yield server
        server.close()


@pytest.fixture
def windlass_kit(windlass_server: TestServer) -> OpenKit:
    """`async with windlass_kit(app) as kit:` opens the app on a new database, with a worker and a clock."""
    from windlass.testing.kit import open_kit

    return lambda app: open_kit(app, windlass_server)


@pytest.fixture
def windlass_kit_sync(windlass_server: TestServer) -> OpenSyncKit:
    """`with windlass_kit_sync(app) as kit:` is the same for tests without an event loop, such as those of FastAPI's
    TestClient."""
    from windlass.testing.loops import open_kit_sync

    return lambda app: open_kit_sync(app, windlass_server)
