"""A queue whose tasks run on machines, an engine whose time stands still, a server that speaks HTTP, and a folder."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import msgspec
from tests.kit import world as kit
from tests.kit.processes import everything_in
from tests.kit.work import SOON_S
from tests.kit.world import ROOT, open_still

from windlass.api.app import make_api
from windlass.contracts.machine.delivery import LAUNCH, Machine
from windlass.contracts.machine.launchers.options import MachineOptions
from windlass.contracts.machine.launchers.port import Launcher, Order
from windlass.contracts.machine.launchers.process import ProcessLauncher
from windlass.contracts.machine.mount import make_machines
from windlass.contracts.machine.rules import MachineStatus, Phase, machine_name, read_export_name
from windlass.contracts.machine.server.app import PREFIXES
from windlass.contracts.machine.server.launch import Launching
from windlass.contracts.machine.sweeper import Machines
from windlass.core.delivery import RetryForm
from windlass.core.queue import QueueConfig
from windlass.engine.payloads.blob_port import Blobs
from windlass.net.server.server import PathRouter, listening
from windlass.serve import open_blobs
from windlass.testing.clock import VirtualClock

FORMAT = "probe"
PI = "01K9XVBAQZF9EHDRXGBEADTZYY"
PROGRAM = Path(__file__).with_name("program.py")
SIZE = 1013
DONE = ["upload", "success", "exit 0"]


class Watched(ProcessLauncher):
    """The real one, which records its orders; `before` and `after` run around a start, and may raise."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.orders: list[Order] = []
        self.stopped: list[tuple[str, float]] = []
        self.before: Callable[[], Awaitable[None]] = _nothing
        self.after: Callable[[], Awaitable[None]] = _nothing

    async def start(self, order: Order) -> MachineStatus:
        self.orders.append(order)
        await self.before()
        seen = await super().start(order)
        await self.after()
        return seen

    async def stop(self, name: str, machine_id: str | None, grace_s: float) -> None:
        self.stopped.append((name, grace_s))
        await super().stop(name, machine_id, grace_s)


async def _nothing() -> None:
    pass


@dataclass
class World(kit.World[str]):
    """A server of exports, a launcher of local processes, and their folder. Exports go by their names."""

    TABLES = (*kit.World.TABLES, "machine", "export_object")

    http: httpx.AsyncClient
    launcher: Watched
    folder: Path
    options: MachineOptions
    waits: int = field(default=0)

    # ----------------------------------------------------------------------------------------- clients

    async def queue(self, name: str = FORMAT, *, retry: RetryForm | None = None, **settings: Any) -> None:
        machine = Machine(**{"launcher": "process", "command": [sys.executable, str(PROGRAM)], **settings})
        await self.engine.queues.put(name, delivery=machine, retry=retry, limits=QueueConfig())

    async def post(self, steps: list[str], format_: str = FORMAT, **more: Any) -> httpx.Response:
        """Ask for an export, and carry out what the engine has to do meanwhile."""
        body = {"pi": PI, "options": {"steps": steps}, **more}
        asking = asyncio.create_task(self.http.post(f"/export/{format_}", json=body))
        while not asking.done():
            await self.send_out()
            await asyncio.sleep(0.01)
        return await asking

    async def export(self, *steps: str, format_: str = FORMAT, **more: Any) -> str:
        """The name of an export whose machine was started."""
        answer = await self.post(list(steps), format_, **more)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["task_id"])

    async def status(self, name: str) -> dict[str, Any]:
        answer = await self.http.get(f"/status/{name}")
        assert answer.status_code == 200, answer.text
        status: dict[str, Any] = answer.json()
        return status

    # ----------------------------------------------------------------------------------------- machines

    async def sweep(self) -> int:
        return await self.engine.service(Machines).tick(SOON_S)

    async def looked(self, name: str, attempt: int = 1) -> MachineStatus | None:
        return await self.launcher.status(machine_name(task_id_of(name), attempt), None)

    async def exited(self, name: str, attempt: int = 1) -> None:
        """Until the machine of this export has ended."""
        await eventually(lambda: self._gone(name, attempt))

    async def _gone(self, name: str, attempt: int) -> bool:
        seen = await self.looked(name, attempt)
        return seen is None or seen.phase is Phase.EXITED

    async def finished(self, *steps: str, **more: Any) -> str:
        """An export whose machine has come to its end, and was swept."""
        name = await self.export(*steps, **more)
        await self.exited(name)
        await self.sweep()
        return name

    def file(self, name: str) -> Path:
        return self.folder / name

    def release(self, file: Path) -> None:
        file.write_text("now")

    async def appears(self, file: Path) -> str:
        """What is in a file, when there is something."""
        text = ""

        async def there() -> bool:
            nonlocal text
            text = await asyncio.to_thread(lambda: file.read_text() if file.exists() else "")
            return bool(text)

        await eventually(there)
        return text

    # ----------------------------------------------------------------------------------------- what is left

    async def unread(self) -> None:
        """Until nobody reads an object any more."""

        async def nobody() -> bool:
            return not self.engine.service(Machines)._used

        await eventually(nobody)

    def task_id(self, handle: str) -> UUID:
        return task_id_of(handle)

    async def details(self, name: str) -> dict[str, Any]:
        """What each entry of the history of an export tells, by its word."""
        return {str(e.what): e.detail for e in await self.engine.tasks.timeline(task_id_of(name))}

    async def blobs(self) -> Blobs:
        return await self.engine.parts.objects.blobs()

    async def objects(self) -> list[str]:
        return sorted([one.key async for one in (await self.blobs()).list("exports")])

    def machines(self) -> list[str]:
        """Whatever is left of machines in the folder of the launcher."""
        return sorted(str(path.relative_to(self.folder)) for path in everything_in(self.folder / "machines"))

    async def signed(self, name: str) -> str:
        """The callback URL that the newest machine got."""
        return next(o.env["CALLBACK_URL"] for o in reversed(self.launcher.orders) if o.env["TASK_ID"] == name)

    async def call_back(self, name: str, url: str | None = None, **report: Any) -> httpx.Response:
        body = {"task_id": name, "batch_id": "single", **report}
        return await self.http.post(url or await self.signed(name), json=body)


