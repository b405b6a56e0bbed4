"""The same world with a DAG: people change its file and feed its sources, holders run its jobs, sinks write its rows.

The real loops of datasets are at work, on every engine and at seeded moments, several at once. Jobs are claimed and
completed as by the lease contract; only the network, the messages and the object store are the simulation's. The data
database is the one of the state, on connections of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import replace as with_fields
from typing import Any

from tests.sim import operator
from tests.sim import plan as plans
from tests.sim.bugs import patched
from tests.sim.check_dag import DagChecker, DagCommitChecker, DagTaskChecker
from tests.sim.check_data import DataChecker
from tests.sim.dag_data import LAKE_ROOT, SCRATCH, SimulatedBlobs, WrittenBatch
from tests.sim.dag_holder import JobHolder
from tests.sim.dag_person import Deployer, Emitter, Person, Repairer
from tests.sim.database import Change
from tests.sim.gate import Gate, GatedConnection, GatedPool
from tests.sim.hold import HoldSimulation, Setup
from tests.sim.host import Gone, Host
from tests.sim.operator import Operator
from tests.sim.seed import Stream
from tests.sim.simulation import SETTLE_MAX_S, Simulation
from tests.sim.violation import Violation

from windlass.contracts.lease.claim_by_id import Holders
from windlass.core.task import JOB
from windlass.datasets import backfills, owed, router, sink
from windlass.datasets.always_on import AlwaysOn
from windlass.datasets.backfills import Backfills
from windlass.datasets.backpressure import Backpressure
from windlass.datasets.dags import LEAVE
from windlass.datasets.data.database import DataDatabase
from windlass.datasets.data.tables import VIEW, DataTables
from windlass.datasets.deployments import Deployments
from windlass.datasets.invalidations import Invalidations
from windlass.datasets.lake import Lake
from windlass.datasets.router import Router
from windlass.datasets.rules import always_on
from windlass.datasets.rules.events import BUFFER, ROUTE
from windlass.datasets.rules.invalidation import INVALIDATE
from windlass.datasets.rules.job import SERVER_QUEUE
from windlass.datasets.scratch import Scratch
from windlass.datasets.server_jobs import ServerJobs
from windlass.datasets.sink import Sink
from windlass.engine.send.outbox import EffectHandler
from windlass.errors import Rejected, Unavailable

SERVICES = {"server": ServerJobs, "deployments": Deployments, "data": DataTables, "backfills": Backfills,
            "invalidations": Invalidations, "always_on": AlwaysOn, "backpressure": Backpressure}  # fmt: skip
TICKS = {"route": 4.0, "advance": 4.0, "reconcile": 2.0, "server": 3.0, "deployments": 1.0, "sink": 4.0,
         "sink_reconcile": 0.5, "sink_clean_up": 0.3, "data": 1.0, "backfills": 2.0, "invalidations": 0.5,
         "always_on": 1.0, "backpressure": 0.5}  # fmt: skip
HOLDERS = 3
VISIBILITY_S = 0.4  # so short that a batch often comes to a second sink
LOOPS = 2  # of one engine that run beside each other
# Most of the time these find that nothing has changed.
WATCHERS, SKIPPED = frozenset({"deployments", "data", "backfills", "invalidations", "always_on", "backpressure"}), 0.8
# After these a transaction has read what it decides by, and others have time to change it: another server may begin the
# same, or this tick.
STALLS = {"live_edges": "route", "job_load": "route", "events_to_route": "route", "owed_partitions": "route",
          "live_jobs": "route", "committed_partitions": "server", "sink_commits": "sink", "raise_data_cursor": "sink",
          "receive_batches": "sink", "always_on_jobs": "always_on", "lock_backfill": "backfills",
          "unrouted_invalidations": "invalidations", "lock_behind_jobs": "reconcile"}  # fmt: skip


class DagGate(Gate):
    """Lets transactions stop where others could come in between, more often than chance does."""

    async def statement(
        self, connection: GatedConnection, name: str, args: tuple[object, ...], run: Callable[[], Awaitable[Any]]
    ) -> Any:
        result = await super().statement(connection, name, args, run)
        world: Any = self.world
        if name in STALLS and result and not world.calm and self._stream.often(world.stall):
            if name == "lock_behind_jobs":
                world.start(world.deployer.blink())
            world.rival(self._stream, STALLS[name])
            await asyncio.sleep(self._stream.around(0.3))
        return result


def drawn_limits(stream: Stream) -> dict[str, Any]:
    """The settings of the queue, wide enough for all jobs."""
    limits = plans.drawn_limits(stream)
    return {"max_running": limits["max_running"] + 2} if "max_running" in limits else {}


class DagSimulation(HoldSimulation):
    def __init__(self, *args: Any, **options: Any) -> None:
        self.windows: dict[tuple[str, int], int | None] = {}  # where the window of an attempt begins
        self.batches: dict[str, WrittenBatch] = {}
        self._numbers = 0
        super().__init__(*args, **options)
        self.plan = with_fields(self.plan, queues=("platform",), chaos_s=0.4 * self.plan.chaos_s)
        self.task_checker, self.commit_checker = DagTaskChecker(self), DagCommitChecker(self)
        self.dag_checker, self.data_checker = DagChecker(self), DataChecker(self)
        self.gate = DagGate(self)
        stream = self.seed.stream("dag")
        self.stall = stream.pick({0.0: 1, 0.05: 1, 0.2: 1})
        self.route_batch = stream.pick({1: 2, 5: 1})
        self.deployer, self.repairer = Deployer(self), Repairer(self)
        self.scratch, self.lake = SimulatedBlobs(self, SCRATCH), SimulatedBlobs(self, LAKE_ROOT)

    def number(self, count: int = 1) -> int:
        """The first of so many numbers that nobody else gets."""
        self._numbers += count
        return self._numbers - count + 1

    async def run(self) -> None:
        small: dict[Any, dict[str, Any]] = {  # so that one tick is not enough, and what takes minutes takes seconds
            owed: {"OWED_MAX": 2}, router: {"BATCH": self.route_batch}, backfills: {"PAGE": 2, "OPEN_MAX": 3},
            always_on: {"RESTART_S": 2.0}, operator: {"drawn_limits": drawn_limits},
            sink: {"VISIBILITY_S": VISIBILITY_S, "AGAIN_FIRST_S": 0.1, "AGAIN_MAX_S": 1.0, "LOST_S": 3.0,
                   "RECEIVE_MAX": 4},
        }  # fmt: skip
        with ExitStack() as stack:
            for module, values in small.items():
                for name, value in values.items():
                    stack.enter_context(patched(module, name, value))
            await super().run()

    # ----------------------------------------------------------------------------------------- engines

    def effects(self, host: Host) -> dict[str, EffectHandler]:
        return {BUFFER: lambda effect: host.engine.service(Holders).queue_batch(effect)}

    def born(self, host: Host) -> None:
        super().born(host)
        host.engine.service(DataDatabase)._pool = GatedPool(host)
        self.loop.call_soon(lambda: self._start_loops(host))

    def _start_loops(self, host: Host) -> None:
        host.engine.service(Lake).use(LAKE_ROOT, lambda: self.lake)
        for number in range(LOOPS):
            stream = self.seed.stream("datasets", host.name, host.life, number)
            self.start(self._ticks(host, stream, self._sink(host)))

    def _sink(self, host: Host) -> Sink:
        scratch = Scratch(SCRATCH, lambda: self.scratch)
        return Sink(host.engine, scratch, keep_s=4.0, visibility_s=VISIBILITY_S)

    def rival(self, stream: Stream, tick: str) -> None:
        """Another server does the same at the same time."""
        host = stream.choice(self.hosts)
        self.start(self._tick(host, tick, self._sink(host)))

    async def _ticks(self, host: Host, stream: Stream, sinks: Sink) -> None:
        while not host.dead:
            await asyncio.sleep(stream.around(0.12))
            useful = self._useful()
            name = stream.pick({name: TICKS[name] for name in useful} if useful else TICKS)
            if not stream.often(SKIPPED if name in WATCHERS or not useful else 0.0):
                await self._tick(host, name, sinks)

    def _useful(self) -> list[str]:
        """The ticks that would find something, as far as one can see from outside."""
        kinds = {row["kind"] for row in self.mirror.outbox.values()}
        unfinished, jobs = self.mirror.unfinished(), self.dag_checker.jobs.values()
        dag, data = self.dag_checker, self.data_checker
        found = {
            "route": ROUTE in kinds,
            "advance": JOB in kinds,
            "reconcile": any(row["behind"] for row in jobs),
            "server": any(row["queue"] == SERVER_QUEUE for row in unfinished),
            "deployments": LEAVE in kinds or dag.has_state("building", "ready", "failed"),
            "data": VIEW in kinds or dag.has_state("building"),
            "backfills": any(row["ended_at"] is None for row in dag.backfills.values()),
            "invalidations": INVALIDATE in kinds or bool(dag.open_invalidations()),
            "always_on": not dag.always_on_is_right(),
            "backpressure": bool(unfinished) or any(row["held"] for row in jobs),
            "sink": data.has_visible(),
            "sink_reconcile": data.has_lost(),
            "sink_clean_up": data.has_old(),
        }
        return [name for name in TICKS if found[name]]

    async def _tick(self, host: Host, name: str, sinks: Sink) -> None:
        def tick(engine: Any) -> Any:
            if name.startswith("sink"):
                return getattr(sinks, f"{name}_tick".removeprefix("sink_"))()
            if name in SERVICES:
                return engine.service(SERVICES[name]).tick()
            return getattr(engine.service(Router), f"{name}_tick")()

        try:
            await host.ask(tick)
        except (Gone, Unavailable):
            pass
        except Rejected as error:
            self.fail(f"the tick {name} was refused: {error}", error)

    # ----------------------------------------------------------------------------------------- who is there

    def clients(self) -> list[Person]:
        return [self.deployer, Emitter(self, "m0"), Emitter(self, "m1"), self.repairer]

    def workers(self) -> list[Any]:
        return [Setup(self), *(JobHolder(self, f"h{number}") for number in range(HOLDERS))]

    # ----------------------------------------------------------------------------------------- checks

    def _check(self, changes: list[Change], began_at_commit: int) -> None:
        self.dag_checker.before(changes)
        super()._check(changes, began_at_commit)
        self.dag_checker.after(changes, began_at_commit)
        self.data_checker.after(changes)

    async def _settle(self, operator: Operator, workers: list[Any]) -> None:
        until_s = self.loop.time() + SETTLE_MAX_S
        while left := self._left():
            if self.loop.time() > until_s:
                raise Violation(f"it never settles: {left[:5]}")
            await self.repairer.end_waiting()
            await asyncio.sleep(1.0)
        for worker in workers:
            await worker.leave()
        with self.loop.outside():
            await self._compare()

    def _left(self) -> list[str]:
        """What has still to happen. A job that always runs never ends."""
        runs = self.dag_checker.active_always_on()
        unfinished = [row for row in self.mirror.unfinished() if row["job_id"] not in runs]
        tasks = [f"task {row['id']} is {row['state']}" for row in unfinished]
        effects = [
            f"effect {row['kind']} of {row['task_id']}"
            for row in self._effects_left()
            if (row["body"] or {}).get("job_id") not in runs
        ]
        return [*tasks, *effects, *self.dag_checker.unsettled(), *self.data_checker.unsettled()]

    async def _compare(self) -> None:
        await Simulation._compare(self)
        await self.dag_checker.check_end(self.database.own)
        await self.data_checker.check_end(self.database.own)
