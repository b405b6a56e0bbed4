"""`windlass worker --supervised`: the worker in a child process, watched by this one.

What the child writes goes on to where ours goes. When the child is killed, its last lines are kept with the attempts
that it ran; these are recovered at once, not when its lease runs out, and another child is started.
The child says through a pipe which lease it holds and how to reach its engine; nothing of that is imported before.
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

from windlass.cli.output import console
from windlass.core.error import WindlassError
from windlass.core.lease import Lease, Reach

NOTES_KEY = "WINDLASS_SUPERVISOR_FD"
LAST_LINES = 20
AFTER_DEATH_S = 1.0


def run_supervised() -> int:
    """Until the child ends by itself; then with its exit code. Signals are passed on to it."""
    while True:
        child = Child()
        code = child.wait()
        if code >= 0:
            return code
        console.print(f"The worker was killed by {signal.Signals(-code).name}.")
        child.tell_of_death()
        if child.told_to_stop:
            return 128 - code
        time.sleep(AFTER_DEATH_S)


class Child:
    """One worker process, what it wrote last, and the lease that it holds."""

    def __init__(self) -> None:
        reading, writing = os.pipe()
        arguments = [argument for argument in sys.argv[1:] if argument != "--supervised"]
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-c", "from windlass.cli import main; main()", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=(writing,), process_group=0,
            env={**os.environ, NOTES_KEY: str(writing)},
        )  # fmt: skip
        os.close(writing)
        self._notes = os.fdopen(reading, "rb")
        self._lines: deque[str] = deque(maxlen=LAST_LINES)
        self._held: dict[str, Any] | None = None
        self.told_to_stop = False
        pumps = [(self._process.stdout, sys.stdout), (self._process.stderr, sys.stderr)]
        self._threads = [threading.Thread(target=self._pump, args=pump, daemon=True) for pump in pumps]
        self._threads.append(threading.Thread(target=self._listen, daemon=True))
        for thread in self._threads:
            thread.start()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._pass_on)

    def wait(self) -> int:
        code = self._process.wait()
        for thread in self._threads:
            thread.join(AFTER_DEATH_S)  # a child of the worker may hold its pipes
        return code

    def tell_of_death(self) -> None:
        """The engine is asked to recover what ran. If it cannot be reached, the lease runs out by itself."""
        if self._held is None:
            return
        try:
            keeper = import_module(self._held["module"]).LeaseKeeper(**self._held["settings"])
            recovered = keeper.lose(self._held["lease"], "\n".join(self._lines))
            console.print(f"What it ran goes to others: {recovered}.")
        except (WindlassError, OSError) as error:
            console.print(f"What it ran goes to others when its lease has run out: {error}")

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        self.told_to_stop = True
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def _pump(self, source: IO[bytes], target: IO[str]) -> None:
        for line in source:
            text = line.decode(errors="replace")
            self._lines.append(text.rstrip("\n"))
            target.write(text)
            target.flush()

    def _listen(self) -> None:
        for line in self._notes:
            self._held = json.loads(line)


def tell_supervisor(lease: Lease, reach: Reach | None) -> None:
    """In the worker: say which lease it holds, if somebody watches over it."""
    descriptor = os.environ.get(NOTES_KEY)
    if descriptor is None or reach is None:
        return
    note = {"lease": str(lease.id), "module": reach.module, "settings": reach.settings}
    with contextlib.suppress(OSError):
        os.write(int(descriptor), json.dumps(note).encode() + b"\n")
