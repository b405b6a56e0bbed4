"""Runs a pool of processes for each stdio queue, and follows changes of the queues.

A worker of the SDK runs each pool, so leases, fences, heartbeats, limits and draining are the worker's. A pool that
cannot be started claims nothing: its tasks wait, and the host tries again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Protocol

from windlass.contracts.stdio.delivery import Stdio
from windlass.contracts.stdio.pool import StdioPool
from windlass.contracts.stdio.protocol.environment import EnvironmentFailed
from windlass.core.delivery import type_of
from windlass.errors import Invalid, Unavailable
from windlass.net.backoff import Backoff
from windlass.sdk.worker.progress import ProgressSender, ProgressTarget
from windlass.sdk.worker.work_source import WorkSource
from windlass.sdk.worker.worker import Worker

log = logging.getLogger("windlass.stdio")

Key = tuple[str, str]  # namespace and queue
READ_S = 2.0  # between two reads of the queues
AGAIN_S, AGAIN_MAX_S = 1.0, 60.0


class Source(WorkSource, ProgressTarget, Protocol):
    """The part of an engine that a pool uses."""


class StdioHost:
    """All pools of this process, inside its `async with` block."""

    def __init__(
        self,
        source: Source,
        queues: Callable[[], Awaitable[dict[Key, Stdio]]],
        *,
        read_s: float = READ_S,
        drain_s: float | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """`drain_s` limits how long running tasks may take when the block ends. Programs get ordinary variables and
        secrets from `variables`, by default those of this process."""
        self._source, self._queues, self._read_s, self._drain_s = source, queues, read_s, drain_s
        self._variables = os.environ if variables is None else variables
        self._pools: dict[Key, tuple[Stdio, asyncio.Event, asyncio.Task[None]]] = {}
        self._stopping: set[asyncio.Task[None]] = set()
        self._loop: asyncio.Task[None] | None = None
        self._stop_now = asyncio.Event()

    async def __aenter__(self) -> StdioHost:
        await self.update()
        self._loop = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        """Finish running tasks; those that take too long, and all after an exception, are released."""
        if kind is not None:
            self._stop_now.set()
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
        for key in list(self._pools):
            self._stop(key)
        stopping = asyncio.gather(*self._stopping)
        await asyncio.wait({stopping}, timeout=self._drain_s)
        if not stopping.done():
            log.warning("scripts are still running after %s s: stopping them and releasing their tasks", self._drain_s)
        self._stop_now.set()
        await stopping

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(self._read_s)
            try:
                await self.update()
            except Exception:
                log.exception("cannot follow the queues, trying again")

    async def update(self) -> None:
        """Read the queues, and start, stop and replace pools accordingly."""
        try:
            wanted = await self._queues()
        except Unavailable as error:
            log.warning("cannot read the queues, trying again: %s", error)
            return
        for key in [key for key, (delivery, _, _) in self._pools.items() if wanted.get(key) != delivery]:
            self._stop(key)
        for key in wanted.keys() - self._pools.keys():
            stop = asyncio.Event()
            self._pools[key] = (wanted[key], stop, asyncio.create_task(self._run(key, wanted[key], stop)))

    def _stop(self, key: Key) -> None:
        """Claim nothing more; running tasks may finish."""
        _, stop, running = self._pools.pop(key)
        stop.set()
        self._stopping.add(running)
        running.add_done_callback(self._stopping.discard)

    async def _run(self, key: Key, delivery: Stdio, stop: asyncio.Event) -> None:
        """Run the pool of a queue until it is stopped. A pool that fails is started again; one whose worker was drained
        is not."""
        namespace, queue = key
        backoff = Backoff(AGAIN_S, AGAIN_MAX_S)
        progress = ProgressSender(self._source)
        try:
            while (pool := await self._open(key, delivery, stop, progress)) is not None:
                try:
                    return await self._work(key, delivery, stop, pool)
                except Exception:
                    log.exception("the pool of the queue %s in %s failed, starting it again", queue, namespace)
                finally:
                    await pool.close()
                await _wait(stop, backoff.next_s())
        finally:
            await progress.close()

    async def _work(self, key: Key, delivery: Stdio, stop: asyncio.Event, pool: StdioPool) -> None:
        namespace, queue = key
        worker = Worker(
            self._source, pool, queues=[queue], namespace=namespace, concurrency=pool.capacity,
            name=f"stdio-{queue}-{socket.gethostname()}-{os.getpid()}"[:200],
        )  # fmt: skip
        worker.lease_options = {"delivery": type_of(delivery)}
        working = asyncio.create_task(worker.run())
        stopping, stopping_now = asyncio.create_task(stop.wait()), asyncio.create_task(self._stop_now.wait())
        try:
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            worker.stop()
            await asyncio.wait({working, stopping_now}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                worker.stop_now()
            await working
        finally:
            stopping.cancel()
            stopping_now.cancel()

    async def _open(self, key: Key, delivery: Stdio, stop: asyncio.Event, progress: ProgressSender) -> StdioPool | None:
        """Retry with backoff until it opens; None if it was stopped before."""
        backoff = Backoff(AGAIN_S, AGAIN_MAX_S)
        while not stop.is_set():
            pool = StdioPool(delivery, progress, self._variables)
            try:
                await pool.open()
            except (OSError, ValueError, Invalid, EnvironmentFailed) as error:
                log.error("the programs of the queue %s in %s cannot be started: %s", key[1], key[0], error)  # noqa: TRY400
                await pool.close()
            else:
                return pool
            await _wait(stop, backoff.next_s())
        return None


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
