"""Carries attempts to their machines: the effect `launch` of the outbox.

A machine is known by its name, so that a launch that is repeated after a crash, or whose answer was lost, finds the one
that is there. What is written of a failure has no secret in it.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from msgspec.structs import replace

from windlass.contracts.machine.environment import Surroundings, make_order, scrubbed, secrets_of, without
from windlass.core.delivery import Machine
from windlass.core.error import Invalid, NotFound
from windlass.core.machine import Sighting
from windlass.core.task import Task
from windlass.core.transition import Effect
from windlass.engine.engine import Engine
from windlass.engine.launcher import Launcher, LauncherAway, LaunchRefused, Order
from windlass.engine.objects import SET_BLOBS
from windlass.engine.outbox import NotNow

ELSEWHERE_S = 1.0
MARGIN_S = 120.0  # after its time is over a machine is looked at; whom nobody can look at is given up so much later


class NotYet(Exception):
    """Nobody knows yet whether it is there: it is tried again."""


class Launching:
    """The launches of one engine."""

    def __init__(self, engine: Engine, around: Surroundings) -> None:
        self._engine, self._around = engine, around

    async def launch(self, effect: Effect) -> None:
        """Launch one attempt, if it still waits for that."""
        sent, machines = self._engine.sent, self._engine.machines
        if not await sent.still_waits(effect):
            return
        _, machine = await sent.settings(effect, Machine)
        launcher = machines.launchers.get(machine.launcher)
        if launcher is None:
            raise NotNow(f"this server has no launcher {machine.launcher}", ELSEWHERE_S)
        try:
            view = await self._engine.views.get(effect.task_id)
        except NotFound:
            return
        await machines.ask(view.task, launcher, machine)
        try:
            whole = replace(view, payload=await self._payload(view.payload, view.task.namespace))
            key = (await self._engine.callbacks.token_keys())[0][1]
            order = make_order(whole, machine, self._around, key, await machines.installation())
            seen = await self._started(launcher, order, view.task, machine)
        except LaunchRefused as error:
            await machines.not_launched(effect, "LAUNCH_FAILED", f"machine spawn failed: {error}")
            return
        await machines.launched(effect, seen, machine, launcher)
        await sent.delivered(effect, machine.run_timeout_ms / 1000 + MARGIN_S)

    async def discreet(self, task: Task, text: str) -> str:
        """What a machine wrote, without anything of what it was told and nobody is to read."""
        machine = await self._engine.queues.delivery(task.queue, Machine, namespace=task.namespace)
        keys = [key for _, key in await self._engine.callbacks.token_keys()]
        return without(text, secrets_of(task, machine, self._around, keys))

    async def _payload(self, kept: bytes, namespace: str) -> bytes:
        if not self._engine.objects.configured:
            raise LaunchRefused(f"machines upload to the blob store, and there is none: {SET_BLOBS}")
        try:
            return await self._engine.payloads.whole(kept, namespace)
        except (Invalid, NotFound) as error:
            raise LaunchRefused(error.message) from None

    async def _started(self, launcher: Launcher, order: Order, task: Task, machine: Machine) -> Sighting:
        """The machine, or why there is none. One of which nobody knows is looked for, and asked for again as long as
        there is time to spawn it."""
        spawn_s = machine.spawn_timeout_ms / 1000
        try:
            async with asyncio.timeout(spawn_s):
                return await launcher.start(order)
        except LaunchRefused as error:
            raise LaunchRefused(scrubbed(str(error), order)) from None
        except TimeoutError:
            why = f"no answer within {spawn_s:g} s"
        except LauncherAway as error:
            why = scrubbed(str(error), order)
        try:
            async with asyncio.timeout(spawn_s):
                seen = await launcher.look(order.name, None)
        except (LauncherAway, TimeoutError):
            seen = None
        if seen is not None:
            return seen
        now = await self._engine.callbacks.now()
        if task.started_at is None or now >= task.started_at + timedelta(seconds=spawn_s):
            raise LaunchRefused(f"{why} (spawn timeout {spawn_s:g} s)")
        raise NotYet(why) from None
