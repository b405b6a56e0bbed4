"""The loops of an engine, each as a tick that can be called by hand, and listening for other processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from windlass.engine.loops import ticks
from windlass.engine.loops.retention import Retention
from windlass.engine.loops.runner import Loop
from windlass.engine.loops.schedule_loop import ScheduleLoop
from windlass.engine.notifications import Notifications, Topic
from windlass.engine.randomness import Randomness
from windlass.engine.read.change_feed import Changes
from windlass.engine.send.outbox import Outbox
from windlass.store.store import Store

DUE_WORK_S, SELDOM_S = 1.0, 60.0


class Loops:
    """The loops of one engine. With `poll_s` it polls that often instead of listening. `on_listening` is called when
    listening has begun."""

    def __init__(
        self,
        store: Store,
        randomness: Randomness,
        notifications: Notifications,
        outbox: Outbox,
        schedule_loop: ScheduleLoop,
        changes: Changes,
        retention: Retention,
        poll_s: float | None,
        on_listening: Callable[[], None],
    ) -> None:
        self._store, self._randomness, self._notifications, self._outbox = store, randomness, notifications, outbox
        self._schedule_loop, self._changes, self._retention = schedule_loop, changes, retention
        self._poll_s, self._on_listening = poll_s, on_listening
        self._loops: list[Loop] = []
        self._listening: asyncio.Event | None = None

    def start(self) -> None:
        self._expire = Loop("expire", self.expire_tick, every_s=SELDOM_S)
        self._timers = Loop("timers", self.timer_tick, every_s=SELDOM_S)
        self._settle = Loop("settle", self.settle_tick, every_s=SELDOM_S)
        self._wake = Loop("wake", self.wake_tick, every_s=SELDOM_S)
        self._effects = Loop("effects", self._outbox.flow, every_s=SELDOM_S)
        schedules = Loop("schedules", self.schedule_tick, every_s=self._schedule_loop.pace.interval_s)
        begun = [
            self._expire, self._timers, self._settle, self._wake, self._effects, schedules,
            Loop("due_work", self.due_work_tick, every_s=DUE_WORK_S),
            Loop("retention", self.retention_tick, every_s=SELDOM_S),
        ]  # fmt: skip
        self._notifications.subscribe(Topic.EFFECTS, lambda _: self._effects_due())
        self._notifications.subscribe(Topic.SCHEDULES, lambda _: schedules.wake())
        self._loops += begun
        for loop in begun:
            loop.start()

    async def stop(self) -> None:
        for loop in self._loops:
            await loop.stop()

    async def listen(self) -> None:
        if self._listening is None:
            self._listening = asyncio.Event()
            if self._poll_s is None:
                loop = Loop.forever("listen", lambda: self._store.listen(self._notifications.announce, self._on_listen))
            else:
                loop = Loop("poll", self.poll_tick, every_s=self._poll_s)
                self._listening.set()
            self._loops.append(loop)
            loop.start()
        await self._listening.wait()

    def _on_listen(self) -> None:
        assert self._listening is not None
        self._listening.set()
        self._on_listening()

    # ----------------------------------------------------------------------------------------- ticks

    async def due_work_tick(self) -> int:
        """Wake the loops that have work. An idle engine makes only this query, once a second."""
        async with self._store.single() as tx:
            leases, timers, effects = await tx.due_work()
        if leases:
            self._expire.wake()
        if timers:
            self._timers.wake()
        if effects:
            self._effects_due()
        return 0

    def _effects_due(self) -> None:
        self._settle.wake()
        self._wake.wake()
        self._effects.wake()

    async def expire_tick(self) -> int:
        return await ticks.expire_leases(self._store, self._randomness)

    async def timer_tick(self) -> int:
        return await ticks.fire_timers(self._store, self._randomness)

    async def settle_tick(self) -> int:
        return await ticks.settle_runs(self._store)

    async def wake_tick(self) -> int:
        return await ticks.wake_parents(self._store)

    async def effects_tick(self) -> int:
        return await self._outbox.tick()

    async def schedule_tick(self) -> int:
        return await self._schedule_loop.tick()

    async def retention_tick(self) -> int:
        await self._changes.forget()
        return await self._retention.tick(self._store)

    async def poll_tick(self) -> int:
        """Without LISTEN: wake the first waiter of each queue, so that a queue is read once and not by every waiter."""
        self._notifications.wake_waiting()
        return 0
