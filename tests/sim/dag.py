"""The same world with a DAG: a deployer changes its file, an emitter feeds its sources, holders run its jobs.

The real loops of datasets are at work, on every engine and at seeded moments. Jobs are claimed and completed as by the
lease contract, with events of their outputs; only the network and the messages are the simulation's.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace as with_fields
from typing import Any
from uuid import UUID

import msgspec
from msgspec.structs import replace
from tests.sim import operator
from tests.sim import plan as plans
from tests.sim.bugs import patched
from tests.sim.check_dag import DagChecker, DagCommitChecker, DagTaskChecker
from tests.sim.database import Change
from tests.sim.hold import HOLDERS, HeldJob, Holder, HoldSimulation, Setup
from tests.sim.host import Gone, Host
from tests.sim.mirror import instant
from tests.sim.operator import Operator
from tests.sim.seed import Stream
from tests.sim.simulation import SETTLE_MAX_S, Simulation
from tests.sim.violation import Violation

from windlass.contracts.lease.claim_by_id import Held, Holders
from windlass.contracts.lease.rules import LeaseCredential, LeaseReport
from windlass.core.states import State
from windlass.core.task import JOB, Outcome
from windlass.datasets import router
from windlass.datasets.dags import LEAVE, Dags
from windlass.datasets.deployments import Deployments
from windlass.datasets.inputs import NOOP, JobInputs
from windlass.datasets.router import Router
from windlass.datasets.rules.events import ROUTE, EventReport
from windlass.datasets.rules.job import SERVER_QUEUE
from windlass.datasets.server_jobs import ServerJobs
from windlass.datasets.sources import Sources
from windlass.errors import Rejected, Unavailable, WindlassError

DAG = "chain"
FILE = """\
name: chain
jobs:
  - {{name: follow, activation: source, runtime: ecs_platform, operator: follower, source: {{kind: manual}}, outputs: 1,
      update_strategy: append, unique_key: [hash], config: {{chain: {follow}}}}}
  - {{name: load, activation: source, runtime: dispatcher, operator: manual_source, source: {{kind: manual}},
      outputs: 1, update_strategy: replace}}
  - {{name: alert, activation: reactive, runtime: ecs_platform, operator: alerter, execution_strategy: PerUpdate,
      inputs: [{{from: {{job: follow}}}}], outputs: 1, update_strategy: replace, config: {{limit: {alert}}}}}
  - {{name: ranges, activation: reactive, runtime: dispatcher, operator: range_aggregator,
      execution_strategy: PerUpdate, inputs: [{{from: {{job: follow}}}}], outputs: 1, update_strategy: replace,
      config: {{range_size: {ranges}, start: 0}}}}
  - {{name: compact, activation: reactive, runtime: ecs_platform, operator: compacter,
      execution_strategy: PerPartition, inputs: [{{from: {{job: ranges}}}}, {{from: {{job: follow}}, trigger: false}}],
      outputs: 1, update_strategy: replace, config: {{level: {compact}}}, scaling: {{max_concurrency: {width}}}}}
"""
TIDY = """\
  - {{name: tidy, activation: reactive, runtime: ecs_platform, operator: tidier, execution_strategy: PerPartition,
      inputs: [{{from: {{job: load}}}}], outputs: 1, update_strategy: replace, config: {{level: {tidy}}}}}
