"""Which queues are to be looked at: one when something may have become claimable in it, all when any was set otherwise.

What is found there, and what is done about it, is for those who look: see `dispatch` and `wakeup`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from windlass.core.delivery import QueueSettings
from windlass.core.error import Unavailable
from windlass.core.queue import QueueName


class DueQueues:
    """The queues that one engine looks after in one way, of all namespaces. `wake` is called when there is something
    to look at."""

    def __init__(self) -> None:
        self.queues: dict[QueueName, QueueSettings] = {}
        self.wake: Callable[[], None] = lambda: None
        self._due: set[QueueName] = set()
        self._stale = True
        self._learning = asyncio.Lock()

    def notice(self, queue: QueueName | None) -> None:
        """Something may have become claimable in a queue, or any (None) may have changed."""
        if queue is None:
            self._stale = True
        elif queue in self.queues:
            self._due.add(queue)
        else:
            return
        self.wake()

    @asynccontextmanager
    async def learning(self) -> AsyncIterator[None]:
        """While `queues` are read anew. What was not committed was not learnt; one after the other, so that what is
        known in the end is what was read last."""
        async with self._learning:
            self._stale = False
            try:
                yield
            except BaseException:
                self._stale = True
                self.wake()  # it has to be looked at again, and nobody else will say so
                raise
            self._due = set(self.queues)

    async def look(self, at: Callable[[str, str], Awaitable[int]]) -> int:
        """At all that are due, a batch each; returns how much was done. A queue that fails by itself holds up no other;
        while the database is away all are due again."""
        due, self._due = self._due, set()
        done, failed = 0, None
        for queue in sorted(due & self.queues.keys()):
            try:
                done += await at(*queue)
            except BaseException as error:
                self._due.add(queue)  # nothing was written down as looked at
                self.wake()
                if isinstance(error, Unavailable) or not isinstance(error, Exception):
                    self._due |= due
                    raise
                failed = failed or error
        if failed is not None:
            raise failed
        return done
