"""An app that is open without an engine: its handlers run, but cannot submit."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from windlass.errors import InvalidState
from windlass.sdk.client import Client


class _NoEngine:
    """Raises InvalidState for every method."""

    def __getattr__(self, name: str) -> Any:
        raise InvalidState(
            f"{name} needs an engine, and this app was opened without one by its callback worker: "
            "open it with `async with app:` before the worker starts"
        )


@asynccontextmanager
async def no_engine() -> AsyncIterator[Client]:
    yield cast("Client", _NoEngine())