"""
SIZES = (10, 15)
WISHES = {"deploy": 4.0, "activate": 2.0, "rollback": 1.5, "pause": 1.0, "resume": 2.0, "abandon": 0.7, "retry": 2.0}
TICKS = {"route": 4.0, "advance": 4.0, "reconcile": 2.0, "server": 3.0, "deployments": 1.0}


def drawn_limits(stream: Stream) -> dict[str, Any]:
    """The settings of the queue, wide enough for all jobs."""
    limits = plans.drawn_limits(stream)
    return {"max_running": limits["max_running"] + 2} if "max_running" in limits else {}


def drawn_file(stream: Stream) -> str:
    """One of a few files, so that some come again. Most differ in one job or two."""
    choice = {
        "follow": stream.pick({1: 9, 2: 1}), "alert": stream.choice((7, 8)), "ranges": stream.choice(SIZES),
        "compact": stream.choice((1, 2)), "width": stream.choice((1, 2, 9)), "tidy": stream.choice((1, 2)),
    }  # fmt: skip
    text = FILE + (TIDY if stream.often(0.9) else "")
    return text.format(**choice)


class DagSimulation(HoldSimulation):
    def __init__(self, *args: Any, **options: Any) -> None:
        self.windows: dict[tuple[str, int], int | None] = {}  # where the window of an attempt begins
        super().__init__(*args, **options)
        self.plan = with_fields(self.plan, queues=("platform",), chaos_s=0.7 * self.plan.chaos_s)
        self.task_checker, self.commit_checker = DagTaskChecker(self), DagCommitChecker(self)
        self.dag_checker = DagChecker(self)

    async def run(self) -> None:
        small = patched(router, "OWED_MAX", 3), patched(router, "BATCH", 5)  # so that one tick is not enough
        with small[0], small[1], patched(operator, "drawn_limits", drawn_limits):
            await super().run()

    def born(self, host: Host) -> None:
        super().born(host)
        stream = self.seed.stream("datasets", host.name, host.life)

        async def tick() -> None:
            while not host.dead:
                await asyncio.sleep(stream.around(0.12))
                name = stream.pick(TICKS)
                if not self._idle(name) or stream.often(0.05):
                    await self._tick(host, name)

        for _ in range(2):  # as the loops of one engine, they run beside each other
            self.loop.call_soon(lambda: self.start(tick()))

    def _idle(self, name: str) -> bool:
        """Whether a tick would find nothing, as far as one can see from outside."""
        kinds = {row["kind"] for row in self.mirror.outbox.values()}
        match name:
            case "route":
                return ROUTE not in kinds
            case "advance":
                return JOB not in kinds
            case "reconcile":
                return not any(row["behind"] for row in self.dag_checker.jobs.values())
            case "server":
                return not any(row["queue"] == SERVER_QUEUE for row in self.mirror.unfinished())
        states = {row["state"] for row in self.dag_checker.deployments.values()}
        return LEAVE not in kinds and not states & {"building", "ready", "failed"}

    async def _tick(self, host: Host, name: str) -> None:
        def tick(engine: Any) -> Any:
            match name:
                case "server":
                    return engine.service(ServerJobs).tick()
                case "deployments":
                    return engine.service(Deployments).tick()
            return getattr(engine.service(Router), f"{name}_tick")()

        try:
            await host.ask(tick)
        except (Gone, Unavailable):
            pass
        except Rejected as error:
            self.fail(f"the tick {name} was refused: {error}", error)

    def clients(self) -> list[Any]:
        return [Deployer(self), Emitter(self, "m0"), Emitter(self, "m1")]

    def workers(self) -> list[Any]:
        return [Setup(self), *(JobHolder(self, f"h{number}") for number in range(HOLDERS))]

    def _check(self, changes: list[Change], began_at_commit: int) -> None:
        super()._check(changes, began_at_commit)
        self.dag_checker.after(changes)

    async def _settle(self, operator: Operator, workers: list[Any]) -> None:
        until_s = self.loop.time() + SETTLE_MAX_S
        while left := self._left():
            if self.loop.time() > until_s:
                raise Violation(f"it never settles: {left[:5]}")
            await asyncio.sleep(1.0)
        for worker in workers:
            await worker.leave()
        with self.loop.outside():
            await self._compare()

    def _left(self) -> list[str]:
        tasks = [f"task {row['id']} is {row['state']}" for row in self.mirror.unfinished()]
        effects = [f"effect {row['kind']} of {row['task_id']}" for row in self._effects_left()]
        return [*tasks, *effects, *self.dag_checker.unsettled()]

    async def _compare(self) -> None:
        await Simulation._compare(self)
        await self.dag_checker.check_end(self.database.own)


class Person:
    """Somebody who asks an engine for something, and may not hear what became of it."""

    def __init__(self, world: DagSimulation, name: str) -> None:
        self.world, self.name = world, name
        self.stream = world.seed.stream("person", name)

    async def ask(self, what: Any) -> bool:
        """Whether there was an answer."""
        try:
            await self.stream.choice(self.world.hosts).ask(lambda engine: what(engine.service(Dags), engine))
        except Rejected as error:
            self.world.say(self.name, f"was refused: {error}")
        except (Gone, Unavailable):
            return False
        return True

    async def ask_surely(self, what: Any) -> None:
        while not await self.ask(what):  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(0.3)


class Deployer(Person):
    """Deploys changed files, goes back and forth between versions, pauses and resumes, and retries what failed."""

    def __init__(self, world: DagSimulation) -> None:
        super().__init__(world, "deployer")

    async def run(self) -> None:
        file = drawn_file(self.stream)
        await self.ask_surely(lambda dags, _: dags.deploy(DAG, file))
        while not self.world.calm:
            await asyncio.sleep(self.stream.around(0.6))
            if not self.world.calm:
                await getattr(self, f"_{self.stream.pick(WISHES)}")()

    async def calmly(self) -> None:
        await self.ask_surely(lambda dags, _: dags.pause(DAG, paused=False))
        if self.stream.often(0.5):
            await self._deploy()

    async def _deploy(self) -> None:
        file, auto = drawn_file(self.stream), self.stream.often(0.7)
        await self.ask(lambda dags, _: dags.deploy(DAG, file, auto_cutover=auto))

    async def _activate(self) -> None:
        await self._with_one("ready", "superseded", "rolled_back", do=lambda dags, number: dags.activate(DAG, number))

    async def _rollback(self) -> None:
        await self.ask(lambda dags, _: dags.rollback(DAG))

    async def _abandon(self) -> None:
        await self._with_one("building", "ready", "failed", do=lambda dags, number: dags.abandon(DAG, number))

    async def _pause(self) -> None:
        await self.ask(lambda dags, _: dags.pause(DAG))

    async def _resume(self) -> None:
        await self.ask(lambda dags, _: dags.pause(DAG, paused=False))

    async def _retry(self) -> None:
        failed = [UUID(row["id"]) for row in self.world.mirror.tasks.values() if row["state"] == "failed"]
        if failed:
            task_id = self.stream.choice(failed)
            await self.ask(lambda _, engine: engine.parts.repair.retry(task_id))

    async def _with_one(self, *states: str, do: Any) -> None:
        known = self.world.dag_checker.deployments.values()
        numbers = sorted(row["number"] for row in known if row["state"] in states)
        if numbers:
            number = self.stream.choice(numbers)
            await self.ask(lambda dags, _: do(dags, number))


class Emitter(Person):
    """Starts tasks of the sources. Its cursors grow, but for some that come again or go back."""

    def __init__(self, world: DagSimulation, name: str) -> None:
        super().__init__(world, name)
        self._count, self._cursor = 0, 0

    async def run(self) -> None:
        pause_s = self.stream.pick({0.3: 1, 0.6: 2, 1.2: 1})
        while not self.world.calm:
            await asyncio.sleep(self.stream.around(pause_s))
            if not self.world.calm:
                await self._emit()

    async def calmly(self) -> None:
        for _ in range(3):
            await asyncio.sleep(self.stream.around(1.0))
            await self._emit()

    async def _emit(self) -> None:
        self._count += 1
        key = f"{self.name}-{self._count}"
        if self.stream.often(0.35):
            start = self.stream.choice((0, 10, 20))
            scope: dict[str, Any] = {"partition_key": f"{start}-{start + 9}", "start": start, "end": start + 9}
            job = "load"
        else:
            job, scope = "follow", {"cursor": self._next()}
        for _ in range(3):
            if await self.ask(lambda _, engine: engine.service(Sources).emit(DAG, job, key=key, **scope)):
                return

    def _next(self) -> int:
        if self._cursor and self.stream.often(0.2):
            return self.stream.randint(1, self._cursor)
        self._cursor += self.stream.randint(1, 9)
        return self._cursor


class JobHolder(Holder):
    """Holds tasks of jobs: what they read is fixed when they are claimed."""

    def _message(self) -> UUID | None:
        """Mostly of a task that is due, since each message costs."""
        task_id = super()._message()
        row = self.world.mirror.tasks.get(str(task_id))
        due = row is None or row["state"] != "queued" or instant(row["available_at"]) <= self.world.now()
        return task_id if due or self.stream.often(0.05) else None

    async def _take(self, task_id: UUID) -> None:
        with contextlib.suppress(Gone, Unavailable):
            held = await self.stream.choice(self.world.hosts).ask(lambda engine: self._claim(engine, task_id))
            if held is not None:
                self.world.promised[str(task_id), held.task.attempt] = held.expires_at
                await JobAttempt(self.world, self, held).run()

    async def _claim(self, engine: Any, task_id: UUID) -> Held | None:
        """As the claim of the lease contract does: a window that was read meanwhile is completed at once."""
        held = await engine.service(Holders).claim(task_id, self.name, self.caller)
        if not isinstance(held, Held) or held.wire is None:
            return None
        reading = await engine.service(JobInputs).begin(held.task, held.wire)
        if not reading.noop:
            return replace(held, wire=reading.wire)
        task = held.task
        shown = LeaseCredential(task.id, attempt=task.attempt, token=task.lease_id, caller=self.caller)
        with contextlib.suppress(WindlassError):  # its lease may have ended since
            await engine.service(Holders).finish(LeaseReport(shown, Outcome.SUCCEEDED, NOOP))
        return None


class JobAttempt(HeldJob):
    """One attempt of a job's task: it reports events of its outputs, some of them before its end."""

    world: DagSimulation

    def __init__(self, world: DagSimulation, holder: Holder, held: Held) -> None:
        super().__init__(world, holder, held)
        assert held.wire is not None, held
        wire = msgspec.json.decode(held.wire)
        self.events = _events(wire)
        for given in wire["inputs"]:
            if given.get("mode") == "cursor":
                world.windows[str(self.id), self.attempt] = given["cursor_from"]

    async def tell(self) -> None:
        if self.events and self.stream.often(0.2):

            async def emit(engine: Any) -> bool:
                await engine.service(Holders).emit(self.credential, self.events)
                return True

            await self.say(emit)

    async def complete(self, cursor: int | None = None) -> None:
        state = await self.finish(Outcome.SUCCEEDED, result=self.result, events=self.events)
        if state is State.SUCCEEDED:
            self.world.model.result_accepted(self.id, self.attempt, self.result)


def _events(wire: Any) -> tuple[EventReport, ...]:
    """A source reports what it was asked for, any other job what it has read."""
    scope: dict[str, Any] = {}
    for given in [wire["trigger"], *wire["inputs"]]:
        if given.get("mode") == "partition":
            scope = {"partition_key": given["partition_key"], "start": given["start"], "end": given["end"]}
        elif given.get("mode") == "cursor":
            scope = {"cursor": given["cursor_to"]}
        elif given.get("cursor") is not None:
            scope = {"cursor": given["cursor"]}
    return tuple(
        EventReport(UUID(output["dataset_uuid"]), UUID(output["dataset_version"]), **scope)
        for output in wire["outputs"]
        if scope
    )
