"""What every launcher promises: the process launcher with real processes, the others with servers that hold each
request against the vendor's own types."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import docker
import pytest
from msgspec.structs import replace
from tests.contracts.machine.launchers.servers import TOKEN, Docker, Fly, Kubernetes, Vendor
from tests.kit.processes import everything_in, gone
from tests.kit.work import SOON_S, until

from windlass.blobs.address import read_address
from windlass.contracts.machine.launchers.api import Api
from windlass.contracts.machine.launchers.docker import DockerLauncher
from windlass.contracts.machine.launchers.fly import FlyLauncher
from windlass.contracts.machine.launchers.kubernetes import KubernetesLauncher
from windlass.contracts.machine.launchers.options import LAUNCHERS, make_launcher
from windlass.contracts.machine.launchers.port import Launcher, LauncherUnavailable, LaunchRefused, Order
from windlass.contracts.machine.launchers.process import ProcessLauncher
from windlass.contracts.machine.launchers.process_supervisor import marked
from windlass.contracts.machine.rules import OUT_OF_MEMORY, MachineStatus, Phase, machine_name
from windlass.contracts.machine.server.storage import storage_variables
from windlass.errors import Invalid
from windlass.net.server.server import listening
from windlass.settings import table

pytestmark = pytest.mark.slow

# Does what is written in a file, again and again.
HOLD = "import sys, time\nwhile True: time.sleep(0.01); exec(open(sys.argv[1]).read())"
NAMES = ["process", "docker", "kubernetes", "fly"]


@dataclass
class Bench:
    """A launcher, and how to end its machines."""

    launcher: Launcher
    vendor: Vendor | None
    folder: Path
    url: str = ""

    def order(self, **fields: object) -> Order:
        name = machine_name(uuid4(), 1)
        command = (sys.executable, "-c", HOLD, str(self.fifo(name)))
        made = Order(
            name=name, env={"TASK_ID": "t", "SECRET": "hunter2-hunter2"}, installation="ours", image="worker:latest",
            command=command if self.vendor is None else (), memory_mb=256, secret_values=frozenset({"hunter2-hunter2"}),
        )  # fmt: skip
        return replace(made, **fields)

    def fifo(self, name: str) -> Path:
        return self.folder / f"{name}.py"

    async def started(self, **fields: object) -> Order:
        order = self.order(**fields)
        if self.vendor is None:
            self.fifo(order.name).write_text("pass")
        await self.launcher.start(order)
        return order

    async def ends(self, order: Order, code: int, *, oom: bool = False, says: str = "") -> MachineStatus:
        """The machine ends in this way; what is seen of it then."""
        if self.vendor is None:
            hog = "x = bytearray(400 << 20); x[::4096] = b'x' * len(x[::4096]); time.sleep(60)"
            script = f"print({says!r})\n" + (hog if oom else f"sys.exit({code})")
            self.fifo(order.name).write_text(script)
        else:
            self.vendor.end(order.name, 137 if oom else code, oom=oom, says=says)
        return await self.ended(order)

    async def ended(self, order: Order) -> MachineStatus:
        id_ = self._ids[order.name] if self.vendor is not None else None
        async with asyncio.timeout(SOON_S):
            while True:
                seen = await self.launcher.status(order.name, id_)
                if seen is not None and seen.phase is Phase.EXITED:
                    return seen
                await asyncio.sleep(0.02)

    @property
    def _ids(self) -> dict[str, str]:
        assert self.vendor is not None
        return {box.name: box.id for box in self.vendor.boxes.values()}

    async def names(self, installation: str = "ours") -> set[str]:
        return {seen.name for seen in await self.launcher.machines(installation)}


MAKE: dict[str, tuple[type[Vendor], Callable[[str], Launcher]]] = {
    "docker": (Docker, DockerLauncher),
    "kubernetes": (Kubernetes, lambda url: KubernetesLauncher(url, namespace="exports", token=TOKEN)),
    "fly": (Fly, lambda url: FlyLauncher("exports", TOKEN, url=url)),
}


@pytest.fixture(params=NAMES)
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    async with AsyncExitStack() as stack:
        if request.param == "process":
            made = ProcessLauncher(tmp_path / "machines")
            yield Bench(made, None, tmp_path)
            for installation in ("ours", "theirs"):
                for seen in await made.machines(installation):
                    await made.stop(seen.name, None, 0.0)
            made.close()
            return
        kind, make = MAKE[request.param]
        vendor = kind()
        url = await stack.enter_async_context(listening(vendor, "127.0.0.1", 0))
        yield Bench(make(url), vendor, tmp_path, url)
        assert vendor.wrong == []


async def test_a_machine_is_started_once_however_often_it_is_asked_for(bench: Bench) -> None:
    order = await bench.started()
    again = await bench.launcher.start(order)

    assert again.name == order.name
    assert again.phase in (Phase.RUNNING, Phase.STARTING)
    assert await bench.names() == {order.name}
    if bench.vendor is not None:
        assert len(bench.vendor.boxes) == 1


async def test_ten_at_once_start_one(bench: Bench) -> None:
    order = bench.order()
    if bench.vendor is None:
        bench.fifo(order.name).write_text("pass")
    outcomes = await asyncio.gather(*(bench.launcher.start(order) for _ in range(10)), return_exceptions=True)

    assert all(isinstance(one, MachineStatus | LauncherUnavailable) for one in outcomes), outcomes
    assert any(isinstance(one, MachineStatus) for one in outcomes)
    assert await bench.names() == {order.name}


@pytest.mark.parametrize("code", [0, 3])
async def test_its_exit_code_is_seen(bench: Bench, code: int) -> None:
    order = await bench.started()
    seen = await bench.ends(order, code, says="no entity has this id")

    assert (seen.phase, seen.exit_code, seen.reason) == (Phase.EXITED, code, "")
    if code and not isinstance(bench.launcher, FlyLauncher):  # which tells nobody what a machine said
        assert "no entity has this id" in seen.output


async def test_out_of_memory_is_seen(bench: Bench) -> None:
    order = await bench.started()
    seen = await bench.ends(order, 0, oom=True)

    assert seen.reason == OUT_OF_MEMORY


async def test_one_that_has_ended_is_not_started_again(bench: Bench) -> None:
    order = await bench.started()
    await bench.ends(order, 3)
    again = await bench.launcher.start(order) if not isinstance(bench.launcher, FlyLauncher) else None

    assert again is None or (again.phase, again.exit_code) == (Phase.EXITED, 3)


async def test_stopping_leaves_nothing_and_may_be_repeated(bench: Bench) -> None:
    order = await bench.started()
    id_ = None if bench.vendor is None else bench.vendor.boxes[order.name].id
    for grace_s in (1.0, 0.0):
        await bench.launcher.stop(order.name, id_, grace_s)

    assert await bench.names() == set()
    assert await bench.launcher.status(order.name, id_) is None
    if isinstance(bench.vendor, Kubernetes):
        assert bench.vendor.secrets == {}
    if bench.vendor is None:
        assert everything_in(bench.folder / "machines") == []
    else:
        assert bench.vendor.boxes == {}


@pytest.mark.parametrize("bench", ["kubernetes"], indirect=True)
async def test_a_pod_that_does_not_want_to_end_is_ended_after_its_grace(bench: Bench) -> None:
    """As long as it lives it may write: that nothing is left has to be true when it is said."""
    assert isinstance(bench.vendor, Kubernetes)
    bench.vendor.deaf = True
    order = await bench.started()
    await bench.launcher.stop(order.name, None, 0.6)

    assert (bench.vendor.boxes, bench.vendor.lingering, bench.vendor.secrets) == ({}, [], {})


async def test_an_answer_that_takes_its_time_is_waited_for() -> None:
    """A stop is answered when the machine has ended."""
    waits = asyncio.Event()

    async def slow(scope: object, receive: object, send: Callable[..., Awaitable[None]]) -> None:
        await waits.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    slow.state = SimpleNamespace(closing=asyncio.Event())  # type: ignore[attr-defined]
    async with listening(slow, "127.0.0.1", 0) as url:  # type: ignore[arg-type]
        api = Api(url, timeout_s=0.05)
        patient = asyncio.create_task(api.stop("POST", "/stop", more_s=SOON_S))
        with pytest.raises(LauncherUnavailable):
            await api.stop("POST", "/stop")
        waits.set()
        await patient


HIDES = """
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1] + ".new", "w").write(str(os.getpid()))
        os.rename(sys.argv[1] + ".new", sys.argv[1])
        os.execve("/bin/sleep", ["sleep", "600"], {})
    os._exit(0)
