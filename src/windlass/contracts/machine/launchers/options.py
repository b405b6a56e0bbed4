"""Makes the launchers of a server from its settings and environment variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from windlass.contracts.machine.launchers.docker import DockerLauncher
from windlass.contracts.machine.launchers.fly import FlyLauncher
from windlass.contracts.machine.launchers.kubernetes import KubernetesLauncher
from windlass.contracts.machine.launchers.port import Launcher
from windlass.contracts.machine.launchers.process import ProcessLauncher
from windlass.errors import Invalid
from windlass.settings import Settings, listed

FOLDER = "machines"
MODS = "WINDLASS_MODS_"

# By name: makes a launcher from the data directory of the server and its environment variables.
LAUNCHERS: dict[str, Callable[[Path, Mapping[str, str]], Launcher]] = {
    "process": lambda data_dir, _: ProcessLauncher(data_dir / FOLDER),
    "docker": lambda _, variables: DockerLauncher.from_environment(variables),
    "kubernetes": lambda _, variables: KubernetesLauncher.from_environment(variables),
    "fly": lambda _, variables: FlyLauncher.from_environment(variables),
}


class MachineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a server runs machines. `callback_url` is where machines call back (None: where the server listens). With
    `open`, clients need no key. All machines get the variables in `storage` and `common_env`; `variables` are those of
    the server, of which a queue may pass some on as secrets."""

    launchers: tuple[Launcher, ...] = ()
    callback_url: str | None = None
    sweep_s: float = 5.0
    open: bool = False
    storage: Mapping[str, str] = {}
    common_env: Mapping[str, str] = {}
    variables: Mapping[str, str] = {}


def machine_options(
    settings: Settings, variables: Mapping[str, str], storage: Mapping[str, str], *, open_: bool
) -> MachineOptions:
    """Read the settings. `variables` are the environment variables of this process."""
    common: dict[str, str | None] = {name: value for name, value in variables.items() if name.startswith(MODS)}
    common |= {f"{MODS}API_URL": settings.mods_api_url, f"{MODS}GATEWAY_URL": settings.mods_gateway_url}
    return MachineOptions(
        launchers=tuple(make_launcher(name, settings.data_dir, variables) for name in listed(settings.launchers)),
        callback_url=settings.callback_url,
        sweep_s=settings.machine_sweep_s,
        open=open_,
        storage=storage,
        common_env={name: value for name, value in common.items() if value is not None},
        variables=variables,
    )


def make_launcher(name: str, data_dir: Path, variables: Mapping[str, str]) -> Launcher:
    """A launcher by its name. It reads the same environment variables as the tools of its vendor."""
    if name not in LAUNCHERS:
        raise Invalid(f"there is no launcher {name!r}: use {', '.join(LAUNCHERS)}", field="launchers")
    return LAUNCHERS[name](data_dir, {variable: value for variable, value in variables.items() if value})
