"""Workers in real processes that are killed, hang, are cut off, and come back: a task is never corrupted by it."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack
from urllib.parse import urlsplit
from uuid import UUID

import pytest
from tests.contracts.callback.process import SECRET, WorkerProcess, running
from tests.contracts.session.conftest import Wire

from windlass import Engine, State, Submission
from windlass.contracts.callback.delivery import Push
from windlass.contracts.callback.server.options import PushOptions
from windlass.core.delivery import RetryForm
from windlass.core.queue import QueueConfig
from windlass.serve import open_server
from windlass.store.store import Store
from windlass.store.tables.view import TaskView

pytestmark = pytest.mark.slow

PATIENCE_S = 40.0  # less than loops that nobody woke wait
TIMEOUT_S = 2.0


class Site:
    """A server, workers in processes of their own, and networks between them that can break."""

    def __init__(self, engine: Engine, pushes: Wire, callbacks: Wire, stack: ExitStack, pace: float) -> None:
        self.engine, self.pushes, self.callbacks, self._stack = engine, pushes, callbacks, stack
        self.pace, self._patience_s = pace, PATIENCE_S + (pace - 1.0) * 2 * TIMEOUT_S

    def start_worker(self) -> WorkerProcess:
        """From now on pushes go to this one."""
        worker = self._stack.enter_context(running("examples/callback_worker.py", "0"))
        self.pushes._target = urlsplit(worker.url).port or 0
        return worker

    async def submit(self, work_ms: int) -> UUID:
        payload = json.dumps({"work_ms": work_ms}).encode()
        return await self.engine.submit(Submission(kind="conformance", payload=payload, queue="remote"))

    async def until(self, task_id: UUID, *, attempt: int, taken_up: bool = True) -> TaskView:
        async with asyncio.timeout(self._patience_s):
            while True:
                view = await self.engine.tasks.get(task_id)
                if view.task.attempt >= attempt and (view.task.worker is not None or not taken_up):
                    return view
                await asyncio.sleep(0.02)

    async def ended(self, task_id: UUID) -> TaskView:
        return await self.engine.wait(task_id, self._patience_s)

    async def history(self, task_id: UUID) -> list[str]:
        return [str(entry.what) for entry in await self.engine.tasks.timeline(task_id)]


@pytest.fixture
async def site(database: str, pace: float) -> AsyncIterator[Site]:
    with ExitStack() as processes:
        async with AsyncExitStack() as stack:
            callbacks = await stack.enter_async_context(Wire(0))
            pushes = await stack.enter_async_context(Wire(0))
            engine = await stack.enter_async_context(Engine(Store(database)))
            options = PushOptions(callback_url=callbacks.url, loopback=True)
            url = await stack.enter_async_context(open_server(engine, http="127.0.0.1:0", api_key="k", push=options))
            callbacks._target = urlsplit(url).port or 0
            push = Push(
                url=f"{pushes.url}/", heartbeat_interval_ms=200, heartbeat_timeout_ms=int(TIMEOUT_S * pace * 1000),
                dispatch_timeout_ms=int(4000 * pace), cancel_grace_period_ms=int(1000 * pace),
            )  # fmt: skip
            await engine.queues.put("remote", delivery=push, retry=RetryForm(initial_ms=50), limits=QueueConfig())
            async with engine.store.begin() as tx:
                await tx.session.connection.execute("update windlass.queue set signing_secret = $1", SECRET)
            await engine.parts.outgoing.dispatcher.reload()
            yield Site(engine, pushes, callbacks, processes, pace)


async def test_a_worker_that_is_killed_loses_its_task_to_the_next(site: Site) -> None:
    first = site.start_worker()
    task_id = await site.submit(600_000)
    await site.until(task_id, attempt=1)
    quick = await site.submit(100)
    assert (await site.ended(quick)).task.state is State.SUCCEEDED

    first.process.send_signal(signal.SIGKILL)
    site.start_worker()
    await site.until(task_id, attempt=2)
    await site.engine.cancel(task_id, "enough")

    view = await site.ended(task_id)
    assert (view.task.state, view.task.attempt, view.task.losses) == (State.CANCELLED, 2, 1)
    assert "zombie" in await site.history(task_id)


async def test_a_worker_that_hangs_and_comes_back_late_changes_nothing(site: Site) -> None:
    first = site.start_worker()
    work_ms = int(3000 * site.pace)
    task_id = await site.submit(work_ms)
    await site.until(task_id, attempt=1)
    first.process.send_signal(signal.SIGSTOP)
    site.start_worker()
    try:
        await site.until(task_id, attempt=2)
    finally:
        first.process.send_signal(signal.SIGCONT)

    view = await site.ended(task_id)
    assert (view.task.state, view.task.attempt, view.task.result) == (
        State.SUCCEEDED,
        2,
        b'{"pieces": %d}' % (work_ms / 20),
    )
    assert (await site.history(task_id)).count("reported") == 1


async def test_a_worker_that_loses_its_network_for_a_while_goes_on(site: Site) -> None:
    site.start_worker()
    task_id = await site.submit(int(2500 * site.pace))
    await site.until(task_id, attempt=1)
    site.callbacks.accepting = False
    site.callbacks.cut()
    await asyncio.sleep(0.5)  # shorter than the timeout: the worker repeats what it could not say
    site.callbacks.accepting = True

    view = await site.ended(task_id)
    assert (view.task.state, view.task.attempt) == (State.SUCCEEDED, 1)


async def test_a_worker_that_loses_its_network_for_longer_than_it_may_is_refused_when_it_is_back(site: Site) -> None:
    site.start_worker()
    task_id = await site.submit(int(20_000 * site.pace))
    await site.until(task_id, attempt=1)
    site.callbacks.accepting = False
    site.callbacks.cut()
    await site.until(task_id, attempt=2, taken_up=False)
    site.callbacks.accepting = True
    await site.until(task_id, attempt=2)  # the same worker, which has given up the first attempt
    await site.engine.cancel(task_id)

    view = await site.ended(task_id)
    assert (view.task.state, view.task.attempt) == (State.CANCELLED, 2)
    assert (await site.history(task_id)).count("reported") == 1


async def test_a_worker_that_cannot_be_reached_gets_the_task_when_it_is_there(site: Site) -> None:
    site.pushes.accepting = False
    task_id = await site.submit(50)
    await site.until(task_id, attempt=1, taken_up=False)
    site.start_worker()
    site.pushes.accepting = True

    view = await site.ended(task_id)
    assert (view.task.state, view.task.attempt) == (State.SUCCEEDED, 1)
