"""An app under test: a real engine on a real PostgreSQL and a real worker in this process, with a clock that jumps.

Nothing waits for real time: when all that is due has been done, the clock jumps to the next moment at which something
is due. Faults have a method each.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager, nullcontext
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar, cast
from uuid import UUID

from windlass.core.states import State
from windlass.core.validation import check_count, check_name, check_type
from windlass.engine.engine import Engine
from windlass.errors import Invalid
from windlass.sdk import App, Duration, TaskFailed, TaskHandle, Worker
from windlass.sdk.client import Client
from windlass.sdk.duration import seconds
from windlass.sdk.worker.asyncio_tools import cancel_and_wait
from windlass.sdk.workflow.handler import WorkflowHandler
from windlass.serve import open_blobs
from windlass.store.store import Store
from windlass.testing.clock import VirtualClock, virtual_clock
from windlass.testing.database import TestServer
from windlass.testing.fault import AppLink, Plan, Twin, WorkerLink
from windlass.testing.loops import AnyLoop

R = TypeVar("R")

LEASE_TTL_S = 7 * 86400.0
JUMP_MAX_S = 2 * 86400.0
NEVER_S = 365 * 86400.0
SILENT_AFTER = timedelta(seconds=30)  # until the lease of a worker without heartbeats expires
TIMEOUT_S = 30.0  # of real time, for what handlers do

# The next moment at which the engine has something to do, or an unreachable worker loses its lease.
NEXT_MOMENT = """
select min(at) from (
    select timer_at as at from windlass.task where timer_at is not null
    union all select available_at from windlass.task where state = 'queued'
    union all select available_at from windlass.outbox where dead_at is null
    union all select next_fire_at from windlass.schedule where $2 and not paused
    union all select expires_at from windlass.lease where id = any($1::uuid[])) due
 where at > windlass.now()
