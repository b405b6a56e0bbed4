"""The same world with workers of the registry contract and with schedules: the wire's real handlers, the real fires.

Workers register, poll, beat their hearts and execute runs step by step, over a network that loses words in both
directions; an answer that was sent and never read is the rule, not the exception. Only gRPC itself is left out.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any
from uuid import UUID

import msgspec
from tests.sim.check_schedule import ScheduleChecker
from tests.sim.check_step import StepChecker
from tests.sim.check_task import TaskChecker, require
from tests.sim.database import Change
from tests.sim.host import Gone, Host
from tests.sim.mirror import Row
from tests.sim.plan import KINDS, LABELS
from tests.sim.planner import Planner, ScheduleTicker
from tests.sim.simulation import Simulation
from tests.sim.violation import Violation

from windlass.contracts.registry.server import poll, step, work
from windlass.contracts.registry.server import worker as registry
from windlass.contracts.registry.server.call import Call, Options, ServerContext
from windlass.contracts.registry.wire import kagzi_pb2 as pb
from windlass.contracts.registry.wire.service import ACTIVE, LEASE_TOKEN, WORKER_ID
from windlass.contracts.registry.wire.worker import read_token
from windlass.core.access import Principal, Role
from windlass.core.lease import Lease
from windlass.engine.loops.schedule_loop import Pace
from windlass.errors import Unavailable, WindlassError

ANYBODY = Principal("sim", Role.OPERATOR)
STALE_S, POLL_S, PACE_S = 2.0, 30.0, 0.5
CHAOS = {"complete": 8.0, "fail": 2.0, "twice": 1.5, "contradict": 1.5, "lie": 1.0, "late": 1.5, "hang": 1.0}
CALM = {"complete": 8.0, "fail": 1.0}
PARTS = {"step": 5.0, "flaky": 1.5, "sleep": 2.0, "quiet": 1.0}
UNKNOWN_S = 60.0
TRIES = 8


class RegistryTaskChecker(TaskChecker):
    """What schedules submit has a checker of its own. Nothing is taken from a worker that knows it."""

    def _inserted(self, row: Row) -> None:
        if row["schedule_id"] is None:
            super()._inserted(row)

    def _reasons(self, old: Row, new: Row, at: Any) -> None:
        super()._reasons(old, new, at)
        if new["losses"] > old["losses"] and (new["error"] or {}).get("reason") == "FORGOTTEN_BY_WORKER":
            world: Any = self.world
            require((new["id"], new["attempt"]) not in world.known_runs, new, "was taken from a worker that runs it")


class RegistryStepChecker(StepChecker):
    """A step that failed for good may begin again in a later attempt of its run."""

    done = frozenset({"succeeded"})


class RegistrySimulation(Simulation):
    def __init__(self, *args: Any, **options: Any) -> None:
        self.houses: dict[int, ServerContext] = {}
        self.known_runs: set[tuple[str, int]] = set()  # in the hands of a worker that says so
        self.slept: set[tuple[str, str]] = set()
        super().__init__(*args, **options)
        self.task_checker, self.step_checker = RegistryTaskChecker(self), RegistryStepChecker(self)
        self.schedule_checker = ScheduleChecker(self)
        self.planner = Planner(self)

    def born(self, host: Host) -> None:
        options = Options(poll_timeout_s=POLL_S, heartbeat_s=0.5, stale_s=STALE_S, gather_s=0.05)
        self.houses[id(host)] = ServerContext(host.engine, options)
        host.engine.parts.schedule_loop.pace = Pace(PACE_S)

    def workers(self) -> list[Any]:
        count = max(self.plan.workers, len(self.plan.queues))
        return [RegistryWorker(self, place) for place in range(count)]

    async def _script(self) -> None:
        for actor in (self.planner, ScheduleTicker(self), UnknownRuns(self)):
            self.start(actor.run())
        await super()._script()

    async def _settle(self, operator: Any, workers: list[Any]) -> None:
        await self.planner.end()
        await super()._settle(operator, workers)

    def _check(self, changes: list[Change], began_at_commit: int) -> None:
        for change in changes:
            self.schedule_checker.change(change)
        super()._check(changes, began_at_commit)


class UnknownRuns:
    """In calm, no run stays for long with a worker that does not know it."""

    def __init__(self, world: RegistrySimulation) -> None:
        self.world = world
        self.since: dict[tuple[str, int], float] = {}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(2.0)
            if self.world.calm:
                self._look()

    def _look(self) -> None:
        now_s = self.world.loop.time()
        running = [row for row in self.world.mirror.tasks.values() if row["state"] == "running"]
        unknown = {(row["id"], row["attempt"]) for row in running} - self.world.known_runs
        self.since = {key: self.since.get(key, now_s) for key in unknown}
        for (task_id, attempt), since_s in self.since.items():
            if now_s - since_s > UNKNOWN_S:
                raise Violation(f"{task_id} #{attempt} is with a worker that does not know it")


class Line:
    """The caller's end of a call: what was told beside the answer, and whether that could be sent."""

    def __init__(self) -> None:
        self.told: dict[str, str | bytes] = {}
        self._listeners: list[Callable[[Any], None]] = []
        self._sent = False

    def time_remaining(self) -> float | None:
        return None

    def set_trailing_metadata(self, said: Any) -> None:
        self.told = dict(said)

    def add_done_callback(self, listener: Callable[[Any], None]) -> None:
        self._listeners.append(listener)

    def done(self) -> bool:
        return self._sent

    def close(self, *, sent: bool) -> None:
        self._sent = sent
        for listener in self._listeners:
            listener(self)


