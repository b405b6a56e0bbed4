"""What an engine does by itself: its loops, each as a tick that can be called by hand, and hearing what others say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from windlass.engine import tick
from windlass.engine.chance import Chance
from windlass.engine.change import Changes
from windlass.engine.fire import Fires
from windlass.engine.hub import Hub
from windlass.engine.outbox import Outbox
from windlass.engine.retention import Retention
from windlass.engine.runner import Loop
from windlass.store.store import Store

PULSE_S, SELDOM_S = 1.0, 60.0


class Loops:
    """The loops of one engine."""

    def __init__(
        self,
        store: Store,
        chance: Chance,
        hub: Hub,
        outbox: Outbox,
        fires: Fires,
        changes: Changes,
        retention: Retention,
    ) -> None:
        self._store, self._chance, self._hub, self._outbox = store, chance, hub, outbox
        self._fires, self._changes, self._retention = fires, changes, retention
        self.hear_by(None, lambda: None)
        self._loops: list[Loop] = []
        self._heard: asyncio.Event | None = None

    def hear_by(self, poll_s: float | None, on_hearing: Callable[[], None]) -> None:
        """With `poll_s` look that often instead of listening. `on_hearing` is called when listening has begun."""
        self._poll_s, self._on_hearing = poll_s, on_hearing

    def start(self) -> None:
        self._expire = Loop("expire", self.expire_tick, every_s=SELDOM_S)
        self._timers = Loop("timers", self.timer_tick, every_s=SELDOM_S)
        self._settle = Loop("settle", self.settle_tick, every_s=SELDOM_S)
        self._wake = Loop("wake", self.wake_tick, every_s=SELDOM_S)
        self._effects = Loop("effects", self._outbox.flow, every_s=SELDOM_S)
        fires = Loop("schedules", self.schedule_tick, every_s=self._fires.pace.interval_s)
        begun = [
            self._expire, self._timers, self._settle, self._wake, self._effects, fires,
            Loop("pulse", self.pulse_tick, every_s=PULSE_S),
            Loop("retention", self.retention_tick, every_s=SELDOM_S),
        ]  # fmt: skip
        self._hub.on_effects = self._effects_due
        self._hub.on_schedules = self._fires.on_due = fires.wake
        self._loops += begun
        for loop in begun:
            loop.start()

    async def stop(self) -> None:
        for loop in self._loops:
            await loop.stop()

    async def hear(self) -> None:
        if self._heard is None:
            self._heard = asyncio.Event()
            if self._poll_s is None:
                loop = Loop.forever("listen", lambda: self._store.listen(self._hub.announce, self._heard_now))
            else:
                loop = Loop("poll", self.poll_tick, every_s=self._poll_s)
                self._heard.set()
            self._loops.append(loop)
            loop.start()
        await self._heard.wait()

    def _heard_now(self) -> None:
        assert self._heard is not None
        self._heard.set()
        self._on_hearing()

    # ----------------------------------------------------------------------------------------- ticks

    async def pulse_tick(self) -> int:
        """One query a second says which loops have something to do; an idle engine asks nothing else."""
        async with self._store.single() as tx:
            leases, timers, effects = await tx.pulse()
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
        return await tick.expire_leases(self._store, self._chance)

    async def timer_tick(self) -> int:
        return await tick.ring_timers(self._store, self._chance)

    async def settle_tick(self) -> int:
        return await tick.settle_runs(self._store)

    async def wake_tick(self) -> int:
        return await tick.wake_parents(self._store)

    async def effects_tick(self) -> int:
        return await self._outbox.tick()

    async def schedule_tick(self) -> int:
        return await self._fires.tick()

    async def retention_tick(self) -> int:
        await self._changes.forget()
        return await self._retention.tick(self._store)

    async def poll_tick(self) -> int:
        """Without LISTEN: one look per queue that somebody waits for, not one per waiter."""
        self._hub.wake_waiting()
        return 0
