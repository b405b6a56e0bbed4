"""One attempt in the hands of a worker that is told of it and reports by itself: all that such a worker can do right
and wrong, in whatever words its contract has."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

from tests.sim.seed import Stream

CHAOS = {"complete": 8.0, "fail": 3.0, "twice": 1.5, "contradict": 1.5, "lie": 1.0, "late": 1.5, "hang": 1.0,
         "die": 1.0, "cancelled": 0.5}  # fmt: skip
CALM = {"complete": 8.0, "fail": 1.0}
TRIES = 8


class Reporter:
    """What runs one attempt. `silence_s` is how long it may be silent before somebody else gets its task."""

    silence_s: float

    def __init__(self, world: Any, task_id: UUID, attempt: int, stream: Stream, chaos: dict[str, float]) -> None:
        self.world, self.id, self.attempt, self.stream, self.calm = world, task_id, attempt, stream, world.calm
        self.way = stream.pick(CALM if self.calm else chaos)
        self.cancelled = self.over = False

    async def run(self) -> None:
        if self.way == "die" or not await self.begin():
            return
        beats = self.world.start(self.beats())
        try:
            await self.work()
        finally:
            self.over = True
            beats.cancel()

    async def work(self) -> None:
        await asyncio.sleep(self.stream.around(1.5 if self.stream.often(0.2) else 0.3))
        await self.tell()
        if self.cancelled and (self.calm or self.stream.often(0.5)):
            await self.give_up()
            return
        match self.way:
            case "hang":
                await asyncio.sleep(self.stream.between(2.0, 20.0))
            case "late":
                self.over = True  # says nothing for a while
                await asyncio.sleep(self.silence_s * self.stream.between(0.8, 2.5))
                await (self.fail() if self.stream.often(0.5) else self.complete())
            case "lie":
                await self.lie()
                await self.complete()
            case "twice":
                await asyncio.gather(self.complete(), self.complete())
                await self.complete()
            case "contradict":
                await asyncio.gather(self.complete(), self.fail())
            case "cancelled":
                await self.give_up()
            case "fail":
                await self.fail()
            case _:
                await self.complete_with_more()

    async def beats(self) -> None:
        """A sign of life three times in that time, more or less."""
        while not self.over:
            await asyncio.sleep(self.silence_s / 3 * (1 if self.calm else self.stream.between(0.2, 2.5)))
            if not self.over:
                await self.beat()

    # ----------------------------------------------------------------------------------------- in words of a contract

    async def begin(self) -> bool:
        """Whether it may go on."""
        return True

    async def tell(self) -> None:
        """What it has to say before its end."""

    async def beat(self) -> None:
        raise NotImplementedError

    async def complete(self) -> None:
        raise NotImplementedError

    async def complete_with_more(self) -> None:
        await self.complete()

    async def fail(self) -> None:
        raise NotImplementedError

    async def give_up(self) -> None:
        raise NotImplementedError

    async def lie(self) -> None:
        raise NotImplementedError
