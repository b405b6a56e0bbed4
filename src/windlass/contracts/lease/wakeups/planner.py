"""Wake-ups: sends a message with the id of each claimable task to the workers of its queue, which claim by id.

Claimable tasks are read from the database, not remembered: every change that makes a task claimable notifies its queue.
One transaction records that a task was announced, and writes its message: into PostgreSQL, or for another carrier as an
outbox effect that sends it. A server that stops before the commit leaves a task that the next scan finds. A queue has a
limited number of messages in flight, and none for a task whose claim would be refused. A task that no worker claims is
announced again, less and less often, until a worker reports that it waited and received nothing: then the messages are
taken for lost, and sent again.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

import msgspec

from windlass.contracts.lease.delivery import Wakeup
from windlass.contracts.lease.rules import with_started
from windlass.contracts.lease.wakeups import rules
from windlass.contracts.lease.wakeups.addresses import POSTGRES
from windlass.contracts.lease.wakeups.carriers.drivers import Sender
from windlass.contracts.lease.wakeups.messages import put_messages
from windlass.contracts.lease.wakeups.rules import WAKEUP, WakeupMessage
from windlass.contracts.lease.wakeups.table import DeadMessage, Unannounced, WakeupTable
from windlass.contracts.lease.wire.wakeup import message_of
from windlass.core.delivery import QueueSettings, type_of
from windlass.core.fairness import FIRST_LANE, Lane, fitting, share
from windlass.core.position import Position
from windlass.core.queue import QueueName, admit
from windlass.core.states import Effect
from windlass.core.validation import clean_text
from windlass.datasets.tables.sink import SinkTable
from windlass.engine.commit.committer import Committer
from windlass.engine.engine import Engine
from windlass.engine.loops.runner import Loop
from windlass.engine.notifications import Topic
from windlass.engine.send.dirty_queues import DirtyQueues
from windlass.engine.send.outbox import NotNow
from windlass.errors import InvalidState, NotFound, Unavailable
from windlass.store.notify import PendingNotifications
from windlass.store.transaction import Transaction

__all__ = ["DeadMessage", "Wakeups"]

log = logging.getLogger("windlass.wakeup")

BATCH, IN_FLIGHT_MAX = 200, 1000
LANES_MAX = 256
FULL_AGAIN_S, FULL_AGAIN_MAX_S, ALL_AGAIN_S = 0.25, 5.0, 60.0
ELSEWHERE_AGAIN_S = 2.0
RETRY_FIRST_S, RETRY_MAX_S = 1.0, 30.0
IDLE_EVERY_S, IDLE_QUEUES_MAX = 5.0, 10_000
KEPT_S = 14 * 86400.0  # unreceived messages in PostgreSQL; SQS keeps its messages as long


class Wakeups(DirtyQueues):
    """Sends the wake-ups of one engine, in all namespaces."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        parts = engine.parts
        self._store, self._randomness, self._notifications = parts.store, parts.randomness, parts.notifications
        self._effects, self._stopwatch = parts.effects, parts.stopwatch
        self._elsewhere: set[QueueName] = set()
        self._senders: Mapping[str, Sender] = {}
        self._lines: dict[tuple[str, str], _Line] = {}
        self._idle_until_s: dict[QueueName, float] = {}
        self._after: dict[QueueName, Lane] = {}
        self._full_s: dict[QueueName, float] = {}
        self._all_at_s = 0.0
        self._loop: Loop | None = None
        self._notifications.subscribe(Topic.QUEUES, self.mark)
        engine.on_close(self.close)

    # ----------------------------------------------------------------------------------------- life

    @asynccontextmanager
    async def carrying(self, senders: Mapping[str, Sender], *, loop: bool = True) -> AsyncIterator[None]:
        """Send wake-ups for the queues of PostgreSQL and of these carriers until the block ends. Without `loop`, the
        caller calls `tick`."""
        self._senders = senders
        self._effects[WAKEUP] = self.send
        self._stale = True
        if loop:
            self._loop = Loop("wakeups", self.tick, every_s=ALL_AGAIN_S)
            self.wake = self._loop.wake
            self._loop.start()
        try:
            yield
        finally:
            await self.close()
            self._effects.pop(WAKEUP, None)
            for line in self._lines.values():
                await line.close()
            self._lines, self._senders = {}, {}

    async def close(self) -> None:
        loop, self._loop, self.wake = self._loop, None, lambda: None
        if loop is not None:
            await loop.stop()

    # ----------------------------------------------------------------------------------------- which messages

    async def tick(self) -> int:
        """Announce one batch of each queue. Returns the number of tasks announced."""
        if self._stale:
            await self._load_queues()
        if self._stopwatch() >= self._all_at_s:  # scan all queues, in case a notification was lost
            self._dirty |= self.queues.keys()
            self._all_at_s = self._stopwatch() + ALL_AGAIN_S
            async with self._store.single() as tx:
                await WakeupTable(tx.session).forget_messages(KEPT_S)
        return await self.serve(self._announce)

    async def _load_queues(self) -> None:
        """Read which queues send wake-ups, and which of their carriers this server has."""
        async with self.reloading():
            async with self._store.begin() as tx:
                known = await tx.queues.queues_delivered([type_of(Wakeup)])
                moved = [key for key, settings in known.items() if _moved(self.queues.get(key), settings)]
                wakeups = WakeupTable(tx.session)
                for key in sorted(moved):  # the lock that a scan takes, always in this order: no deadlock
                    await wakeups.lock_wakeups(*key)
                if moved:
                    await wakeups.resend_wakeups(moved)
            carriers = {POSTGRES, *self._senders}
            self.queues = {k: settings for k, settings in known.items() if _wakeup(settings).carrier in carriers}
            self._elsewhere = known.keys() - self.queues.keys()

    async def _announce(self, namespace: str, queue: str) -> int:
        wakeup = _wakeup(self.queues[namespace, queue])
        async with self._store.begin() as tx:
            found, next_in_s = await self._select_tasks(tx, namespace, queue)
            if found:
                await _write_messages(tx, namespace, queue, found, wakeup)
        if found:
            self._dirty.add((namespace, queue))  # there may be more
        if next_in_s is not None:
            self._notifications.remind(namespace, queue, next_in_s, self._stopwatch())
        return len(found)

    async def _select_tasks(
        self, tx: Transaction, namespace: str, queue: str
    ) -> tuple[list[Unannounced], float | None]:
        """The tasks to announce now, and after how many seconds to scan again without a notification."""
        wakeups = WakeupTable(tx.session)
        await wakeups.lock_wakeups(namespace, queue)
        await wakeups.forget_wakeups(namespace, queue)
        announced = await wakeups.announced_tasks(namespace, queue)
        config = await tx.queues.get_queue(namespace, queue)
        usage = await tx.queues.queue_usage(namespace, queue, config)
        now = await tx.now()
        key, room = (namespace, queue), min(BATCH, IN_FLIGHT_MAX - announced.running)
        if room <= 0:  # more messages would only wait at the carrier
            full_s = self._full_s.get(key, FULL_AGAIN_S)
            self._full_s[key] = min(2 * full_s, FULL_AGAIN_MAX_S)
            return [], full_s
        self._full_s.pop(key, None)
        admission = admit(config, with_started(usage, announced, now), room, now)
        while True:
            after = self._after.get(key, FIRST_LANE)
            lanes = await wakeups.ready_lanes(namespace, queue, after, LANES_MAX)
            self._after[key] = lanes[-1] if len(lanes) == LANES_MAX else FIRST_LANE
            picks = share(lanes, admission.total, admission, "") if admission.total else []
            if picks:  # of their tasks, announce those that could be claimed if all were claimed at once
                due = await wakeups.unannounced_tasks(namespace, queue, picks, admission.total, admission.full_kinds)
                fit = [due[position] for position in fitting([one.lane for one in due], picks, admission)]
                if fit:
                    return fit, None
            if self._after[key] == FIRST_LANE:
                at = await wakeups.next_wakeup(namespace, queue, lanes)
                soonest = min((at for at in (at, admission.next_at) if at is not None), default=None)
                return [], None if soonest is None else max(0.0, (soonest - now).total_seconds())

    # ----------------------------------------------------------------------------------------- sending

    async def send(self, effect: Effect) -> None:
        """Hand one message to its carrier: the effect `wakeup` of the outbox."""
        key = effect.namespace, str(effect.body["queue"])
        if key not in self.queues:
            await self._load_queues()
        settings = self.queues.get(key)
        if key in self._elsewhere:
            raise NotNow(f"this server is not set up for the carrier of {key[1]}; another may be", ELSEWHERE_AGAIN_S)
        if settings is None:
            return  # the queue no longer sends wake-ups
        wakeup = _wakeup(settings)
        if wakeup.carrier == POSTGRES:  # the queue had another carrier when this effect was written
            async with self._store.begin() as tx:
                await put_messages(tx, *key, [_message(effect.task_id, effect.attempt)])
            return
        message = WakeupMessage(effect.id, *key, wakeup, effect.task_id)
        line = wakeup.carrier, message.address  # one line each: an unreachable address delays no other
        if line not in self._lines:
            self._lines[line] = _Line(wakeup.carrier, self._senders[wakeup.carrier], self._stopwatch)
        await self._lines[line].send(message)

    async def refused(self, task_id: UUID) -> None:
        """A claim came too early and its message is used up: send another one as soon as the task is claimable."""
        async with self._store.single() as tx:
            queue = await WakeupTable(tx.session).resend_wakeup_soon(task_id, rules.REFUSED_AGAIN_S)
            if queue is not None:
                tx.wakes.queues.add(queue)

    async def report_idle(self, namespace: str, queue: str) -> None:
        """A worker waited for messages of a queue and received none. Messages that were sent well before that are lost,
        or stuck with another worker: send them again."""
        key, now_s = (namespace, queue), self._stopwatch()
        if now_s < self._idle_until_s.get(key, now_s):
            return  # another worker has just reported it
        if len(self._idle_until_s) >= IDLE_QUEUES_MAX:  # callers choose the names: they must not fill our memory
            self._idle_until_s.clear()
        self._idle_until_s[key] = now_s + IDLE_EVERY_S
        async with self._store.begin() as tx:
            wakeups = WakeupTable(tx.session)
            await wakeups.lock_wakeups(namespace, queue)
            if await wakeups.resend_lost(namespace, queue, rules.LOST_AFTER_S, rules.LOST_AFTER_MAX_S):
                await tx.wake(PendingNotifications(queues={key}))

    # ----------------------------------------------------------------------------------------- dead letters

    async def dead_letter(
        self, namespace: str, queue: str, *, message_id: str, task_id: UUID | None, body: bytes, deliveries: int,
        reason: str,
    ) -> None:  # fmt: skip
        """Keep a message that no worker can handle. No other one is sent for its task until `replay`."""
        async with self._store.begin() as tx:
            await WakeupTable(tx.session).dead_letter_message(
                self._randomness.new_id(), namespace, queue, message_id, task_id, body, deliveries,
                clean_text("reason", reason, 2000),
            )  # fmt: skip
        log.warning("dead letter: a message of %r in %r: %.200r", queue, namespace, reason)

    async def dead_messages(
        self, namespace: str = "default", *, queue: str | None = None, after: Position | None = None, limit: int = 50
    ) -> list[DeadMessage]:
        """Dead letters, newest first."""
        async with self._store.single() as tx:
            return await WakeupTable(tx.session).list_dead_messages(namespace, queue, after, limit)

    async def dead_message(self, id_: UUID) -> DeadMessage:
        async with self._store.single() as tx:
            found = await WakeupTable(tx.session).get_dead_message(id_)
        if found is None:
            raise NotFound(f"there is no dead letter {id_}")
        return found

    async def replay(self, dead: DeadMessage) -> DeadMessage:
        """Send a message for its task again, if the task still waits, or that of a batch to the sinks, if it is not
        written. Returns the deleted dead letter."""
        if dead.task_id is None:
            return await self._replay_batch(dead)
        async with self._store.begin() as tx:
            wakeups = WakeupTable(tx.session)
            await wakeups.delete_dead_message(dead.id)
            woken = await wakeups.revive_wakeup(dead.task_id)
            if woken is not None:
                tx.wakes.queues.add(woken)
        return dead

    async def _replay_batch(self, dead: DeadMessage) -> DeadMessage:
        async with self._store.begin() as tx:
            batch = await SinkTable(tx.session).revive(dead.namespace, dead.queue, dead.message_id)
            if batch is None:
                raise InvalidState("this message names neither a task nor a batch that waits: discard it")
            await WakeupTable(tx.session).delete_dead_message(dead.id)
            await put_messages(tx, dead.namespace, dead.queue, [(batch.id, msgspec.json.encode(batch.message))])
        return dead

    async def discard(self, dead: DeadMessage) -> DeadMessage:
        """Delete a dead letter, unless a task still waits for its message."""
        async with self._store.begin() as tx:
            wakeups = WakeupTable(tx.session)
            if dead.task_id is not None and await wakeups.get_wakeup(dead.task_id) is not None:
                raise InvalidState("its task waits for a wake-up: replay it, or cancel the task", task_id=dead.task_id)
            if not await wakeups.delete_dead_message(dead.id):
                raise NotFound(f"there is no dead letter {dead.id}")
        return dead


