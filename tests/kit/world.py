"""What the tests of every contract share: an engine on a fresh database whose time stands still, and looks into it.

Each room extends `World` by its queue, its server, its clients and the handle by which its tests name a task.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar
from uuid import UUID

import httpx

from windlass import Engine, Submission, Task
from windlass.store.store import Store
from windlass.testing.clock import VirtualClock

ROOT = "root-key-of-this-test"
KEY = "wl_a-key-for-tests"

Handle = TypeVar("Handle")


def by_hand(clock: VirtualClock) -> dict[str, Any]:
    """The options of an engine that does nothing by itself. It hardly polls, so that no lost wake-up is hidden."""
    return {"timers": clock, "stopwatch": clock.stopwatch, "listen": False, "poll_s": 3600.0}


@asynccontextmanager
async def open_still(database: str, clock: VirtualClock, **options: Any) -> AsyncIterator[Engine]:
    """An engine whose loops do not run: a test calls its ticks, and moves `clock`. `ROOT` is its first key."""
    engine = Engine(Store(database), **{**by_hand(clock), **options})
    engine.keys.accept_root(ROOT)
    yield engine
    await engine.close()


@dataclass
class World(Generic[Handle]):
    """An engine that stands still, with the operations that the tests of all contracts use."""

    engine: Engine
    clock: VirtualClock

    SUBMISSION: ClassVar[dict[str, Any]] = {"kind": "job", "payload": b"{}"}
    # Everything that a refused call must not have changed.
    TABLES: ClassVar[tuple[str, ...]] = ("task", "heartbeat", "history", "outbox")

    def task_id(self, handle: Handle) -> UUID:
        """The id of the task that a test names by this handle."""
        assert isinstance(handle, UUID)
        return handle

    async def submit(self, **fields: Any) -> UUID:
        return await self.engine.submit(Submission(**{**self.SUBMISSION, **fields}))

    async def send_out(self) -> None:
        """Dispatches until nothing is left, then sends everything once."""
        while await self.engine.parts.outgoing.dispatch_tick():
            pass
        await self.engine.loops.effects_tick()

    async def task(self, handle: Handle) -> Task:
        return (await self.engine.tasks.get(self.task_id(handle))).task

    async def history(self, handle: Handle) -> list[str]:
        return [str(entry.what) for entry in await self.engine.tasks.timeline(self.task_id(handle))]

    async def entries(self, handle: Handle, what: str) -> list[Any]:
        return [entry for entry in await self.engine.tasks.timeline(self.task_id(handle)) if entry.what == what]

    async def rows(self, *tables: str) -> list[list[tuple[Any, ...]]]:
        async with self.engine.store.begin() as tx:
            connection = tx.session.connection
            return [
                [tuple(row) for row in await connection.fetch(f"select * from windlass.{table} order by 1, 2")]
                for table in tables or self.TABLES
            ]


def ok(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, (answer.status_code, answer.text)
    body: dict[str, Any] = answer.json()
    return body


def refused(answer: httpx.Response, status: int, error: str) -> dict[str, Any]:
    """The body of a refusal, which must be this one."""
    body: dict[str, Any] = answer.json()
    assert (answer.status_code, body["error"]) == (status, error), (answer.status_code, body)
    assert body["message"]
    return body
