"""Control groups (version 2): where they can be had, the kernel bounds memory and number of a program's processes.

They can be had where the group of the wrapper was handed over to it and holds nobody else, as systemd does with
`Delegate=yes`. Everywhere else, the keeper of a cage looks at its processes and ends them.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from uuid import uuid4

CONTROLLERS = ("memory", "pids")
OURS = 3  # processes of the cage itself, which count too
WRAPPER = "windlass-wrapper"


class Groups:
    """Below the group of this process, which moves into a leaf of its own: only leaves may hold processes."""

    def __init__(self, base: Path) -> None:
        self._base = base
        leaf = base / WRAPPER
        leaf.mkdir(exist_ok=True)
        (leaf / "cgroup.procs").write_text("0", encoding="ascii")
        try:
            (base / "cgroup.subtree_control").write_text(" ".join(f"+{one}" for one in CONTROLLERS), encoding="ascii")
        except OSError:
            (base / "cgroup.procs").write_text("0", encoding="ascii")
            raise

    def make(self, *, memory_bytes: int | None, processes: int | None) -> Path:
        """A new one, for one program."""
        group = self._base / f"windlass-{uuid4().hex}"
        group.mkdir()
        if memory_bytes is not None:
            (group / "memory.max").write_text(str(memory_bytes), encoding="ascii")
            (group / "memory.oom.group").write_text("1", encoding="ascii")
            with contextlib.suppress(OSError):  # where there is no swap, there is no such file
                (group / "memory.swap.max").write_text("0", encoding="ascii")
        if processes is not None:
            (group / "pids.max").write_text(str(processes + OURS), encoding="ascii")
        return group

    @staticmethod
    def ran_out_of_memory(group: Path) -> bool:
        with contextlib.suppress(OSError, ValueError):
            lines = (group / "memory.events").read_text(encoding="ascii").splitlines()
            return any(int(line.split()[1]) > 0 for line in lines if line.startswith("oom_kill "))
        return False

    @staticmethod
    def remove(group: Path) -> None:
        """With whoever is left in it."""
        with contextlib.suppress(OSError):
            (group / "cgroup.kill").write_text("1", encoding="ascii")
        with contextlib.suppress(OSError):
            group.rmdir()


def open_groups(own: Path = Path("/proc/self/cgroup"), mounts: Path = Path("/proc/self/mountinfo")) -> Groups | str:
    """Ready to use, or why there are none. This process changes its group only where they can be had."""
    try:
        base = _own_group(own.read_text(encoding="utf-8"), mounts.read_text(encoding="utf-8"))
        if base is None:
            return "no control groups of version 2 here"
        there = (base / "cgroup.controllers").read_text(encoding="ascii").split()
        if missing := [one for one in CONTROLLERS if one not in there]:
            return f"the control group of this process has no controller for {' and '.join(missing)}"
        members = (base / "cgroup.procs").read_text(encoding="ascii").split()
        if members != [str(os.getpid())]:
            return "the control group of this process holds others as well"
        return Groups(base)
    except OSError as error:
        return f"control groups: {error.strerror or error}"


def _own_group(own: str, mounts: str) -> Path | None:
    paths = [line.removeprefix("0::") for line in own.splitlines() if line.startswith("0::")]
    places = [line.split()[4] for line in mounts.splitlines() if " - cgroup2 " in line]
    return Path(places[0] + paths[0]) if paths and places else None
