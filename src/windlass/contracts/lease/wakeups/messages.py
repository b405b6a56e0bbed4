"""Messages that PostgreSQL carries, for workers that receive them from a server.

A worker names a message by its id and delivery count, so it loses the message once that is delivered again. Waiting
costs no query: a new message notifies the waiters.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from windlass.contracts.lease.wakeups.table import Stored, WakeupTable
from windlass.engine.commit.committer import Committer
from windlass.engine.engine import Engine
from windlass.store.notify import PendingNotifications
from windlass.store.transaction import Transaction

RECHECK_MIN_S = 0.05  # a message that another worker is just receiving still looks visible


async def put_messages(tx: Transaction, namespace: str, queue: str, messages: Sequence[tuple[UUID, bytes]]) -> None:
    """Store messages and notify the waiters of their queue. Each has an id and a body. An id that exists already is the
    same message: one that no worker has received yet is not stored twice."""
    await WakeupTable(tx.session).put_messages(namespace, queue, messages)
    await tx.wake(PendingNotifications(wakeup_messages={(namespace, queue)}))


class Messages:
    """The messages of one database, as one engine sees them."""

    def __init__(self, engine: Engine) -> None:
        parts = engine.parts
        self._store, self._notifications, self._stopwatch = parts.store, parts.notifications, parts.stopwatch
        self._acks: Committer[tuple[UUID, int], bool] = Committer(self._ack, retry_for_s=0.0)
        engine.on_close(self._acks.close)

    async def receive(
        self, namespace: str, queue: str, *, limit: int, visibility_s: float, wait_s: float = 0.0
    ) -> list[Stored]:
        """Up to `limit` messages. Waits up to `wait_s` for the first."""
        deadline_s = self._stopwatch() + wait_s
        while True:
            waiter = self._notifications.waiter("message", namespace, queue)
            found: list[Stored] = []
            rechecks = False
            try:
                async with self._store.begin() as tx:
                    found = await WakeupTable(tx.session).receive_messages(namespace, queue, limit, visibility_s)
                    next_in_s = None if found else await WakeupTable(tx.session).next_message(namespace, queue)
                if next_in_s is not None:
                    next_in_s = max(next_in_s, RECHECK_MIN_S)
                left_s = deadline_s - self._stopwatch()
                if found or left_s <= 0:
                    return found
                woken = await waiter.wait(
                    self._notifications.timers, left_s if next_in_s is None else min(left_s, next_in_s)
                )
                if not woken and self._stopwatch() >= deadline_s:
                    return []
                rechecks = True
            finally:
                self._notifications.leave(waiter)
                # Wake the next waiter if there may be more messages, or if we were woken and leave without a query. A
                # waiter that queries again wakes no other: two waiters would wake each other forever.
                if not rechecks and (found or waiter.woken):
                    self._notifications.pass_on(waiter)

    async def namespace_of(self, id_: UUID) -> str | None:
        """None if there is no such message."""
        async with self._store.single() as tx:
            return await WakeupTable(tx.session).message_namespace(id_)

    async def extend(self, id_: UUID, deliveries: int, visibility_s: float) -> bool:
        """Keep a message for `visibility_s` from now on. False if the caller has lost it."""
        async with self._store.single() as tx:
            return await WakeupTable(tx.session).extend_message(id_, deliveries, visibility_s)

    async def ack(self, id_: UUID, deliveries: int) -> bool:
        """Delete a message. False if it was delivered again or deleted already."""
        return await self._acks.call((id_, deliveries))

    async def _ack(self, held: list[tuple[UUID, int]]) -> list[bool]:
        """In batches, because each task ends with an ack."""
        async with self._store.single() as tx:
            gone = await WakeupTable(tx.session).ack_messages(held)
        return [id_ in gone for id_, _ in held]

    async def nack(self, id_: UUID, deliveries: int, delay_s: float) -> bool:
        """Deliver a message again after `delay_s`."""
        async with self._store.begin() as tx:
            queue = await WakeupTable(tx.session).nack_message(id_, deliveries, delay_s)
            if queue is not None:
                await tx.wake(PendingNotifications(wakeup_messages={queue}))
        return queue is not None
