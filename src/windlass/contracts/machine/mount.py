"""Puts the machine contract on an engine: its routes beside our API, and the loops that launch and sweep."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from windlass.contracts.machine.app import MachineApp
from windlass.contracts.machine.environment import Surroundings
from windlass.contracts.machine.launch import Launching
from windlass.contracts.machine.service import MachineService
from windlass.core.delivery import LAUNCH
from windlass.engine.engine import Engine
from windlass.engine.launcher import Launcher
from windlass.engine.runner import Loop

OBJECTS_S, AWAY_AGAIN_S = 60.0, 5.0
LOCAL = "process"


class Options(Protocol):
    """How a server runs machines; see `launchers.options`."""

    @property
    def launchers(self) -> Sequence[Launcher]: ...
    @property
    def callback_url(self) -> str | None: ...
    @property
    def sweep_s(self) -> float: ...
    @property
    def open(self) -> bool: ...
    @property
    def storage(self) -> Mapping[str, str]: ...
    @property
    def handed_on(self) -> Mapping[str, str]: ...
    @property
    def variables(self) -> Mapping[str, str]: ...


def make_machines(engine: Engine, options: Options | None = None) -> MachineApp:
    """The routes. Formats that come with Windlass are set up by themselves where local processes are machines."""
    known = [] if options is None else [launcher.name for launcher in options.launchers]
    engine.machines.blobs = engine.objects.blobs
    service = MachineService(engine, default_launcher=LOCAL if LOCAL in known else None)
    return MachineApp(service, engine.access.identify, open_=options is not None and options.open)


@asynccontextmanager
async def launching(engine: Engine, options: Options, url: str) -> AsyncIterator[None]:
    """Launch the tasks of queues with delivery machine, and sweep after them, until the block ends. `url` is where we
    listen. What runs in the end goes on, and is found again by whoever sweeps next."""
    machines = engine.machines
    machines.launchers = {launcher.name: launcher for launcher in options.launchers}

    async def sweep() -> int:
        await machines.tick()
        return 0  # what it left to do is left for the next time

    async def delete() -> int:
        if not engine.objects.configured:
            return 0
        deleting.every_s = AWAY_AGAIN_S  # unless all goes well
        done = await machines.object_tick()
        deleting.every_s = OBJECTS_S
        return done

    sweeping = Loop("machines", sweep, every_s=options.sweep_s)
    deleting = Loop("objects", delete, every_s=OBJECTS_S)
    machines.wake, machines.wake_objects = sweeping.wake, deleting.wake
    engine.hub.on_leases = sweeping.wake
    around = Surroundings(
        base_url=options.callback_url or url, storage=options.storage, handed_on=options.handed_on,
        variables=options.variables,
    )  # fmt: skip
    carried = Launching(engine, around)
    machines.discreet = carried.discreet
    await engine.hear()
    for launcher in options.launchers:
        launcher.open(sweeping.wake)
    try:
        async with engine.sent.carrying(LAUNCH, carried.launch):
            for loop in (sweeping, deleting):
                loop.start()
            yield
    finally:
        for loop in (sweeping, deleting):
            await loop.stop()
        await machines.let_go()
        for launcher in options.launchers:
            launcher.close()
        machines.launchers = {}
        machines.wake = machines.wake_objects = engine.hub.on_leases = lambda: None
