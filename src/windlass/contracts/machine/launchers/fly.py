"""Machines of Fly.io, started with its Machines API. A machine has a name, so a repeated request starts one machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Self

from windlass.contracts.machine.launchers.api import Api, RemoteLauncher
from windlass.contracts.machine.launchers.port import LaunchRefused, Order
from windlass.contracts.machine.rules import OUT_OF_MEMORY, MachineStatus, Phase, read_machine_name
from windlass.errors import Invalid

URL = "https://api.machines.dev"
REGION = "ord"
METADATA = "windlass_installation"
GONE = frozenset({"destroying", "destroyed"})
ENDED = frozenset({"stopped", "failed", *GONE})
NAME_IN_USE = (409, 412, 422)
POLL_S = 0.5


class FlyLauncher(RemoteLauncher):
    """Machines of one Fly.io app."""

    name = "fly"

    def __init__(self, app: str, token: str, *, url: str = URL, image: str | None = None, region: str = REGION) -> None:
        api = Api(url, f"/v1/apps/{app}/machines", headers={"Authorization": f"Bearer {token}"})
        super().__init__(api, f"{url}/{app}")
        self._image, self._region = image, region

    @classmethod
    def from_environment(cls, variables: Mapping[str, str]) -> Self:
        """Read the variables of Fly's own tools, and FLY_WORKER_IMAGE, the default image of machines."""
        missing = [name for name in ("FLY_APP_NAME", "FLY_API_TOKEN") if name not in variables]
        if missing:
            raise Invalid(f"the launcher fly needs the environment variable {missing[0]}", field="launchers")
        return cls(
            variables["FLY_APP_NAME"], variables["FLY_API_TOKEN"], url=variables.get("FLY_FLAPS_BASE_URL", URL),
            image=variables.get("FLY_WORKER_IMAGE"), region=variables.get("FLY_REGION", REGION),
        )  # fmt: skip

    async def start(self, order: Order) -> MachineStatus:
        body = body_of(order, image=order.image or self._image, region=order.region or self._region)
        answer = (await self._api.call("POST", "", body)).expect(*NAME_IN_USE)
        if answer.status not in NAME_IN_USE:
            return _read_status(answer.content)
        status = await self._find(order.name)
        if status is None:
            raise LaunchRefused(answer.message)
        return status

    async def stop(self, name: str, machine_id: str | None, grace_s: float) -> None:
        if machine_id is None or machine_id == name:
            status = await self._find(name)
            if status is None:
                return
            machine_id = status.id
        if grace_s > 0:
            order = {"signal": "SIGTERM", "timeout": f"{max(1, round(grace_s))}s"}
            await self._api.stop("POST", f"/{machine_id}/stop", order)
            until_s = time.monotonic() + grace_s
            while time.monotonic() < until_s:
                status = await self.status(name, machine_id)
                if status is None or status.phase is Phase.EXITED:
                    break
                await asyncio.sleep(POLL_S)
        await self._api.stop("DELETE", f"/{machine_id}", query={"force": "true"})

    async def machines(self, installation: str) -> list[MachineStatus]:
        ours = [
            m for m in await self._all() if (m.get("config") or {}).get("metadata", {}).get(METADATA) == installation
        ]
        return [_read_status(m) for m in ours if m.get("state") not in GONE and read_machine_name(m.get("name", ""))]

    async def status(self, name: str, machine_id: str | None) -> MachineStatus | None:
        """Fly.io reports the exit of a machine that removed itself for a while, but only by its id."""
        if machine_id is None:
            return await self._find(name)
        answer = await self._api.get(f"/{machine_id}", 404)
        return None if answer.status == 404 else _read_status(answer.content)

    async def _find(self, name: str) -> MachineStatus | None:
        found = [m for m in await self._all() if m.get("name") == name]
        return _read_status(found[0]) if found else None

    async def _all(self) -> list[dict[str, Any]]:
        return (await self._api.get("")).content or []


def body_of(order: Order, *, image: str | None, region: str) -> dict[str, Any]:
    """The request that creates the machine."""
    if image is None:
        raise LaunchRefused("a machine needs an image: set it in the queue's delivery")
    config: dict[str, Any] = {
        "image": image,
        "env": dict(order.env),
        "auto_destroy": True,
        "restart": {"policy": "no"},
        "guest": {"cpu_kind": "shared", "cpus": order.cpus, "memory_mb": order.memory_mb},
        "metadata": {METADATA: order.installation},
    }
    if order.command:
        config["init"] = {"exec": list(order.command)}
    return {"name": order.name, "config": config, "region": region}


def _read_status(machine: dict[str, Any]) -> MachineStatus:
    state = machine.get("state", "")
    name, id_, instance = machine.get("name", ""), machine["id"], machine.get("instance_id")
    if state not in ENDED:
        phase = Phase.RUNNING if state in ("started", "stopping") else Phase.STARTING
        return MachineStatus(name=name, id=id_, phase=phase, instance_id=instance)
    code, reason = _exit(machine.get("events") or [])
    return MachineStatus(name=name, id=id_, phase=Phase.EXITED, exit_code=code, reason=reason, instance_id=instance)


def _exit(events: list[dict[str, Any]]) -> tuple[int | None, str]:
    """Exit code and reason from the newest exit event. Fly.io may omit an exit code of zero."""
    for event in events:
        request = event.get("request") or {}
        ended = (request.get("MonitorEvent") or {}).get("exit_event") or request.get("exit_event")
        if event.get("type") == "exit" and ended is not None:
            if ended.get("oom_killed"):
                return ended.get("exit_code", 0), OUT_OF_MEMORY
            number = ended.get("guest_signal") or 0
            return (-number if number > 0 else ended.get("exit_code", 0)), ""
    return None, ""
