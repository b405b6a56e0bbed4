"""Launches the machines of attempts: the effect `launch` of the outbox.

A machine has a name made from its attempt. A launch that is repeated after a crash, or whose answer was lost, finds the
machine that was started before. Error messages are stored without secrets.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from msgspec.structs import replace

from windlass.contracts.machine.delivery import Machine
from windlass.contracts.machine.launchers.options import MachineOptions
from windlass.contracts.machine.launchers.port import Launcher, LauncherUnavailable, LaunchRefused, Order
from windlass.contracts.machine.rules import MachineStatus
from windlass.contracts.machine.server.environment import make_order, mask, secrets_of
from windlass.contracts.machine.sweeper import Machines
from windlass.core.states import Effect
from windlass.core.task import Task
from windlass.engine.engine import Engine
from windlass.engine.payloads.objects import SET_BLOBS
from windlass.engine.send.outbox import NotNow
from windlass.errors import Invalid, NotFound

ELSEWHERE_S = 1.0
MARGIN_S = 120.0  # the sweep checks a machine at its deadline; without a working sweep it is lost this much later


class LaunchUncertain(Exception):
    """Whether the machine was started is not known, so the outbox tries again."""


class Launching:
    """The launches of one engine. `base_url` is where machines call back."""

    def __init__(self, engine: Engine, options: MachineOptions, base_url: str) -> None:
        self._engine, self._options, self._base_url = engine, options, base_url

    async def launch(self, effect: Effect) -> None:
        """Launch the machine of an attempt, unless the attempt no longer waits for it."""
        outgoing, machines = self._engine.parts.outgoing, self._engine.service(Machines)
        if not await outgoing.still_waits(effect):
            return
        _, machine = await outgoing.settings(effect, Machine)
        launcher = machines.launchers.get(machine.launcher)
        if launcher is None:
            raise NotNow(f"this server has no launcher {machine.launcher}", ELSEWHERE_S)
        try:
            view = await self._engine.tasks.get(effect.task_id)
        except NotFound:
            return
        await machines.request(view.task, launcher, machine)
        try:
            whole = replace(view, payload=await self._payload(view.payload, view.task.namespace))
            key = (await self._engine.parts.token_keys.all())[0][1]
            order = make_order(whole, machine, self._options, self._base_url, key, await machines.installation())
            status = await self._start(launcher, order, view.task, machine)
        except LaunchRefused as error:
            await machines.not_launched(effect, "LAUNCH_FAILED", f"machine spawn failed: {error}")
            return
        await machines.launched(effect, status, machine, launcher)
        await outgoing.delivered(effect, machine.run_timeout_ms / 1000 + MARGIN_S)

    async def mask(self, task: Task, text: str) -> str:
        """Mask the secrets of a task's machine in what it wrote."""
        machine = await self._engine.queues.delivery(task.queue, Machine, namespace=task.namespace)
        keys = [key for _, key in await self._engine.parts.token_keys.all()]
        return mask(text, secrets_of(task, machine, self._options, keys))

    async def _payload(self, stored: bytes, namespace: str) -> bytes:
        if not self._engine.parts.objects.configured:
            raise LaunchRefused(f"machines upload to the blob store, and there is none: {SET_BLOBS}")
        try:
            return await self._engine.payloads.whole(stored, namespace)
        except (Invalid, NotFound) as error:
            raise LaunchRefused(error.message) from None

    async def _start(self, launcher: Launcher, order: Order, task: Task, machine: Machine) -> MachineStatus:
        """Start the machine, or find it if the launcher gave no answer. Raises LaunchRefused, or LaunchUncertain while
        there is time to try again."""
        spawn_s = machine.spawn_timeout_ms / 1000
        try:
            async with asyncio.timeout(spawn_s):
                return await launcher.start(order)
        except LaunchRefused as error:
            raise LaunchRefused(mask(str(error), order.secret_values)) from None  # a vendor may repeat the request
        except TimeoutError:
            reason = f"no answer within {spawn_s:g} s"
        except LauncherUnavailable as error:
            reason = mask(str(error), order.secret_values)
        try:
            async with asyncio.timeout(spawn_s):
                status = await launcher.status(order.name, None)
        except (LauncherUnavailable, TimeoutError):
            status = None
        if status is not None:
            return status
        now = await self._engine.parts.clock.now()
        if task.started_at is None or now >= task.started_at + timedelta(seconds=spawn_s):
            raise LaunchRefused(f"{reason} (spawn timeout {spawn_s:g} s)")
        raise LaunchUncertain(reason) from None
