"""The fixtures of the plugin, whether it is installed or only lies beside."""

from __future__ import annotations

import pytest

from windlass import sdk
from windlass.serve import open_engine
from windlass.testing.plugin import windlass_kit, windlass_kit_sync, windlass_server

__all__ = ["windlass_kit", "windlass_kit_sync", "windlass_server"]


@pytest.fixture
def app() -> sdk.App:
    """An app that nobody can reach but the kit."""
    return sdk.App("shop", lambda: open_engine("postgresql://nobody@localhost:1/nothing"))
