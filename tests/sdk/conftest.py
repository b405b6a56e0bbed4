"""An app on this test's database, with a worker that runs what is submitted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from windlass.sdk import Worker
from windlass.serve import App


@pytest.fixture
def app(database: str) -> App:
    return App("shop", database)


Working = Callable[[], AbstractAsyncContextManager[Worker]]


@pytest.fixture
def working(app: App) -> Working:
    """`async with working():` opens the app and runs a worker for what it has by then."""

    @asynccontextmanager
    async def work() -> AsyncIterator[Worker]:
        async with app:
            worker = app.worker(name="ada")
            running = asyncio.create_task(worker.run())
            yield worker
            worker.stop()
            await running

    return work
