"""`python -m tests.kit.guard COMMAND…` runs a command and leaves none of its processes behind.

Linux gives a process whose parent has died to the nearest ancestor that is a subreaper. The guard is one, so every
descendant stays below it, however it was started: in a session of its own, by two forks, with an empty environment.
When the command has ended, by itself, by Ctrl-C or by a kill, the guard ends what is left and prints its names.
On other systems the guard only runs the command.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
END_S = 2.0  # for processes that are about to end anyway
TERM_S = 5.0  # for PostgreSQL, which removes its shared memory


def main(command: list[str]) -> int:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    child = subprocess.Popen(command, preexec_fn=_tied_to_the_guard)  # noqa: PLW1509 (there is one thread)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to the child as well
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: child.send_signal(signal.SIGINT))
    code = _wait(child)
    left = _end_descendants()
    if left:
        sys.stderr.write("\nThese processes were left at the end of the tests, and were ended:\n")
        sys.stderr.writelines(f"  {pid} {name}\n" for pid, name in left.items())
    return code


def _tied_to_the_guard() -> None:
    """A guard that is killed interrupts its command, which then cleans up."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGINT)


def _wait(child: subprocess.Popen[Any]) -> int:
    """Reaps every descendant until the command itself has ended. Returns its exit code."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child.pid:
            child.returncode = os.waitstatus_to_exitcode(status)
            return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _end_descendants() -> dict[int, str]:
    """Ends all descendants. Returns those that did not end by themselves within `END_S`."""
    _gone_within(END_S)
    left = {pid: _name(pid) for pid in descendants(os.getpid())}
    for number in (signal.SIGTERM, signal.SIGKILL):
        while running := descendants(os.getpid()):
            for pid in running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            if _gone_within(TERM_S) or number == signal.SIGTERM:
                break
    return left


def _gone_within(seconds: float) -> bool:
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not descendants(os.getpid()):
            return True
        time.sleep(0.02)
    return False


def descendants(root: int) -> list[int]:
    """The processes below this one that have not ended; zombies only lead to their children."""
    parents: dict[int, int] = {}
    ended: set[int] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            parents[int(folder.name)] = int(parent)
            if state in "ZX":
                ended.add(int(folder.name))
    below: list[int] = []
    level = [root]
    while level:
        level = [pid for pid, parent in parents.items() if parent in level]
        below += level
    return [pid for pid in below if pid not in ended]


def _name(pid: int) -> str:
    try:
        return " ".join(Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ").split())[:120]
    except OSError:
        return "(ended meanwhile)"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
