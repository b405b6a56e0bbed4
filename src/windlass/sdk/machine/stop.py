"""SIGTERM and Ctrl-C: they break off the work, and shorten what follows it, which is the clean-up and the callback."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOPS = (signal.SIGTERM, signal.SIGINT)


class Stopped(SystemExit):
    """The machine is to end. No Exception, so that no handler of the program takes it for an error of its own."""

    def __init__(self, name: str) -> None:
        super().__init__(1)
        self.signal = name

    def __str__(self) -> str:
        return f"The machine was stopped by {self.signal}"


class Stop:
    """What was heard. Waits end at once after the first signal; further ones change nothing."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self._interrupts = False

    def wait(self, seconds: float) -> bool:
        """Sleep; True means: give up."""
        return self.asked.wait(seconds)

    @contextmanager
    def interrupts(self) -> Iterator[None]:
        """Inside, a signal raises Stopped. One that came before does so at once."""
        self._interrupts = True
        try:
            if self.asked.is_set():
                raise Stopped("SIGTERM")
            yield
        finally:
            self._interrupts = False

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Inside, the signals of the main thread are ours."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._hear) for number in STOPS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        first = not self.asked.is_set()
        self.asked.set()
        if first and self._interrupts:
            self._interrupts = False
            raise Stopped(signal.Signals(number).name)
