"""One seed, from its beginning to its end: chaos first, then calm, in which everything has to settle.

Owns who is there and in which phase the world is. What must hold is in the `check_*` files, what goes wrong in `fault`
and `chaos`, what everybody does in the actors' own files.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Coroutine
from contextvars import ContextVar, copy_context
from datetime import datetime, timedelta
from typing import Any

from tests.sim.chaos import Chaos
from tests.sim.check_commit import CommitChecker, is_claim
from tests.sim.check_line import LineChecker
from tests.sim.check_poll import ClaimCall, PollChecker
from tests.sim.check_step import StepChecker
from tests.sim.check_task import TaskChecker
from tests.sim.client import Client
from tests.sim.database import BEGINNING, Change, Database
from tests.sim.fault import Weather
from tests.sim.gate import Gate, GatedConnection
from tests.sim.host import HOST, Host
from tests.sim.loop import VirtualLoop
from tests.sim.mirror import Mirror
from tests.sim.model import Model, OutsideSystem
from tests.sim.operator import Operator
from tests.sim.plan import Plan
from tests.sim.seed import Seed
from tests.sim.stranger import Stranger
from tests.sim.ticker import Ticker, Undertaker
from tests.sim.trace import Trace
from tests.sim.violation import Violation
from tests.sim.worker import Worker

from windlass.engine.send.outbox import EffectHandler

SETTLE_MAX_S = 900.0


class Simulation:
    def __init__(self, number: int, database: Database, loop: VirtualLoop, *, verbose: bool = False) -> None:
        self.seed, self.database, self.loop = Seed(number), database, loop
        self.plan = Plan.drawn(self.seed)
        self.weather = Weather.drawn(self.seed.stream("weather"))
        self.trace = Trace(verbose=verbose)
        self.calm = False
        self.clock_ahead_s = 0.0
        self.commits = 0
        self.over: asyncio.Future[None] = loop.create_future()
        self.call: ContextVar[Any] = ContextVar("call", default=None)
        self.mirror = Mirror()
        self.model = Model(self)
        self.outside_system = OutsideSystem(self, self.seed.stream("outside"))
        self.task_checker, self.commit_checker = TaskChecker(self), CommitChecker(self)
        self.line_checker, self.poll_checker = LineChecker(self), PollChecker(self)
        self.step_checker = StepChecker(self)
        self.gate = Gate(self)
        self.chaos = Chaos(self)
        self.lives: list[Host] = []
        self.hosts = [Host(self, f"e{i}", 0) for i in range(self.plan.hosts)]
        self.actors: dict[asyncio.Task[Any], None] = {}

    def effects(self, host: Host) -> dict[str, EffectHandler]:
        """What an engine of this world can carry out besides what all can."""
        return {}

    def born(self, host: Host) -> None:
        """An engine begins its life."""

    # ----------------------------------------------------------------------------------------- time

    def now(self) -> datetime:
        return BEGINNING + timedelta(seconds=self.loop.time() + self.clock_ahead_s)

    def epoch_ms(self) -> int:
        return int(self.now().timestamp() * 1000)

    def say(self, who: str, text: str) -> None:
        self.trace.add(self.loop.time(), who, text)

    # ----------------------------------------------------------------------------------------- the course of a seed

    async def run(self) -> None:
        """Raises Violation when a promise was broken."""
        self.loop.set_task_factory(self.task_factory)  # type: ignore[arg-type]
        script = self.loop.create_task(self._script())
        try:
            await asyncio.wait({script, self.over}, return_when=asyncio.FIRST_COMPLETED)
            if self.over.done():
                self.over.result()
            script.result()
        finally:
            await self._stop([script])

    def undertaker(self) -> Any:
        return Undertaker(self)

    def workers(self) -> list[Any]:
        return [Worker(self, f"w{i}") for i in range(self.plan.workers)]

    def clients(self) -> list[Any]:
        return [Client(self, f"c{i}") for i in range(self.plan.clients)]

    async def _script(self) -> None:
        workers, clients = self.workers(), self.clients()
        operator = Operator(self)
        await operator.set_up()
        tickers = [Ticker(self, i) for i in range(len(self.hosts))]
        for actor in [*workers, operator, *tickers, self.chaos, self.undertaker(), Stranger(self)]:
            self.start(actor.run())
        working = [self.start(client.run()) for client in clients]
        self.start(self.poll_checker.run())
        await asyncio.wait(working, timeout=self.plan.chaos_s)
        self.calm = True
        self.weather.stop()
        self.say("world", "calm")
        await operator.calm_down()
        await asyncio.wait(working)
        await asyncio.wait([self.start(client.calmly()) for client in clients])
        await self._settle(operator, workers)

    async def _settle(self, operator: Operator, workers: list[Any]) -> None:
        """Nothing goes wrong any more: within a while, every task has ended and nothing is left over."""
        until_s = self.loop.time() + SETTLE_MAX_S
        while self.mirror.unfinished() or self._effects_left():
            if self.loop.time() > until_s:
                self.model.check_end()
                raise Violation(f"effects were never carried out: {self._effects_left()[:3]}")
            await operator.unstick()
            await asyncio.sleep(1.0)
        for worker in workers:
            await worker.leave()
        await self._leases_go()
        self.model.check_end()
        self.outside_system.check_end()
        with self.loop.outside():
            await self._compare()

    def _effects_left(self) -> list[Any]:
        return [row for row in self.mirror.outbox.values() if row["dead_at"] is None]

    async def _leases_go(self) -> None:
        for _ in range(60):
            if not self.mirror.leases:
                return
            await asyncio.sleep(2.0)
        raise Violation(f"leases stay though nobody lives: {[row['worker'] for row in self.mirror.leases.values()]}")

    async def _compare(self) -> None:
        """The checkers saw what is there, and the history of each task agrees with its counters."""
        rows = await self.database.own.fetch("select id::text, state, attempt from windlass.task")
        seen = {(row["id"], row["state"], row["attempt"]) for row in self.mirror.tasks.values()}
        if seen != {tuple(row) for row in rows}:
            raise Violation("the log of written rows does not tell what is in the table of tasks")
        self.task_checker.check_end()

    # ----------------------------------------------------------------------------------------- who runs

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        context = copy_context()
        context.run(HOST.set, None)  # whoever starts it: an actor belongs to no process
        task = self.loop.create_task(self._guarded(coroutine), context=context)
        self.actors[task] = None
        task.add_done_callback(lambda _: coroutine.close())  # one that was stopped before it began
        return task

    async def _guarded(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """An actor that fails is a finding, or a defect of the simulation; never silence."""
        try:
            return await coroutine
        except Violation as violation:
            self.fail(str(violation))
        except Exception as error:
            self.fail(f"an actor raised {type(error).__name__}: {error}", error)

    def task_factory(self, loop: VirtualLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        """Tasks that are made inside a host's process die with it."""
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
        context = options.get("context")
        host = context.get(HOST) if context is not None else HOST.get()
        if host is not None:
            host.tasks[task] = None
            task.add_done_callback(lambda done: host.tasks.pop(done, None))
            if host.dead:
                self.loop.call_soon(task.cancel)
        return task

    def fail(self, text: str, error: BaseException | None = None) -> None:
        if not self.over.done():
            detail = "" if error is None else "\n" + "".join(traceback.format_exception(error))
            self.say("VIOLATION", text)
            self.over.set_exception(Violation(text + detail))

    async def _stop(self, tasks: list[asyncio.Task[Any]]) -> None:
        """Everybody goes, and every transaction is rolled back: the next seed finds idle connections."""
        for host in self.hosts:
            await host.crash()
        left = [*tasks, *self.actors]
        for task in left:
            task.cancel()
        while left:
            await asyncio.gather(*left, return_exceptions=True)
            left = [task for host in self.lives for task in host.tasks]
        self.loop.set_task_factory(None)

    # ----------------------------------------------------------------------------------------- what the gate tells

    async def observe_before(self, connection: GatedConnection, name: str, args: tuple[object, ...]) -> None:
        call = self.call.get()
        if isinstance(call, ClaimCall):
            self.poll_checker.asks(call, name)
        if name == "claim_tasks":
            await self.line_checker.before(args[0], args[1])
        elif name in ("start_due", "insert_started_tasks"):
            await self.line_checker.before(args[2], args[3])

    def observe_after(self, connection: GatedConnection, name: str, args: tuple[object, ...], result: Any) -> None:
        try:
            if name == "claim_tasks":
                self.line_checker.after(args, result)
            elif name == "start_due":
                self.line_checker.after_at_once(args, result)
            elif name == "insert_started_tasks":
                self.line_checker.after_hand_off(result[0][0])
        except Violation as violation:
            self.fail(str(violation))

    def committed(self, connection: GatedConnection, changes: list[Change]) -> None:
        """A transaction is durable: check what it wrote, then let it be heard."""
        if not changes:
            return
        self.commits += 1
        try:
            self._check(changes, connection.began_at_commit)
        except Violation as violation:
            self.fail(str(violation))
        for message in dict.fromkeys(change.new for change in changes if change.relation == "notify"):
            for host in self.hosts:
                host.notify(message)

    def _check(self, changes: list[Change], began_at_commit: int) -> None:
        touched = self.commit_checker.before(changes, began_at_commit)
        call = self.call.get()
        for change in changes:
            if change.relation == "task":
                self.task_checker.task(change.old, change.new, change.at)
                if is_claim(change):
                    self.poll_checker.claimed(change.new, call)
            elif change.relation == "step":
                self.step_checker.step(change.old, change.new)
            elif change.relation == "signal":
                self.step_checker.signal(change.old, change.new)
            elif change.relation == "lease":
                self.task_checker.lease(change.old, change.new, change.at)
            elif change.relation == "outbox" and change.new is None and change.old["kind"] == "deliver":
                self.outside_system.removed(change.old["id"])
            self.mirror.apply(change)
        if any(change.relation in ("task", "queue") for change in changes):
            self.poll_checker.changes += 1
        self.commit_checker.after(changes, touched, self.now())
        self.step_checker.after(changes)
