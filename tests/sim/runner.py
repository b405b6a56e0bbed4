"""Runs seeds: one after the other on one database, and tells how it went."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tests.sim.database import Database
from tests.sim.loop import Stuck, VirtualLoop
from tests.sim.violation import Violation
from tests.sim.world import World


@dataclass(frozen=True, slots=True)
class Result:
    seed: int
    violation: str | None
    trace: list[str]
    digest: str
    statements: int
    virtual_s: float
    took_s: float


class Simulator:
    """A database, ready for seeds. Use as a context manager."""

    def __init__(self, dsn: str) -> None:
        logging.getLogger("windlass").setLevel(logging.CRITICAL + 1)
        self._database = Database(dsn)
        self._loop = VirtualLoop()

    def __enter__(self) -> Simulator:
        self._real(self._database.open())
        return self

    def __exit__(self, *_: object) -> None:
        self._real(self._database.close())
        self._loop.close()

    def run(self, seed: int, *, verbose: bool = False) -> Result:
        began_s = time.perf_counter()
        self._real(self._database.reset())
        self._loop.virtual_s = 0.0
        world = World(seed, self._database, self._loop, verbose=verbose)
        violation = None
        try:
            self._loop.run_until_complete(world.run())
        except (Violation, Stuck) as error:
            violation = str(error)
        return Result(
            seed, violation, world.trace.lines, world.trace.digest, world.gate.statements, self._loop.time(),
            time.perf_counter() - began_s,
        )  # fmt: skip

    def run_all(self, seeds: Iterable[int]) -> Iterator[Result]:
        for seed in seeds:
            yield self.run(seed)

    def _real(self, coroutine: object) -> None:
        async def work() -> None:
            with self._loop.outside():
                await coroutine  # type: ignore[misc]

        asyncio.set_event_loop(None)
        self._loop.run_until_complete(work())
