"""Exports on machines elsewhere: Docker, Kubernetes and Fly.io, each as a server that holds requests against the
vendor's own types. The same flow, the same faults, the same ends as with processes."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from tests.contracts.machine.launchers.servers import Docker, Fly, Kubernetes, Vendor
from tests.contracts.machine.launchers.test_launchers import MAKE
from tests.contracts.machine.world import PI, World, success_report, task_id_of

from windlass import State
from windlass.contracts.machine.rules import machine_name
from windlass.contracts.machine.sweeper import Machines
from windlass.net.server.server import listening

pytestmark = pytest.mark.slow

LOST = {"docker": "/create", "kubernetes": "/jobs", "fly": "/machines"}


@dataclass
class Far:
    """A queue whose machines a vendor starts."""

    world: World
    vendor: Vendor

    def env(self, name: str) -> dict[str, str]:
        """What the machine of an export was told."""
        machine = machine_name(task_id_of(name), 1)
        if isinstance(self.vendor, Kubernetes):
            told = self.vendor.secrets[machine]["data"]
            return {key: base64.b64decode(value).decode() for key, value in told.items()}
        body = self.vendor.boxes[machine].body
        if isinstance(self.vendor, Docker):
            return dict(line.split("=", 1) for line in body["Env"])
        env: dict[str, str] = body["config"]["env"]
        return env

    async def export(self) -> str:
        return await self.world.export(format_="far")

    async def leaves(self, name: str) -> None:
        """The machine uploads its file."""
        head, _, query = self.env(name)["UPLOAD_URL"].partition("?")
        assert (await self.world.http.put(f"{head}{PI}.xml?{query}", content=b"<mods/>")).status_code == 200

    def ends(self, name: str, code: int, **how: bool) -> None:
        self.vendor.end(machine_name(task_id_of(name), 1), code, **how)

    async def swept(self, name: str) -> str:
        """How the export ended, after one sweep that left nothing."""
        await self.world.sweep()
        known_by_id = isinstance(self.vendor, Fly)  # those that have ended are no more, and still told of
        left = [box for box in self.vendor.boxes.values() if box.code is None or not known_by_id]
        assert (left, self.vendor.secrets) == ([], {})
        told = await self.world.status(name)
        return str(told.get("error", told["status"]))


@pytest.fixture(params=list(MAKE))
async def far(request: pytest.FixtureRequest, world: World) -> AsyncIterator[Far]:
    kind, make = MAKE[request.param]
    vendor = kind()
    async with listening(vendor, "127.0.0.1", 0) as url:
        world.engine.service(Machines).launchers[request.param] = make(url)
        await world.queue("far", launcher=request.param, image="worker:latest", command=None)
        yield Far(world, vendor)
        assert vendor.wrong == []
        world.engine.service(Machines).launchers = {"process": world.launcher}


async def test_an_export_runs_on_a_machine_of_a_vendor(far: Far) -> None:
    name = await far.export()
    env = far.env(name)
    assert (env["TASK_ID"], env["PI"], env["EXPORT_FORMAT"]) == (name, PI, "far")
    await far.leaves(name)
    answer = await far.world.call_back(name, env["CALLBACK_URL"], **success_report(name, size=7))
    assert answer.json() == {"received": True}
    far.ends(name, 0)

    assert await far.swept(name) == "success"
    assert (await far.world.http.get(f"/download/{name}")).content == b"<mods/>"
    assert (await far.world.status(name))["machineId"]


async def test_its_callback_is_lost_and_it_has_succeeded_all_the_same(far: Far) -> None:
    name = await far.export()
    await far.leaves(name)
    far.ends(name, 0)

    assert await far.swept(name) == "success"


async def test_it_fails_runs_out_of_memory_or_vanishes_and_says_so(far: Far) -> None:
    failed, hungry, gone = [await far.export() for _ in range(3)]
    far.ends(failed, 3)
    far.ends(hungry, 137, oom=True)
    del far.vendor.boxes[machine_name(task_id_of(gone), 1)]
    if isinstance(far.vendor, Kubernetes):
        del far.vendor.secrets[machine_name(task_id_of(gone), 1)]

    assert (await far.swept(failed)).startswith("the machine ended with exit code 3")
    assert await far.swept(hungry) == "the machine ran out of memory"
    assert await far.swept(gone) == "the machine vanished"


async def test_what_a_machine_wrote_is_kept_without_what_it_was_told_in_secret(far: Far) -> None:
    launcher = next(name for name in far.world.engine.service(Machines).launchers if name != "process")
    far.world.options.variables["API_TOKEN"] = "hunter2-hunter2"  # type: ignore[index]
    await far.world.queue("far", launcher=launcher, image="worker:latest", command=None, secrets=["API_TOKEN"])
    wrote, called = await far.export(), await far.export()
    sig = far.env(wrote)["CALLBACK_URL"].partition("sig=")[2]
    far.vendor.end(machine_name(task_id_of(wrote), 1), 1, says=f"token hunter2-hunter2, sig {sig}")
    secret = f"no, said hunter2-hunter2 at {far.env(called)['CALLBACK_URL']}"
    await far.world.call_back(called, far.env(called)["CALLBACK_URL"], status="error", error=secret)
    await far.world.sweep()

    for name in (wrote, called):
        kept = str(await far.world.task(name)) + str(await far.world.details(name)) + str(await far.world.status(name))
        assert (await far.world.task(name)).state is State.FAILED
        assert "hunter2" not in kept
        assert sig not in kept
    if launcher != "fly":  # which tells nothing of what a machine wrote
        assert "token ***, sig ***" in (await far.world.status(wrote))["error"]
    assert (await far.world.status(called))["error"].startswith("no, said *** at http")


async def test_a_create_whose_answer_was_lost_makes_one_machine(far: Far) -> None:
    far.vendor.lose = LOST[next(name for name in far.world.engine.service(Machines).launchers if name != "process")]
    name = await far.export()

    assert len(far.vendor.boxes) == 1
    assert (await far.world.status(name))["machineId"]


async def test_a_cancelled_export_leaves_no_machine(far: Far) -> None:
    launcher = next(name for name in far.world.engine.service(Machines).launchers if name != "process")
    await far.world.queue("far", launcher=launcher, image="worker:latest", command=None, cancel_grace_period_ms=0)
    name = await far.export()
    await far.world.engine.cancel(task_id_of(name), "not wanted")
    await far.world.sweep()

    assert (await far.world.task(name)).state is State.CANCELLED
    assert far.vendor.boxes == {}
