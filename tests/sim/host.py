"""A process that serves one engine, seen from outside: it answers, or it is gone with everything it had in memory.

Owns what belongs to one life of an engine: its asyncio tasks, its connections, the notifications it hears. A crash
takes all of them at once; the next life is a new Host.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any, TypeVar

from tests.sim.gate import GatedConnection, GatedStore
from tests.sim.seed import SeededChance

from windlass.engine.engine import Engine
from windlass.engine.notifications import Topic
from windlass.errors import Unavailable, WindlassError
from windlass.store.notify import PendingNotifications, parse

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation

T = TypeVar("T")

HOST: ContextVar[Host | None] = ContextVar("host", default=None)


class Gone(Exception):
    """No answer came: the request was lost, or the reply, or the engine died in between."""


class Host:
    def __init__(self, world: Simulation, name: str, life: int) -> None:
        self.world, self.name, self.life = world, name, life
        self.dead = False
        self.heard: Callable[[PendingNotifications], None] | None = None
        self.gap = asyncio.Event()
        self.connections: list[GatedConnection] = []
        self.tasks: dict[asyncio.Task[Any], None] = {}  # a dict keeps the order in which they began
        self._network = world.seed.stream("network", name, life)
        self._notify = world.seed.stream("notify", name, life)
        randomness = SeededChance(world.seed.stream("engine", name, life), world.epoch_ms)
        self.engine = Engine(
            GatedStore(self),
            randomness=randomness,
            stopwatch=world.loop.time,
            effects={"deliver": world.outside_system.deliver, **world.effects(self)},
            listen=world.plan.listen,
            keep_finished_s=world.plan.keep_finished_s,
        )
        self.engine.parts.notifications.subscribe(Topic.EFFECTS, lambda _: self._effects_due())
        self._ticks_soon = False
        world.lives.append(self)
        world.born(self)

    async def ask(self, what: Callable[[Engine], Awaitable[T]], call: object = None) -> T:
        """A request over the network. Raises Gone when no answer comes; what was asked may have happened."""
        weather = self.world.weather
        if self.dead or self._network.often(weather.request_lost):
            await asyncio.sleep(weather.latency(self._network))
            raise Gone
        reply_lost = self._network.often(weather.reply_lost)
        task = self.spawn(what(self.engine), call)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            raise
        if task.cancelled() or reply_lost or self.dead:
            task.cancelled() or task.exception()  # seen, so that nobody complains about it
            raise Gone
        return self._answer(task)

    def _answer(self, task: asyncio.Task[T]) -> T:
        error = task.exception()
        if error is not None and not isinstance(error, WindlassError):
            self.world.fail(f"an engine raised {type(error).__name__}: {error}", error)
        return task.result()

    def spawn(self, coroutine: Awaitable[T], call: object = None) -> asyncio.Task[T]:
        """Run inside this process: what it starts in turn belongs to it as well (see `Simulation.task_factory`)."""
        context = copy_context()
        context.run(HOST.set, self)
        context.run(self.world.call.set, call)
        return self.world.loop.create_task(coroutine, context=context)  # type: ignore[arg-type]

    # ----------------------------------------------------------------------------------------- ticks

    async def tick(self, name: str) -> None:
        with contextlib.suppress(Gone, Unavailable):
            await self.ask(lambda engine: getattr(engine.loops, f"{name}_tick")())

    def _effects_due(self) -> None:
        """Something was written to the outbox: as the engine's loops would, look soon."""
        if not self._ticks_soon and not self.dead:
            self._ticks_soon = True
            self.world.loop.call_later(self._notify.around(0.003), lambda: self.world.start(self._carry_out()))

    async def _carry_out(self) -> None:
        self._ticks_soon = False
        await self.tick("settle")
        await self.tick("wake")
        await self.tick("effects")

    # ----------------------------------------------------------------------------------------- notifications

    def notify(self, message: str) -> None:
        """A committed NOTIFY is under way to this process, if it listens."""
        if self.heard is not None:
            delay_s = self._notify.around(self.world.weather.notify_s)
            self.world.loop.call_later(delay_s, self._hear, self.heard, parse(message))

    def _hear(self, heard: Callable[[PendingNotifications], None], wakes: PendingNotifications) -> None:
        if not self.dead and self.heard is heard:
            heard(wakes)

    def lose_listener(self) -> None:
        """What is announced until the store listens again is not heard."""
        self.gap.set()
        self.gap = asyncio.Event()

    # ----------------------------------------------------------------------------------------- the end

    async def crash(self) -> None:
        """Between two statements: nothing more is sent, what was open is rolled back, memory is gone."""
        async with self.world.gate.slot:
            self.dead = True
            connections, self.connections = self.connections, []
            for connection in connections:
                await self.world.gate.cut(connection)
                self.world.database.give_back(connection.real)
        self.engine.parts.notifications.close()
        for task in list(self.tasks):
            task.cancel()
