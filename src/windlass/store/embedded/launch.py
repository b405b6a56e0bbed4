"""Starts one program as another user, and, if asked, leaves it behind with a log of bounded size.

Run as a script in a bare interpreter (`python -I -S`), since what it does is only safe in a process with one thread:
fork, change of user, user namespace. So it imports nothing of Windlass and knows nothing of PostgreSQL; `embedded_host`
builds its orders. The file also owns how a process is recognised later: by its name and the mark of its start.
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
    """The user to run as, and where a program that is left behind writes its log and its process record."""

    uid: int
    gid: int
    namespace: bool = False
    log: str = ""
    log_bytes: int = 0
    record: str = ""

    def command(self, *argv: str | Path) -> list[str]:
        return [sys.executable, "-I", "-S", __file__, json.dumps(asdict(self)), *map(str, argv)]


def process_mark(pid: int) -> str | None:
    """Name and start of a living process: the pair that a reused pid does not share. None if there is none."""
    if not Path("/proc/self/stat").exists():
        return _process_mark_by_ps(pid)
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    name, fields = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
    # Ticks since boot, which unlike a time of day does not move when somebody sets the clock. Z: dead, not yet reaped.
    return None if fields[0] in "ZX" else f"{name} {fields[19]}"


def _process_mark_by_ps(pid: int) -> str | None:
    shown = subprocess.run(["ps", "-o", "comm=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    path, _, start = shown.stdout.strip().partition(" ")
    return f"{Path(path).name} {start.strip()}" if path and shown.returncode == 0 else None


def write_record(path: Path, pid: int, name: str) -> None:
    """Notes a process under the name that it will have once it has become its program."""
    mark = process_mark(pid)
    assert mark is not None, pid
    draft = path.with_suffix(".draft")
    draft.write_text(f"{pid} {name} {mark.partition(' ')[2]}")
    draft.replace(path)


def read_record(path: Path) -> int | None:
    """The pid in a record, if that very process is still alive."""
    try:
        pid, _, mark = path.read_text().partition(" ")
    except FileNotFoundError:
        return None
    return int(pid) if mark and process_mark(int(pid)) == mark else None


def become(order: Order) -> None:
    """Gives up all rights but those of the ordered user; the caller then executes the program."""
    if order.namespace:
        _enter_namespace(order)
    elif (os.geteuid(), os.getegid()) != (order.uid, order.gid):
        os.setgroups([])
        os.setgid(order.gid)
        os.setuid(order.uid)


def _enter_namespace(order: Order) -> None:
    # The same user for the kernel, another one (and no capabilities) for the program: files keep their owner.
    uid, gid = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWUSER) != 0:
        raise OSError(ctypes.get_errno(), "user namespaces are not allowed here")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/gid_map").write_text(f"{order.gid} {gid} 1")
    Path("/proc/self/uid_map").write_text(f"{order.uid} {uid} 1")


def leave_behind(order: Order, argv: list[str]) -> None:
    """Forks twice: the caller's wait ends at once, the log writer stays as the parent of the program and reaps it."""
    if os.fork():
        os._exit(0)
    os.umask(0o077)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)  # the caller reads our output until its end
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
        signal.signal(stop, signal.SIG_IGN)  # the log writer ends when its last writer has ended, not before
    _write_log(source, Path(order.log), order.log_bytes)
    os.waitpid(program, 0)  # an unreaped process still looks alive to who asks the kernel


def _write_log(source: int, path: Path, limit: int) -> None:
    """Copies until the end of the input; at most two files of `limit` bytes. A full disk loses log, not the server."""
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
