"""The port to whoever starts machines that live for one task. Its promises are a suite: tests/launchers/suite.py.

A machine has a name that is made from its task and attempt, so that starting it twice starts it once. Whoever lists
sees the machines of this installation only, wherever else on the same daemon, cluster or account others run theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from windlass.core.machine import Sighting


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A machine to start. `env` holds secrets: it is shown to nobody and written nowhere."""

    name: str
    env: Mapping[str, str]
    installation: str
    secret_values: frozenset[str] = frozenset()  # nobody is to read these anywhere
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
    """It was understood and will not be started; asking again will not help."""


class LauncherAway(Exception):
    """Nobody knows whether it was started: whoever starts machines did not answer, or not in time. Ask again."""


class Launcher(Protocol):
    """Starts and stops machines. `place` says whose machines these are: only who is at the same place sees them."""

    @property
    def name(self) -> str: ...

    @property
    def place(self) -> str: ...

    def open(self, wake: Callable[[], None]) -> None:
        """From now on, `wake` may be called when a machine has ended, by those who notice."""

    def close(self) -> None:
        """Notice nothing any more; what runs goes on."""

    async def start(self, order: Order) -> Sighting:
        """The machine of this name, started now or before. Raises LaunchRefused or LauncherAway."""

    async def stop(self, name: str, machine_id: str | None, grace_s: float) -> None:
        """Ask it to end, end it after `grace_s`, and leave nothing of it behind. Nothing happens if there is none.
        Raises LauncherAway."""

    async def machines(self, installation: str) -> list[Sighting]:
        """All machines of this installation, also those that have ended and of which something is left."""

    async def look(self, name: str, machine_id: str | None) -> Sighting | None:
        """How a machine is; also one that has gone by itself, where that is still known. None: there is none."""
