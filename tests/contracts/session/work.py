"""Words for the tests of sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.kit.work import SOON_S, soon, state

from windlass import Engine, State, Worker
from windlass.contracts.session.client.remote import Remote


@asynccontextmanager
async def working(remote: Remote, handler: Any, **options: Any) -> AsyncIterator[Worker]:
    worker = Worker(remote, {"job": handler}, name="far", heartbeat_process=False, **options)
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await soon(running)


async def ended(engine: Engine, *ids: Any) -> list[State]:
    return [(await soon(engine.wait(id_, 60), 60)).task.state for id_ in ids]


async def until_state(engine: Engine, task_id: Any, wanted: State) -> None:
    async with asyncio.timeout(SOON_S):
        while await state(engine, task_id) is not wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def until_counts(engine: Engine, **wanted: int) -> None:
    """Until so many tasks of the default queue are in these states, and none in others but finished ones."""
    async with asyncio.timeout(SOON_S):
        while (await engine.tasks.counts()).get("default", {}) != {State(k): n for k, n in wanted.items()}:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
