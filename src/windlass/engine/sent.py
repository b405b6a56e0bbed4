"""Attempts that the engine sends out: who carries them, whether they have arrived, and what follows when nothing is
heard of them. What their workers say is for the contracts that they speak."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TypeVar

from windlass.core import sent as rules
from windlass.core.delivery import QueueSettings
from windlass.core.task import Task
from windlass.core.transition import Effect, Transition
from windlass.engine.chance import Chance
from windlass.engine.claim import Claimer
from windlass.engine.dispatch import Dispatcher
from windlass.engine.hub import Hub
from windlass.engine.outbox import EffectHandler, Undeliverable
from windlass.engine.runner import Loop
from windlass.store.store import Store

SILENT_BATCH = 500
LOOK_MIN_S, LOOK_MAX_S = 0.25, 60.0
FROZEN_S = 0.5

D = TypeVar("D")


class Watch:
    """Whether we ourselves stood still since we last asked: stopped, swapped out, or moved to another machine."""

    def __init__(self, stopwatch: Callable[[], float]) -> None:
        self._stopwatch, self._asked_s = stopwatch, stopwatch()

    def stood_still(self, every_s: float) -> bool:
        """For one who asks at least that often."""
        asked_s, self._asked_s = self._asked_s, self._stopwatch()
        return self._asked_s - asked_s > every_s + FROZEN_S


class Sent:
    """What one engine has sent out, and looks after. `effects` are the handlers of its outbox."""

    def __init__(
        self,
        store: Store,
        chance: Chance,
        hub: Hub,
        claimer: Claimer,
        effects: dict[str, EffectHandler],
        stopwatch: Callable[[], float],
    ) -> None:
        self._store, self._chance, self._effects = store, chance, effects
        self.dispatcher = Dispatcher(store, chance, hub, claimer, effects, stopwatch)
        hub.on_queue = self.dispatcher.notice
        self.settled: list[Callable[[], Awaitable[None]]] = []  # until what was heard by now is written down
        self._loops: list[Loop] = []
        self._watch = Watch(stopwatch)
        self._carried: set[str] = set()

    # ----------------------------------------------------------------------------------------- life

    @asynccontextmanager
    async def carrying(self, effect: str, handler: EffectHandler) -> AsyncIterator[None]:
        """Until the block ends, begin attempts of the queues that send in this way, and carry them to their workers."""
        self._effects[effect] = handler
        self._carried.add(effect)
        if not self._loops:
            self._start()
        self.dispatcher.notice(None)
        try:
            yield
        finally:
            self._carried.discard(effect)
            self._effects.pop(effect, None)
            self.dispatcher.notice(None)
            if not self._carried:
                await self.close()

    def _start(self) -> None:
        dispatching = Loop("dispatch", self.dispatch_tick, every_s=LOOK_MAX_S)
        silence = Loop("silence", self._listen_for_silence, every_s=LOOK_MIN_S)
        self.dispatcher.wake, self.dispatcher.learned = dispatching.wake, self._look_often
        self._loops = [dispatching, silence]
        for loop in self._loops:
            loop.start()

    async def close(self) -> None:
        self.dispatcher.wake = lambda: None
        loops, self._loops = self._loops, []
        for loop in loops:
            await loop.stop()

    # ----------------------------------------------------------------------------------------- for those who carry

    async def still_waits(self, effect: Effect) -> bool:
        """Whether an attempt still has to be carried to a worker. If not, nothing more is expected of it here."""
        async with self._store.begin() as tx:
            task = (await tx.tasks.load_tasks_patiently([effect.task_id])).get(effect.task_id)
            if task is not None and rules.runs(task, effect.attempt):
                return task.worker is None
            await tx.heartbeats.forget_heartbeats([(effect.task_id, effect.attempt)])
        return False

    async def settings(self, effect: Effect, kind: type[D]) -> tuple[QueueSettings, D]:
        """What is set for the queue of an effect now, and its delivery, which is of this kind."""
        key = effect.namespace, str(effect.body["queue"])
        if key not in self.dispatcher.queues:
            await self.dispatcher.learn()
        settings = self.dispatcher.queues.get(key)
        if settings is None or not isinstance(settings.delivery, kind):
            raise Undeliverable(f"the queue {key[1]} does not {effect.kind} any more")
        return settings, settings.delivery

    async def delivered(self, effect: Effect, begin_within_s: float) -> None:
        """The attempt has arrived: from now on its worker has so long to be heard of."""
        async with self._store.single() as tx:
            await tx.heartbeats.delivered(effect.task_id, effect.attempt, begin_within_s)

    # ----------------------------------------------------------------------------------------- ticks

    async def dispatch_tick(self) -> int:
        return await self.dispatcher.tick()

    async def _listen_for_silence(self) -> int:
        """Who was frozen has heard nothing meanwhile, whoever spoke: it listens once more before it judges."""
        if not self._loops:  # it has been told to end, and is not over yet
            return 0
        return 0 if self._watch.stood_still(self._loops[1].every_s) else await self.silence_tick()

    async def silence_tick(self) -> int:
        """What was not heard of for too long is lost, and goes to the next who takes it. What was heard counts, however
        slowly it is written down."""
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
        self._look_often()
        return len(over)

    def _lost(self, task: Task, now: datetime) -> Transition:
        queue = self.dispatcher.queues.get((task.namespace, task.queue))
        as_failure = queue is not None and queue.delivery.loss_is_failure
        return rules.silent(task, now, self._chance.jitter(), as_failure=as_failure)

    def _look_often(self) -> None:
        """As often as the queues need; at once if that has become more often, since the last look may have been long
        before anybody promised to be heard of."""
        every_s = max(LOOK_MIN_S, min([LOOK_MAX_S, *self.dispatcher.intervals_s()]))
        for loop in self._loops[1:]:
            sooner, loop.every_s = every_s < loop.every_s, every_s
            if sooner:
                loop.wake()
