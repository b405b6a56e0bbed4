"""Machines as containers of a Docker Engine. Uses its HTTP API, on a local socket or over TCP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self
from urllib.parse import quote

import msgspec

from windlass.contracts.machine.launchers.api import Answer, Api, RemoteLauncher, exit_code_of
from windlass.contracts.machine.launchers.port import LauncherUnavailable, LaunchRefused, Order
from windlass.contracts.machine.rules import OUT_OF_MEMORY, MachineStatus, Phase, read_machine_name

VERSION = "v1.41"  # from 2020: every engine that is still maintained supports it
LABEL = "dev.windlass.installation"
SOCKET = "unix:///var/run/docker.sock"
LOG_LINES = "20"
OUTPUT_MAX = 4000


class DockerLauncher(RemoteLauncher):
    """Containers of one engine. `url` is unix:///var/run/docker.sock, or http://HOST:PORT."""

    name = "docker"

    def __init__(self, url: str = SOCKET) -> None:
        super().__init__(Api(url, f"/{VERSION}"), url)

    @classmethod
    def from_environment(cls, variables: Mapping[str, str]) -> Self:
        """Read DOCKER_HOST, as Docker's own tools do. Its `tcp://` means `http://`."""
        url = variables.get("DOCKER_HOST", SOCKET)
        return cls(f"http://{url.removeprefix('tcp://')}" if url.startswith("tcp://") else url)

    async def start(self, order: Order) -> MachineStatus:
        if order.image is None:
            raise LaunchRefused("a container needs an image: set it in the queue's delivery")
        created = await self._create(order)
        if created.status == 404:  # the engine does not have the image yet
            await self._pull(order.image)
            created = await self._create(order)
        created.expect(409)
        status = await self.status(order.name, None)
        if status is None:
            raise LauncherUnavailable(f"container {order.name} was removed while it was starting")
        if status.phase is not Phase.STARTING:
            return status
        started = await self._api.call("POST", f"/containers/{order.name}/start")
        if started.status not in (204, 304):
            await self.stop(order.name, None, 0.0)
            raise LaunchRefused(started.message)
        return MachineStatus(name=order.name, id=status.id, phase=Phase.RUNNING)

    async def stop(self, name: str, machine_id: str | None, grace_s: float) -> None:  # noqa: ARG002
        if grace_s > 0:
            path, query = f"/containers/{name}/stop", {"t": str(round(grace_s))}
            await self._api.stop("POST", path, query=query, more_s=grace_s)  # answers when it has ended
        await self._api.stop("DELETE", f"/containers/{name}", query={"force": "true", "v": "true"})

    async def machines(self, installation: str) -> list[MachineStatus]:
        filters = msgspec.json.encode({"label": [f"{LABEL}={installation}"]}).decode()
        found = await self._api.get("/containers/json", query={"all": "true", "filters": filters})
        names = [name.lstrip("/") for container in found.content for name in container["Names"][:1]]
        statuses = [await self.status(name, None) for name in names if read_machine_name(name) is not None]
        return [status for status in statuses if status is not None]

    async def status(self, name: str, machine_id: str | None) -> MachineStatus | None:  # noqa: ARG002
        answer = await self._api.get(f"/containers/{name}/json", 404)
        if answer.status == 404:
            return None
        status = _read_status(name, answer.content)
        if status.phase is Phase.EXITED and status.exit_code != 0:
            status = msgspec.structs.replace(status, output=await self._output(name))
        return status

    # ----------------------------------------------------------------------------------------- parts

    async def _create(self, order: Order) -> Answer:
        return await self._api.call("POST", "/containers/create", body_of(order), query={"name": order.name})

    async def _pull(self, image: str) -> None:
        name, tag = _split_image(image)
        answer = await self._api.call("POST", "/images/create", query={"fromImage": name, "tag": tag})
        if answer.status != 200 or b'"error"' in answer.raw:
            reason = answer.raw.decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise LaunchRefused(f"the image {image} cannot be pulled: {reason[:500]}")

    async def _output(self, name: str) -> str:
        query = {"stdout": "true", "stderr": "true", "tail": LOG_LINES}
        answer = await self._api.call("GET", f"/containers/{quote(name)}/logs", query=query)
        return "" if answer.status != 200 else _read_log(answer.raw)[-OUTPUT_MAX:]


def body_of(order: Order) -> dict[str, Any]:
    """The request that creates the container. Docker must not remove it when it exits: its exit code would be lost."""
    body: dict[str, Any] = {
        "Image": order.image,
        "Env": [f"{name}={value}" for name, value in sorted(order.env.items())],
        "Labels": {LABEL: order.installation},
        "StopTimeout": max(1, round(order.grace_s)),
        "HostConfig": {
            "Memory": order.memory_mb * 1024 * 1024,
            "MemorySwap": order.memory_mb * 1024 * 1024,
            "NanoCpus": order.cpus * 1_000_000_000,
            "RestartPolicy": {"Name": "no"},
            "Init": True,
        },
    }
    return body | ({"Cmd": list(order.command)} if order.command else {})


def _read_status(name: str, container: dict[str, Any]) -> MachineStatus:
    state = container["State"]
    phases = {"created": Phase.STARTING, "exited": Phase.EXITED, "dead": Phase.EXITED, "removing": Phase.EXITED}
    phase = phases.get(state["Status"], Phase.RUNNING)
    code = exit_code_of(state["ExitCode"]) if phase is Phase.EXITED else None
    reason = OUT_OF_MEMORY if phase is Phase.EXITED and state.get("OOMKilled") else ""
    return MachineStatus(name=name, id=container["Id"], phase=phase, exit_code=code, reason=reason)


def _split_image(image: str) -> tuple[str, str]:
    """The name and the tag or digest of an image. A colon before the last slash belongs to a port."""
    name, _, digest = image.partition("@")
    if digest:
        return name, digest
    head, slash, last = image.rpartition("/")
    name, _, tag = last.partition(":")
    return f"{head}{slash}{name}", tag or "latest"


def _read_log(content: bytes) -> str:
    """Join the frames of a log. Docker mixes stdout and stderr: an 8-byte header gives the stream and the length."""
    text, place = b"", 0
    while place + 8 <= len(content) and content[place] in (0, 1, 2) and content[place + 1 : place + 4] == b"\0\0\0":
        size = int.from_bytes(content[place + 4 : place + 8], "big")
        text += content[place + 8 : place + 8 + size]
        place += 8 + size
    return (text if place else content).decode("utf-8", "replace")
