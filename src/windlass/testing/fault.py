"""What stands between the workers of a test and the engine: all passes, unless a test wants something to go wrong.

A worker that is killed is never heard of again: nothing that it still says reaches the engine, and its lease ends. One
whose heartbeats are dropped believes that all is well, and is cut off from new work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from windlass.core.command import Claimed, Release, Report
from windlass.core.error import LeaseLost
from windlass.core.lease import Activity, Extension, Lease
from windlass.core.step import Step
from windlass.core.step_command import StepCommand, StepResult
from windlass.core.task import Task
from windlass.engine.engine import Engine
from windlass.sdk.leaving import Leaving

Attempt = tuple[UUID, int]


class Killed(Leaving):
    """The worker's process is gone."""

    def report(self, task: Task, lease_id: UUID) -> Report:
        return Release(task.id, task.attempt, lease_id)


@dataclass(slots=True)
class Plan:
    """What is to go wrong, each once."""

    kill_after: list[tuple[str, int]] = field(default_factory=list)
    kill_before: list[tuple[str, int]] = field(default_factory=list)
    duplicates: int = 0


class Between:
    """The engine, as one worker of a test reaches it. What is not about leases or steps passes untouched."""

    def __init__(self, engine: Engine, plan: Plan, kill: Callable[[Between], None]) -> None:
        self._engine, self._plan, self._kill = engine, plan, kill
        self.dead = False
        self.leases: dict[UUID, Lease] = {}
        self.held: set[Attempt] = set()
        self.cut_off = asyncio.Event()
        self.twin: Twin | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def open_lease(self, *args: Any, **options: Any) -> Lease:
        self._live()
        lease = await self._engine.open_lease(*args, **options)
        self.leases[lease.id] = lease
        return lease

    async def extend_lease(self, lease: Lease, active: Sequence[UUID] | None, activity: Activity) -> Extension:
        self._live()
        if self.cut_off.is_set():
            return Extension(datetime.max.replace(tzinfo=UTC), (), ())
        return await self._engine.extend_lease(lease, active, activity)

    async def claim(self, lease: Lease, limit: int, *, wait_s: float) -> list[Claimed]:
        self._live()
        claimed = await self._claim_unless_cut_off(lease, limit, wait_s)
        self.held.update((one.task.id, one.task.attempt) for one in claimed)
        if claimed and self.twin is not None and self._plan.duplicates > 0:
            self._plan.duplicates -= 1
            self.twin.deliver(claimed)
        return claimed

    async def _claim_unless_cut_off(self, lease: Lease, limit: int, wait_s: float) -> list[Claimed]:
        claiming = asyncio.ensure_future(self._engine.claim(lease, limit, wait_s=wait_s))
        cut_off = asyncio.ensure_future(self.cut_off.wait())
        try:
            await asyncio.wait({claiming, cut_off}, return_when=asyncio.FIRST_COMPLETED)
            if not self.cut_off.is_set():
                return await claiming
        finally:
            claiming.cancel()
            cut_off.cancel()
        await asyncio.Event().wait()  # for ever: nobody answers
        raise AssertionError

    async def report(self, reports: Sequence[Report]) -> Sequence[object]:
        try:
            return [LeaseLost() for _ in reports] if self.dead else await self._engine.report(reports)
        finally:
            self.held.difference_update((report.task_id, report.attempt) for report in reports)

    async def end_lease(self, lease: Lease) -> None:
        self.leases.pop(lease.id, None)
        await self._engine.end_lease(lease)

    async def record_step(self, said: StepCommand) -> Step:
        self._live()
        self._kill_if(self._plan.kill_before, said)
        step = await self._engine.record_step(said)
        self._kill_if(self._plan.kill_after, said)
        return step

    async def transact_step(self, said: StepResult, work: Callable[[Any], Awaitable[bytes]]) -> Step:
        async def then_die(connection: Any) -> bytes:
            result = await work(connection)
            self._kill_if(self._plan.kill_before, said)
            return result

        self._live()
        step = await self._engine.transact_step(said, then_die)
        self._kill_if(self._plan.kill_after, said)
        return step

    def _live(self) -> None:
        if self.dead:
            raise LeaseLost

    def _kill_if(self, wanted: list[tuple[str, int]], said: StepCommand) -> None:
        at = (said.place.name, said.place.occurrence)
        if at in wanted:
            wanted.remove(at)
            self._kill(self)
            raise Killed(f"killed at step {said.place.name}")


class Twin(Between):
    """A worker that gets what another one has got already."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, Plan(), lambda _: None)
        self._copies: asyncio.Queue[Claimed] = asyncio.Queue()

    def deliver(self, claimed: Sequence[Claimed]) -> None:
        for one in claimed:
            self.held.add((one.task.id, one.task.attempt))
            self._copies.put_nowait(one)

    async def claim(self, lease: Lease, limit: int, *, wait_s: float) -> list[Claimed]:  # noqa: ARG002
        return [await self._copies.get()]


class Doorway:
    """The engine, as the app of a test reaches it: what a workflow says goes the way of the worker that it is with."""

    def __init__(self, engine: Engine, betweens: Callable[[], Iterable[Between]]) -> None:
        self._engine, self._betweens = engine, betweens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def record_step(self, said: StepCommand) -> Step:
        return await self._way_of(said).record_step(said)

    async def transact_step(self, said: StepResult, work: Callable[[Any], Awaitable[bytes]]) -> Step:
        return await self._way_of(said).transact_step(said, work)

    def _way_of(self, said: StepCommand) -> Between:
        for between in self._betweens():
            if said.lease_id in between.leases:
                return between
        raise LeaseLost  # of a worker that was killed
