"""The loops of datasets: routing, the turns of jobs, jobs of the server, what is owed, deployments. Any number of
servers may run them. A server on a database without DAGs only asks now and then whether there is one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from windlass.core.queue import QueueName
from windlass.datasets.always_on import AlwaysOn
from windlass.datasets.backfills import Backfills
from windlass.datasets.backpressure import Backpressure
from windlass.datasets.clean_up import CleanUp
from windlass.datasets.data.tables import DataTables
from windlass.datasets.deployments import Deployments
from windlass.datasets.invalidations import Invalidations
from windlass.datasets.owned import OwnedDatasets
from windlass.datasets.purge import Purge
from windlass.datasets.requests import RequestKeys
from windlass.datasets.router import Router
from windlass.datasets.rules.events import BUFFER
from windlass.datasets.rules.job import SERVER_QUEUE
from windlass.datasets.server_jobs import ServerJobs
from windlass.datasets.sink import Sink
from windlass.engine.engine import Engine
from windlass.engine.loops.runner import Loop
from windlass.engine.notifications import Topic
from windlass.errors import Unavailable

Tick = Callable[[], Awaitable[int]]

HOUR_S, SELDOM_S, RECONCILE_S, WATCH_S, SINK_S = 3600.0, 60.0, 30.0, 5.0, 1.0


@asynccontextmanager
async def routing(engine: Engine, *, reconcile_s: float = RECONCILE_S) -> AsyncIterator[None]:
    """Make the tasks of jobs, and bring deployments forward, until the block ends."""
    router, server_jobs = engine.service(Router), engine.service(ServerJobs)
    owned = engine.service(OwnedDatasets)
    router.lost_s = reconcile_s / 2
    by_effect = _by_effect(engine, reconcile_s)
    operators = Loop("operators", server_jobs.tick, every_s=SELDOM_S)

    async def watch() -> int:
        """Notice the first DAG, and what a lost notification or a server that died has left."""
        if await router.has_work():
            wake()
        return 0

    def wake(_queue: QueueName | None = None) -> None:
        if router.has_dags:
            for loop in by_effect:
                loop.wake()

    def queue_changed(queue: QueueName | None) -> None:
        if router.has_dags and (queue is None or queue[1] == SERVER_QUEUE):
            operators.wake()

    leave = [
        engine.parts.notifications.subscribe(Topic.EFFECTS, wake),
        engine.parts.notifications.subscribe(Topic.QUEUES, queue_changed),
    ]
    engine.parts.submitter.checks.append(owned.check)
    await engine.listen()
    clean_up = engine.service(CleanUp)
    loops = (
        *by_effect,
        operators,
        Loop("datasets", watch, every_s=WATCH_S),
        Loop("clean_up", clean_up.tick, every_s=min(SELDOM_S, clean_up.every_s)),
        Loop("request_keys", engine.service(RequestKeys).clean_up_tick, every_s=HOUR_S),
    )
    for loop in loops:
        loop.start()
    try:
        yield
    finally:
        engine.parts.submitter.checks.remove(owned.check)
        for unsubscribe in leave:
            unsubscribe()
        for loop in loops:
            await loop.stop()


def _by_effect(engine: Engine, reconcile_s: float) -> list[Loop]:
    """The loops that have something to do when an effect is written."""
    router, build = engine.service(Router), Loop("deployments", engine.service(Deployments).tick, every_s=SELDOM_S)

    def before_build(tick: Tick) -> Tick:
        """A build may be complete after this tick has done something."""

        async def ticked() -> int:
            if done := await tick():
                build.wake()
            return done

        return ticked

    return [
        Loop("route", before_build(router.route_tick), every_s=SELDOM_S),
        Loop("advance", before_build(router.advance_tick), every_s=SELDOM_S),
        Loop("reconcile", before_build(router.reconcile_tick), every_s=reconcile_s / 2),
        Loop("backpressure", engine.service(Backpressure).tick, every_s=WATCH_S),
        Loop("always_on", engine.service(AlwaysOn).tick, every_s=SELDOM_S),
        _tables_loop(engine, before_build, reconcile_s),
        Loop("purge", engine.service(Purge).tick, every_s=reconcile_s),
        Loop("backfills", engine.service(Backfills).tick, every_s=SELDOM_S),
        Loop("invalidations", engine.service(Invalidations).tick, every_s=SELDOM_S),
        build,
    ]


def _tables_loop(engine: Engine, before_build: Callable[[Tick], Tick], every_s: float) -> Loop:
    """Makes tables. It comes back soon while the data database is away, since deployments wait for their tables."""
    tables = engine.service(DataTables)

    async def tick() -> int:
        try:
            return await tables.tick()
        except Unavailable:
            asyncio.get_running_loop().call_later(WATCH_S, loop.wake)
            raise

    loop = Loop("data_tables", before_build(tick), every_s=every_s)
    return loop


@asynccontextmanager
async def sinking(engine: Engine, sink: Sink) -> AsyncIterator[None]:
    """Write batches to their tables, until the block ends."""
    receive = Loop("sink", sink.tick, every_s=SINK_S)

    def wake(queue: QueueName | None) -> None:
        if queue is None or queue[1].startswith(f"{BUFFER}."):
            receive.wake()

    leave = engine.parts.notifications.subscribe(Topic.MESSAGES, wake)
    await engine.listen()
    loops = (
        receive,
        Loop("sink_reconcile", sink.reconcile_tick, every_s=RECONCILE_S),
        Loop("sink_clean_up", sink.clean_up_tick, every_s=SELDOM_S),
    )
    for loop in loops:
        loop.start()
    try:
        yield
    finally:
        leave()
        for loop in loops:
            await loop.stop()
