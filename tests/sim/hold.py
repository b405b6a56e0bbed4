"""The same world with holders: they hear of tasks by id, too often, too late, or of some that are over, and claim them.

The real claims, leases, reports and events of the lease contract are at work; only the network and the messages are
the simulation's. A holder does all that one can do wrong: it dies, goes silent, says things twice, late, or of another
attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace as with_fields
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
from tests.sim import plan as plans
from tests.sim.check_commit import CommitChecker
from tests.sim.check_task import TaskChecker, require
from tests.sim.host import Gone, Host
from tests.sim.mirror import Row, instant
from tests.sim.operator import Operator
from tests.sim.reporter import CHAOS, TRIES, Reporter
from tests.sim.simulation import Simulation
from tests.sim.violation import Violation

from windlass.contracts.lease.claim_by_id import Held, Holders
from windlass.contracts.lease.delivery import Wakeup
from windlass.contracts.lease.rules import Caller, LeaseCredential, LeaseReport
from windlass.core.failure import Category, Failure
from windlass.core.queue import QueueConfig
from windlass.core.states import State
from windlass.core.task import Outcome
from windlass.datasets.rules.events import EventReport
from windlass.errors import Rejected, Unavailable, WindlassError

LEASE_MS = 1500
HOLDERS = 4
DATASET, VERSION = UUID(int=1), UUID(int=2)


class HoldTaskChecker(TaskChecker):
    """A lease that runs out counts like a failed attempt, and not before its time."""

    def _counts(self, old: Row, new: Row) -> None:
        ended = new["outcome"] if old["outcome"] != new["outcome"] else None
        over = old["attempt"] == new["attempt"] and old["outcome"] in ("lost", "timed_out")
        if over and ended == "failed":
            require(new["failures"] == old["failures"], new, "counts its loss and its late report twice")
            old = {**old, "failures": old["failures"] - 1}
        if ended == "lost" and new["failures"] == old["failures"] + 1:
            new = {**new, "failures": old["failures"], "losses": old["losses"] + 1}
            attempts_max = (new["policy"] or {}).get("max_attempts", 5)
            spent = old["failures"] + 1 >= attempts_max
            require(not (spent and new["state"] == "queued"), new, "is tried again with its budget spent")
            new = {**new, "losses": min(new["losses"], 1), "policy": None}
            old = {**old, "losses": 0}
        super()._counts(old, new)

    def _reasons(self, old: Row, new: Row, at: datetime) -> None:
        super()._reasons(old, new, at)
        if (new["error"] or {}).get("reason") == "LEASE_EXPIRED" and old["state"] == "running" != new["state"]:
            world: Any = self.world
            until = world.promised.get((new["id"], new["attempt"]))
            require(
                until is None or until <= at, new, f"was taken from its holder, to whom it was promised until {until}"
            )

    def check_end(self) -> None:
        for row in self.mirror.tasks.values():
            entries = self.mirror.history.get(row["id"], [])
            if instant(row["created_at"]) < self.world.now() - timedelta(seconds=self.world.plan.keep_finished_s):
                continue
            whats = {"lost", "failed", "timed_out"}
            told = sum(entry["what"] in whats for entry in entries)
            counted, last = row["failures"] + row["losses"], row["outcome"] in whats
            require(told in (counted, counted - last), row, f"counts {counted}, its history tells {told}")


class HoldCommitChecker(CommitChecker):
    def _leases(self) -> None:
        """Holders have no lease in that table; whether anything runs for ever is seen at the end."""


class HoldSimulation(Simulation):
    def __init__(self, *args: Any, **options: Any) -> None:
        self.promised: dict[tuple[str, int], datetime] = {}
        self.told: set[tuple[str, int]] = set()
        super().__init__(*args, **options)
        self.plan = with_fields(self.plan, listen=False)
        self.task_checker, self.commit_checker = HoldTaskChecker(self), HoldCommitChecker(self)
        self.poll_checker.claimed = lambda *_: None  # type: ignore[method-assign]

    async def run(self) -> None:
        labels, plans.LABELS = plans.LABELS, ()  # holders have none
        try:
            await super().run()
        finally:
            plans.LABELS = labels

    def born(self, host: Host) -> None:
        stream = self.seed.stream("silence", host.name, host.life)

        async def look() -> None:
            while not host.dead:
                await asyncio.sleep(stream.around(0.7))
                with contextlib.suppress(Gone, Unavailable):
                    await host.ask(lambda engine: engine.parts.outgoing.silence_tick())

        self.loop.call_soon(lambda: self.start(look()))

    def workers(self) -> list[Any]:
        return [Setup(self), *(Holder(self, f"h{number}") for number in range(HOLDERS))]

    def undertaker(self) -> Any:
        return Setup(self)

    async def _compare(self) -> None:
        await super()._compare()
        rows = await self.database.own.fetch("select task_id::text, cursor from windlass.event")
        recorded = [tuple(row) for row in rows]
        if len(recorded) != len(set(recorded)):
            raise Violation("an event is recorded twice")
        lost = {one for one in self.told if one[0] in self.mirror.tasks} - set(recorded)
        if lost:
            raise Violation(f"events were accepted and are not recorded: {sorted(lost)[:3]}")


class Setup:
    """Makes all queues wake their workers, before anybody submits."""

    def __init__(self, world: HoldSimulation) -> None:
        self.world = world

    async def run(self) -> None:
        operator = Operator(self.world)
        for queue in self.world.plan.queues:
            wakeup = Wakeup(carrier="postgres", lease_ms=LEASE_MS)
            limits = operator.limits.get(queue, {})
            await operator._surely(
                lambda engine, q=queue, w=wakeup, li=limits: engine.queues.put(q, delivery=w, limits=QueueConfig(**li))
            )

    async def leave(self) -> None:
        pass


class Holder:
    """Hears of tasks, and holds those that it gets."""

    def __init__(self, world: HoldSimulation, name: str) -> None:
        self.world, self.name, self.left = world, name, False
        self.stream = world.seed.stream("holder", name)
        self.caller = Caller(f"CN={name}", name * 8)

    async def run(self) -> None:
        while not self.left:
            await asyncio.sleep(self.stream.around(0.05 if self.world.calm else 0.1))
            heard_of = self._message()
            if heard_of is not None:
                self.world.start(self._take(heard_of))

    def _message(self) -> UUID | None:
        """Of a task that waits, mostly; also of one that runs, has ended, or that nobody knows."""
        waiting = [row["id"] for row in self.world.mirror.unfinished() if row["state"] == "queued"]
        if not self.world.calm and self.stream.often(0.2):
            known = list(self.world.mirror.tasks)
            return UUID(self.stream.choice(known)) if known else UUID(int=9)
        return UUID(self.stream.choice(waiting)) if waiting else None

    async def _take(self, task_id: UUID) -> None:
        host = self.stream.choice(self.world.hosts)
        with contextlib.suppress(Gone, Unavailable):
            held = await host.ask(lambda engine: engine.service(Holders).claim(task_id, self.name, self.caller))
            if isinstance(held, Held):
                self.world.promised[str(task_id), held.task.attempt] = held.expires_at
                await HeldJob(self.world, self, held).run()

    async def leave(self) -> None:
        self.left = True


class HeldJob(Reporter):
    """One attempt in the hands of its holder."""

    silence_s = LEASE_MS / 1000

    def __init__(self, world: HoldSimulation, holder: Holder, held: Held) -> None:
        task = held.task
        super().__init__(
            world, task.id, task.attempt, world.seed.stream("job", task.id, task.attempt, holder.name), CHAOS
        )
        self.caller = holder.caller
        self.credential = LeaseCredential(self.id, attempt=self.attempt, token=task.lease_id, caller=self.caller)
        self.result = msgspec.json.encode({"task": str(self.id), "attempt": self.attempt, "by": holder.name})

    async def tell(self) -> None:
        if not self.stream.often(0.5):
            return
        cursor = self.stream.randint(0, 5)
        events = (EventReport(DATASET, VERSION, cursor),)

        async def emit(engine: Any) -> bool:
            await engine.service(Holders).emit(self.credential, events)
            return True

        if await self.say(emit):
            self.world.told.add((str(self.id), cursor))

    async def beat(self) -> None:
        extended = await self.say(lambda engine: engine.service(Holders).extend(self.credential))
        if extended is not None:
            key = str(self.id), self.attempt
            self.world.promised[key] = max(extended.expires_at, self.world.promised[key])
            self.cancelled = self.cancelled or extended.cancel is not None

    async def complete(self, cursor: int | None = None) -> None:
        events = () if cursor is None else (EventReport(DATASET, VERSION, cursor),)
        state = await self.finish(Outcome.SUCCEEDED, result=self.result, events=events)
        if state is State.SUCCEEDED:
            self.world.model.result_accepted(self.id, self.attempt, self.result)
            if cursor is not None:
                self.world.told.add((str(self.id), cursor))

    async def complete_with_more(self) -> None:
        await self.complete(self.stream.randint(0, 5) if self.stream.often(0.3) else None)

    async def fail(self) -> None:
        category = self.stream.choice([Category.USER_CODE, Category.INFRASTRUCTURE, Category.CONFIGURATION])
        await self.finish(Outcome.FAILED, failure=Failure(category, "it broke"))

    async def give_up(self) -> None:
        await self.finish(Outcome.CANCELLED)

    async def lie(self) -> None:
        """About its attempt, or about its token."""
        if self.stream.often(0.5):
            wrong = msgspec.structs.replace(self.credential, attempt=self.attempt + 1000)
        else:
            wrong = msgspec.structs.replace(self.credential, token=UUID(int=self.stream.randint(1, 2**64)))
        finish = LeaseReport(wrong, Outcome.SUCCEEDED, self.result)
        if await self.say(lambda engine: engine.service(Holders).finish(finish)) is not None:
            raise Violation(f"a holder lied about its attempt of {self.id} and was believed")

    async def finish(self, outcome: Outcome, **said: Any) -> State | None:
        finish = LeaseReport(self.credential, outcome, **said)
        ended: State | None = await self.say(lambda engine: engine.service(Holders).finish(finish))
        return ended

    async def say(self, what: Callable[[Any], Any]) -> Any:
        """Again and again, until there is an answer; None if it was refused, or there never was one."""
        for _ in range(TRIES):
            try:
                return await self.stream.choice(self.world.hosts).ask(what)
            except (Gone, Unavailable):
                await asyncio.sleep(self.stream.around(0.3))
            except (WindlassError, Rejected):
                return None
        return None