class Caller:
    """Says things to whichever engine answers."""

    def __init__(self, world: RegistrySimulation, stream: Any) -> None:
        self.world, self.stream = world, stream

    async def call(
        self, handler: Any, request: Any, metadata: dict[str, str] | None = None, about: object = None
    ) -> tuple[Any, dict[str, str | bytes]]:
        """The answer and what came beside it. Gone if there was none."""
        host, line = self.stream.choice(self.world.hosts), Line()

        async def handled(_engine: Any) -> Any:
            call = Call(self.world.houses[id(host)], ANYBODY, line, dict(metadata or {}))
            try:
                answer = await handler(call, request)
            except asyncio.CancelledError:
                line.close(sent=False)
                raise
            line.close(sent=True)
            return answer

        return await host.ask(handled, about), line.told

    async def surely(self, handler: Any, request: Any, metadata: dict[str, str] | None = None) -> Any:
        """Again and again, until there is an answer; an error of ours is one, None is none at all."""
        for _ in range(TRIES):
            try:
                return (await self.call(handler, request, metadata))[0]
            except (Gone, Unavailable):
                await asyncio.sleep(self.stream.around(0.3))
            except WindlassError as error:
                return error
        return None


class RegistryWorker(Caller):
    """One that names what it runs, or one that says nothing of it. It lives many lives."""

    def __init__(self, world: RegistrySimulation, place: int) -> None:
        super().__init__(world, world.seed.stream("registry", place))
        self.name, self.place = f"r{place}", place
        self.runs: dict[asyncio.Task[Any], RegistryRun] = {}
        self.lease: Lease | None = None
        self.silent_until_s, self.says = 0.0, "names"
        self.leaves = False

    async def run(self) -> None:
        while not self.leaves:
            await self._life()
            await asyncio.sleep(self.stream.around(0.5))

    @property
    def calm(self) -> bool:
        return self.world.calm

    async def _life(self) -> None:
        plan, stream, first = self.world.plan, self.stream, self.place < len(self.world.plan.queues)
        self.says = "names" if self.calm else stream.pick({"names": 3, "nothing": 2})
        began_calm = self.calm
        queue = plan.queues[self.place % len(plan.queues)]
        kinds = KINDS if first or stream.often(0.6) else tuple(stream.some(KINDS))
        labels = dict.fromkeys(LABELS, "") if first or stream.often(0.3) else {}
        asked = pb.RegisterWorkerRequest(
            task_queue=queue, workflow_types=kinds, hostname=self.name, pid=1, max_concurrent=4, labels=labels
        )
        try:
            registered, told = await self.call(registry.register_worker, asked)
        except (Gone, Unavailable):
            return
        self.id, token = registered.worker_id, read_token(str(told[LEASE_TOKEN]))
        self.lease = Lease(
            token.lease_id, "default", self.id, (queue,), kinds, tuple(labels), STALE_S, self.world.now()
        )
        self.ended = False
        beats = self.world.start(self._beats(str(told[LEASE_TOKEN])))
        polls = [self.world.start(self._polls(self.lease)) for _ in range(stream.randint(1, 3))]
        try:
            while not self.ended and not self.leaves:
                await asyncio.sleep(0.2)
                if self.calm and not began_calm and self._hides():
                    return
                if not self.calm and stream.often(plan.worker_death / 5):
                    return
        finally:
            for task in (beats, *polls):
                task.cancel()
            self._die()

    def _hides(self) -> bool:
        """Something that it holds will never end while it lives, and nobody could find out."""
        return self.says == "nothing"

    def _die(self) -> None:
        """Without a word; half of what it runs goes on for a while, and is heard of late."""
        for task, run in list(self.runs.items()):
            self.world.known_runs.discard(run.key)
            if self.calm or self.stream.often(0.5):
                task.cancel()
        self.runs.clear()

    async def leave(self) -> None:
        self.leaves = True
        self._die()
        with contextlib.suppress(AttributeError):  # it never got as far as to have an id
            await self.surely(registry.deregister_worker, pb.DeregisterWorkerRequest(worker_id=self.id))

    # ----------------------------------------------------------------------------------------- signs of life

    async def _beats(self, token: str) -> None:
        while True:
            await asyncio.sleep(STALE_S * self.stream.between(0.15, 0.4))
            if self.world.loop.time() < self.silent_until_s and not self.calm:
                continue
            metadata = {LEASE_TOKEN: token}
            if self.says == "names":
                metadata[ACTIVE] = ",".join(str(run.id) for run in self.runs.values() if not run.hung)
            beat = pb.WorkerHeartbeatRequest(worker_id=self.id, active_count=len(self.runs))
            try:
                await self.call(registry.worker_heartbeat, beat, metadata)
            except (Gone, Unavailable):
                continue
            except WindlassError:
                self.ended = True
                return

    # ----------------------------------------------------------------------------------------- polls

    async def _polls(self, lease: Lease) -> None:
        while True:
            if len(self.runs) >= 4:
                await asyncio.sleep(self.stream.between(0.02, 0.2))
                continue
            if not await self._poll(lease):
                self.ended = True
                return

    async def _poll(self, lease: Lease) -> bool:
        asked = pb.PollActivityRequest(
            worker_id=self.id, task_queue=lease.queues[0], supported_workflow_types=lease.kinds or ()
        )
        call = self.world.poll_checker.begins(lease)
        metadata = {LEASE_TOKEN: f"{lease.id.hex}.0"}
        try:
            asking = self.call(poll.poll_activity, asked, metadata, call)
            if not self.calm and self.stream.often(0.1):  # hangs up in the middle
                async with asyncio.timeout(self.stream.around(0.5)):
                    polled, told = await asking
            else:
                polled, told = await asking
        except (TimeoutError, Gone):  # what was claimed, if anything, is ours and unknown to us
            return True
        except Unavailable:
            await asyncio.sleep(self.stream.around(0.5))
            return True
        except WindlassError:
            return False
        finally:
            self.world.poll_checker.ends(call)
        token = read_token(str(told[LEASE_TOKEN])) if polled.run_id else None
        attempts = set() if token is None else {(polled.run_id, token.attempt)}
        self.world.poll_checker.answered(call, attempts)
        if polled.run_id:
            self._begin(polled, {LEASE_TOKEN: str(told[LEASE_TOKEN]), WORKER_ID: self.id})
        return True

    def _begin(self, polled: Any, metadata: dict[str, str]) -> None:
        run = RegistryRun(self, UUID(polled.run_id), metadata)
        if self.says != "nothing":
            self.world.known_runs.add(run.key)
        task = self.world.start(run.run())
        self.runs[task] = run
        task.add_done_callback(lambda done: self._ended(done, run))

    def _ended(self, task: asyncio.Task[Any], run: RegistryRun) -> None:
        self.world.known_runs.discard(run.key)
        self.runs.pop(task, None)


