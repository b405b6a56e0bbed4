"""People who work on a DAG: they deploy its file, feed its sources, and let data be made again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tests.sim.dag_file import DAG, drawn_file
from tests.sim.host import Gone

from windlass.core.access import Principal, Role
from windlass.datasets.backfills import Backfills
from windlass.datasets.dags import Dags
from windlass.datasets.invalidations import Invalidations
from windlass.datasets.rules.backfill import Selection
from windlass.datasets.rules.invalidation import InvalidPart, Reason, Scope
from windlass.datasets.rules.status import PartitionStatus
from windlass.datasets.sources import Sources
from windlass.errors import Rejected, Unavailable

if TYPE_CHECKING:
    from tests.sim.dag import DagSimulation

WISHES = {"deploy": 4.0, "activate": 2.0, "rollback": 1.5, "pause": 1.0, "resume": 2.0, "abandon": 0.7, "retry": 2.0}
REPAIRS = {"backfill": 3.0, "cancel": 1.0, "invalidate": 2.0}
STARTS = (0, 10, 20, 30, 40)
ANYBODY = Principal("repairer", Role.ADMIN)


class Person:
    """Somebody who asks an engine for something, and may not hear what became of it."""

    def __init__(self, world: DagSimulation, name: str) -> None:
        self.world, self.name = world, name
        self.stream = world.seed.stream("person", name)

    async def ask(self, what: Any) -> bool:
        """Whether there was an answer."""
        try:
            await self.stream.choice(self.world.hosts).ask(what)
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
        await self.ask_surely(lambda engine: engine.service(Dags).deploy(DAG, file))
        while not self.world.calm:
            await asyncio.sleep(self.stream.around(0.5))
            if not self.world.calm:
                await getattr(self, f"_{self.stream.pick(WISHES)}")()

    async def calmly(self) -> None:
        """A resume lets everything be compared, so that it would hide what was lost: only if it is needed."""
        while any(row["paused"] for row in self.world.dag_checker.dags.values()):
            await self._resume()
        if self.stream.often(0.3):
            await self._deploy()

    async def blink(self) -> None:
        """Pause the DAG for a moment."""
        await self._pause()
        await asyncio.sleep(self.stream.around(0.2))
        await self._resume()

    async def _deploy(self) -> None:
        file, auto = drawn_file(self.stream), self.stream.often(0.6)
        await self.ask(lambda engine: engine.service(Dags).deploy(DAG, file, auto_cutover=auto))

    async def _activate(self) -> None:
        await self._with_one("ready", "superseded", "rolled_back", do=lambda dags, number: dags.activate(DAG, number))

    async def _rollback(self) -> None:
        await self.ask(lambda engine: engine.service(Dags).rollback(DAG))

    async def _abandon(self) -> None:
        await self._with_one("building", "ready", "failed", do=lambda dags, number: dags.abandon(DAG, number))

    async def _pause(self) -> None:
        await self.ask(lambda engine: engine.service(Dags).pause(DAG))

    async def _resume(self) -> None:
        await self.ask(lambda engine: engine.service(Dags).pause(DAG, paused=False))

    async def _retry(self) -> None:
        failed = [UUID(row["id"]) for row in self.world.mirror.tasks.values() if row["state"] == "failed"]
        if failed:
            task_id = self.stream.choice(failed)
            await self.ask(lambda engine: engine.parts.repair.retry(task_id))

    async def _with_one(self, *states: str, do: Any) -> None:
        known = self.world.dag_checker.deployments.values()
        numbers = sorted(row["number"] for row in known if row["state"] in states)
        if numbers:
            number = self.stream.choice(numbers)
            await self.ask(lambda engine: do(engine.service(Dags), number))


class Emitter(Person):
    """Starts tasks of the sources. Its cursors grow, but for some that come again or go back."""

    def __init__(self, world: DagSimulation, name: str) -> None:
        super().__init__(world, name)
        self._count, self._cursor = 0, 0

    async def run(self) -> None:
        pause_s = self.stream.pick({0.2: 1, 0.4: 2, 1.0: 1})
        while not self.world.calm:
            await asyncio.sleep(self.stream.around(pause_s))
            for _ in range(self.stream.pick({1: 8, 4: 1})):  # now and then many at once
                if not self.world.calm:
                    await self._emit()

    async def calmly(self) -> None:
        await asyncio.sleep(self.stream.around(1.0))
        await self._emit()

    async def _emit(self) -> None:
        self._count += 1
        key, job = f"{self.name}-{self._count}", self.stream.pick({"follow": 4, "load": 3, "evaluate": 3})
        scope: dict[str, Any] = {}
        if job == "load":
            start = self.stream.choice(STARTS)
            scope = {"partition_key": f"{start}-{start + 9}", "start": start, "end": start + 9}
        elif job == "follow":
            scope = {"cursor": self._next()}
        for _ in range(3):
            if await self.ask(lambda engine: engine.service(Sources).emit(DAG, job, key=key, **scope)):
                return

    def _next(self) -> int:
        if self._cursor and self.stream.often(0.2):
            return self.stream.randint(1, self._cursor)
        self._cursor += self.stream.randint(1, 9)
        return self._cursor


class Repairer(Person):
    """Starts backfills and cancels some, and says of partitions that they were wrong."""

    def __init__(self, world: DagSimulation) -> None:
        super().__init__(world, "repairer")
        self._count = 0

    async def run(self) -> None:
        pause_s = self.stream.pick({0.7: 1, 2.0: 1})
        while not self.world.calm:
            await asyncio.sleep(self.stream.around(pause_s))
            if not self.world.calm:
                await getattr(self, f"_{self.stream.pick(REPAIRS)}")()

    async def calmly(self) -> None:
        if self.stream.often(0.3):
            await self._backfill()

    async def end_waiting(self) -> None:
        """Cancel the backfills that wait for partitions which nobody will make."""
        waiting = {row["backfill_id"] for row in self.world.dag_checker.backfill_tasks.values() if row["waiting"]}
        for id_ in sorted(waiting):
            await self.ask(lambda engine, id_=id_: engine.service(Backfills).cancel(UUID(id_)))

    async def _backfill(self) -> None:
        self._count += 1
        job, key = self.stream.choice(("compact", "tidy")), f"backfill-{self._count}"
        downstream, selection = self.stream.often(0.3), self._selection()
        order = {"downstream": downstream, "key": key}
        for _ in range(2):  # the same key is the same backfill
            if await self.ask(lambda engine: engine.service(Backfills).start(DAG, job, selection, **order)):
                return

    def _selection(self) -> Selection:
        known = sorted({key for _, key in self.world.dag_checker.partitions})
        match self.stream.pick({"keys": 3, "range": 2, "status": 1}):
            case "keys":
                chosen = self.stream.sample(known, min(len(known), self.stream.randint(1, 4)))
                return Selection(keys=(*chosen, *(("990-999",) if self.stream.often(0.2) else ())) or ("0-9",))
            case "range":
                return Selection(start=0, end=self.stream.choice((29, 59)))
        return Selection(status=(self.stream.choice((PartitionStatus.FAILED, PartitionStatus.STALE)),))

    async def _cancel(self) -> None:
        open_ = [row["id"] for row in self.world.dag_checker.backfills.values() if row["ended_at"] is None]
        if open_:
            id_ = UUID(self.stream.choice(open_))
            await self.ask(lambda engine: engine.service(Backfills).cancel(id_))

    async def _invalidate(self) -> None:
        known = sorted(self.world.dag_checker.committed)
        if not known:
            return
        self._count += 1
        dataset, key = self.stream.choice(known)
        part = InvalidPart(Scope.PARTITION, Reason.MANUAL, key)
        again = f"invalid-{self._count}"
        for _ in range(2):
            if await self.ask(
                lambda engine: engine.service(Invalidations).invalidate(
                    ANYBODY, UUID(dataset), "default", part, key=again
                )
            ):
                return