os.wait()
while not os.path.exists(sys.argv[1]):
    pass
"""


@pytest.mark.parametrize("bench", ["process"], indirect=True)
async def test_a_process_that_has_hidden_ends_with_its_machine(bench: Bench) -> None:
    """It has a session of its own, no parent, and nothing in its environment that tells whose it is."""
    file = bench.folder / "hidden"
    order = bench.order(command=(sys.executable, "-c", HIDES, str(file)))
    await bench.launcher.start(order)
    seen = await bench.ended(order)

    assert seen.exit_code == 0
    await gone(int(file.read_text()))


@pytest.mark.parametrize("bench", ["process"], indirect=True)
async def test_nothing_of_the_servers_own_environment_reaches_a_machine(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its program nor what keeps it is told anything that was not meant for it."""
    monkeypatch.setenv("DATABASE_URL", "postgresql://somebody:hunter2@nowhere/db")
    order = await bench.started()
    await until(lambda: len(marked(order.name)) == 2)

    for pid in marked(order.name):
        assert b"hunter2@nowhere" not in Path(f"/proc/{pid}/environ").read_bytes()  # noqa: ASYNC240


async def test_machines_of_others_are_not_seen(bench: Bench) -> None:
    mine, theirs = await bench.started(), await bench.started(installation="theirs")

    assert await bench.names("ours") == {mine.name}
    assert await bench.names("theirs") == {theirs.name}


