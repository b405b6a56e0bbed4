"""Heartbeats outside the event loop: a small process extends the worker's lease while the worker itself cannot.

It is started just before the first handler runs, so that an idle worker does not pay for it. It cannot be started
later, since a handler may hold the interpreter's lock in a C call. Writing to it never waits, and a process that has
died is replaced. The process itself is in `heartbeat_process`.
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
BLOCKED_S = 1.0  # an event loop that runs no callback for this long is blocked

Attempt = tuple[UUID, int]
OnCancel = Callable[[Attempt], None]
OnLoop = Callable[..., None]  # a function and its arguments, to be called by the worker's loop


class Heartbeat:
    """Decides which lease the heartbeat process extends, and until when. Without a `reach` there is no process."""

    def __init__(self, reach: Reach | None, on_cancel: OnCancel, on_loop: OnLoop) -> None:
        self._process = None if reach is None else HeartbeatProcess(reach, on_cancel, on_loop)
        self._extended_at_s = 0.0
        self._until_s = 0.0  # the last moment that the process knows of
        self._timeouts: dict[Attempt, float] = {}  # of attempts that have one

    def on_extended(self, lease: Lease, at_s: float, held: Iterable[Attempt] = ()) -> None:
        """The worker itself has opened or extended its lease, and holds these attempts."""
        self._extended_at_s = at_s
        self._until_s = max((self._timeouts.get(attempt, math.inf) for attempt in held), default=0.0)
        if self._process is None:
            return
        if self._until_s:
            self._process.cover(lease, self._extended_at_s, self._until_s)
        else:
            self._process.idle()

    def on_claimed(self, lease: Lease, claimed: Sequence[Claimed]) -> None:
        """Called before handlers run. Uses the length of a timeout, since clocks of machines may differ."""
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

    def on_ended(self, attempt: Attempt) -> None:
        if self._timeouts:
            self._timeouts.pop(attempt, None)

    def close(self) -> None:
        if self._process is not None:
            self._process.close()


class HeartbeatProcess:
    """At most one process, for one lease after the other. `on_cancel` is called from a thread."""

    def __init__(self, reach: Reach, on_cancel: OnCancel, on_loop: OnLoop) -> None:
        source = {"module": reach.module, "settings": reach.settings, "path": sys.path}
        self._source_line = b"source " + msgspec.json.encode(source) + b"\n"
        self._on_cancel, self._on_loop = on_cancel, on_loop
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None

    def cover(self, lease: Lease, extended_at_s: float, until_s: float) -> None:
        """Extend this lease when the worker does not, but not after `until_s` (both on the monotonic clock)."""
        line = f"lease {lease.id} {lease.ttl_s} {extended_at_s} {until_s}\n".encode()
        if self._process is None or not self._write(line):
            self._start()
            self._write(line)

    def idle(self) -> None:
        """The worker holds no task, so its lease need not be kept."""
        if self._process is not None:
            self._write(b"idle\n")

    def close(self) -> None:
        """Close the pipe, which ends the process within a few milliseconds."""
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
        if self._reader is not None:
            self._reader.join()
        process.stdout.close()

    def _start(self) -> None:
        if self._process is not None:
            log.warning("the heartbeat process has died: starting another one")
            self.close()
        self._process = process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(SCRIPT), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        self._write(self._source_line)
        os.set_blocking(process.stdin.fileno(), False)
        output = (process.stdout.fileno(),)
        self._reader = threading.Thread(target=self._read_lines, args=output, name="windlass-heartbeat", daemon=True)
        self._reader.start()

    def _write(self, line: bytes) -> bool:
        """False if the process has closed its pipe. A line this short is written whole or not at all (PIPE_BUF)."""
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            os.write(self._process.stdin.fileno(), line)
        except BlockingIOError:
            log.warning("the heartbeat process does not read its input")
        except OSError:
            return False
        return True

    def _read_lines(self, descriptor: int) -> None:
        rest = b""
        while received := os.read(descriptor, 65536):
            *lines, rest = (rest + received).split(b"\n")
            for line in lines:
                self._handle(line.decode(errors="replace"))

    def _handle(self, line: str) -> None:
        match line.split():
            case ["cancel", task_id, attempt]:
                self._on_cancel((UUID(task_id), int(attempt)))
            case ["extended", at_s]:
                if self._is_blocked(float(at_s)):
                    log.warning("a handler blocks the event loop: the heartbeat process has extended the lease")
            case _:
                log.warning("the heartbeat process wrote: %s", line)

    def _is_blocked(self, written_at_s: float) -> bool:
        """Whether a handler blocks the event loop. The process may also extend the lease because a worker that was idle
        sends few heartbeats. The loop is blocked if this line was read late, as when a C call holds the interpreter's
        lock, or if the loop runs no callback now."""
        if time.monotonic() - written_at_s > BLOCKED_S:
            return True
        called = threading.Event()
        self._on_loop(called.set)
        return not called.wait(BLOCKED_S)
