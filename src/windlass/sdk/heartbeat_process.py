"""The heartbeat process: keeps a worker's lease alive while the worker cannot do so itself.

A worker beats in its own event loop. While a handler blocks that loop, or a C call holds the interpreter's lock, nobody
in that process can; then this one takes over. It is run as a script, without `site` and without our package, so that it
weighs as little as Python can; only when it has to take over does it import what reaches the source of work.

It ends when its pipe closes or its parent is gone. It extends the one lease that it was told of, only while an attempt
is under way that has not outrun its timeout, and not for a parent that somebody has stopped (SIGSTOP).
What it is told, one line each: `source JSON` once, then `lease ID TTL_S EXTENDED_AT UNTIL` (moments of the monotonic
clock, which both processes share) or `rest`. What it says: `cancel TASK ATTEMPT`, `extended AT`, `lost`.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress

TAKE_OVER = 0.45  # of a lease without a sign of life; the worker itself beats every third of it
TRY_AGAIN = 0.1

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Lease:
    """What the parent said last."""

    __slots__ = ("extended_at", "id", "ttl_s", "until")

    def __init__(self, words: list[str]) -> None:
        self.id = words[0]
        self.ttl_s, self.extended_at, self.until = map(float, words[1:4])

    def wait_s(self, now: float) -> float | None:
        """Until our turn comes; None if it never does."""
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
        self._unread = b""

    def run(self) -> None:
        while os.getppid() == self._parent:
            wait_s = None if self._lease is None else self._lease.wait_s(time.monotonic())
            if wait_s == 0.0:
                self._take_over()
                wait_s = 0.0 if self._lease is None else TRY_AGAIN * self._lease.ttl_s  # hear the parent in between
            readable, _, _ = select.select([0], [], [], wait_s)
            if readable and not self._listen():
                return

    def _listen(self) -> bool:
        """False when the parent has nothing more to say."""
        heard = os.read(0, 65536)
        *lines, self._unread = (self._unread + heard).split(b"\n")
        for line in lines:
            word, _, rest = line.decode().partition(" ")
            if word == "source":
                self._source_line, self._source = rest, None
            else:
                self._lease = Lease(rest.split()) if word == "lease" else None
        return heard != b""

    def _take_over(self) -> None:
        lease, now = self._lease, time.monotonic()
        if lease is None or os.getppid() != self._parent:
            return
        if is_stopped(self._parent):
            lease.postpone(now)
            return
        try:
            cancels = self._reached().extend(lease.id)
        except LookupError:
            self._lease = None
            say("lost")
        except OSError:  # not now: the parent's own beats may fare better, and we try again
            lease.postpone(time.monotonic())
        else:
            lease.extended_at = now
            for task_id, attempt in cancels:
                say(f"cancel {task_id} {attempt}")
            say(f"extended {time.monotonic()}")

    def _reached(self) -> Any:
        """The source of work, from here. What it takes is imported now and not before."""
        if self._source is None:
            import json
            import site
            from importlib import import_module

            told = json.loads(self._source_line)
            site.main()
            sys.path[:] = told["path"]
            self._source = import_module(told["module"]).LeaseKeeper(**told["settings"])
        return self._source


def say(line: str) -> None:
    with suppress(OSError):
        os.write(1, f"{line}\n".encode())


def is_stopped(pid: int) -> bool:
    """Stopped by a signal, or dead and not buried. Where there is no /proc, nobody is."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 (pathlib is not worth its memory here)
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t", b"Z", b"X")
    except OSError:
        return False


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # meant for the worker, which drains meanwhile
        signal.signal(number, signal.SIG_IGN)
    Process(int(sys.argv[1])).run()
