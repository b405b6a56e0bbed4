"""Who makes schedules, pauses and resumes them, and the ticks that fire them, now and then by two engines at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tests.sim.host import Gone
from tests.sim.plan import payload
from tests.sim.violation import Violation

from windlass.core.schedule import ScheduleSpec
from windlass.errors import Rejected, Unavailable

if TYPE_CHECKING:
    from tests.sim.registry import RegistrySimulation

CRONS = ("* * * * * *", "*/2 * * * * *", "1/3 * * * * *", "*/5 * * * * *")
FEW, ALL = 1, 1000
CAUGHT_UP_S = 120.0


class Planner:
    def __init__(self, world: RegistrySimulation) -> None:
        self.world, self.stream = world, world.seed.stream("planner")
        self.ids: list[UUID] = []
        self._turn = asyncio.Lock()

    async def run(self) -> None:
        """One that is let alone, with a small catch-up; others that are paused and resumed."""
        async with self._turn:
            for number in range(self.stream.randint(1, 3)):
                await asyncio.sleep(self.stream.around(0.5))
                cron = self.stream.choice(CRONS[1:]) if number else CRONS[0]
                spec = ScheduleSpec(
                    kind="a", queue=self.stream.choice(self.world.plan.queues), cron=cron,
                    payload=payload(f"schedule-{number}"), max_catchup=FEW if number == 0 else ALL,
                )  # fmt: skip
                made = await self._surely(
                    lambda engine, s=spec, n=number: engine.schedules.create(s, key=f"schedule-{n}")
                )
                self.ids.append(made.id)
        while not self.world.calm:
            await asyncio.sleep(self.stream.around(2.0))
            async with self._turn:
                if not self.world.calm and len(self.ids) > 1:
                    await self._ask(self._wish(self.stream.choice(self.ids[1:])))

    def _wish(self, schedule_id: UUID) -> Any:
        if self.stream.often(0.4):
            return lambda engine: engine.schedules.pause(schedule_id)
        return lambda engine: engine.schedules.resume(schedule_id)

    async def end(self) -> None:
        """Everything that is due is made up for, in calm; then there are no more fires."""
        async with self._turn:
            for id_ in self.ids:
                await self._surely(lambda engine, i=id_: engine.schedules.resume(i))
            until_s = self.world.loop.time() + CAUGHT_UP_S
            while behind := self.world.schedule_checker.behind():
                if self.world.loop.time() > until_s:
                    raise Violation(f"schedules are due, and nobody fires them: {behind}")
                await asyncio.sleep(0.5)
            for id_ in self.ids:
                await self._surely(lambda engine, i=id_: engine.schedules.pause(i))
            self.world.schedule_checker.check_end()

    async def _ask(self, wish: Any) -> Any:
        try:
            return await self.stream.choice(self.world.hosts).ask(wish)
        except (Gone, Unavailable):
            return None
        except Rejected as error:
            raise Violation(f"a good wish about a schedule was refused: {error!r}") from error

    async def _surely(self, wish: Any) -> Any:
        while (answer := await self._ask(wish)) is None:  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(0.5)
        return answer


class ScheduleTicker:
    def __init__(self, world: RegistrySimulation) -> None:
        self.world, self.stream = world, world.seed.stream("schedules")

    async def run(self) -> None:
        while True:
            outage = not self.world.calm and self.stream.often(0.12)
            await asyncio.sleep(self.stream.between(4.0, 8.0) if outage else self.stream.around(0.6))
            hosts = self.world.hosts if self.stream.often(0.4) else [self.stream.choice(self.world.hosts)]
            await asyncio.gather(*(host.tick("schedule") for host in hosts))
