"""Workers: honest ones, sloppy ones, liars, and those that die. A worker lives many lives under one name.

In chaos it does everything that a worker can do wrong. In calm it works as the documentation says.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from tests.sim.flow import Flow, is_flow
from tests.sim.host import Gone, Host
from tests.sim.job import Job
from tests.sim.plan import KINDS, LABELS

from windlass.core.command import Claimed
from windlass.core.lease import Lease
from windlass.errors import LeaseLost, Unavailable

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation

CALM_WAIT_S = 300.0


class Worker:
    def __init__(self, world: Simulation, name: str) -> None:
        self.world, self.name = world, name
        self.stream = world.seed.stream("worker", name)
        self.first = name == "w0"
        self.lease: Lease | None = None
        self.jobs: dict[asyncio.Task[Any], Job] = {}
        self.late: dict[asyncio.Task[Any], Job] = {}
        self.told: set[tuple[str, int]] = set()
        self.silent_until_s = 0.0
        self.lives_calmly = self.leaves = False
        self.lists = True
        self.beats: asyncio.Task[Any] | None = None

    async def run(self) -> None:
        while not self.leaves:
            self.lives_calmly = self.world.calm
            await self._life()
            await asyncio.sleep(self.stream.around(0.5))

    # ----------------------------------------------------------------------------------------- one life

    async def _life(self) -> None:
        self.lists = self.lives_calmly or self.stream.often(0.6)
        lease = self.lease = await self._open()
        if lease is None:
            return
        self.beats = self.world.start(self._beats(lease))
        await self._polls(lease)
        self.beats.cancel()
        if self.lives_calmly or self.stream.often(0.5):
            self.die()
        else:  # goes on with what it has, beside its next life, and reports late
            self.late |= self.jobs
            self.jobs.clear()

    def die(self) -> None:
        """Without a word."""
        for job in [*self.jobs, *self.late]:
            job.cancel()
        self.jobs.clear()
        self.late.clear()

    async def leave(self) -> None:
        """In calm, at the end: say goodbye properly."""
        self.leaves = True
        self.die()
        if self.beats is not None:
            self.beats.cancel()
        if self.lease is not None:
            lease = self.lease
            with contextlib.suppress(Gone, Unavailable):
                await self.host().ask(lambda engine: engine.end_lease(lease))

    def host(self) -> Host:
        return self.stream.choice(self.world.hosts)

    async def _open(self) -> Lease | None:
        plan, stream = self.world.plan, self.stream
        everything = self.lives_calmly and self.first
        queues = list(plan.queues) if everything or stream.often(0.6) else stream.some(plan.queues)
        kinds = None if everything or stream.often(0.6) else stream.some(KINDS)
        labels = LABELS if self.first or stream.often(0.3) else ()
        ttl_s = stream.pick({1.0: 1, 2.0: 2, 5.0: 1})
        try:
            return await self.host().ask(
                lambda engine: engine.open_lease(self.name, queues, kinds=kinds, labels=labels, ttl_s=ttl_s)
            )
        except (Gone, Unavailable):
            return None

    # ----------------------------------------------------------------------------------------- signs of life

    async def _beats(self, lease: Lease) -> None:
        while True:
            hiccup = not self.lives_calmly and self.stream.often(0.08)
            if hiccup:
                self.silent_until_s = self.world.loop.time() + 1.6 * lease.ttl_s
            await asyncio.sleep(
                lease.ttl_s * (self.stream.between(0.8, 1.6) if hiccup else self.stream.between(0.25, 0.5))
            )
            if self.world.loop.time() < self.silent_until_s and not self.lives_calmly:
                continue
            active = [job.task.id for job in self.jobs.values() if not job.hung] if self.lists else None
            try:
                extension = await self.host().ask(lambda engine, a=active: engine.extend_lease(lease, a))  # type: ignore[misc]
            except (Gone, Unavailable):
                continue
            except LeaseLost:
                return
            self.told |= {(str(signal.task_id), signal.attempt) for signal in extension.cancels}

    # ----------------------------------------------------------------------------------------- work

    async def _polls(self, lease: Lease) -> None:
        slots = self.stream.randint(1, 4)
        while not self.leaves:
            if self.world.calm and not self.lives_calmly:
                return
            if not self.lives_calmly and self.stream.often(self.world.plan.worker_death):
                self.die()
                return
            if len(self.jobs) >= slots:
                await asyncio.sleep(self.stream.between(0.02, 0.2))
                continue
            if not await self._poll(lease, slots - len(self.jobs)):
                return

    async def _poll(self, lease: Lease, limit: int) -> bool:
        """False if this life is over."""
        eager = self.world.loop.time() < self.silent_until_s  # its lease may run out at any moment
        wait_s = self.stream.pick({0.0: 9 if eager else 1, 0.5: 2, 4.0: 2})
        wait_s = CALM_WAIT_S if self.lives_calmly else wait_s
        if not self.lives_calmly and self.stream.often(0.05):
            self.world.start(self._says_goodbye(lease))
        call = self.world.poll_checker.begins(lease)
        try:
            claimed = await self._ask(lease, limit, wait_s, call)
        except LeaseLost:
            return False
        except Unavailable:
            await asyncio.sleep(self.stream.around(0.5))
            return True
        except (TimeoutError, Gone):  # what was claimed, if anything, is ours and unknown to us
            return self.lists
        finally:
            self.world.poll_checker.ends(call)
        self.world.poll_checker.answered(call, {(str(c.task.id), c.task.attempt) for c in claimed})
        for each in claimed:
            self._begin(each)
        if not claimed and wait_s == 0.0:
            await asyncio.sleep(self.stream.around(0.05 if eager else 0.3))
        return True

    async def _says_goodbye(self, lease: Lease) -> None:
        """While its own poll is on its way; an engine notices at once."""
        with contextlib.suppress(Gone, Unavailable):
            await self.host().ask(lambda engine: engine.end_lease(lease))
            await self.host().ask(lambda engine: engine.loops.expire_tick())

    async def _ask(self, lease: Lease, limit: int, wait_s: float, call: Any) -> list[Claimed]:
        asked = self.host().ask(lambda engine: engine.claim(lease, limit, wait_s=wait_s), call)
        if not self.lives_calmly and self.stream.often(0.1):  # hangs up in the middle
            async with asyncio.timeout(self.stream.around(0.5)):  # wait_for may swallow a cancel on Python 3.11
                return await asked
        return await asked

    def _begin(self, claimed: Claimed) -> None:
        job = Flow(self, claimed) if is_flow(claimed.payload) else Job(self, claimed)
        task = self.world.start(job.run())
        self.jobs[task] = job
        task.add_done_callback(lambda done: self.jobs.pop(done, None))
