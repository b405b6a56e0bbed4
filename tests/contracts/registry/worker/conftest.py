"""A server on a real socket, and workers of `windlass.registry` beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from tests.kit.work import soon, until
from tests.kit.world import KEY

from windlass import Engine
from windlass.registry import Client, Worker
from windlass.serve import open_sessions

Running = Callable[..., AbstractAsyncContextManager[Worker]]


@pytest.fixture
def mode() -> str:
    return "direct"


@pytest.fixture
async def server(live_engine: Engine) -> AsyncIterator[str]:
    options = {"heartbeat_s": 1.0, "stale_s": 10.0, "gather_s": 0.0}
    async with open_sessions(live_engine, grpc="127.0.0.1:0", api_key=KEY, registry=options) as url:
        yield url


@pytest.fixture
async def client(server: str) -> AsyncIterator[Client]:
    async with Client(server, api_key=KEY) as client:
        yield client


@pytest.fixture
def running(server: str) -> Running:
    """A worker that runs these workflows until the block ends, and then goes."""

    @asynccontextmanager
    async def run(**options: Any) -> AsyncIterator[Worker]:
        workflows = options.pop("workflows")
        worker = Worker(server, "orders", api_key=KEY, **options)
        for name, workflow in workflows.items():
            worker.register(name, workflow)
        work = asyncio.create_task(worker.run(handle_signals=False))
        await until(lambda: worker.is_registered or work.done())
        try:
            yield worker
        finally:
            worker.shutdown()
            await soon(work)

    return run