class _Line:
    """Sends messages to one address in batches. After a failure it refuses messages for a while without trying."""

    def __init__(self, name: str, sender: Sender, stopwatch: Callable[[], float]) -> None:
        self._name, self._sender, self._stopwatch = name, sender, stopwatch
        self._batches: Committer[WakeupMessage, None] = Committer(self._send, batch_max=BATCH, retry_for_s=0.0)
        self._retry_at_s, self._retry_s = 0.0, 0.0

    async def send(self, message: WakeupMessage) -> None:
        left_s = self._retry_at_s - self._stopwatch()
        if left_s > 0:
            raise NotNow(f"{self._name} did not answer just now", left_s)
        try:
            await self._batches.call(message)
        except Unavailable as error:
            raise NotNow(f"{self._name}: {error}", self._retry_s or RETRY_FIRST_S) from None

    async def _send(self, messages: list[WakeupMessage]) -> list[None]:
        try:
            await self._sender.send(messages)
        except Unavailable:
            self._retry_s = min(RETRY_MAX_S, 2 * self._retry_s or RETRY_FIRST_S)
            self._retry_at_s = self._stopwatch() + self._retry_s
            raise
        self._retry_s = 0.0
        return [None] * len(messages)

    async def close(self) -> None:
        await self._batches.close()


