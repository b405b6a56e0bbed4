"""The loops of an engine, as actors: ticks are called at seeded moments, by whichever life the engine is in."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.sim.mirror import instant

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation

TICKS = {"expire": 3.0, "timer": 3.0, "settle": 1.0, "wake": 1.0, "effects": 1.0, "retention": 0.3}


class Ticker:
    """Calls the ticks of one engine as they come."""

    def __init__(self, world: Simulation, place: int) -> None:
        self.world, self._place = world, place
        self._stream = world.seed.stream("ticker", place)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._stream.around(self.world.plan.tick_s))
            await self.world.hosts[self._place].tick(self._stream.pick(TICKS))


class Undertaker:
    """Lets an engine look for dead workers at the very moment at which a lease runs out."""

    def __init__(self, world: Simulation) -> None:
        self.world = world
        self._stream = world.seed.stream("undertaker")

    async def run(self) -> None:
        while not self.world.calm:
            await asyncio.sleep(self._until_next())
            await self._stream.choice(self.world.hosts).tick("expire")

    def _until_next(self) -> float:
        ends = (instant(row["expires_at"]) for row in self.world.mirror.leases.values())
        left_s = min(((end - self.world.now()).total_seconds() for end in ends), default=1.0)
        return min(1.0, max(0.02, left_s + 0.001))