"""


class OpenKit(Protocol):
    """The fixture `windlass_kit`: `async with windlass_kit(app) as kit:`."""

    def __call__(self, app: App) -> AbstractAsyncContextManager[Kit]: ...


class Stuck(AssertionError):
    """What the test waits for will not happen, however long it waits."""


class Kit:
    """Get it from the fixture `windlass_kit`, or from `open_kit`."""

    def __init__(self, app: App, engine: Engine, clock: VirtualClock, database_url: str) -> None:
        self.app, self.engine, self.clock, self.database_url = app, engine, clock, database_url
        self._plan = Plan()
        self._workers: dict[WorkerLink, tuple[Worker, asyncio.Task[None]]] = {}
        self._chores: set[asyncio.Task[None]] = set()
        self._names = 0
        self._twin: Twin | None = None
        self._broken: BaseException | None = None

    @property
    def links(self) -> list[WorkerLink]:
        return list(self._workers)

    # ----------------------------------------------------------------------------------------- faults

    def kill_after_step(self, name: str, *, occurrence: int = 1) -> None:
        """Kill the worker when this step has just been recorded. Another worker takes over."""
        self._plan.kill_after.append(_step(name, occurrence))

    def kill_before_record(self, name: str, *, occurrence: int = 1) -> None:
        """Kill the worker when this step's function has returned and its result is not recorded yet."""
        self._plan.kill_before.append(_step(name, occurrence))

    def drop_heartbeats(self) -> None:
        """From now on, the heartbeats of the running workers are lost without an error. Another worker takes over."""
        unreachable = [link for link in self._workers if not link.unreachable.is_set()]
        for link in unreachable:
            link.unreachable.set()
        self._chore(self._take_over_from(unreachable))

    def duplicate_delivery(self, times: int = 1) -> None:
        """Give each of the next tasks to two workers, as the same attempt."""
        check_count("times", times, least=1)
        self._plan.duplicates += times
        if self._twin is None:
            self._twin = Twin(self.engine)
            self._start_worker(self._twin)
        for link in self._workers:
            link.twin = self._twin

    # ----------------------------------------------------------------------------------------- time

    async def now(self) -> datetime:
        return await self.clock.now()

    async def advance(self, duration: Duration) -> None:
        """Let this much time pass, and run what becomes due."""
        left_s = seconds("duration", duration)
        while left_s > 0:
            await self.settle()
            due_s = await self._due_in_s(with_schedules=True)
            jump_s = left_s if due_s is None else min(left_s, due_s)
            await self._jump(jump_s)
            left_s -= jump_s
        await self.settle()

    async def result(self, handle: TaskHandle[R]) -> R:
        """Let time pass until the task has ended, and return its result. Raises TaskFailed if it failed."""
        check_type("handle", handle, TaskHandle)
        await self._until(handle.id, frozenset())
        return await handle.result(0)

    async def until(self, handle: TaskHandle[Any], state: State | str) -> None:
        """Let time pass until the task is in this state."""
        check_type("handle", handle, TaskHandle)
        if state not in State.__members__.values():
            raise Invalid(f"{state!r} is not a state", field="state")
        await self._until(handle.id, frozenset({State(state)}))

    async def _until(self, task_id: UUID, states: frozenset[State]) -> None:
        while True:
            await self.settle()
            task = (await self.engine.tasks.get(task_id)).task
            if task.terminal or task.state in states:
                if states and task.state not in states:
                    raise TaskFailed.of(task) if task.state is not State.SUCCEEDED else Stuck("it has succeeded")
                return
            due_s = await self._due_in_s()
            if due_s is None:
                reasons = "; ".join(why.message for why in await self.engine.tasks.why_waiting(task_id))
                raise Stuck(f"task {task_id} is {task.state} and nothing is due: {reasons or 'no reason is known'}")
            await self._jump(due_s)

    async def settle(self) -> None:
        """Wait until all that is due now has been done."""
        loops = self.engine.loops
        ticks = (
            loops.expire_tick, loops.timer_tick, loops.settle_tick, loops.wake_tick, loops.effects_tick,
            loops.schedule_tick,
        )  # fmt: skip
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                if self._broken is not None:
                    raise self._broken
                quiet = not self._busy()  # before the ticks too: what ended meanwhile may have left them something
                if sum([await tick() for tick in ticks]):
                    continue
                if quiet and not self._busy():
                    return
                await asyncio.sleep(0.001)

    def _busy(self) -> bool:
        """Whether a reachable worker runs something, or has not claimed since it was last notified."""
        live = [link for link in self._workers if not link.unreachable.is_set()]
        queues = {(self.app.namespace, queue) for link in live for queue in self._workers[link][0].queues}
        claimed = all(any(True for _ in self.engine.parts.notifications.idle(*queue)) for queue in queues)
        return bool(self._chores) or any(link.held for link in live) or (bool(live) and not claimed)

    async def _due_in_s(self, *, with_schedules: bool = False) -> float | None:
        """Seconds until something is due. Without schedules, which never end, for a test that waits for a task."""
        unreachable = [id_ for link in self._workers if link.unreachable.is_set() for id_ in link.leases]
        async with self.engine.store.begin() as tx:
            at = await tx.session.connection.fetchval(NEXT_MOMENT, unreachable, with_schedules)
        return None if at is None else max(0.000001, (at - await self.clock.now()).total_seconds())

    async def _jump(self, by_s: float) -> None:
        """Move the clock, and send the heartbeats of reachable workers on the way, however far it jumps."""
        while by_s > 0:
            reachable = [link for link in self._workers if not link.unreachable.is_set() and not link.dead]
            for lease in [lease for link in reachable for lease in link.leases.values()]:
                await self.engine.extend_lease(lease)
            step_s = min(by_s, JUMP_MAX_S)
            await self.clock.advance(step_s)
            by_s -= step_s

    # ----------------------------------------------------------------------------------------- workers

    def start(self) -> None:
        link = WorkerLink(self.engine, self._plan, self._kill)
        link.twin = self._twin
        self._start_worker(link)

    def _start_worker(self, link: WorkerLink) -> None:
        self._names += 1
        queues = sorted({handler.queue for handler in self.app.handlers.values()}) or ["default"]
        worker = Worker(
            link, self.app.handlers, queues=queues, name=f"worker-{self._names}", namespace=self.app.namespace,
            lease_ttl_s=LEASE_TTL_S, heartbeat_process=False,
        )  # fmt: skip
        self._workers[link] = (worker, asyncio.create_task(worker.run()))

    def _kill(self, link: WorkerLink) -> None:
        """From now on its calls are refused; for the engine its lease has expired."""
        link.dead = True
        self._chore(self._replace(link))

    async def _replace(self, link: WorkerLink) -> None:
        leases = list(link.leases.values())
        await self._stop(link)
        for lease in leases:
            await self.engine.end_lease(lease)
        self.start()

    async def _take_over_from(self, unreachable: list[WorkerLink]) -> None:
        ids = [lease_id for link in unreachable for lease_id in link.leases]
        async with self.engine.store.begin() as tx:
            await tx.session.connection.execute(
                "update windlass.lease set expires_at = windlass.now() + $2 where id = any($1::uuid[])",
                ids,
                SILENT_AFTER,
            )
        self.start()

    async def _stop(self, link: WorkerLink) -> None:
        _, running = self._workers.pop(link)
        await cancel_and_wait(running)

    def _chore(self, work: Coroutine[Any, Any, None]) -> None:
        chore = asyncio.create_task(work)
        self._chores.add(chore)
        chore.add_done_callback(self._on_chore_end)

    def _on_chore_end(self, chore: asyncio.Task[None]) -> None:
        self._chores.discard(chore)
        if not chore.cancelled() and chore.exception() is not None:
            self._broken = chore.exception()

    async def close(self) -> None:
        for chore in list(self._chores):
            await chore
        for link in list(self._workers):
            await self._stop(link)


@asynccontextmanager
async def open_kit(app: App, server: TestServer) -> AsyncIterator[Kit]:
    """The app, open on a new database with a virtual clock, with a running worker."""
    check_type("app", app, App)
    async with server.database() as url:
        clock = await virtual_clock(url)
        engine = Engine(
            Store(url), timers=clock, stopwatch=clock.stopwatch, listen=False, poll_s=NEVER_S,
            blobs=open_blobs("memory://"),
        )  # fmt: skip
        kit = Kit(app, engine, clock, url)
        with _use_kit(app, kit), ExitStack() as stack:
            try:
                async with app:
                    stack.enter_context(app.shared())  # a web app opens it in its lifespan, too
                    specs = [schedule.spec for schedule in app.schedules.values()]
                    await engine.declare_schedules(app.name, specs, namespace=app.namespace)
                    kit.start()
                    yield kit
                    await kit.close()
            finally:
                await kit.close()
                await engine.close()
                await clock.close()


@contextmanager
def _use_kit(app: App, kit: Kit) -> Iterator[None]:
    """Inside, the app uses the kit's engine, and waits by its clock alone."""
    workflows = [handler for handler in app.handlers.values() if isinstance(handler, WorkflowHandler)]
    connect = app.connect_by(lambda: nullcontext(cast("Client", AnyLoop(AppLink(kit.engine, lambda: kit.links)))))
    for handler in workflows:
        handler.inline_wait_s = 0.0
    try:
        yield
    finally:
        app.connect_by(connect)
        for handler in workflows:
            del handler.inline_wait_s


def _step(name: str, occurrence: int) -> tuple[str, int]:
    check_name("name", name)
    check_count("occurrence", occurrence, least=1)
    return name, occurrence
