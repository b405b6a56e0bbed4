"""Control groups (version 2): where they are available, the kernel bounds memory and number of a program's processes.

They are available where the wrapper's group is delegated to it and holds no other process, as systemd does with
`Delegate=yes`. Elsewhere the supervisor of a sandbox checks its processes and kills them.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from uuid import uuid4

CONTROLLERS = ("memory", "pids")
OURS = 3  # processes of the sandbox itself, which count too
WRAPPER = "windlass-wrapper"


class Groups:
    """Groups below that of this process. Only leaves may hold processes, so this process moves into a leaf."""

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
        """Make a group for one program."""
        group = self._base / f"windlass-{uuid4().hex}"
        group.mkdir()
        if memory_bytes is not None:
            (group / "memory.max").write_text(str(memory_bytes), encoding="ascii")
            (group / "memory.oom.group").write_text("1", encoding="ascii")
            with contextlib.suppress(OSError):  # without swap there is no such file
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
        """Remove a group and kill the processes that are left in it."""
        with contextlib.suppress(OSError):
            (group / "cgroup.kill").write_text("1", encoding="ascii")
        with contextlib.suppress(OSError):
            group.rmdir()


def open_groups(own: Path = Path("/proc/self/cgroup"), mounts: Path = Path("/proc/self/mountinfo")) -> Groups | str:
    """The groups, or why there are none. This process changes its group only where they are available."""
    try:
        base = _own_group(own.read_text(encoding="utf-8"), mounts.read_text(encoding="utf-8"))
        if base is None:
            return "this machine has no control groups of version 2"
        there = (base / "cgroup.controllers").read_text(encoding="ascii").split()
        if missing := [one for one in CONTROLLERS if one not in there]:
            return f"the control group of this process has no controller for {' and '.join(missing)}"
        members = (base / "cgroup.procs").read_text(encoding="ascii").split()
        if members != [str(os.getpid())]:
            return "the control group of this process holds other processes"
        return Groups(base)
    except OSError as error:
        return f"control groups: {error.strerror or error}"


def _own_group(own: str, mounts: str) -> Path | None:
    paths = [line.removeprefix("0::") for line in own.splitlines() if line.startswith("0::")]
    places = [line.split()[4] for line in mounts.splitlines() if " - cgroup2 " in line]
    return Path(places[0] + paths[0]) if paths and places else None
