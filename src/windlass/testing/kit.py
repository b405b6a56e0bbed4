"""An app under test: a real engine on a real PostgreSQL and a real worker in this process, with a clock that jumps.

Nothing waits for real time: when all that can be done now has been done, the clock is moved to the next moment at which
something is due. Faults are asked for by name.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager, nullcontext
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar, cast
from uuid import UUID

from windlass.app import open_blobs
from windlass.core.check import check_count, check_name, check_type
from windlass.core.error import Invalid
from windlass.core.transition import State
from windlass.engine.engine import Engine
from windlass.sdk import App, Duration, TaskFailed, TaskHandle, Worker
from windlass.sdk.client import Client
from windlass.sdk.duration import seconds
from windlass.sdk.workflow_handler import WorkflowHandler
from windlass.store.store import Store
from windlass.testing.clock import VirtualClock, virtual_clock
from windlass.testing.database import TestServer
from windlass.testing.fault import Between, Doorway, Plan, Twin
from windlass.testing.loops import AnyLoop

R = TypeVar("R")

LEASE_TTL_S = 7 * 86400.0
JUMP_MAX_S = 2 * 86400.0
NEVER_S = 365 * 86400.0
SILENCE = timedelta(seconds=30)  # after which a worker without heartbeats is given up
PATIENCE_S = 30.0  # of real time, for what handlers do

# The next moment at which the engine has something to do, or a worker that was cut off loses its lease.
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
    """What the fixture `windlass_kit` gives: `async with windlass_kit(app) as kit:`."""

    def __call__(self, app: App) -> AbstractAsyncContextManager[Kit]: ...


class Stuck(AssertionError):
    """What the test waits for will not happen, however long it waits."""


class Kit:
    """Get it from the fixture `windlass_kit`, or from `open_kit`."""

    def __init__(self, app: App, engine: Engine, clock: VirtualClock, database_url: str) -> None:
        self.app, self.engine, self.clock, self.database_url = app, engine, clock, database_url
        self._plan = Plan()
        self._workers: dict[Between, tuple[Worker, asyncio.Task[None]]] = {}
        self._chores: set[asyncio.Task[None]] = set()
        self._names = 0
        self._twin: Twin | None = None
        self._broken: BaseException | None = None

    @property
    def betweens(self) -> list[Between]:
        return list(self._workers)

    # ----------------------------------------------------------------------------------------- faults

    def kill_after_step(self, name: str, *, occurrence: int = 1) -> None:
        """Kill the worker when this step has just been recorded. Another worker takes over."""
        self._plan.kill_after.append(_step(name, occurrence))

    def kill_before_record(self, name: str, *, occurrence: int = 1) -> None:
        """Kill the worker when this step's function has returned and its result is not recorded yet."""
        self._plan.kill_before.append(_step(name, occurrence))

    def drop_heartbeats(self) -> None:
        """From now on no worker that runs gives a sign of life, and none knows it; another one takes over in time."""
        cut_off = [between for between in self._workers if not between.cut_off.is_set()]
        for between in cut_off:
            between.cut_off.set()
        self._chore(self._take_over_from(cut_off))

    def duplicate_delivery(self, times: int = 1) -> None:
        """The next tasks are each given to two workers, as the same attempt."""
        check_count("times", times, least=1)
        self._plan.duplicates += times
        if self._twin is None:
            self._twin = Twin(self.engine)
            self._start_worker(self._twin)
        for between in self._workers:
            between.twin = self._twin

    # ----------------------------------------------------------------------------------------- time

    async def now(self) -> datetime:
        return await self.clock.now()

    async def advance(self, duration: Duration) -> None:
        """Let this much time go by, and carry out what becomes due on the way."""
        left_s = seconds("duration", duration)
        while left_s > 0:
            await self.settle()
            due_s = await self._due_in_s(with_schedules=True)
            jump_s = left_s if due_s is None else min(left_s, due_s)
            await self._jump(jump_s)
            left_s -= jump_s
        await self.settle()

    async def result(self, handle: TaskHandle[R]) -> R:
        """Let as much time go by as it takes, and return what the handler returned. Raises TaskFailed if it failed."""
        check_type("handle", handle, TaskHandle)
        await self._until(handle.id, frozenset())
        return await handle.result(0)

    async def until(self, handle: TaskHandle[Any], state: State | str) -> None:
        """Let as much time go by as it takes until the task is in this state."""
        check_type("handle", handle, TaskHandle)
        if state not in State.__members__.values():
            raise Invalid(f"{state!r} is not a state", field="state")
        await self._until(handle.id, frozenset({State(state)}))

    async def _until(self, task_id: UUID, states: frozenset[State]) -> None:
        while True:
            await self.settle()
            task = (await self.engine.views.get(task_id)).task
            if task.terminal or task.state in states:
                if states and task.state not in states:
                    raise TaskFailed.of(task) if task.state is not State.SUCCEEDED else Stuck("it has succeeded")
                return
            due_s = await self._due_in_s()
            if due_s is None:
                reasons = "; ".join(why.message for why in await self.engine.views.why_waiting(task_id))
                raise Stuck(f"task {task_id} is {task.state} and nothing is due: {reasons or 'no reason is known'}")
            await self._jump(due_s)

    async def settle(self) -> None:
        """Until all that can be done at this moment has been done."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if self._broken is not None:
                    raise self._broken
                quiet = not self._busy()  # before the ticks too: what ended meanwhile may have left them something
                if sum([await tick() for tick in self._ticks()]):
                    continue
                if quiet and not self._busy():
                    return
                await asyncio.sleep(0.001)

    def _ticks(self) -> tuple[Any, ...]:
        e = self.engine.loops
        return (e.expire_tick, e.timer_tick, e.settle_tick, e.wake_tick, e.effects_tick, e.schedule_tick)

    def _busy(self) -> bool:
        """Whether a worker that is heard of runs something, or has not looked since it was last told to."""
        live = [between for between in self._workers if not between.cut_off.is_set()]
        queues = {(self.app.namespace, queue) for between in live for queue in self._workers[between][0].queues}
        looked = all(any(True for _ in self.engine.hub.idle(*queue)) for queue in queues)
        return bool(self._chores) or any(between.held for between in live) or (bool(live) and not looked)

    async def _due_in_s(self, *, with_schedules: bool = False) -> float | None:
        """Schedules never come to an end: who waits for a task is not to wait for them for ever."""
        cut_off = [id_ for between in self._workers if between.cut_off.is_set() for id_ in between.leases]
        async with self.engine.store.begin() as tx:
            at = await tx.session.connection.fetchval(NEXT_MOMENT, cut_off, with_schedules)
        return None if at is None else max(0.000001, (at - await self.clock.now()).total_seconds())

    async def _jump(self, by_s: float) -> None:
        """Workers that are heard of give signs of life on the way, however far the clock jumps."""
        while by_s > 0:
            for between in [one for one in self._workers if not one.cut_off.is_set() and not one.dead]:
                for lease in list(between.leases.values()):
                    await self.engine.extend_lease(lease)
            step_s = min(by_s, JUMP_MAX_S)
            await self.clock.advance(step_s)
            by_s -= step_s

    # ----------------------------------------------------------------------------------------- workers

    def start(self) -> None:
        between = Between(self.engine, self._plan, self._kill)
        between.twin = self._twin
        self._start_worker(between)

    def _start_worker(self, between: Between) -> None:
        self._names += 1
        queues = sorted({handler.queue for handler in self.app.handlers.values()}) or ["default"]
        worker = Worker(
            between, self.app.handlers, queues=queues, name=f"worker-{self._names}", namespace=self.app.namespace,
            lease_ttl_s=LEASE_TTL_S, heartbeat_process=False,
        )  # fmt: skip
        self._workers[between] = (worker, asyncio.create_task(worker.run()))

    def _kill(self, between: Between) -> None:
        """From this moment on nothing that it says counts; the engine notices as if its lease had run out."""
        between.dead = True
        self._chore(self._replace(between))

    async def _replace(self, between: Between) -> None:
        leases = list(between.leases.values())
        await self._stop(between)
        for lease in leases:
            await self.engine.end_lease(lease)
        self.start()

    async def _take_over_from(self, cut_off: list[Between]) -> None:
        ids = [lease_id for between in cut_off for lease_id in between.leases]
        async with self.engine.store.begin() as tx:
            await tx.session.connection.execute(
                "update windlass.lease set expires_at = windlass.now() + $2 where id = any($1::uuid[])", ids, SILENCE
            )
        self.start()

    async def _stop(self, between: Between) -> None:
        _, running = self._workers.pop(between)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    def _chore(self, work: Coroutine[Any, Any, None]) -> None:
        chore = asyncio.create_task(work)
        self._chores.add(chore)
        chore.add_done_callback(self._done)

    def _done(self, chore: asyncio.Task[None]) -> None:
        self._chores.discard(chore)
        if not chore.cancelled() and chore.exception() is not None:
            self._broken = chore.exception()

    async def close(self) -> None:
        for chore in list(self._chores):
            await chore
        for between in list(self._workers):
            await self._stop(between)


@asynccontextmanager
async def open_kit(app: App, server: TestServer) -> AsyncIterator[Kit]:
    """The app on a fresh database with a virtual clock, open, with a worker that runs."""
    check_type("app", app, App)
    async with server.database() as url:
        clock = await virtual_clock(url)
        engine = Engine(
            Store(url),
            timers=clock,
            stopwatch=clock.stopwatch,
            listen=False,
            poll_s=NEVER_S,
            blobs=open_blobs("memory://"),
        )
        kit = Kit(app, engine, clock, url)
        with _rewired(app, kit), ExitStack() as stack:
            try:
                async with app:
                    stack.enter_context(app.held_open())  # a web app opens it in its lifespan, too
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
def _rewired(app: App, kit: Kit) -> Iterator[None]:
    """The app reaches the kit's engine, and waits by its clock alone, until the end of the test."""
    connect = app._connect
    workflows = [handler for handler in app.handlers.values() if isinstance(handler, WorkflowHandler)]
    app._connect = lambda: nullcontext(cast("Client", AnyLoop(Doorway(kit.engine, lambda: kit.betweens))))
    for handler in workflows:
        handler.inline_wait_s = 0.0
    try:
        yield
    finally:
        app._connect = connect
        for handler in workflows:
            del handler.inline_wait_s


def _step(name: object, occurrence: object) -> tuple[str, int]:
    check_name("name", name)
    check_count("occurrence", occurrence, least=1)
    return str(name), cast("int", occurrence)
