"""Links between the workers of a test and the engine. Calls pass, unless a test injects a fault.

After a kill, no call of the worker reaches the engine, and its lease ends. A worker whose heartbeats are dropped gets
the usual answers, but no new work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from windlass.core.command import Claimed, Release, Report
from windlass.core.lease import Activity, Extension, Lease
from windlass.core.step import Step
from windlass.core.step_command import StepCommand, StepResult
from windlass.core.task import Task
from windlass.engine.engine import Engine
from windlass.errors import LeaseLost
from windlass.sdk.worker.heartbeat import Attempt
from windlass.sdk.workflow.exits import WorkflowExit


class Killed(WorkflowExit):
    """The worker's process has died."""

    def report(self, task: Task, lease_id: UUID) -> Report:
        return Release(task.id, task.attempt, lease_id)


@dataclass(slots=True)
class Plan:
    """The faults to inject, each once."""

    kill_after: list[tuple[str, int]] = field(default_factory=list)
    kill_before: list[tuple[str, int]] = field(default_factory=list)
    duplicates: int = 0


class WorkerLink:
    """The engine, for one worker of a test. Calls that are not about leases or steps pass unchanged."""

    def __init__(self, engine: Engine, plan: Plan, kill: Callable[[WorkerLink], None]) -> None:
        self._engine, self._plan, self._kill = engine, plan, kill
        self.dead = False
        self.leases: dict[UUID, Lease] = {}
        self.held: set[Attempt] = set()
        self.unreachable = asyncio.Event()
        self.twin: Twin | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def open_lease(self, *args: Any, **options: Any) -> Lease:
        self._check_alive()
        lease = await self._engine.open_lease(*args, **options)
        self.leases[lease.id] = lease
        return lease

    async def extend_lease(self, lease: Lease, active: Sequence[UUID] | None, activity: Activity) -> Extension:
        self._check_alive()
        if self.unreachable.is_set():
            return Extension(datetime.max.replace(tzinfo=UTC), (), ())
        return await self._engine.extend_lease(lease, active, activity)

    async def claim(self, lease: Lease, limit: int, *, wait_s: float) -> list[Claimed]:
        self._check_alive()
        claimed = await self._claim_unless_unreachable(lease, limit, wait_s)
        self.held.update((one.task.id, one.task.attempt) for one in claimed)
        if claimed and self.twin is not None and self._plan.duplicates > 0:
            self._plan.duplicates -= 1
            self.twin.deliver(claimed)
        return claimed

    async def _claim_unless_unreachable(self, lease: Lease, limit: int, wait_s: float) -> list[Claimed]:
        claiming = asyncio.ensure_future(self._engine.claim(lease, limit, wait_s=wait_s))
        unreachable = asyncio.ensure_future(self.unreachable.wait())
        try:
            await asyncio.wait({claiming, unreachable}, return_when=asyncio.FIRST_COMPLETED)
            if not self.unreachable.is_set():
                return await claiming
        finally:
            claiming.cancel()
            unreachable.cancel()
        await asyncio.Event().wait()  # for ever: the engine does not answer
        raise AssertionError

    async def report(self, reports: Sequence[Report]) -> Sequence[object]:
        try:
            return [LeaseLost() for _ in reports] if self.dead else await self._engine.report(reports)
        finally:
            self.held.difference_update((report.task_id, report.attempt) for report in reports)

    async def end_lease(self, lease: Lease) -> None:
        self.leases.pop(lease.id, None)
        await self._engine.end_lease(lease)

    async def record_step(self, command: StepCommand) -> Step:
        self._check_alive()
        self._kill_if(self._plan.kill_before, command)
        step = await self._engine.record_step(command)
        self._kill_if(self._plan.kill_after, command)
        return step

    async def transact_step(self, command: StepResult, work: Callable[[Any], Awaitable[bytes]]) -> Step:
        async def then_die(connection: Any) -> bytes:
            result = await work(connection)
            self._kill_if(self._plan.kill_before, command)
            return result

        self._check_alive()
        step = await self._engine.transact_step(command, then_die)
        self._kill_if(self._plan.kill_after, command)
        return step

    def _check_alive(self) -> None:
        if self.dead:
            raise LeaseLost

    def _kill_if(self, steps: list[tuple[str, int]], command: StepCommand) -> None:
        step = (command.place.name, command.place.occurrence)
        if step in steps:
            steps.remove(step)
            self._kill(self)
            raise Killed(f"killed at step {command.place.name}")


class Twin(WorkerLink):
    """A worker that gets the same attempts as another one."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, Plan(), lambda _: None)
        self._copies: asyncio.Queue[Claimed] = asyncio.Queue()

    def deliver(self, claimed: Sequence[Claimed]) -> None:
        for one in claimed:
            self.held.add((one.task.id, one.task.attempt))
            self._copies.put_nowait(one)

    async def claim(self, lease: Lease, limit: int, *, wait_s: float) -> list[Claimed]:  # noqa: ARG002
        return [await self._copies.get()]


class AppLink:
    """The engine, for the app of a test: steps of a workflow go through the link of the worker that runs it."""

    def __init__(self, engine: Engine, links: Callable[[], Iterable[WorkerLink]]) -> None:
        self._engine, self._links = engine, links

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def record_step(self, command: StepCommand) -> Step:
        return await self._link_of(command).record_step(command)

    async def transact_step(self, command: StepResult, work: Callable[[Any], Awaitable[bytes]]) -> Step:
        return await self._link_of(command).transact_step(command, work)

    def _link_of(self, command: StepCommand) -> WorkerLink:
        for link in self._links():
            if command.lease_id in link.leases:
                return link
        raise LeaseLost  # of a worker that was killed
