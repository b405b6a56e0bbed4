"""Whoever pulls the plug: engines crash and come back, listening connections break, the clock jumps ahead."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.sim.host import Host

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation


class Chaos:
    def __init__(self, world: Simulation) -> None:
        self.world = world
        self._stream = world.seed.stream("chaos")

    async def run(self) -> None:
        while not self.world.calm:
            await asyncio.sleep(self._stream.around(1.5))
            if self.world.calm:
                return
            await self._once()

    async def _once(self) -> None:
        plan = self.world.plan
        if plan.crash_every_s is not None and self._stream.often(1.5 / plan.crash_every_s):
            await self.crash(self._stream.choice(self.world.hosts))
        if self._stream.often(0.1):
            self._stream.choice(self.world.hosts).lose_listener()
        if plan.clock_jump and self._stream.often(0.1):
            self.world.clock_ahead_s += self._stream.around(3.0)

    async def crash(self, host: Host) -> None:
        """The engine dies; after a while another one stands in its place."""
        world = self.world
        if host.dead:
            return
        world.say("chaos", f"{host.name} crashes")
        host.dead = True
        await host.crash()
        await asyncio.sleep(self._stream.around(0.5))
        world.hosts[world.hosts.index(host)] = Host(world, host.name, host.life + 1)
        world.say("chaos", f"{host.name} is back")
