"""Which launchers a server has, and how each is reached: from the settings to the drivers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from windlass.core.error import Invalid
from windlass.engine.launcher import Launcher
from windlass.launchers.docker import DockerLauncher
from windlass.launchers.fly import FlyLauncher
from windlass.launchers.kubernetes import KubernetesLauncher
from windlass.launchers.process import ProcessLauncher
from windlass.settings import Settings, listed

FOLDER = "machines"
MODS = "WINDLASS_MODS_"

# Each by its name: from the folder of a server's own data and the variables of its process.
LAUNCHERS: dict[str, Callable[[Path, Mapping[str, str]], Launcher]] = {
    "process": lambda data_dir, _: ProcessLauncher(data_dir / FOLDER),
    "docker": lambda _, variables: DockerLauncher.reached_by(variables),
    "kubernetes": lambda _, variables: KubernetesLauncher.reached_by(variables),
    "fly": lambda _, variables: FlyLauncher.reached_by(variables),
}


class StoreAddress(Protocol):
    """Where objects are kept; see `blobs.address`."""

    @property
    def scheme(self) -> str: ...
    @property
    def place(self) -> str: ...
    @property
    def prefix(self) -> str: ...
    @property
    def options(self) -> Mapping[str, str]: ...


class MachineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a server runs machines: with which launchers, where they call back (None: where it listens), how often it
    sweeps, whether clients need no key, and what of its own it hands on."""

    launchers: tuple[Launcher, ...] = ()
    callback_url: str | None = None
    sweep_s: float = 5.0
    open: bool = False
    storage: Mapping[str, str] = {}
    handed_on: Mapping[str, str] = {}
    variables: Mapping[str, str] = {}


def machine_options(
    settings: Settings, variables: Mapping[str, str], storage: Mapping[str, str], *, open_: bool
) -> MachineOptions:
    """What the settings say. `variables` are those of this process."""
    told: dict[str, str | None] = {name: value for name, value in variables.items() if name.startswith(MODS)}
    told |= {f"{MODS}API_URL": settings.mods_api_url, f"{MODS}GATEWAY_URL": settings.mods_gateway_url}
    return MachineOptions(
        launchers=tuple(make_launcher(name, settings.data_dir, variables) for name in listed(settings.launchers)),
        callback_url=settings.callback_url,
        sweep_s=settings.machine_sweep_s,
        open=open_,
        storage=storage,
        handed_on={name: value for name, value in told.items() if value is not None},
        variables=variables,
    )


def make_launcher(name: str, data_dir: Path, variables: Mapping[str, str]) -> Launcher:
    """A launcher by its name. How it is reached is said by the variables that its vendor's own tools read."""
    if name not in LAUNCHERS:
        raise Invalid(f"there is no launcher {name!r}", field="launchers")
    return LAUNCHERS[name](data_dir, {variable: value for variable, value in variables.items() if value})


def storage_variables(address: StoreAddress, variables: Mapping[str, str]) -> dict[str, str]:
    """What machines are told of where they upload, in the names of their contract, if that is S3 or like it. Variables
    of these names that this server has itself beat what the address says, for who wants machines to have less."""
    told: dict[str, str | None] = {}
    if address.scheme == "s3":
        options = address.options
        account = re.match(r"https?://([0-9a-f]+)\.r2\.cloudflarestorage\.com", options.get("endpoint", ""))
        told = {
            "R2_ACCOUNT_ID": account[1] if account else "none",
            "R2_ACCESS_KEY_ID": options.get("access_key_id") or variables.get("AWS_ACCESS_KEY_ID"),
            "R2_SECRET_ACCESS_KEY": options.get("secret_access_key") or variables.get("AWS_SECRET_ACCESS_KEY"),
            "R2_SESSION_TOKEN": options.get("session_token") or variables.get("AWS_SESSION_TOKEN"),
            "R2_BUCKET": address.place,
            "R2_ENDPOINT": options.get("endpoint") or variables.get("AWS_ENDPOINT_URL"),
            "R2_REGION": options.get("region") or variables.get("AWS_REGION"),
            "R2_PREFIX": address.prefix or None,
        }
    told |= {name: variables[name] for name in told if name in variables}
    return {name: value for name, value in told.items() if value}
