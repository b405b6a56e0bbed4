"""Machines of Fly.io, by the Machines API: the body as the document has it, and a name, so that a repeat is one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Self

from windlass.core.error import Invalid
from windlass.core.machine import OUT_OF_MEMORY, Phase, Sighting, read_machine_name
from windlass.engine.launcher import LauncherAway, LaunchRefused, Order
from windlass.launchers.api import Api, quietly

URL = "https://api.machines.dev"
REGION = "ord"
METADATA = "windlass_installation"
GONE = frozenset({"destroying", "destroyed"})
ENDED = frozenset({"stopped", "failed", *GONE})
TAKEN = (409, 412, 422)  # where a name is in use
LOOK_S = 0.5


class FlyLauncher:
    """Machines of one app."""

    name = "fly"

    def __init__(self, app: str, token: str, *, url: str = URL, image: str | None = None, region: str = REGION) -> None:
        self._app, self._image, self._region = app, image, region
        self._api = Api(url, headers={"Authorization": f"Bearer {token}"})
        self.place = f"{url}/{app}"

    @classmethod
    def reached_by(cls, variables: Mapping[str, str]) -> Self:
        """As its own tools are told, and what the document calls the image of its workers."""
        missing = [name for name in ("FLY_APP_NAME", "FLY_API_TOKEN") if name not in variables]
        if missing:
            raise Invalid(f"fly needs the variable {missing[0]}", field="launchers")
        return cls(
            variables["FLY_APP_NAME"], variables["FLY_API_TOKEN"], url=variables.get("FLY_FLAPS_BASE_URL", URL),
            image=variables.get("FLY_WORKER_IMAGE"), region=variables.get("FLY_REGION", REGION),
        )  # fmt: skip

    def open(self, wake: Callable[[], None]) -> None:
        """Nobody tells us: the sweep sees it."""

    def close(self) -> None:
        pass

    async def start(self, order: Order) -> Sighting:
        body = body_of(order, image=order.image or self._image, region=order.region or self._region)
        answer = await self._api.expect("POST", self._path(), body, also=TAKEN)
        if answer.status in TAKEN:
            seen = await self._named(order.name)
            if seen is None:
                raise LaunchRefused(answer.message)
            return seen
        return _sighting(answer.content)

    async def stop(self, name: str, machine_id: str | None, grace_s: float) -> None:
        if machine_id is None or machine_id == name:
            seen = await self._named(name)
            if seen is None:
                return
            machine_id = seen.id
        if grace_s > 0:
            order = {"signal": "SIGTERM", "timeout": f"{max(1, round(grace_s))}s"}
            await quietly(self._api, "POST", self._path(f"/{machine_id}/stop"), order)
            await self._wait(machine_id, grace_s)
        await quietly(self._api, "DELETE", self._path(f"/{machine_id}"), query={"force": "true"})

    async def machines(self, installation: str) -> list[Sighting]:
        ours = [
            m for m in await self._all() if (m.get("config") or {}).get("metadata", {}).get(METADATA) == installation
        ]
        return [_sighting(m) for m in ours if m.get("state") not in GONE and read_machine_name(m.get("name", ""))]

    async def look(self, name: str, machine_id: str | None) -> Sighting | None:
        """A machine that has gone by itself is still known by its id for a while, with how it ended."""
        if machine_id is None:
            return await self._named(name)
        answer = await self._api.call("GET", self._path(f"/{machine_id}"))
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise LauncherAway(answer.message)
        return _sighting(answer.content)

    async def _named(self, name: str) -> Sighting | None:
        found = [m for m in await self._all() if m.get("name") == name]
        return _sighting(found[0]) if found else None

    async def _all(self) -> list[dict[str, Any]]:
        try:
            found = await self._api.expect("GET", self._path())
        except LaunchRefused as error:
            raise LauncherAway(str(error)) from None
        machines: list[dict[str, Any]] = found.content or []
        return machines

    async def _wait(self, machine_id: str, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            seen = await self.look("", machine_id)
            if seen is None or seen.phase is Phase.EXITED:
                return
            await asyncio.sleep(LOOK_S)

    def _path(self, path: str = "") -> str:
        return f"/v1/apps/{self._app}/machines{path}"


def body_of(order: Order, *, image: str | None, region: str) -> dict[str, Any]:
    """The machine for an order."""
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


def _sighting(told: dict[str, Any]) -> Sighting:
    state = told.get("state", "")
    name, id_, instance = told.get("name", ""), told["id"], told.get("instance_id")
    if state not in ENDED:
        phase = Phase.RUNNING if state in ("started", "stopping") else Phase.STARTING
        return Sighting(name=name, id=id_, phase=phase, instance_id=instance)
    code, reason = _exit(told.get("events") or [])
    return Sighting(name=name, id=id_, phase=Phase.EXITED, exit_code=code, reason=reason, instance_id=instance)


def _exit(events: list[dict[str, Any]]) -> tuple[int | None, str]:
    """How it ended: its exit event, the newest first. A code that is zero may be left out."""
    for event in events:
        request = event.get("request") or {}
        ended = (request.get("MonitorEvent") or {}).get("exit_event") or request.get("exit_event")
        if event.get("type") == "exit" and ended is not None:
            if ended.get("oom_killed"):
                return ended.get("exit_code", 0), OUT_OF_MEMORY
            number = ended.get("guest_signal") or 0
            return (-number if number > 0 else ended.get("exit_code", 0)), ""
    return None, ""
