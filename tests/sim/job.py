"""One attempt in the hands of a worker: how long it takes, and what is said about it in the end."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec
from tests.sim.host import Gone
from tests.sim.violation import Violation

from windlass.core.command import Cancelled, Claimed, Complete, Fail, Park, Release, Report, Sleep
from windlass.core.failure import Category, Failure
from windlass.core.states import State
from windlass.errors import LeaseLost, Unavailable, WindlassError

if TYPE_CHECKING:
    from tests.sim.worker import Worker

CHAOS = {
    "complete": 8.0, "fail": 4.0, "twice": 1.5, "contradict": 2.0, "lie": 1.0, "late": 1.5, "sleep": 1.0,
    "sleep_for_signal": 0.3, "release": 1.0, "park": 0.4, "cancelled": 0.5, "hang": 0.7,
}  # fmt: skip
CALM = {"complete": 8.0, "fail": 1.0}
TRIES = 6


class Job:
    def __init__(self, worker: Worker, claimed: Claimed) -> None:
        self.worker, self.world, self.stream = worker, worker.world, worker.stream
        self.task, self.hung = claimed.task, False
        assert claimed.task.lease_id is not None
        self.lease_id: UUID = claimed.task.lease_id
        self.calm = worker.lives_calmly
        self.way = self.stream.pick(CALM if self.calm else CHAOS)
        self.obeys = self.calm or self.stream.often(0.4)
        said = {"task": str(self.task.id), "attempt": self.task.attempt, "by": worker.name}
        self.result = msgspec.json.encode(said)

    async def run(self) -> None:
        takes_s = self.stream.around(1.5 if self.stream.often(0.2) else 0.3)
        if await self._work(takes_s):
            await self._say(Cancelled(self.task.id, self.task.attempt, self.lease_id, "told to"))
            return
        match self.way:
            case "hang":
                self.hung = True
                await asyncio.sleep(10_000.0)
            case "late":
                await self._late()
            case "lie":
                await self._lie()
                await self._complete()
            case "twice":
                await asyncio.gather(self._complete(), self._complete())
                await asyncio.sleep(self.stream.around(0.5))
                await self._complete()
            case "contradict":
                await self._contradict()
            case "complete":
                await self._complete()
            case _:
                await self._say(self._report())

    async def _work(self, takes_s: float) -> bool:
        """True if it was told to stop, and obeys."""
        until_s = self.world.loop.time() + takes_s
        while (left_s := until_s - self.world.loop.time()) > 0:
            await asyncio.sleep(min(left_s, 0.2))
            if self.obeys and (str(self.task.id), self.task.attempt) in self.worker.told:
                return True
        return False

    # ----------------------------------------------------------------------------------------- what is said

    def _report(self) -> Report:
        task_id, attempt, lease_id = self.task.id, self.task.attempt, self.lease_id
        match self.way:
            case "sleep":
                until = self.world.now() + timedelta(seconds=self.stream.around(1.5))
                return Sleep(task_id, attempt, lease_id, until)
            case "sleep_for_signal":
                return Sleep(task_id, attempt, lease_id, None)
            case "release":
                return Release(task_id, attempt, lease_id)
            case "park":
                return Park(task_id, attempt, lease_id, Failure(Category.CONFIGURATION, "other code"))
            case "cancelled":
                return Cancelled(task_id, attempt, lease_id, "of its own")
        return Fail(task_id, attempt, lease_id, self._failure(), self.stream.random())

    def _failure(self) -> Failure:
        retryable = self.stream.pick({None: 4, True: 1, False: 1})
        after_s = self.stream.around(1.0) if self.stream.often(0.2) else None
        return Failure(self.stream.choice(list(Category)), "it broke", retryable=retryable, retry_after_s=after_s)

    async def _complete(self) -> None:
        answer = await self._say(Complete(self.task.id, self.task.attempt, self.lease_id, self.result))
        if isinstance(answer, State):
            self.world.model.result_accepted(self.task.id, self.task.attempt, self.result)

    async def _cut_off(self) -> None:
        """Nothing is heard of the worker until its lease has run out."""
        lease = self.worker.lease
        ttl_s = lease.ttl_s if lease is not None else 5.0
        self.worker.silent_until_s = self.world.loop.time() + self.stream.between(0.8, 1.6) * ttl_s
        await asyncio.sleep(ttl_s * self.stream.between(1.0, 2.5))

    async def _late(self) -> None:
        await self._cut_off()
        if self.stream.often(0.7):
            await self._complete()
        else:
            await self._say(Fail(self.task.id, self.task.attempt, self.lease_id, self._failure(), 0.5))

    async def _lie(self) -> None:
        """A report about an attempt that is not ours must not be accepted, whatever it says."""
        foreign = UUID(int=self.stream.getrandbits(128), version=4)
        attempt, lease_id = self.stream.choice(
            [(self.task.attempt, foreign), (self.task.attempt + 1000, self.lease_id), (1000, foreign)]
        )
        report = Complete(self.task.id, attempt, lease_id, self.result)
        answer = await self._say(report, honest=False)
        if isinstance(answer, State):
            raise Violation(f"{self.worker.name} lied about its attempt and was believed: {report}")

    async def _contradict(self) -> None:
        """Two different reports about one attempt, in one call or in two: at most one of them counts."""
        self.way = "fail"
        complete = Complete(self.task.id, self.task.attempt, self.lease_id, self.result)
        reports = [complete, self._report()]
        self.stream.shuffle(reports)
        if self.stream.often(0.5):
            await self._ask(reports)
        else:
            await asyncio.gather(*(self._say(report) for report in reports))

    # ----------------------------------------------------------------------------------------- how it is said

    async def _say(self, report: Report, *, honest: bool = True) -> State | WindlassError | None:
        """Again and again, until there is an answer; None if there never was one."""
        answer: State | WindlassError | None = None
        for _ in range(TRIES):
            answers = await self._ask([report])
            answer = answers[0] if answers else None
            if answer is not None and not isinstance(answer, Unavailable):
                break
            if not self.calm and self.stream.often(0.3):
                return None
            await asyncio.sleep(self.stream.around(0.4))
        if honest and isinstance(answer, LeaseLost):
            self.world.model.refused(report.task_id, report.attempt, report.lease_id)
        return answer

    async def _ask(self, reports: list[Report]) -> list[State | WindlassError]:
        try:
            return await self.worker.host().ask(lambda engine: engine.report(reports))
        except Gone:
            return []
        except WindlassError as error:
            return [error]
