"""Adds the machine contract to a server: its routes, and the loops that launch and sweep machines."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

from windlass.api.framework import mount
from windlass.api.framework.application import Application
from windlass.contracts.machine.delivery import LAUNCH
from windlass.contracts.machine.launchers.options import MachineOptions
from windlass.contracts.machine.server.app import PREFIXES, make_app
from windlass.contracts.machine.server.launch import Launching
from windlass.contracts.machine.server.service import MachineService
from windlass.contracts.machine.sweeper import Machines
from windlass.engine.engine import Engine
from windlass.engine.loops.runner import Loop
from windlass.engine.notifications import Topic

OBJECTS_S, RETRY_S = 60.0, 5.0
LOCAL = "process"


class Mount(mount.Mount[MachineOptions]):
    """The machine contract on an engine."""

    def applications(self) -> dict[mount.Prefix, Application]:
        if self.options is not None and self.options.open:
            self.check_open()
        return {PREFIXES: make_machines(self.engine, self.options, self.version)}

    def running(self, options: MachineOptions, url: str) -> AbstractAsyncContextManager[None]:
        return launching(self.engine, options, url) if options.launchers else nullcontext()


def make_machines(engine: Engine, options: MachineOptions | None = None, version: str = "unknown") -> Application:
    """The routes. With local processes as machines, the export formats of Windlass need no setup."""
    options = options or MachineOptions()
    local = any(launcher.name == LOCAL for launcher in options.launchers)
    service = MachineService(engine, default_launcher=LOCAL if local else None)
    return make_app(service, engine.keys, version, open_=options.open)


@asynccontextmanager
async def launching(engine: Engine, options: MachineOptions, url: str) -> AsyncIterator[None]:
    """Launch and sweep machines until the block ends. `url` is where the server listens. Machines that still run then
    keep running, and the next server that sweeps finds them."""
    machines = engine.service(Machines)
    machines.launchers = {launcher.name: launcher for launcher in options.launchers}

    async def sweep() -> int:
        await machines.tick()
        return 0  # the rest waits for the next sweep

    async def delete() -> int:
        if not engine.parts.objects.configured:
            return 0
        deleting.every_s = RETRY_S  # if this raises, try again sooner
        done = await machines.object_tick()
        deleting.every_s = OBJECTS_S
        return done

    sweeping = Loop("machines", sweep, every_s=options.sweep_s)
    deleting = Loop("objects", delete, every_s=OBJECTS_S)
    machines.wake, machines.wake_objects = sweeping.wake, deleting.wake
    unsubscribe = engine.parts.notifications.subscribe(Topic.LEASES, lambda _: sweeping.wake())
    launches = Launching(engine, options, options.callback_url or url)
    machines.mask = launches.mask
    await engine.listen()
    for launcher in options.launchers:
        launcher.open(sweeping.wake)
    try:
        async with engine.parts.outgoing.carrying(LAUNCH, launches.launch):
            for loop in (sweeping, deleting):
                loop.start()
            yield
    finally:
        for loop in (sweeping, deleting):
            await loop.stop()
        await machines.stop_handling()
        for launcher in options.launchers:
            launcher.close()
        machines.launchers = {}
        unsubscribe()
        machines.wake = machines.wake_objects = lambda: None
