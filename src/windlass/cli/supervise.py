"""`windlass worker --supervised`: runs the worker in a child process and restarts it after a crash.

The output of the child is passed through. When the child ends without being stopped, its last lines are stored with
its running attempts, the attempts are recovered at once instead of when the lease expires, and a new child is started.
The child reports through a pipe which lease it holds, how to reach its engine, and that it has finished. The code that
reaches the engine is imported only after a crash.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from importlib import import_module
from types import FrameType
from typing import IO, Any

from windlass.cli.output import Exit, console
from windlass.core.lease import Lease, Reach
from windlass.errors import WindlassError

PIPE_VARIABLE = "WINDLASS_SUPERVISOR_FD"
LAST_LINES = 20
RESTART_S = 1.0
RESTART_MAX_S = 30.0
STABLE_S = 60.0  # a child that ran for so long is restarted after the shortest delay


class Supervisor:
    """Starts one child after the other. Signals are forwarded to the child."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._child: Child | None = None
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._forward)

    def run(self) -> int:
        """Runs until the child is stopped, by a signal or by its engine, or reports wrong usage. Returns its exit
        code."""
        delay_s = RESTART_S
        while True:
            begun_s = time.monotonic()
            self._child = child = Child()
            if self._stopping.is_set():  # stopped while it was being started
                child.signal(signal.SIGTERM)
            code = child.wait()
            if child.finished or code == Exit.USAGE or (self._stopping.is_set() and code >= 0):
                return code if code >= 0 else 128 - code
            how = (
                f"was killed by {signal.Signals(-code).name}"
                if code < 0
                else f"ended unexpectedly with exit code {code}"
            )
            console.print(f"The worker {how}.")
            child.recover_attempts()
            if self._stopping.is_set():
                return code if code >= 0 else 128 - code
            delay_s = RESTART_S if time.monotonic() - begun_s >= STABLE_S else delay_s
            if self._stopping.wait(delay_s):
                return Exit.OK
            delay_s = min(2 * delay_s, RESTART_MAX_S)

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        self._stopping.set()
        if self._child is not None:
            self._child.signal(number)


class Child:
    """One worker process, its last output lines, and the lease that it holds."""

    def __init__(self) -> None:
        reading, writing = os.pipe()
        arguments = [argument for argument in sys.argv[1:] if argument != "--supervised"]
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-c", "from windlass.cli import main; main()", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=(writing,), process_group=0,
            env={**os.environ, PIPE_VARIABLE: str(writing)},
        )  # fmt: skip
        os.close(writing)
        self._reports = os.fdopen(reading, "rb")
        self._lines: deque[str] = deque(maxlen=LAST_LINES)
        self._lease: dict[str, Any] | None = None
        self.finished = False  # it reported a normal end
        pumps = [(self._process.stdout, sys.stdout), (self._process.stderr, sys.stderr)]
        self._threads = [threading.Thread(target=self._pump, args=pump, daemon=True) for pump in pumps]
        self._threads.append(threading.Thread(target=self._listen, daemon=True))
        for thread in self._threads:
            thread.start()

    def wait(self) -> int:
        code = self._process.wait()
        for thread in self._threads:
            thread.join(RESTART_S)  # a child of the worker may keep its pipes open
        return code

    def recover_attempts(self) -> None:
        """Asks the engine to recover the running attempts. Otherwise they are recovered when the lease expires."""
        if self._lease is None:
            return
        try:
            extender = import_module(self._lease["module"]).LeaseExtender(**self._lease["settings"])
            recovered = extender.lose(self._lease["lease"], "\n".join(self._lines))
            console.print(f"Recovered {recovered} running tasks.")
        except (WindlassError, OSError) as error:
            console.print(f"Its running tasks are recovered when its lease expires: {error}")

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def _pump(self, source: IO[bytes], target: IO[str]) -> None:
        for line in source:
            text = line.decode(errors="replace")
            self._lines.append(text.rstrip("\n"))
            target.write(text)
            target.flush()

    def _listen(self) -> None:
        for line in self._reports:
            report = json.loads(line)
            if "lease" in report:
                self._lease = report
            self.finished = bool(report.get("finished", False))


def report_lease(lease: Lease, reach: Reach | None) -> None:
    """Called in the worker: reports its lease to the supervisor, if there is one."""
    if reach is not None:
        _report(lease=str(lease.id), module=reach.module, settings=reach.settings)


def report_end() -> None:
    """Called in the worker: reports that it was stopped and has finished."""
    _report(finished=True)


def _report(**facts: Any) -> None:
    descriptor = os.environ.get(PIPE_VARIABLE)
    if descriptor is None:
        return
    with contextlib.suppress(OSError):
        os.write(int(descriptor), json.dumps(facts).encode() + b"\n")