async def test_what_is_not_there_is_none(bench: Bench) -> None:
    assert await bench.launcher.status(machine_name(uuid4(), 1), None) is None
    await bench.launcher.stop(machine_name(uuid4(), 1), None, 0.0)
    assert await bench.names() == set()


async def test_what_cannot_be_started_says_why_and_leaves_nothing(bench: Bench) -> None:
    wishes = {
        ProcessLauncher: {"command": ("/no/such/program",)},
        DockerLauncher: {"command": ("/no/such/program",)},
        KubernetesLauncher: {"image": "not an image"},
        FlyLauncher: {"image": "not an image"},
    }
    says = {ProcessLauncher: "No such file", DockerLauncher: "no such file"}.get(type(bench.launcher), "nvalid")  # type: ignore[call-overload]
    order = bench.order(**wishes[type(bench.launcher)])  # type: ignore[index]
    with pytest.raises(LaunchRefused, match=says):
        await bench.launcher.start(order)
    for left in await bench.names():  # a Secret without its Job is listed, so that the sweep removes it
        await bench.launcher.stop(left, None, 0.0)

    assert await bench.names() == set()


async def test_what_needs_more_than_was_said_is_refused(bench: Bench) -> None:
    with pytest.raises(LaunchRefused, match="set it in the queue's delivery"):
        await bench.launcher.start(bench.order(image=None, command=()))


async def test_an_order_shows_no_secret(bench: Bench) -> None:
    order = bench.order()

    assert "hunter2" not in repr(order)
    assert "hunter2" not in f"{order}"


# --------------------------------------------------------------------------------------------- vendors that fail

REMOTE = pytest.mark.parametrize("bench", NAMES[1:], indirect=True)


@REMOTE
async def test_a_vendor_that_is_away_is_told_from_one_that_refuses(bench: Bench) -> None:
    assert bench.vendor is not None
    order = await bench.started()
    bench.vendor.down = True
    for call in (
        bench.launcher.start(bench.order()), bench.launcher.machines("ours"),
        bench.launcher.status(order.name, bench.vendor.boxes[order.name].id),
        bench.launcher.stop(order.name, bench.vendor.boxes[order.name].id, 0.0),
    ):  # fmt: skip
        with pytest.raises(LauncherUnavailable):
            await call
    bench.vendor.down = False

    assert await bench.names() == {order.name}


@REMOTE
async def test_a_machine_whose_answer_was_lost_is_found_by_its_name(bench: Bench) -> None:
    assert bench.vendor is not None
    bench.vendor.lose = {"docker": "/create", "kubernetes": "/jobs", "fly": "/machines"}[bench.launcher.name]
    order = bench.order()
    with pytest.raises(LauncherUnavailable):
        await bench.launcher.start(order)
    seen = await bench.launcher.status(order.name, None)
    again = await bench.launcher.start(order)

    assert seen is not None
    assert again.id == seen.id
    assert len(bench.vendor.boxes) == 1


@pytest.mark.parametrize("bench", ["docker"], indirect=True)
async def test_an_image_that_is_not_there_is_pulled(bench: Bench) -> None:
    await bench.started(image="registry/worker:7")
    with pytest.raises(LaunchRefused, match="cannot be pulled"):
        await bench.started(image="nobody/worker:7")


