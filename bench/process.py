"""Processes of a measurement: start them, read their processor time and memory, end them.

Processor time and memory come from /proc, so they need Linux; elsewhere only rates can be measured. Ends only processes
that it started, each by its process group.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")


class Child:
    """A process in a separate group. Its output goes to a file, which errors quote."""

    def __init__(
        self, command: Sequence[str | Path], *, environment: Mapping[str, str], folder: Path, log: Path
    ) -> None:
        self.log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command, env=environment, cwd=folder, stdout=output, stderr=output, stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self.process.pid

    def check(self) -> None:
        if self.process.poll() is not None:
            raise RuntimeError(f"a process ended with code {self.process.returncode}: {tail(self.log)}")

    def stop(self) -> None:
        end(self.process)


def end(process: subprocess.Popen[bytes], grace_s: float = 5.0) -> None:
    """Terminate it, then kill what is left of its group after a grace period."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(grace_s)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nothing listens on now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def tail(log: Path, size: int = 600) -> str:
    return log.read_text(errors="replace").strip()[-size:]


def family(pid: int) -> list[int]:
    """The process and all its living descendants."""
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                children.setdefault(int(_stat(int(entry.name))[1]), []).append(int(entry.name))
    found, waiting = [], [pid]
    while waiting:
        found.append(waiting.pop())
        waiting += children.get(found[-1], ())
    return found


def memory_mb(pid: int, field: str) -> float:
    """Memory of the process alone: VmRSS is its memory now, VmHWM its peak."""
    found = re.search(rf"^{field}:\s*(\d+) kB$", (PROC / str(pid) / "status").read_text(), re.MULTILINE)
    assert found is not None, field
    return int(found[1]) / 1024


def cpu_s(pid: int) -> float:
    """Processor seconds of the process, its descendants, and those of them that have ended."""
    total = 0
    for each in family(pid):
        with suppress(OSError):
            # utime and stime; for the root also those of ended children. Living children have their own entries.
            fields = _stat(each)
            total += sum(int(fields[i]) for i in ((11, 12, 13, 14) if each == pid else (11, 12)))
    return total / _TICKS


def _stat(pid: int) -> list[str]:
    """The fields after the name, which may contain spaces: state, parent, …"""
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def pss_mb(pid: int) -> float:
    """Memory of the process and its descendants. A shared page is divided among the processes that share it."""
    total = 0
    for each in family(pid):
        for line in (PROC / str(each) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total / 1024
