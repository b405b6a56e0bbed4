"""`windlass worker --supervised`: the worker in a child process, watched by this one.

What the child writes goes on to where ours goes. When the child ends and nobody wanted it to, however it ended, its
last lines are kept with the attempts that it ran; these are recovered at once, not when its lease runs out, and another
child is started. The child says through a pipe which lease it holds and how to reach its engine, and that it has come
to its end; nothing of that is imported before.
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
from windlass.core.error import WindlassError
from windlass.core.lease import Lease, Reach

NOTES_KEY = "WINDLASS_SUPERVISOR_FD"
LAST_LINES = 20
AFTER_DEATH_S = 1.0
AGAIN_MAX_S = 30.0
WELL_S = 60.0  # who has lived for so long is started again without delay


def run_supervised() -> int:
    """Until the child is told to stop, here or by its engine, or cannot be started as it was asked for; then with its
    exit code. Signals are passed on to it."""
    return Supervisor().run()


class Supervisor:
    """One child after the other."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._child: Child | None = None
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._pass_on)

    def run(self) -> int:
        again_s = AFTER_DEATH_S
        while True:
            begun_s = time.monotonic()
            self._child = child = Child()
            if self._stopping.is_set():  # told while it was being started
                child.signal(signal.SIGTERM)
            code = child.wait()
            if self._is_final(child, code):
                return code if code >= 0 else 128 - code
            console.print(f"The worker {_ended(code)}.")
            child.tell_of_death()
            if self._stopping.is_set():
                return code if code >= 0 else 128 - code
            again_s = AFTER_DEATH_S if time.monotonic() - begun_s >= WELL_S else again_s
            if self._stopping.wait(again_s):
                return Exit.OK
            again_s = min(2 * again_s, AGAIN_MAX_S)

    def _is_final(self, child: Child, code: int) -> bool:
        """Whether another one would be of no use, or is not wanted."""
        return child.finished or code == Exit.USAGE or (self._stopping.is_set() and code >= 0)

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        self._stopping.set()
        if self._child is not None:
            self._child.signal(number)


def _ended(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended unasked, with exit code {code}"


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
        self.finished = False  # it said that it has come to its end
        pumps = [(self._process.stdout, sys.stdout), (self._process.stderr, sys.stderr)]
        self._threads = [threading.Thread(target=self._pump, args=pump, daemon=True) for pump in pumps]
        self._threads.append(threading.Thread(target=self._listen, daemon=True))
        for thread in self._threads:
            thread.start()

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
        for line in self._notes:
            note = json.loads(line)
            if "lease" in note:
                self._held = note
            self.finished = bool(note.get("finished", False))


def tell_supervisor(lease: Lease, reach: Reach | None) -> None:
    """In the worker: say which lease it holds, if somebody watches over it."""
    if reach is not None:
        _note(lease=str(lease.id), module=reach.module, settings=reach.settings)


def tell_of_end() -> None:
    """In the worker: it was told to stop, and has."""
    _note(finished=True)


def _note(**facts: Any) -> None:
    descriptor = os.environ.get(NOTES_KEY)
    if descriptor is None:
        return
    with contextlib.suppress(OSError):
        os.write(int(descriptor), json.dumps(facts).encode() + b"\n")
