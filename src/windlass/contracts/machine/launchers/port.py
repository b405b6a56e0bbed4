"""The port that starts and stops machines. The suite in tests/contracts/machine/launchers checks every launcher.

The name of a machine is made from its task and attempt, so starting it twice starts one machine. A list has only the
machines of this installation, even if others run theirs on the same daemon, cluster or account.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from windlass.contracts.machine.rules import MachineStatus


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A machine to start. `env` holds secrets, so it is never logged and never written to a file."""

    name: str
    env: Mapping[str, str]
    installation: str
    secret_values: frozenset[str] = frozenset()  # removed from output and error messages
    command: tuple[str, ...] = ()
    image: str | None = None
    region: str | None = None
    cpus: int = 2
    memory_mb: int = 1024
    run_s: float = 600.0
    grace_s: float = 10.0

    def __repr__(self) -> str:
        return f"Order({self.name})"


class LaunchRefused(Exception):
    """The machine cannot be started, and a retry would not help."""


class LauncherUnavailable(Exception):
    """The daemon, cluster or vendor did not answer in time. The machine may have been started: look, or try again."""


class Launcher(Protocol):
    """Starts and stops machines. `place` names the host, daemon, cluster or account. Only servers whose launcher has
    the same place sweep its machines."""

    @property
    def name(self) -> str: ...

    @property
    def place(self) -> str: ...

    def open(self, wake: Callable[[], None]) -> None:
        """A launcher that notices the end of a machine calls `wake` from now on."""

    def close(self) -> None:
        """Stop calling `wake`. Machines keep running."""

    async def start(self, order: Order) -> MachineStatus:
        """Start the machine, or return the one that already has its name. Raises LaunchRefused or
        LauncherUnavailable."""

    async def stop(self, name: str, machine_id: str | None, grace_s: float) -> None:
        """Ask the machine to end, kill it after `grace_s`, and remove everything it left. Does nothing if there is no
        such machine. Raises LauncherUnavailable."""

    async def machines(self, installation: str) -> list[MachineStatus]:
        """All machines of this installation, including those that ended and still have to be removed."""

    async def status(self, name: str, machine_id: str | None) -> MachineStatus | None:
        """The status of a machine, or None if there is none. A vendor may still know one that removed itself."""
