"""The dirty set of queues: a queue is marked when something may have become claimable in it, all when any was
reconfigured. The dispatcher and the planner of wake-ups in the lease room serve marked queues.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from windlass.core.delivery import QueueSettings
from windlass.core.queue import QueueName
from windlass.errors import Unavailable


class DirtyQueues:
    """The queues that one engine serves in one way, of all namespaces. `wake` is called when one was marked."""

    def __init__(self) -> None:
        self.queues: dict[QueueName, QueueSettings] = {}
        self.wake: Callable[[], None] = lambda: None
        self._dirty: set[QueueName] = set()
        self._stale = True
        self._reload_lock = asyncio.Lock()

    def mark(self, queue: QueueName | None) -> None:
        """Something may have become claimable in a queue, or any (None) may have been reconfigured."""
        if queue is None:
            self._stale = True
        elif queue in self.queues:
            self._dirty.add(queue)
        else:
            return
        self.wake()

    @asynccontextmanager
    async def reloading(self) -> AsyncIterator[None]:
        """A context for reading all `queues`. Reads run one after the other, so that the last one counts; a failed read
        leaves the queues stale."""
        async with self._reload_lock:
            self._stale = False
            try:
                yield
            except BaseException:
                self._stale = True
                self.wake()  # nothing else will announce that they have to be read again
                raise
            self._dirty = set(self.queues)

    async def serve(self, serve_one: Callable[[str, str], Awaitable[int]]) -> int:
        """Serve a batch of each marked queue; returns the sum of the results. A queue that fails does not hold up
        others; while the database is away all stay marked."""
        dirty, self._dirty = self._dirty, set()
        done, failed = 0, None
        for queue in sorted(dirty & self.queues.keys()):
            try:
                done += await serve_one(*queue)
            except BaseException as error:
                self._dirty.add(queue)  # it was not served
                self.wake()
                if isinstance(error, Unavailable) or not isinstance(error, Exception):
                    self._dirty |= dirty
                    raise
                failed = failed or error
        if failed is not None:
            raise failed
        return done
