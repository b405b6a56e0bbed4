"""Words for the tests of store and engine: tasks to submit, workers that claim, moments to wait for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from uuid import UUID

import asyncpg
import pytest

from windlass import Category, Claimed, Engine, Failure, Lease, State, Submission, Task

T = TypeVar("T")

only_direct = pytest.mark.parametrize("mode", ["direct"], indirect=True)
only_pooled = pytest.mark.parametrize("mode", ["pooled"], indirect=True)

SOON_S = 45.0  # enough on a machine on which others work, and less than the minute after which a worker looks again

CRASH = Failure(Category.USER_CODE, "it crashed", "ValueError")
FATAL = Failure(Category.USER_CODE, "it will never work", retryable=False)


def job(number: int = 0, **fields: Any) -> Submission:
    return Submission(**{"kind": "job", "payload": str(number).encode(), **fields})


def jobs(count: int, **fields: Any) -> list[Submission]:
    return [job(number, **fields) for number in range(count)]


async def worker(engine: Engine, *queues: str, **options: Any) -> Lease:
    """A worker's lease on these queues."""
    return await engine.open_lease("ada", list(queues) or ["default"], **options)


async def begin(engine: Engine, lease: Lease | None = None, **fields: Any) -> Claimed:
    """Submit a task and claim it."""
    task_id = await engine.submit(job(**fields))
    lease = lease or await worker(engine, fields.get("queue", "default"))
    [claimed] = await engine.claim(lease)
    assert claimed.task.id == task_id
    return claimed


async def state(engine: Engine, task_id: UUID) -> State:
    return (await engine.tasks.get(task_id)).task.state


async def task(engine: Engine, task_id: UUID) -> Task:
    return (await engine.tasks.get(task_id)).task


async def settle(engine: Engine) -> None:
    """Until nothing is left to tell anybody."""
    while await engine.loops.settle_tick():
        pass


async def work_off(engine: Engine, lease: Lease) -> list[UUID]:
    """Run all that can be run, in the order in which it was claimed."""
    order = []
    while True:
        await settle(engine)
        claimed = await engine.claim(lease, 1000)
        if not claimed:
            return order
        order += [one.task.id for one in claimed]
        await asyncio.gather(*map(engine.complete, claimed))


async def soon(awaitable: Awaitable[T], seconds: float = SOON_S) -> T:
    """Its result; a test that waits for what never comes fails here."""
    return await asyncio.wait_for(awaitable, seconds)


async def until(condition: Callable[[], bool], seconds: float = SOON_S) -> None:
    """Wait for a moment that only a look can tell."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def waiting(engine: Engine, queue: str = "default", namespace: str = "default") -> int:
    """How many claims have looked, found nothing, and wait."""
    return len(list(engine.parts.notifications.idle(namespace, queue)))


@asynccontextmanager
async def poll(engine: Engine, lease: Lease, limit: int = 1, wait_s: float = 60.0) -> AsyncIterator[asyncio.Task[Any]]:
    """A claim that waits, from the moment on at which it does."""
    before = waiting(engine, lease.queues[0])
    polling = asyncio.create_task(engine.claim(lease, limit, wait_s=wait_s))
    await until(lambda: waiting(engine, lease.queues[0]) > before or polling.done())
    assert not polling.done(), polling.result()
    try:
        yield polling
    finally:
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)


@asynccontextmanager
async def held(other_connection: asyncpg.Connection, *task_ids: UUID) -> AsyncIterator[None]:
    """Locks the rows of these tasks in a transaction of another connection."""
    async with other_connection.transaction():
        await other_connection.fetch("select from windlass.task where id = any($1::uuid[]) for update", task_ids)
        yield


async def waits_for(other_connection: asyncpg.Connection, sessions: int = 1) -> None:
    """Until so many other sessions wait for a lock of this one."""
    # Not pg_stat_activity, which stands still within a transaction.
    query = "select count(distinct pid) from pg_locks where not granted and $1 = any(pg_blocking_pids(pid))"
    async with asyncio.timeout(SOON_S):
        while await other_connection.fetchval(query, other_connection.get_server_pid()) < sessions:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
