"""The same world with queues that push: engines carry tasks to a service, which calls back by the callback contract.

The real dispatcher, outbox, tokens and callbacks are at work; only the network between them is the simulation's. The
service does all that a worker can do wrong: it dies, goes silent, says things twice, late, or of another attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace as with_fields
from datetime import datetime, timedelta
from typing import Any

import msgspec
from tests.sim import plan as plans
from tests.sim.bugs import patched
from tests.sim.check_commit import CommitChecker
from tests.sim.check_task import TaskChecker, require
from tests.sim.host import Gone, Host
from tests.sim.mirror import Row
from tests.sim.operator import Operator
from tests.sim.reporter import CHAOS, TRIES, Reporter
from tests.sim.simulation import Simulation
from tests.sim.violation import Violation

from windlass.contracts.callback.delivery import PUSH, Push
from windlass.contracts.callback.server.forms import HeartbeatAnswer
from windlass.contracts.callback.server.push import Pusher
from windlass.contracts.callback.server.service import CallbackRequest, Service
from windlass.core.queue import QueueConfig
from windlass.engine.manage import queues, token_keys
from windlass.engine.send.dispatcher import DISPATCH_LEASE
from windlass.engine.send.outbox import EffectHandler, NotNow
from windlass.errors import LeaseLost, Rejected, Unavailable, WindlassError
from windlass.net.ids import parse_id
from windlass.net.targets import read_targets

INTERVAL_MS, TIMEOUT_MS, DISPATCH_MS = 500, 1500, 2000


class Constant:
    """Instead of `secrets`: the same in every run."""

    @staticmethod
    def token_bytes(count: int) -> bytes:
        return b"s" * count


class PushTaskChecker(TaskChecker):
    """An attempt that is sent out begins under the lease of the engines and has one of its own before the commit."""

    def task(self, old: Row | None, new: Row | None, at: datetime) -> None:
        if old is not None and new is not None and old["lease_id"] == str(DISPATCH_LEASE) != new["lease_id"]:
            old = {**old, "lease_id": new["lease_id"]}
            self.lease_of[new["id"], new["attempt"]] = new["lease_id"]
        super().task(old, new, at)

    def lease(self, old: Row | None, new: Row | None, at: datetime) -> None:
        """There is but the one, which never runs out."""

    def _reasons(self, old: Row, new: Row, at: datetime) -> None:
        super()._reasons(old, new, at)
        if (new["error"] or {}).get("reason") == "HEARTBEAT_TIMEOUT" and new["losses"] > old["losses"]:
            world: Any = self.world
            heard_at = world.heard.get((new["id"], new["attempt"]))
            good = heard_at is None or at - heard_at > timedelta(milliseconds=TIMEOUT_MS)
            require(good, new, f"is taken for a zombie, and was heard of at {heard_at}")


class PushCommitChecker(CommitChecker):
    def _leases(self) -> None:
        """Whether anything runs for ever is seen at the end."""


class PushSimulation(Simulation):
    def __init__(self, *args: Any, **options: Any) -> None:
        self.heard: dict[tuple[str, int], datetime] = {}
        self.pushed: set[tuple[str, int]] = set()
        self.services: dict[int, Service] = {}
        super().__init__(*args, **options)
        self.plan = with_fields(self.plan, listen=True)
        self.task_checker, self.commit_checker = PushTaskChecker(self), PushCommitChecker(self)
        self.poll_checker.claimed = lambda *_: None  # type: ignore[method-assign]

    async def run(self) -> None:
        with deterministic():
            await super().run()

    # ----------------------------------------------------------------------------------------- engines

    def effects(self, host: Host) -> dict[str, EffectHandler]:
        async def push(effect: Any) -> None:
            await SimulatedPusher(self, host).push(effect)

        return {PUSH: push}

    def born(self, host: Host) -> None:
        engine = host.engine
        self.services[id(host)] = Service(engine, self.loop.time)
        stream, soon = self.seed.stream("dispatch", host.name, host.life), [False]

        def wake() -> None:
            if not soon[0] and not host.dead:
                soon[0] = True
                self.loop.call_later(stream.around(0.003), lambda: self.start(dispatch()))

        async def dispatch() -> None:
            soon[0] = False
            try:
                if await host.ask(lambda engine: engine.parts.outgoing.dispatch_tick()):
                    wake()
            except Gone:
                wake()  # a loop is no caller far away: nothing gets lost on the way to it
            except Unavailable:
                pass  # whoever failed has said that it is to be looked at again

        async def look() -> None:
            with contextlib.suppress(Gone, Unavailable):
                await host.ask(lambda engine: engine.listen())
            wake()
            while not host.dead:
                await asyncio.sleep(stream.around(2.0))
                with contextlib.suppress(Gone, Unavailable):
                    await host.ask(lambda engine: engine.parts.outgoing.silence_tick())

        engine.parts.outgoing.dispatcher.wake = wake
        self.loop.call_soon(lambda: self.start(look()))

    def workers(self) -> list[Any]:
        return [Setup(self)]

    def undertaker(self) -> Any:
        return Setup(self)

    async def _leases_go(self) -> None:
        """The lease of the engines stays."""

    # ----------------------------------------------------------------------------------------- the service

    async def take(self, envelope: dict[str, Any]) -> None:
        """A push arrives. One that runs already is not run again, by half of the services."""
        key = (envelope["taskId"], envelope["attempt"])
        if key in self.pushed and self.outside_system._stream.often(0.5):
            return
        self.pushed.add(key)
        self.start(PushedJob(self, envelope).run())


class Setup:
    """Makes all queues push, before anybody submits; there are no workers but the service."""

    def __init__(self, world: PushSimulation) -> None:
        self.world = world

    async def run(self) -> None:
        operator = Operator(self.world)
        for queue in self.world.plan.queues:
            push = Push(
                url="http://worker.example/", heartbeat_interval_ms=INTERVAL_MS, heartbeat_timeout_ms=TIMEOUT_MS,
                dispatch_timeout_ms=DISPATCH_MS, cancel_grace_period_ms=1000,
            )  # fmt: skip
            limits = operator.limits.get(queue, {})
            await operator._surely(
                lambda engine, q=queue, p=push, li=limits: engine.queues.put(q, delivery=p, limits=QueueConfig(**li))
            )

    async def leave(self) -> None:
        pass


class SimulatedPusher(Pusher):
    """The pusher of one engine, on a network that loses things."""

    def __init__(self, world: PushSimulation, host: Host) -> None:
        super().__init__(
            host.engine, world.services[id(host)], "http://engine.example", targets=read_targets("loopback")
        )
        self._world, self._stream = world, world.outside_system._stream

    async def _post(self, url: str, headers: dict[str, str], body: bytes, now: datetime) -> None:
        calm = self._world.calm
        if not calm and self._stream.often(0.1):
            raise ConnectionError("the push was lost")
        if not calm and self._stream.often(0.05):
            raise NotNow("the worker is busy", self._stream.around(0.5))
        await self._world.take(msgspec.json.decode(body))
        if not calm and self._stream.often(0.1):
            raise ConnectionError("taken, but the answer was lost")


class PushedJob(Reporter):
    """One attempt in the hands of the service."""

    silence_s = TIMEOUT_MS / 1000

    def __init__(self, world: PushSimulation, envelope: dict[str, Any]) -> None:
        task_id = parse_id("task", envelope["taskId"])
        assert task_id is not None, envelope
        attempt: int = envelope["attempt"]
        stream = world.seed.stream("job", task_id, attempt, len(world.pushed), world.loop.time())
        super().__init__(world, task_id, attempt, stream, {**CHAOS, "unstarted": 1.0})
        self.envelope = envelope
        self.result = {"task": str(self.id), "attempt": self.attempt, "by": "service"}

    async def begin(self) -> bool:
        return self.way == "unstarted" or await self.say("started") is not None

    async def beat(self) -> None:
        answer = await self.say("heartbeat", progressPct=self.stream.randint(0, 100))
        self.cancelled = self.cancelled or bool(answer and answer.should_cancel)

    async def complete(self) -> None:
        answer = await self.say("completed", outcome="SUCCEEDED", output=self.result)
        if answer is not None and answer.final_state == "SUCCEEDED":
            self.world.model.result_accepted(self.id, self.attempt, msgspec.json.encode(self.result))

    async def fail(self) -> None:
        category = self.stream.choice(["USER_CODE", "INFRASTRUCTURE", "CONFIGURATION", "TIMEOUT"])
        await self.say("completed", outcome="FAILED", error={"category": category, "message": "it broke"})

    async def give_up(self) -> None:
        await self.say("completed", outcome="CANCELLED", partialProgress={"n": 1})

    async def lie(self) -> None:
        answer = await self.say("completed", outcome="SUCCEEDED", output=self.result, attempt=self.attempt + 1000)
        if answer is not None:
            raise Violation(f"the service lied about its attempt of {self.id} and was believed")

    async def say(self, what: str, **said: Any) -> Any:
        """Again and again, until there is an answer; None if it was refused, or there never was one."""
        body = msgspec.json.encode({"attempt": self.attempt, "workerId": "service", **said})
        for _ in range(TRIES):
            host = self.stream.choice(self.world.hosts)
            try:
                answer = await host.ask(self._call(self.world.services[id(host)], what, body))
            except (Gone, Unavailable):
                await asyncio.sleep(self.stream.around(0.3))
                continue
            except (LeaseLost, Rejected):
                return None
            except WindlassError as error:
                raise Violation(f"{what} of {self.id} was answered with {error!r}") from error
            if what != "completed":
                at = self.world.heard.get((str(self.id), self.attempt), answer.server_time)
                self.world.heard[str(self.id), self.attempt] = max(at, answer.server_time)
            return answer
        return None

    def _call(self, service: Service, what: str, body: bytes) -> Callable[[Any], Any]:
        async def call(_engine: Any) -> Any:
            scope = await service.admitted(self.envelope["taskToken"], self.envelope["taskId"])
            answer = await getattr(service, what)(CallbackRequest(scope, scope.task_id, body, None))
            return msgspec.json.decode(answer, type=HeartbeatAnswer) if isinstance(answer, msgspec.Raw) else answer

        return call


@contextmanager
def deterministic() -> Iterator[None]:
    """Nothing that is drawn outside of the seed; and no task asks for what no service has."""
    with patched(plans, "LABELS", ()), patched(token_keys, "secrets", Constant), patched(queues, "secrets", Constant):
        yield
