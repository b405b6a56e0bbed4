"""Starts one program as another user and, if there is a log, leaves it running in the background.

Runs as a script in a bare interpreter (`python -I -S`) and imports nothing of Windlass: fork, a change of user and a
user namespace are safe only in a process with one thread. Also identifies a process later, by its name and its start.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

_CLONE_NEWUSER = 0x10000000


@dataclass(frozen=True, slots=True)
class Order:
    """The user to run as, and the files for the log and the process record of a background program."""

    uid: int
    gid: int
    namespace: bool = False
    log: str = ""
    log_bytes: int = 0
    record: str = ""

    def command(self, *argv: str | Path) -> list[str]:
        return [sys.executable, "-I", "-S", __file__, json.dumps(asdict(self)), *map(str, argv)]


def process_mark(pid: int) -> str | None:
    """Name and start of a running process, which differ if the pid is reused. None if there is no such process."""
    if not Path("/proc/self/stat").exists():
        return _process_mark_by_ps(pid)
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    name, fields = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
    # Ticks since boot do not change when the clock is set. Z: dead, not yet reaped.
    return None if fields[0] in "ZX" else f"{name} {fields[19]}"


def _process_mark_by_ps(pid: int) -> str | None:
    shown = subprocess.run(["ps", "-o", "comm=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    path, _, start = shown.stdout.strip().partition(" ")
    return f"{Path(path).name} {start.strip()}" if path and shown.returncode == 0 else None


def write_record(path: Path, pid: int, name: str) -> None:
    """Record a process under the name that it will have after exec."""
    mark = process_mark(pid)
    assert mark is not None, pid
    draft = path.with_suffix(".draft")
    draft.write_text(f"{pid} {name} {mark.partition(' ')[2]}")
    draft.replace(path)


def read_record(path: Path) -> int | None:
    """The pid in a record, if that process still runs."""
    try:
        pid, _, mark = path.read_text().partition(" ")
    except FileNotFoundError:
        return None
    return int(pid) if mark and process_mark(int(pid)) == mark else None


def become(order: Order) -> None:
    """Change to the user of the order, before the program is executed."""
    uid, gid = os.geteuid(), os.getegid()
    if order.namespace:
        # The kernel sees the same user, so files keep their owner; the program sees another one, without capabilities.
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_CLONE_NEWUSER) != 0:
            raise OSError(ctypes.get_errno(), "user namespaces are not allowed here")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/gid_map").write_text(f"{order.gid} {gid} 1")
        Path("/proc/self/uid_map").write_text(f"{order.uid} {uid} 1")
    elif (uid, gid) != (order.uid, order.gid):
        os.setgroups([])
        os.setgid(order.gid)
        os.setuid(order.uid)


def leave_behind(order: Order, argv: list[str]) -> None:
    """Fork twice: the caller returns at once, and the log writer stays as the parent of the program and reaps it."""
    if os.fork():
        os._exit(0)
    os.umask(0o077)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)  # or the caller would wait for the end of our output
    source, sink = os.pipe()
    program = os.fork()
    if program == 0:
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        write_record(Path(order.record), os.getpid(), Path(argv[0]).name)
        become(order)
        os.execv(argv[0], argv)  # noqa: S606
    os.close(sink)
    for stop in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, signal.SIG_IGN)  # the log writer ends only after the program
    _write_log(source, Path(order.log), order.log_bytes)
    os.waitpid(program, 0)  # a process that is not reaped still looks alive


def _write_log(source: int, path: Path, limit: int) -> None:
    """Copy the input to at most two files of `limit` bytes. A full disk loses log lines; the server goes on."""
    while chunk := os.read(source, 65536):
        try:
            if path.exists() and path.stat().st_size + len(chunk) > limit:
                path.replace(path.with_suffix(".old.log"))
            with path.open("ab") as log:
                log.write(chunk)
        except OSError:
            continue


def main(argv: list[str]) -> None:
    order = Order(**json.loads(argv[0]))
    if order.log:
        leave_behind(order, argv[1:])
    else:
        become(order)
        os.execv(argv[1], argv[1:])  # noqa: S606


if __name__ == "__main__":
    main(sys.argv[1:])
