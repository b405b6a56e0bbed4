"""An app that is open without an engine: its handlers run, but cannot submit."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from windlass.core.error import InvalidState
from windlass.sdk.client import Client


class _NoEngine:
    """Says what is missing, whatever it is asked for."""

    def __getattr__(self, name: str) -> Any:
        raise InvalidState(
            f"this app was opened by a worker that is pushed to, and has no engine, which {name} needs: "
            "open it yourself with `async with app:` before the worker starts"
        )


@asynccontextmanager
async def no_engine() -> AsyncIterator[Client]:
    yield cast("Client", _NoEngine())
