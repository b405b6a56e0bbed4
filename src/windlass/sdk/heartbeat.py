"""Heartbeats outside the event loop: a small process extends the worker's lease while the worker itself cannot.

It is started just before the first handler runs. No earlier, so that an idle worker costs nothing; no later, since a C
call that holds the interpreter's lock leaves no moment in which it could still be started. Telling it never waits: a
process that does not listen does not help, and one that has gone is replaced. What it does is in `heartbeat_process`.
"""

from __future__ import annotations

import logging
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import msgspec

from windlass.core.command import Claimed
from windlass.core.lease import Lease, Reach

log = logging.getLogger("windlass.worker")

SCRIPT = Path(__file__).with_name("heartbeat_process.py")
END_S = 5.0
BLOCKED_S = 1.0  # a loop that does not turn for so long is blocked

Attempt = tuple[UUID, int]
TellCancel = Callable[[Attempt], None]
OnLoop = Callable[..., None]  # a function and its arguments, to be called by the worker's loop


class Heartbeat:
    """What is to be kept alive, and until when. Without a `reach`, everything is left to the worker's own beats."""

    def __init__(self, reach: Reach | None, tell_cancel: TellCancel, on_loop: OnLoop) -> None:
        self._process = None if reach is None else HeartbeatProcess(reach, tell_cancel, on_loop)
        self._extended_at_s = 0.0
        self._until_s = 0.0  # as the process was told
        self._timeouts: dict[Attempt, float] = {}  # of attempts that have one

    def extended(self, lease: Lease, at_s: float, held: Iterable[Attempt] = ()) -> None:
        """The worker itself has extended its lease (or opened it), and holds these."""
        self._extended_at_s = at_s
        self._until_s = max((self._timeouts.get(attempt, math.inf) for attempt in held), default=0.0)
        if self._process is None:
            return
        if self._until_s:
            self._process.cover(lease, self._extended_at_s, self._until_s)
        else:
            self._process.rest()

    def begun(self, lease: Lease, claimed: Sequence[Claimed]) -> None:
        """Before handlers run. A timeout is taken as a span: the clocks of the machines need not agree."""
        if self._process is None:
            return
        now, until_s = time.monotonic(), 0.0
        for task in (one.task for one in claimed):
            ends_at_s = math.inf
            if task.timer_at is not None and task.started_at is not None:
                ends_at_s = now + (task.timer_at - task.started_at).total_seconds()
                self._timeouts[task.id, task.attempt] = ends_at_s
            until_s = max(until_s, ends_at_s)
        if until_s > self._until_s:
            self._until_s = until_s
            self._process.cover(lease, self._extended_at_s, until_s)

    def ended(self, attempt: Attempt) -> None:
        if self._timeouts:
            self._timeouts.pop(attempt, None)

    def close(self) -> None:
        if self._process is not None:
            self._process.close()


class HeartbeatProcess:
    """At most one process, for one lease after the other. `tell_cancel` is called from a thread."""

    def __init__(self, reach: Reach, tell_cancel: TellCancel, on_loop: OnLoop) -> None:
        told = {"module": reach.module, "settings": reach.settings, "path": sys.path}
        self._hello = b"source " + msgspec.json.encode(told) + b"\n"
        self._tell_cancel, self._on_loop = tell_cancel, on_loop
        self._process: subprocess.Popen[bytes] | None = None
        self._listener: threading.Thread | None = None

    def cover(self, lease: Lease, extended_at_s: float, until_s: float) -> None:
        """From now on, extend this lease if nobody else does; not after `until_s` (both on the monotonic clock)."""
        line = f"lease {lease.id} {lease.ttl_s} {extended_at_s} {until_s}\n".encode()
        if self._process is None or not self._say(line):
            self._start()
            self._say(line)

    def rest(self) -> None:
        """Nothing is held: there is nothing to keep alive."""
        if self._process is not None:
            self._say(b"rest\n")

    def close(self) -> None:
        """It ends with its pipe; takes a few milliseconds."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if self._listener is not None:
            self._listener.join()
        process.stdout.close()

    def _start(self) -> None:
        if self._process is not None:
            log.warning("the heartbeat process is gone: starting another one")
            self.close()
        self._process = process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(SCRIPT), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        self._say(self._hello)
        os.set_blocking(process.stdin.fileno(), False)
        listen = (process.stdout.fileno(),)
        self._listener = threading.Thread(target=self._listen, args=listen, name="windlass-heartbeat", daemon=True)
        self._listener.start()

    def _say(self, line: bytes) -> bool:
        """False if it cannot be told any more. A line as short as ours is written whole or not at all (PIPE_BUF)."""
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            os.write(self._process.stdin.fileno(), line)
        except BlockingIOError:
            log.warning("the heartbeat process does not listen")
        except OSError:
            return False
        return True

    def _listen(self, descriptor: int) -> None:
        unread = b""
        while heard := os.read(descriptor, 65536):
            *lines, unread = (unread + heard).split(b"\n")
            for line in lines:
                self._hear(line.decode(errors="replace"))

    def _hear(self, line: str) -> None:
        match line.split():
            case ["cancel", task_id, attempt]:
                self._tell_cancel((UUID(task_id), int(attempt)))
            case ["extended", at_s]:
                if self._is_blocked(float(at_s)):
                    log.warning("a handler blocks the event loop: the heartbeat process has extended the lease")
            case _:
                log.warning("the heartbeat process says: %s", line)

    def _is_blocked(self, said_at_s: float) -> bool:
        """Not whenever the process was first: a worker that just held nothing beats seldom. It is so if we heard
        of it late, as when a C call holds the interpreter's lock, or if the loop does not turn now."""
        if time.monotonic() - said_at_s > BLOCKED_S:
            return True
        turned = threading.Event()
        self._on_loop(turned.set)
        return not turned.wait(BLOCKED_S)
