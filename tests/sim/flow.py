"""A workflow in the hands of a worker: the SDK's own context, over a network that loses words.

What a workflow does is drawn from its id, so that every attempt asks for the same. How it goes is drawn anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import msgspec
from msgspec.structs import replace
from tests.sim.host import Gone
from tests.sim.job import Job

from windlass import App
from windlass.core.command import Claimed, Fail
from windlass.core.failure import Category, Failure
from windlass.core.step import Step
from windlass.core.step_command import StepCommand
from windlass.core.submission import Submission
from windlass.engine.engine import Engine
from windlass.errors import StoreBusy
from windlass.sdk.workflow.awaitables import StepAwaitable, StepFailed
from windlass.sdk.workflow.context import WorkflowContext
from windlass.sdk.workflow.exits import WorkflowExit

if TYPE_CHECKING:
    from tests.sim.worker import Worker

PARTS = {"step": 4.0, "pair": 1.0, "nap": 0.5, "sleep": 1.0, "signal": 3.0, "child": 3.0}
STOPS = {"none": 8.0, "hang": 1.0, "break": 2.0, "late": 2.0, "slow": 2.0}
SIGNAL = "go"
INLINE_WAIT_S = 0.3
T = TypeVar("T")


def is_flow(payload: bytes) -> bool:
    return "flow" in msgspec.json.decode(payload)


class Broken(Exception):
    """What a step or a workflow raises when it is its turn."""


class Flow(Job):
    def __init__(self, worker: Worker, claimed: Claimed) -> None:
        super().__init__(worker, claimed)
        self.claimed = claimed
        drawn = self.world.seed.stream("flow", self.task.id)
        self.parts = [drawn.pick(PARTS) for _ in range(drawn.randint(1, 5))]
        self.stops = "none" if self.calm else self.stream.pick(STOPS)
        self.stops_at = self.stream.randint(0, len(self.parts))
        self.breaks = 0.0 if self.calm else self.stream.pick({0.0: 2, 0.3: 1})
        self.seen: dict[str, Any] = {}

    async def run(self) -> None:
        try:
            steps = [] if self.task.attempt == 1 else await self._until_answered(lambda: self.load_steps(self.task.id))
            app: Any = SimpleNamespace(client=self, call_sync=None, threads=None)
            app.call_sync = lambda _: None
            context = WorkflowContext(self.claimed, app, steps, source=self, inline_wait_s=INLINE_WAIT_S)
            await self._script(context)
            context._end()
        except WorkflowExit as leaving:
            await self._say(leaving.report(self.task, self.lease_id))
        except (Broken, StepFailed) as error:
            retryable = not isinstance(error, StepFailed)
            failure = Failure(Category.USER_CODE, str(error), retryable=retryable)
            await self._say(Fail(self.task.id, self.task.attempt, self.lease_id, failure, self.stream.random()))
        else:
            said = {"task": str(self.task.id), "attempt": self.task.attempt, "seen": self.seen}
            self.result = msgspec.json.encode(said)
            await self._complete()

    # ----------------------------------------------------------------------------------------- what it does

    async def _script(self, ctx: WorkflowContext) -> None:
        for place, part in enumerate(self.parts):
            if self.stops_at == place:
                await self._stop()
            await getattr(self, f"_{part}")(ctx, place)
        if self.stops_at == len(self.parts):
            await self._stop()

    async def _stop(self) -> None:
        """In the middle: it hangs for ever, raises, or goes on when its lease has run out."""
        match self.stops:
            case "hang":
                self.hung = True
                await asyncio.sleep(10_000.0)
            case "break":
                raise Broken("in the middle")
            case "late":
                await self._cut_off()

    async def _overtaken(self) -> None:
        """Cut off in the middle of a step, and back just when somebody else has begun."""
        self.stops = "none"
        self.worker.silent_until_s = self.world.loop.time() + 10.0
        for _ in range(200):
            await asyncio.sleep(0.05)
            row = self.world.mirror.tasks.get(str(self.task.id))
            if row is not None and row["state"] == "running" and row["attempt"] > self.task.attempt:
                return

    async def _step(self, ctx: WorkflowContext, place: int) -> None:
        await self._see(f"work{place}", self._work_step(ctx, f"work{place}"))

    async def _pair(self, ctx: WorkflowContext, place: int) -> None:
        names = [f"left{place}", f"right{place}"]
        values = await ctx.gather(*(self._work_step(ctx, name) for name in names))
        self.seen |= {f"{name}#1": value for name, value in zip(names, values, strict=True)}

    def _work_step(self, ctx: WorkflowContext, name: str) -> StepAwaitable[Any]:
        async def work() -> dict[str, Any]:
            self.world.step_checker.ran(self.task.id, self.task.attempt, name)
            await asyncio.sleep(self.stream.around(2.0 if self.stream.often(0.3) else 0.1))
            if self.stream.often(self.breaks):
                raise Broken("in a step")
            if self.stops == "slow":
                await self._overtaken()
            return {"step": name, "attempt": self.task.attempt, "chance": self.stream.getrandbits(40)}

        return ctx.options(name=name, max_attempts=4, retry_delay=0.2, retry_delay_max=1.0).step(work)

    async def _nap(self, ctx: WorkflowContext, _: int) -> None:
        await ctx.sleep(INLINE_WAIT_S / 2)

    async def _sleep(self, ctx: WorkflowContext, place: int) -> None:
        await ctx.sleep(1.0 + place)

    async def _signal(self, ctx: WorkflowContext, _: int) -> None:
        asked = ctx.wait_signal(SIGNAL, timeout=2.0)
        try:
            self.seen[f"{asked.place.name}#{asked.place.occurrence}"] = await asked
        except TimeoutError:
            self.seen[f"{asked.place.name}#{asked.place.occurrence}"] = None

    async def _child(self, ctx: WorkflowContext, place: int) -> None:
        asked = ctx.submit(self._handler(), f"{self.task.id}/{place}")
        child = await asked
        try:
            self.seen[f"{asked.place.name}#{asked.place.occurrence}"] = await child.result()
        except StepFailed:
            self.seen[f"{asked.place.name}#{asked.place.occurrence}"] = None

    def _handler(self) -> Any:
        """Of a task that any worker runs."""
        app = App("sim")

        @app.task(kind="a", queue=self.task.queue, max_attempts=2, max_losses=2, retry_delay=0.2)
        async def child(token: str) -> Any: ...

        return child

    async def _see(self, name: str, asked: StepAwaitable[Any]) -> None:
        self.seen[f"{name}#1"] = await asked

    # ----------------------------------------------------------------------------------------- the way to an engine

    async def record_step(self, said: StepCommand) -> Step:
        timed = said if not hasattr(said, "took_s") else replace(said, took_s=0.0)  # by a clock that no seed sets
        return await self._of_engine(lambda engine: engine.record_step(timed))

    async def load_steps(self, task_id: UUID) -> list[Step]:
        return await self._of_engine(lambda engine: engine.load_steps(task_id))

    async def submit(self, submission: Submission) -> UUID:
        self.world.model.intends(submission)
        return await self._of_engine(lambda engine: engine.submit(submission))

    async def _of_engine(self, what: Callable[[Engine], Awaitable[T]]) -> T:
        try:
            return await self.worker.host().ask(what)
        except Gone:
            raise StoreBusy("no answer came") from None

    async def _until_answered(self, call: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await call()
            except StoreBusy:
                await asyncio.sleep(self.stream.around(0.3))