def task_id_of(name: str) -> UUID:
    found = read_export_name(name)
    return UUID(name) if found is None else found


async def eventually(condition: Callable[[], Awaitable[bool]], seconds: float = SOON_S) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110 (what others do has no event for us)
            await asyncio.sleep(0.02)


def success_report(name: str, size: int = SIZE, **more: Any) -> dict[str, Any]:
    return {
        "status": "success", "output_r2_key": f"exports/{name}/{PI}.xml", "output_file_name": f"{PI}.xml",
        "output_file_size": size, **more,
    }  # fmt: skip


@asynccontextmanager
async def open_world(database: str, clock: VirtualClock, folder: Path, **options: Any) -> AsyncIterator[World]:
    launcher = Watched(folder / "machines")
    launchers: tuple[Launcher, ...] = (launcher,)
    machines = MachineOptions(
        launchers=launchers, open=options.get("open", False), storage=options.get("storage", {}),
        common_env=options.get("common_env", {}), variables=options.get("variables", dict(os.environ)),
    )  # fmt: skip
    blobs = open_blobs(options.get("blobs") or str(folder / "blobs"))
    keyed = {} if options.get("open") else {"Authorization": f"Bearer {ROOT}"}
    async with (
        open_still(database, clock, blobs=blobs) as engine,
        listening(PathRouter(make_api(engine), (PREFIXES, make_machines(engine, machines))), "127.0.0.1", 0) as url,
        httpx.AsyncClient(base_url=url, headers=keyed, timeout=60) as http,
    ):
        engine.service(Machines).launchers = {"process": launcher}
        launches = Launching(engine, machines, url)
        engine.parts.effects[LAUNCH], engine.service(Machines).mask = launches.launch, launches.mask
        world = World(engine, clock, http, launcher, folder, machines)
        await world.queue()
        try:
            yield world
        finally:
            launcher.close()
            for status in await launcher.machines(await engine.service(Machines).installation()):
                await ProcessLauncher.stop(launcher, status.name, None, 0.0)


def json_of(content: bytes | None) -> Any:
    return msgspec.json.decode(content or b"null")
