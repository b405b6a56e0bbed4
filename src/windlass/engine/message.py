"""Messages that PostgreSQL carries, for workers that ask a server for them: received, kept, done with.

Who received a message names how often it had been delivered then, so that it is not his any more once it was delivered
again. Waiting costs no query: who puts a message tells those who wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

from windlass.engine.committer import Committer
from windlass.engine.hub import Hub
from windlass.store.store import Store
from windlass.store.wake import Wakes
from windlass.store.wakeup_table import Stored

__all__ = ["Messages", "Stored"]

LOOK_LEAST_S = 0.05  # a message that somebody else is just taking looks as if it were there


class Messages:
    """The messages of one database, as one engine sees them."""

    def __init__(self, store: Store, hub: Hub, stopwatch: Callable[[], float]) -> None:
        self._store, self._hub, self._stopwatch = store, hub, stopwatch
        self._acks: Committer[tuple[UUID, int], bool] = Committer(self._ack, patience_s=0.0)

    async def put(self, messages: Sequence[tuple[UUID, str, str, bytes]]) -> None:
        """Id, namespace, queue and body of each. One that is there already is the same."""
        async with self._store.begin() as tx:
            await tx.wakeups.put_messages(messages)
            await tx.wake(Wakes(letters={(namespace, queue) for _, namespace, queue, _ in messages}))

    async def receive(
        self, namespace: str, queue: str, *, limit: int, visibility_s: float, wait_s: float = 0.0
    ) -> list[Stored]:
        """Up to `limit`; waits up to `wait_s` for the first."""
        deadline_s = self._stopwatch() + wait_s
        while True:
            ticket = self._hub.ticket("message", namespace, queue)
            found: list[Stored] = []
            looks_again = False
            try:
                async with self._store.begin() as tx:
                    found = await tx.wakeups.receive_messages(namespace, queue, limit, visibility_s)
                    next_in_s = None if found else await tx.wakeups.next_message(namespace, queue)
                if next_in_s is not None:
                    next_in_s = max(next_in_s, LOOK_LEAST_S)
                left_s = deadline_s - self._stopwatch()
                if found or left_s <= 0:
                    return found
                woken = await ticket.wait(self._hub.timers, left_s if next_in_s is None else min(left_s, next_in_s))
                if not woken and self._stopwatch() >= deadline_s:
                    return []
                looks_again = True
            finally:
                self._hub.leave(ticket)
                # There may be more, or we were woken and go without having looked since. Who looks again tells nobody:
                # two who wait would wake each other for ever.
                if not looks_again and (found or ticket.woken):
                    self._hub.pass_on(ticket)

    async def namespace_of(self, id_: UUID) -> str | None:
        """None if there is no such message."""
        async with self._store.single() as tx:
            return await tx.wakeups.message_namespace(id_)

    async def extend(self, id_: UUID, deliveries: int, visibility_s: float) -> bool:
        """Whether it is still the caller's, who has it for so long from now on."""
        async with self._store.single() as tx:
            return await tx.wakeups.extend_message(id_, deliveries, visibility_s)

    async def ack(self, id_: UUID, deliveries: int) -> bool:
        """Done with. False if somebody else has it by now, or did that already."""
        return await self._acks.call((id_, deliveries))

    async def _ack(self, held: list[tuple[UUID, int]]) -> list[bool]:
        """Many at a time: each task ends with one."""
        async with self._store.single() as tx:
            gone = await tx.wakeups.ack_messages(held)
        return [id_ in gone for id_, _ in held]

    async def close(self) -> None:
        await self._acks.close()

    async def nack(self, id_: UUID, deliveries: int, delay_s: float) -> bool:
        """To be delivered again, after a while."""
        async with self._store.begin() as tx:
            queue = await tx.wakeups.nack_message(id_, deliveries, delay_s)
            if queue is not None:
                await tx.wake(Wakes(letters={queue}))
        return queue is not None
