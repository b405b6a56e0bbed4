"""Runs seeds: one after the other on one database, and tells how it went."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

from tests.sim.bugs import Bug
from tests.sim.database import Database
from tests.sim.loop import Stuck, VirtualLoop
from tests.sim.simulation import Simulation
from tests.sim.violation import Violation


@dataclass(frozen=True, slots=True)
class Result:
    seed: int
    violation: str | None
    trace: list[str]
    digest: str
    statements: int
    virtual_s: float
    took_s: float


@dataclass(frozen=True, slots=True)
class Found:
    """The end of a hunt: the run that shows the bug, or None, after so many seeds."""

    result: Result | None
    seeds: int
    took_s: float


_LOG = logging.getLogger("windlass")


class Simulator:
    """A database, ready for seeds. Use as a context manager."""

    def __init__(self, dsn: str, world: type[Simulation] = Simulation) -> None:
        self._world = world
        self._database = Database(dsn)
        self._loop = VirtualLoop()

    def __enter__(self) -> Simulator:
        self._log_level = _LOG.level
        _LOG.setLevel(logging.CRITICAL + 1)
        self._real(self._database.open())
        return self

    def __exit__(self, *_: object) -> None:
        self._real(self._database.close())
        self._loop.close()
        _LOG.setLevel(self._log_level)

    def run(self, seed: int, *, verbose: bool = False) -> Result:
        began_s = time.perf_counter()
        self._real(self._database.reset())
        self._loop.virtual_s = 0.0
        world = self._world(seed, self._database, self._loop, verbose=verbose)
        violation = None
        try:
            self._loop.run_until_complete(world.run())
        except (Violation, Stuck) as error:
            violation = str(error)
        return Result(
            seed, violation, world.trace.lines, world.trace.digest, world.gate.statements, self._loop.time(),
            time.perf_counter() - began_s,
        )  # fmt: skip

    def hunt(self, bug: Bug, within_s: float) -> Found:
        """Seed after seed with the bug planted, until it shows. Only time at work counts, so that others do not."""
        began_s, began_work_s = time.perf_counter(), time.process_time()
        seeds, result = 0, None
        with bug.plant():
            while time.process_time() - began_work_s < within_s:
                result = self.run(bug.first + seeds)
                seeds += 1
                if result.violation is not None:
                    break
        shown = result if result is not None and result.violation is not None else None
        return Found(shown, seeds, time.perf_counter() - began_s)

    def _real(self, coroutine: object) -> None:
        async def work() -> None:
            with self._loop.outside():
                await coroutine  # type: ignore[misc]

        asyncio.set_event_loop(None)
        self._loop.run_until_complete(work())
