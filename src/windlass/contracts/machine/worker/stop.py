"""SIGTERM and Ctrl-C. They interrupt the work, and shorten the waits of the clean-up and the callback that follow."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOPS = (signal.SIGTERM, signal.SIGINT)


class Stopped(SystemExit):
    """The machine must end. It is no Exception, so that the program does not catch it as an error of its own."""

    def __init__(self, name: str) -> None:
        super().__init__(1)
        self.signal = name

    def __str__(self) -> str:
        return f"The machine was stopped by {self.signal}"


class Stop:
    """Whether a signal has arrived. After the first one all waits end at once; further ones change nothing."""

    def __init__(self) -> None:
        self.requested = threading.Event()
        self._interrupts = False

    def wait(self, seconds: float) -> bool:
        """Sleep. Returns True if the caller should give up."""
        return self.requested.wait(seconds)

    @contextmanager
    def interrupts(self) -> Iterator[None]:
        """Inside this block a signal raises Stopped. One that arrived before raises it at once."""
        self._interrupts = True
        try:
            if self.requested.is_set():
                raise Stopped("SIGTERM")
            yield
        finally:
            self._interrupts = False

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Handle SIGTERM and SIGINT inside this block."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._handle) for number in STOPS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        first = not self.requested.is_set()
        self.requested.set()
        if first and self._interrupts:
            self._interrupts = False
            raise Stopped(signal.Signals(number).name)
