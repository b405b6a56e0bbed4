"""The operator: sets limits, pauses and resumes queues, wakes sleepers, lets parked tasks go on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tests.sim.host import Gone
from tests.sim.plan import drawn_limits

from windlass.errors import Rejected, Unavailable

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation


class Operator:
    def __init__(self, world: Simulation) -> None:
        self.world = world
        self.stream = world.seed.stream("operator")
        self._turn = asyncio.Lock()
        # A queue that nobody ever configured has paths of its own through the engine.
        touched = [queue for queue in world.plan.queues if self.stream.often(0.6)]
        self.limits = {queue: drawn_limits(self.stream) for queue in touched}

    async def set_up(self) -> None:
        for queue, limits in self.limits.items():
            if limits:
                await self._surely(lambda engine, q=queue, li=limits: engine.configure_queue(q, **li))

    async def run(self) -> None:
        while not self.world.calm:
            await asyncio.sleep(self.stream.around(2.0))
            async with self._turn:
                if not self.world.calm:
                    await self._ask(self._wish())

    def _wish(self) -> Any:
        queue = self.stream.choice(list(self.limits) or [""])
        match self.stream.pick({"pause": 1, "resume": 2, "limit": 1, "unstick": 2, "look": 2}) if queue else "unstick":
            case "pause":
                return lambda engine: engine.pause_queue(queue)
            case "resume":
                return lambda engine: engine.pause_queue(queue, paused=False)
            case "limit":
                self.limits[queue] = drawn_limits(self.stream)
                return lambda engine: engine.configure_queue(queue, **self.limits[queue])
            case "look" if self.world.model.known:
                return self._question(self.stream.choice(self.world.model.known))
        stuck = self._stuck()
        return stuck[0] if stuck else lambda engine: engine.loops.poll_tick()

    def _question(self, task_id: UUID) -> Any:
        """People look at what is there; whatever they ask has an answer."""
        return self.stream.choice(
            [
                lambda engine: engine.tasks.timeline(task_id),
                lambda engine: engine.tasks.why_waiting(task_id),
                lambda engine: engine.tasks.page(limit=5),
                lambda engine: engine.tasks.counts(),
            ]
        )

    async def calm_down(self) -> None:
        """Nothing is paused any more; limits stay."""
        async with self._turn:
            for queue, limits in self.limits.items():
                await self._surely(lambda engine, q=queue, li=limits: engine.configure_queue(q, **li))

    async def unstick(self) -> None:
        """Whoever waits for a person is helped."""
        for wish in self._stuck():
            await self._ask(wish)

    def _stuck(self) -> list[Any]:
        rows = self.world.mirror.unfinished()
        parked = [UUID(row["id"]) for row in rows if row["state"] == "parked"]
        waiting = {task_id for task_id, _, _ in self.world.mirror.steps}  # workflows know themselves what they wait for
        asleep = [row for row in rows if row["state"] == "sleeping" and row["timer_at"] is None]
        sleeping = [UUID(row["id"]) for row in asleep if row["id"] not in waiting]
        return [
            *((lambda engine, i=id_: engine.resume(i)) for id_ in parked),
            *((lambda engine, i=id_: engine.wake(i)) for id_ in sleeping),
        ]

    async def _ask(self, wish: Any) -> bool:
        try:
            await self.stream.choice(self.world.hosts).ask(wish)
        except Rejected:
            return True
        except (Gone, Unavailable):
            return False
        return True

    async def _surely(self, wish: Any) -> None:
        while not await self._ask(wish):  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(0.5)
