"""The heartbeat process: keeps a worker's lease alive while the worker cannot do so itself.

A worker sends heartbeats from its own event loop. While a handler blocks that loop, or a C call holds the interpreter's
lock, it cannot; then this process takes over. It runs as a script, without `site` and without our package, so that it
uses as little memory as Python can; only when it has to take over does it import a client for the engine.

It ends when its pipe closes or its parent dies. It extends one lease, only while an attempt runs that is within its
timeout, and not for a parent that was stopped (SIGSTOP).
Its input, one line each: `source JSON` once, then `lease ID TTL_S EXTENDED_AT UNTIL` (moments of the monotonic clock,
which both processes share) or `idle`. Its output: `cancel TASK ATTEMPT`, `extended AT`, `lost`.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress

TAKE_OVER = 0.45  # of a lease without a heartbeat; the worker itself sends one every third of it
TRY_AGAIN = 0.1

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Lease:
    """The lease to keep, as the parent wrote it last."""

    __slots__ = ("extended_at", "id", "ttl_s", "until")

    def __init__(self, words: list[str]) -> None:
        self.id = words[0]
        self.ttl_s, self.extended_at, self.until = map(float, words[1:4])

    def wait_s(self, now: float) -> float | None:
        """Seconds until this process has to extend it; None if it never has to."""
        due_at = self.extended_at + self.ttl_s * TAKE_OVER
        return None if due_at >= self.until or now >= self.until else max(0.0, due_at - now)

    def postpone(self, now: float) -> None:
        self.extended_at = now - self.ttl_s * (TAKE_OVER - TRY_AGAIN)


class Process:
    """One lease, one parent."""

    def __init__(self, parent: int) -> None:
        self._parent = parent
        self._source_line = ""
        self._source: Any = None
        self._lease: Lease | None = None
        self._rest = b""

    def run(self) -> None:
        while os.getppid() == self._parent:
            wait_s = None if self._lease is None else self._lease.wait_s(time.monotonic())
            if wait_s == 0.0:
                self._take_over()
                wait_s = 0.0 if self._lease is None else TRY_AGAIN * self._lease.ttl_s  # read the parent in between
            readable, _, _ = select.select([0], [], [], wait_s)
            if readable and not self._read_lines():
                return

    def _read_lines(self) -> bool:
        """False when the parent has closed the pipe."""
        received = os.read(0, 65536)
        *lines, self._rest = (self._rest + received).split(b"\n")
        for line in lines:
            word, _, rest = line.decode().partition(" ")
            if word == "source":
                self._source_line, self._source = rest, None
            else:
                self._lease = Lease(rest.split()) if word == "lease" else None
        return received != b""

    def _take_over(self) -> None:
        lease, now = self._lease, time.monotonic()
        if lease is None or os.getppid() != self._parent:
            return
        if is_stopped(self._parent):
            lease.postpone(now)
            return
        try:
            cancels = self._extender().extend(lease.id)
        except LookupError:
            self._lease = None
            write("lost")
        except OSError:  # not now: the parent's own heartbeats may succeed, and we try again
            lease.postpone(time.monotonic())
        else:
            lease.extended_at = now
            for task_id, attempt in cancels:
                write(f"cancel {task_id} {attempt}")
            write(f"extended {time.monotonic()}")

    def _extender(self) -> Any:
        """The client that extends leases. What it needs is imported when it is first used."""
        if self._source is None:
            import json
            import site
            from importlib import import_module

            source = json.loads(self._source_line)
            site.main()
            sys.path[:] = source["path"]
            self._source = import_module(source["module"]).LeaseExtender(**source["settings"])
        return self._source


def write(line: str) -> None:
    with suppress(OSError):
        os.write(1, f"{line}\n".encode())


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal, or a zombie. False where there is no /proc."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 (pathlib is not worth its memory here)
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t", b"Z", b"X")
    except OSError:
        return False


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # meant for the worker, which drains meanwhile
        signal.signal(number, signal.SIG_IGN)
    Process(int(sys.argv[1])).run()
