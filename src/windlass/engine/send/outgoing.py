"""Outgoing attempts: which effect handler carries them, whether they have arrived, and when silence means loss.

The contracts handle the reports of their workers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TypeVar

from windlass.core import outgoing as rules
from windlass.core.delivery import QueueSettings
from windlass.core.states import Effect, Transition
from windlass.core.task import Task
from windlass.engine.claim.claimer import Claimer
from windlass.engine.loops.runner import Loop
from windlass.engine.notifications import Notifications, Topic
from windlass.engine.randomness import Randomness
from windlass.engine.send.dispatcher import Dispatcher
from windlass.engine.send.outbox import EffectHandler, Undeliverable
from windlass.store.store import Store

SILENT_BATCH = 500
CHECK_MIN_S, CHECK_MAX_S = 0.25, 60.0
FROZEN_S = 0.5

D = TypeVar("D")


class FreezeDetector:
    """Detects that this process was frozen since the last check: stopped, swapped out, or moved to another machine."""

    def __init__(self, stopwatch: Callable[[], float]) -> None:
        self._stopwatch, self._checked_s = stopwatch, stopwatch()

    def was_frozen(self, every_s: float) -> bool:
        """For a caller that checks at least that often."""
        before_s, self._checked_s = self._checked_s, self._stopwatch()
        return self._checked_s - before_s > every_s + FROZEN_S


class OutgoingAttempts:
    """The outgoing attempts of one engine. `effects` are the handlers of its outbox."""

    def __init__(
        self,
        store: Store,
        randomness: Randomness,
        notifications: Notifications,
        claimer: Claimer,
        effects: dict[str, EffectHandler],
        stopwatch: Callable[[], float],
    ) -> None:
        self._store, self._randomness, self._effects = store, randomness, effects
        self.dispatcher = Dispatcher(store, randomness, notifications, claimer, effects, stopwatch)
        notifications.subscribe(Topic.QUEUES, self.dispatcher.mark)
        self.settled: list[Callable[[], Awaitable[None]]] = []  # wait until the heartbeats received so far are written
        self._loops: list[Loop] = []
        self._freeze_detector = FreezeDetector(stopwatch)
        self._carried: set[str] = set()

    # ----------------------------------------------------------------------------------------- life

    @asynccontextmanager
    async def carrying(self, effect: str, handler: EffectHandler) -> AsyncIterator[None]:
        """Within the block, dispatch attempts of the queues that send by this effect, and carry them to workers."""
        self._effects[effect] = handler
        self._carried.add(effect)
        if not self._loops:
            self._start()
        self.dispatcher.mark(None)
        try:
            yield
        finally:
            self._carried.discard(effect)
            self._effects.pop(effect, None)
            self.dispatcher.mark(None)
            if not self._carried:
                await self.close()

    def _start(self) -> None:
        dispatching = Loop("dispatch", self.dispatch_tick, every_s=CHECK_MAX_S)
        silence = Loop("silence", self._check_silence, every_s=CHECK_MIN_S)
        self.dispatcher.wake, self.dispatcher.on_reload = dispatching.wake, self._adjust_interval
        self._loops = [dispatching, silence]
        for loop in self._loops:
            loop.start()

    async def close(self) -> None:
        self.dispatcher.wake = lambda: None
        loops, self._loops = self._loops, []
        for loop in loops:
            await loop.stop()

    # ----------------------------------------------------------------------------------------- for effect handlers

    async def still_waits(self, effect: Effect) -> bool:
        """Whether an attempt still has to be carried to a worker. If it has ended, its heartbeat row is deleted."""
        async with self._store.begin() as tx:
            task = (await tx.tasks.lock_tasks([effect.task_id])).get(effect.task_id)
            if task is not None and rules.runs(task, effect.attempt):
                return task.worker is None
            await tx.heartbeats.forget_heartbeats([(effect.task_id, effect.attempt)])
        return False

    async def settings(self, effect: Effect, kind: type[D]) -> tuple[QueueSettings, D]:
        """The current settings of the queue of an effect, and its delivery, which is of this kind."""
        key = effect.namespace, str(effect.body["queue"])
        if key not in self.dispatcher.queues:
            await self.dispatcher.reload()
        settings = self.dispatcher.queues.get(key)
        if settings is None or not isinstance(settings.delivery, kind):
            raise Undeliverable(f"the queue {key[1]} no longer has a delivery that sends {effect.kind}")
        return settings, settings.delivery

    async def delivered(self, effect: Effect, begin_within_s: float) -> None:
        """Record that the attempt has arrived. Its worker has `begin_within_s` for its first heartbeat."""
        async with self._store.single() as tx:
            await tx.heartbeats.delivered(effect.task_id, effect.attempt, begin_within_s)

    # ----------------------------------------------------------------------------------------- ticks

    async def dispatch_tick(self) -> int:
        return await self.dispatcher.tick()

    async def _check_silence(self) -> int:
        """A process that was frozen received no heartbeats meanwhile, so it waits one more round."""
        if not self._loops or self._freeze_detector.was_frozen(self._loops[1].every_s):  # without loops it is closing
            return 0
        return await self.silence_tick()

    async def silence_tick(self) -> int:
        """Decide the loss of attempts that were silent for too long. Received heartbeats count, even if they are not
        yet written."""
        for settle in self.settled:
            await settle()
        async with self._store.begin() as tx:
            silent = await tx.heartbeats.silent_attempts(SILENT_BATCH)
            ids = sorted({task_id for task_id, _ in silent})
            tasks, now = await tx.tasks.load_tasks(ids) if ids else ({}, None)
            held = await tx.tasks.existing_tasks([id_ for id_ in ids if id_ not in tasks]) if ids else set()
            over = [(id_, attempt) for id_, attempt in silent if id_ not in held]
            lost = [tasks[id_] for id_, attempt in over if id_ in tasks and rules.runs(tasks[id_], attempt)]
            if now is not None:
                await tx.apply([self._lost(task, now) for task in lost])
            await tx.heartbeats.forget_heartbeats(over)
        self._adjust_interval()
        return len(over)

    def _lost(self, task: Task, now: datetime) -> Transition:
        queue = self.dispatcher.queues.get((task.namespace, task.queue))
        as_failure = queue is not None and queue.delivery.loss_is_failure
        return rules.silent(task, now, self._randomness.jitter(), as_failure=as_failure)

    def _adjust_interval(self) -> None:
        """Check as often as the queues need. If that is more often than before, check now: the last check may be long
        ago."""
        every_s = max(CHECK_MIN_S, min([CHECK_MAX_S, *self.dispatcher.intervals_s()]))
        for loop in self._loops[1:]:
            sooner, loop.every_s = every_s < loop.every_s, every_s
            if sooner:
                loop.wake()
