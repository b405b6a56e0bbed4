"""The loops of an engine, as an actor: each tick is called at seeded moments, by whichever life the engine is in."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from tests.sim.host import Gone

from windlass.core.error import Unavailable

if TYPE_CHECKING:
    from tests.sim.world import World

TICKS = {"expire": 3.0, "timer": 3.0, "settle": 3.0, "effects": 1.5, "retention": 0.3}


class Ticker:
    def __init__(self, world: World, place: int) -> None:
        self.world, self._place = world, place
        self._stream = world.seed.stream("ticker", place)

    async def run(self) -> None:
        weights = dict(TICKS)
        while True:
            await asyncio.sleep(self._stream.around(self.world.plan.tick_s))
            await self._tick(self._stream.pick(weights))

    async def _tick(self, name: str) -> None:
        host = self.world.hosts[self._place]
        with contextlib.suppress(Gone, Unavailable):
            await host.ask(lambda engine: getattr(engine, f"{name}_tick")())
