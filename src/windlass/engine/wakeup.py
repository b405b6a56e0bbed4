"""Wake-ups: sends a message with the id of each task that could be claimed, to workers that claim by it.

What could be claimed is looked up, not remembered: whoever made it so, by whatever way, has announced its queue, and a
look that found a task writes down, in one transaction, that it was spoken of and the effect that sends the message. A
server that stops between the two leaves a task that the next look finds. Only so many messages of a queue are under way
at a time, and none for what a claim would be refused; a task that nobody claims is spoken of again, ever more seldom,
unless somebody waits for messages and gets none: then what was sent is lost, and is sent again.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Protocol
from uuid import UUID

from windlass.core import wakeup as rules
from windlass.core.check import check_count, check_name, check_type, clean_text
from windlass.core.delivery import QueueSettings, Wakeup, type_of
from windlass.core.error import InvalidState, NotFound, Unavailable
from windlass.core.fairness import FIRST_LANE, Lane, fitting, share
from windlass.core.position import Position, check_position
from windlass.core.queue import Admission, QueueName, admit
from windlass.core.transition import Effect
from windlass.core.wakeup import WAKEUP, Letter
from windlass.engine.chance import Chance
from windlass.engine.committer import Committer
from windlass.engine.due import DueQueues
from windlass.engine.hub import Hub
from windlass.engine.outbox import EffectHandler, NotNow, Undeliverable
from windlass.engine.runner import Loop
from windlass.store.store import Store
from windlass.store.tx import Tx
from windlass.store.wake import Wakes
from windlass.store.wakeup_table import DeadMessage, Unannounced, WakeupState

__all__ = ["DeadMessage", "Sender", "WakeupState", "Wakeups"]

log = logging.getLogger("windlass.wakeup")

BATCH, UNDER_WAY_MAX = 200, 1000
LANES_MAX = 256
FULL_AGAIN_S, FULL_AGAIN_MAX_S, ALL_AGAIN_S = 0.25, 5.0, 60.0
ELSEWHERE_AGAIN_S = 2.0
AWAY_FIRST_S, AWAY_MAX_S = 1.0, 30.0
LISTED_MAX = 1000
UNHEARD_EVERY_S, UNHEARD_QUEUES_MAX = 5.0, 10_000
KEPT_S = 14 * 86400.0  # messages of PostgreSQL that nobody wants; other carriers keep theirs as long


class Sender(Protocol):
    """The side of a carrier that the engine sees. A letter that was sent twice does no harm."""

    async def send(self, letters: Sequence[Letter]) -> None:
        """Returns when the carrier has them all. Raises Unavailable where it does not answer, Undeliverable where
        asking again will not help."""
        ...


class Wakeups(DueQueues):
    """What one engine sends wake-ups for, in all namespaces. `effects` are the handlers of its outbox."""

    def __init__(
        self,
        store: Store,
        chance: Chance,
        hub: Hub,
        effects: dict[str, EffectHandler],
        stopwatch: Callable[[], float],
    ) -> None:
        super().__init__()
        self._store, self._chance, self._hub, self._effects = store, chance, hub, effects
        self._stopwatch = stopwatch
        self._elsewhere: set[QueueName] = set()
        self._senders: Mapping[str, Sender] = {}
        self._lines: dict[tuple[str, str], _Line] = {}
        self._unheard_s: dict[QueueName, float] = {}
        self._after: dict[QueueName, Lane] = {}
        self._full_s: dict[QueueName, float] = {}
        self._all_at_s = 0.0
        self._loop: Loop | None = None
        others = hub.on_queue

        def notice(queue: QueueName | None) -> None:
            others(queue)
            self.notice(queue)

        hub.on_queue = notice

    # ----------------------------------------------------------------------------------------- life

    @asynccontextmanager
    async def carrying(self, senders: Mapping[str, Sender], *, loop: bool = True) -> AsyncIterator[None]:
        """Until the block ends, send wake-ups for the queues of these carriers. Without the `loop`, `tick` does."""
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
        """Everything that messages can be sent for now, a batch a queue; returns how many it were."""
        if self._stale:
            await self._learn()
        if self._stopwatch() >= self._all_at_s:  # should anything ever not be announced
            self._due |= self.queues.keys()
            self._all_at_s = self._stopwatch() + ALL_AGAIN_S
            async with self._store.single() as tx:
                await tx.wakeups.forget_messages(KEPT_S)
        return await self.look(self._announce)

    async def _learn(self) -> None:
        """Which queues send wake-ups, as far as we have their carriers."""
        async with self.learning():
            async with self._store.begin() as tx:
                known = await tx.queues.queues_delivered([type_of(Wakeup)])
                moved = [key for key, settings in known.items() if _moved(self.queues.get(key), settings)]
                for key in sorted(moved):  # as one who looks at them does, so that nobody waits in a ring
                    await tx.wakeups.lock_wakeups(*key)
                if moved:
                    await tx.wakeups.hasten_wakeups(moved)
            self.queues = {k: settings for k, settings in known.items() if _wakeup(settings).carrier in self._senders}
            self._elsewhere = known.keys() - self.queues.keys()

    async def _announce(self, namespace: str, queue: str) -> int:
        wakeup = _wakeup(self.queues[namespace, queue])
        async with self._store.begin() as tx:
            found, next_in_s = await self._look(tx, namespace, queue)
            if found:
                await _write(tx, namespace, queue, found, wakeup)
        if found:
            self._due.add((namespace, queue))  # there may be more
        if next_in_s is not None:
            self._hub.remind(namespace, queue, next_in_s, self._stopwatch())
        return len(found)

    async def _look(self, tx: Tx, namespace: str, queue: str) -> tuple[list[Unannounced], float | None]:
        """What to send messages for now, and after how long to look again if nothing is heard."""
        await tx.wakeups.lock_wakeups(namespace, queue)
        await tx.wakeups.forget_wakeups(namespace, queue)
        announced = await tx.wakeups.announced_tasks(namespace, queue)
        config = await tx.queues.get_queue(namespace, queue)
        usage = await tx.queues.queue_usage(namespace, queue, config)
        now = await tx.now()
        key, room = (namespace, queue), min(BATCH, UNDER_WAY_MAX - announced.running)
        if room <= 0:  # more would only wait elsewhere
            full_s = self._full_s.get(key, FULL_AGAIN_S)
            self._full_s[key] = min(2 * full_s, FULL_AGAIN_MAX_S)
            return [], full_s
        self._full_s.pop(key, None)
        admission = admit(config, rules.with_announced(usage, announced, now), room, now)
        while True:
            after = self._after.get(key, FIRST_LANE)
            lanes = await tx.wakeups.ready_lanes(namespace, queue, after, LANES_MAX)
            self._after[key] = lanes[-1] if len(lanes) == LANES_MAX else FIRST_LANE
            found = await _fitting(tx, namespace, queue, lanes, admission)
            if found:
                return found, None
            if self._after[key] == FIRST_LANE:
                at = await tx.wakeups.next_wakeup(namespace, queue, lanes)
                soonest = min((at for at in (at, admission.next_at) if at is not None), default=None)
                return [], None if soonest is None else max(0.0, (soonest - now).total_seconds())

    # ----------------------------------------------------------------------------------------- sending

    async def send(self, effect: Effect) -> None:
        """Carry one message to its carrier: the effect `wakeup` of the outbox."""
        key = effect.namespace, str(effect.body["queue"])
        if key not in self.queues:
            await self._learn()
        settings = self.queues.get(key)
        if key in self._elsewhere:
            raise NotNow(f"this server does not reach the carrier of {key[1]}; another may", ELSEWHERE_AGAIN_S)
        if settings is None:
            return  # its workers are not woken by messages any more
        wakeup = _wakeup(settings)
        id_ = rules.message_id(effect.task_id, effect.attempt)
        letter = Letter(id_, effect.id, *key, wakeup, effect.task_id)
        place = wakeup.carrier, letter.address  # one that cannot be reached makes no other wait
        if place not in self._lines:
            self._lines[place] = _Line(wakeup.carrier, self._senders[wakeup.carrier], self._stopwatch)
        await self._lines[place].send(letter)

    async def refused(self, task_id: UUID) -> None:
        """A claim came before its time, and its message is gone: another one as soon as it is time."""
        async with self._store.single() as tx:
            queue = await tx.wakeups.hasten_wakeup(task_id, rules.REFUSED_AGAIN_S)
            if queue is not None:
                tx.wakes.queues.add(queue)

    async def unheard(self, namespace: str, queue: str) -> None:
        """Somebody waited for messages of a queue, and none came. Those that were sent well before that are lost, or
        with somebody who does nothing about them: they are sent again."""
        key, now_s = (namespace, queue), self._stopwatch()
        if now_s < self._unheard_s.get(key, now_s):
            return  # somebody else has just said so
        if len(self._unheard_s) >= UNHEARD_QUEUES_MAX:  # names are the caller's: they must not fill our memory
            self._unheard_s.clear()
        self._unheard_s[key] = now_s + UNHEARD_EVERY_S
        async with self._store.begin() as tx:
            await tx.wakeups.lock_wakeups(namespace, queue)
            if await tx.wakeups.hasten_unheard(namespace, queue, rules.UNHEARD_S, rules.UNHEARD_MAX_S):
                await tx.wake(Wakes(queues={key}))

    async def state(self, task_id: UUID) -> WakeupState | None:
        """What is known of the messages for a task that waits."""
        check_type("task_id", task_id, UUID)
        async with self._store.single() as tx:
            return await tx.wakeups.get_wakeup(task_id)

    # ----------------------------------------------------------------------------------------- dead letters

    async def bury(
        self, namespace: str, queue: str, *, message_id: str, task_id: UUID | None, body: bytes, deliveries: int,
        reason: str,
    ) -> None:  # fmt: skip
        """Keep a message that nobody can do anything with. No other is sent for its task until `replay`."""
        check_name("namespace", namespace)
        check_name("queue", queue)
        async with self._store.begin() as tx:
            await tx.wakeups.bury_message(
                self._chance.new_id(), namespace, queue, message_id, task_id, body, deliveries,
                clean_text("reason", reason, 2000),
            )  # fmt: skip
        log.warning("a message of %r in %r was buried: %.200r", queue, namespace, reason)

    async def dead_messages(
        self, namespace: str = "default", *, queue: str | None = None, after: Position | None = None, limit: int = 50
    ) -> list[DeadMessage]:
        """The newest first."""
        check_name("namespace", namespace)
        check_count("limit", limit, least=1, most=LISTED_MAX + 1)
        check_position("after", after)
        async with self._store.single() as tx:
            return await tx.wakeups.list_dead_messages(namespace, queue, after, limit)

    async def dead_message(self, id_: UUID) -> DeadMessage:
        check_type("id", id_, UUID)
        async with self._store.single() as tx:
            found = await tx.wakeups.get_dead_message(id_)
        if found is None:
            raise NotFound(f"there is no buried message {id_}")
        return found

    async def replay(self, dead: DeadMessage) -> DeadMessage:
        """Send a message for its task again, if that still waits; returns what is kept no longer."""
        if dead.task_id is None:
            raise InvalidState("this is no wake-up: sent again, it would be buried again; discard it")
        async with self._store.begin() as tx:
            await tx.wakeups.delete_dead_message(dead.id)
            woken = await tx.wakeups.revive_wakeup(dead.task_id)
            if woken is not None:
                tx.wakes.queues.add(woken)
        return dead

    async def discard(self, dead: DeadMessage) -> DeadMessage:
        """Throw it away, unless a task still waits for it."""
        async with self._store.begin() as tx:
            if dead.task_id is not None and await tx.wakeups.get_wakeup(dead.task_id) is not None:
                raise InvalidState("its task waits for a wake-up: replay it, or cancel the task", task_id=dead.task_id)
            if not await tx.wakeups.delete_dead_message(dead.id):
                raise NotFound(f"there is no buried message {dead.id}")
        return dead


class _Line:
    """Letters to one place, many at a time. While it is away nobody else waits for it in vain."""

    def __init__(self, name: str, sender: Sender, stopwatch: Callable[[], float]) -> None:
        self._name, self._sender, self._stopwatch = name, sender, stopwatch
        self._letters: Committer[Letter, None] = Committer(self._send, batch_max=BATCH, patience_s=0.0)
        self._away_until_s, self._away_s = 0.0, 0.0

    async def send(self, letter: Letter) -> None:
        left_s = self._away_until_s - self._stopwatch()
        if left_s > 0:
            raise NotNow(f"{self._name} was away just now", left_s)
        try:
            await self._letters.call(letter)
        except Unavailable as error:
            raise NotNow(f"{self._name}: {error}", self._away_s or AWAY_FIRST_S) from None
        except (Undeliverable, NotNow):
            raise

    async def _send(self, letters: list[Letter]) -> list[None]:
        try:
            await self._sender.send(letters)
        except Unavailable:
            self._away_s = min(AWAY_MAX_S, 2 * self._away_s or AWAY_FIRST_S)
            self._away_until_s = self._stopwatch() + self._away_s
            raise
        self._away_s = 0.0
        return [None] * len(letters)

    async def close(self) -> None:
        await self._letters.close()


async def _write(tx: Tx, namespace: str, queue: str, found: Sequence[Unannounced], wakeup: Wakeup) -> None:
    """That these are spoken of, and what does it."""
    sent = [(one.id, one.attempt, one.times + 1) for one in found]
    again = [(id_, attempt, times, rules.resend_after_s(wakeup, times)) for id_, attempt, times in sent]
    await tx.wakeups.put_wakeups(namespace, queue, again)
    await tx.outbox.insert_outbox([rules.wake_up(namespace, queue, *one) for one in sent])
    await tx.wake(Wakes(effects=True))


async def _fitting(
    tx: Tx, namespace: str, queue: str, lanes: Sequence[Lane], admission: Admission
) -> list[Unannounced]:
    """The tasks of these lanes that may be spoken of: what a claim would take, were they all claimed at once."""
    picks = share(lanes, admission.total, admission, "") if admission.total else []
    if not picks:
        return []
    found = await tx.wakeups.unannounced_tasks(namespace, queue, picks, admission.total, admission.full_kinds)
    return [found[position] for position in fitting([one.lane for one in found], picks, admission)]


def _moved(before: QueueSettings | None, after: QueueSettings) -> bool:
    """Whether the messages of a queue have gone another way until now."""
    if before is None:
        return False
    old, new = _wakeup(before), _wakeup(after)
    return (old.carrier, old.address) != (new.carrier, new.address)


def _wakeup(settings: QueueSettings) -> Wakeup:
    assert isinstance(settings.delivery, Wakeup), settings
    return settings.delivery