class Stopped(Exception):
    """This execution of the run is over: it sleeps, or was refused, or there was no answer."""


class RegistryRun(Caller):
    """One execution of a run. What it does is drawn from its id, so that every execution asks for the same."""

    def __init__(self, worker: RegistryWorker, task_id: UUID, metadata: dict[str, str]) -> None:
        super().__init__(worker.world, worker.stream)
        self.worker, self.id, self.metadata, self.hung = worker, task_id, metadata, False
        self.attempt = read_token(metadata[LEASE_TOKEN]).attempt
        self.key = (str(task_id), self.attempt)
        drawn = self.world.seed.stream("run", task_id)
        self.parts = [drawn.pick(PARTS) for _ in range(drawn.randint(0, 4))]
        self.calm = self.world.calm
        self.way = self.stream.pick(CALM if self.calm else CHAOS)
        self.seen: dict[str, Any] = {}

    async def run(self) -> None:
        with contextlib.suppress(Stopped):
            for place, part in enumerate(self.parts):
                match part:
                    case "quiet":  # nothing is heard of it
                        await asyncio.sleep(STALE_S * self.stream.between(0.5, 3.0))
                    case "sleep":
                        await self._sleep(place)
                    case _:
                        await self._step(f"s{place}", part == "flaky")
            await self._end()

    async def _end(self) -> None:
        await asyncio.sleep(self.stream.around(0.2))
        match self.way:
            case "hang":
                self.hung = True
                if self.worker.says == "names":  # and does not name it any more
                    self.world.known_runs.discard(self.key)
                await asyncio.sleep(10_000.0)
            case "late":
                await self._cut_off()
                await self._complete()
            case "lie":
                await self._lie()
                await self._complete()
            case "twice":
                await asyncio.gather(self._complete(), self._complete())
            case "contradict":
                await asyncio.gather(self._complete(), self._fail())
            case "fail":
                await self._fail()
            case _:
                await self._complete()

    async def _cut_off(self) -> None:
        self.worker.silent_until_s = self.world.loop.time() + STALE_S * self.stream.between(0.8, 1.6)
        await asyncio.sleep(STALE_S * self.stream.between(1.0, 2.5))

    # ----------------------------------------------------------------------------------------- steps

    async def _step(self, name: str, flaky: bool) -> None:
        if self.way == "late" and self.stream.often(0.3):
            await self._cut_off()
        begun = await self._said(step.begin_step, pb.BeginStepRequest(run_id=str(self.id), step_id=name))
        if not begun.should_execute:
            self.seen[f"{name}#1"] = msgspec.json.decode(begun.cached_result)
            return
        self.world.step_checker.ran(self.id, self.attempt, name)
        await asyncio.sleep(self.stream.around(1.0 if self.stream.often(0.2) else 0.1))
        if flaky and self.stream.often(0.4):
            error = pb.ErrorDetail(message="in a step", non_retryable=self.stream.often(0.2))
            await self._said(step.fail_step, pb.FailStepRequest(run_id=str(self.id), step_id=name, error=error))
            if self.world.mirror.state(self.id) == "running":
                await self._fail()
            raise Stopped
        value = {"step": name, "attempt": self.attempt, "chance": self.stream.getrandbits(40)}
        output = msgspec.json.encode(value)
        await self._said(step.complete_step, pb.CompleteStepRequest(run_id=str(self.id), step_id=name, output=output))
        self.seen[f"{name}#1"] = value

    async def _sleep(self, place: int) -> None:
        name, key = f"__sleep_{place}", (str(self.id), f"__sleep_{place}")
        begun = await self._said(step.begin_step, pb.BeginStepRequest(run_id=str(self.id), step_id=name))
        if not begun.should_execute:
            return
        if key in self.world.slept:
            raise Violation(f"{self.id} #{self.attempt} is to sleep {name} again, which it has slept")
        asked = pb.ScheduleSleepRequest(run_id=str(self.id), duration_seconds=self.stream.randint(0, 2))
        await self._said(work.schedule_sleep, asked)
        self.world.slept.add(key)
        if self.stream.often(0.5):
            done = pb.CompleteStepRequest(run_id=str(self.id), step_id=name, output=b"null")
            await self.surely(step.complete_step, done, self.metadata)
        raise Stopped

    # ----------------------------------------------------------------------------------------- ends

    async def _complete(self) -> None:
        result = msgspec.json.encode({"task": str(self.id), "attempt": self.attempt, "seen": self.seen})
        asked = pb.CompleteWorkflowRequest(run_id=str(self.id), output=result)
        answer = await self.surely(work.complete_workflow, asked, self.metadata)
        if isinstance(answer, pb.Empty):
            self.world.model.result_accepted(self.id, self.attempt, result)

    async def _fail(self) -> None:
        error = pb.ErrorDetail(message="it broke", non_retryable=self.stream.often(0.2))
        await self.surely(work.fail_workflow, pb.FailWorkflowRequest(run_id=str(self.id), error=error), self.metadata)

    async def _lie(self) -> None:
        foreign = UUID(int=self.stream.getrandbits(128), version=4).hex
        mine = read_token(self.metadata[LEASE_TOKEN])
        token = self.stream.choice([f"{foreign}.{self.attempt}", f"{mine.lease_id.hex}.{self.attempt + 1000}"])
        output = msgspec.json.encode({"task": str(self.id), "attempt": self.attempt + 1000})
        asked = pb.CompleteWorkflowRequest(run_id=str(self.id), output=output)
        answer = await self.surely(work.complete_workflow, asked, {**self.metadata, LEASE_TOKEN: token})
        if isinstance(answer, pb.Empty):
            raise Violation(f"{self.worker.name} lied about its attempt of {self.id} and was believed")

    async def _said(self, handler: Any, request: Any) -> Any:
        """The answer; the execution is over if it was refused, or there was none."""
        if not self.calm and self.stream.often(0.05):  # says it twice at once
            first, second = await asyncio.gather(
                self.surely(handler, request, self.metadata), self.surely(handler, request, self.metadata)
            )
            answer = second if first is None else first
        else:
            answer = await self.surely(handler, request, self.metadata)
        if answer is None or isinstance(answer, WindlassError):
            raise Stopped
        return answer