async def _write_messages(
    tx: Transaction, namespace: str, queue: str, found: Sequence[Unannounced], wakeup: Wakeup
) -> None:
    """Record that these tasks are announced, and write their messages, or the effects that send them."""
    sent = [(one.id, one.attempt, one.times + 1) for one in found]
    again = [(id_, attempt, times, rules.resend_after_s(wakeup, times)) for id_, attempt, times in sent]
    await WakeupTable(tx.session).put_wakeups(namespace, queue, again)
    if wakeup.carrier == POSTGRES:
        await put_messages(tx, namespace, queue, [_message(one.id, one.attempt) for one in found])
        return
    await tx.outbox.insert_outbox([rules.wake_up(namespace, queue, *one) for one in sent])
    await tx.wake(PendingNotifications(effects=True))


def _message(task_id: UUID, attempt: int) -> tuple[UUID, bytes]:
    """The id and the body of a message in PostgreSQL."""
    return rules.message_id(task_id, attempt), message_of(task_id)


def _moved(before: QueueSettings | None, after: QueueSettings) -> bool:
    """Whether the messages of a queue went to another carrier or address before."""
    if before is None:
        return False
    old, new = _wakeup(before), _wakeup(after)
    return (old.carrier, old.address) != (new.carrier, new.address)


def _wakeup(settings: QueueSettings) -> Wakeup:
    assert isinstance(settings.delivery, Wakeup), settings
    return settings.delivery
