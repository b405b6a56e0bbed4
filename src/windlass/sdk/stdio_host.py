"""Runs a pool of processes for each queue that wants one, and follows what is set for queues.

A pool is run by a worker like any other: leases, fences, heartbeats, limits, draining are the worker's. A pool that
cannot be started claims nothing: its tasks wait, and it is tried again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from windlass.core.delivery import Stdio, type_of
from windlass.core.error import Invalid, Unavailable
from windlass.sdk.note import Notes, NoteTarget
from windlass.sdk.stdio_pool import StdioPool
from windlass.sdk.work_source import WorkSource
from windlass.sdk.worker import Worker
from windlass.stdio.environment import EnvironmentFailed

log = logging.getLogger("windlass.stdio")

Key = tuple[str, str]  # namespace and queue
LOOK_S = 2.0
AGAIN_S, AGAIN_MAX_S = 1.0, 60.0


class Source(WorkSource, NoteTarget, Protocol):
    """What a pool needs of an engine."""


class StdioHost:
    """All pools of this process, from `async with` on until the block ends."""

    def __init__(
        self,
        source: Source,
        queues: Callable[[], Awaitable[dict[Key, Stdio]]],
        *,
        look_s: float = LOOK_S,
        drain_s: float | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """`drain_s`: how long what runs may take when the block ends; None: as long as it takes. `variables`: where
        programs get their ordinary ones and their secrets from; None: the environment of this process."""
        self._source, self._queues, self._look_s, self._drain_s = source, queues, look_s, drain_s
        self._variables = os.environ if variables is None else variables
        self._pools: dict[Key, tuple[Stdio, asyncio.Event, asyncio.Task[None]]] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._loop: asyncio.Task[None] | None = None
        self._in_a_hurry = asyncio.Event()

    async def __aenter__(self) -> StdioHost:
        await self.look()
        self._loop = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        """What runs is finished; what takes too long, or is there after an exception, is given back."""
        if kind is not None:
            self._in_a_hurry.set()
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
        for key in list(self._pools):
            self._stop(key)
        leaving = asyncio.gather(*self._leaving)
        await asyncio.wait({leaving}, timeout=self._drain_s)
        if not leaving.done():
            log.warning("scripts are still running after %s s: they are stopped and given back", self._drain_s)
        self._in_a_hurry.set()
        await leaving

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(self._look_s)
            await self.look()

    async def look(self) -> None:
        """Start, stop and replace pools as queues are set now."""
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
        """Nothing more is claimed; what runs is finished in its own time."""
        _, stop, running = self._pools.pop(key)
        stop.set()
        self._leaving.add(running)
        running.add_done_callback(self._leaving.discard)

    async def _run(self, key: Key, delivery: Stdio, stop: asyncio.Event) -> None:
        notes = Notes(self._source)
        pool = await self._opened(key, delivery, stop, notes)
        if pool is None:
            return
        namespace, queue = key
        worker = Worker(
            self._source, pool, queues=[queue], namespace=namespace, concurrency=pool.capacity,
            name=f"stdio-{queue}-{socket.gethostname()}-{os.getpid()}"[:200],
        )  # fmt: skip
        worker.lease_options = {"delivery": type_of(delivery)}
        working = asyncio.create_task(worker.run())
        stopping, hurrying = asyncio.create_task(stop.wait()), asyncio.create_task(self._in_a_hurry.wait())
        try:
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            worker.stop()
            await asyncio.wait({working, hurrying}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                worker.stop_now()
            await working
        except Exception:
            log.exception("the pool of the queue %s in %s ended", queue, namespace)
        finally:
            stopping.cancel()
            hurrying.cancel()
            await pool.close()
            await notes.close()

    async def _opened(self, key: Key, delivery: Stdio, stop: asyncio.Event, notes: Notes) -> StdioPool | None:
        """Tried again, less and less often, until it works or nobody wants it any more."""
        again_s = AGAIN_S
        while not stop.is_set():
            pool = StdioPool(delivery, notes, self._variables)
            try:
                await pool.open()
            except (OSError, ValueError, Invalid, EnvironmentFailed) as error:
                log.error("the programs of the queue %s in %s cannot be started: %s", key[1], key[0], error)  # noqa: TRY400
                await pool.close()
            else:
                return pool
            waiting = asyncio.create_task(stop.wait())
            await asyncio.wait({waiting}, timeout=again_s)
            waiting.cancel()
            again_s = min(2 * again_s, AGAIN_MAX_S)
        return None
