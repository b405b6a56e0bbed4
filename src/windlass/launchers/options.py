"""Which launchers a server has, and how each is reached: from the settings to the drivers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

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