@pytest.mark.parametrize("bench", ["docker"], indirect=True)
async def test_the_vendors_own_client_sees_the_container_that_we_made(bench: Bench) -> None:
    order = await bench.started()

    def looked() -> dict[str, object]:
        client = docker.APIClient(base_url=bench.url, version="1.41")
        try:
            told: dict[str, object] = client.inspect_container(order.name)
        finally:
            client.close()
        return told

    told = await asyncio.to_thread(looked)
    assert told["Name"] == f"/{order.name}"


@pytest.mark.parametrize("bench", ["fly"], indirect=True)
async def test_the_body_is_that_of_the_document(bench: Bench) -> None:
    order = await bench.started(region="ams")
    assert bench.vendor is not None
    body = bench.vendor.boxes[order.name].body

    assert body["region"] == "ams"
    assert body["config"]["env"] == {"TASK_ID": "t", "SECRET": "hunter2-hunter2"}
    assert (body["config"]["auto_destroy"], body["config"]["restart"]) == (True, {"policy": "no"})


@pytest.mark.parametrize("bench", ["kubernetes"], indirect=True)
async def test_what_a_machine_is_told_is_in_a_secret_and_not_in_the_job(bench: Bench) -> None:
    order = await bench.started()
    assert isinstance(bench.vendor, Kubernetes)

    assert "hunter2" not in str(bench.vendor.boxes[order.name].body)
    assert set(bench.vendor.secrets[order.name]["data"]) == {"TASK_ID", "SECRET"}


@pytest.mark.parametrize("bench", ["kubernetes", "fly"], indirect=True)
async def test_who_is_not_let_in_is_told_so(bench: Bench) -> None:
    make: dict[str, Callable[[], Launcher]] = {
        "kubernetes": lambda: KubernetesLauncher(bench.url, token="no"),
        "fly": lambda: FlyLauncher("exports", "no", url=bench.url),
    }
    with pytest.raises(LaunchRefused, match=r"(?i)unauthorized"):
        await make[bench.launcher.name]().start(bench.order())


# --------------------------------------------------------------------------------------------- settings


def test_each_launcher_is_reached_as_the_tools_of_its_vendor_are_told(tmp_path: Path) -> None:
    said = {"DOCKER_HOST": "tcp://h:2375", "FLY_APP_NAME": "a", "FLY_API_TOKEN": "t", "KUBERNETES_NAMESPACE": "n"}
    made = {name: make_launcher(name, tmp_path, said) for name in NAMES}

    assert [made[name].name for name in NAMES] == NAMES
    assert made["docker"].place == "http://h:2375"
    assert made["kubernetes"].place.endswith("/n")
    assert made["fly"].place == "https://api.machines.dev/a"
    assert make_launcher("docker", tmp_path, {}).place == "unix:///var/run/docker.sock"


def test_the_settings_know_every_launcher() -> None:
    assert tuple(LAUNCHERS) == table.LAUNCHERS
    assert sorted(LAUNCHERS) == sorted(NAMES)


def test_fly_needs_to_know_where_and_who(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="FLY_API_TOKEN"):
        make_launcher("fly", tmp_path, {"FLY_APP_NAME": "a"})


def test_machines_are_told_of_a_bucket_and_of_nothing_else() -> None:
    def told(url: str, **variables: str) -> dict[str, str]:
        return storage_variables(read_address(url), variables)

    r2 = told("s3://K:S@arke-exports?endpoint=https://abc123.r2.cloudflarestorage.com")
    assert (r2["R2_ACCOUNT_ID"], r2["R2_ACCESS_KEY_ID"], r2["R2_SECRET_ACCESS_KEY"]) == ("abc123", "K", "S")
    assert r2["R2_BUCKET"] == "arke-exports"
    own = told("s3://K:S@b/p", R2_ACCESS_KEY_ID="less", AWS_REGION="eu-west-1")
    assert (own["R2_ACCESS_KEY_ID"], own["R2_PREFIX"], own["R2_REGION"]) == ("less", "p", "eu-west-1")
    assert told("s3://b", AWS_ACCESS_KEY_ID="A", AWS_SECRET_ACCESS_KEY="B")["R2_SECRET_ACCESS_KEY"] == "B"
    assert told("gs://b", R2_ACCESS_KEY_ID="x") == told("file:///x") == {}
