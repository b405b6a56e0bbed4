"""What is worth another try, and how long to wait for it. Knows nothing of what is tried."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PAUSE_MAX_S = 8.0


class Transient(Exception):
    """It may go well the next time; `retry_after_s` is what the other side asked for."""

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


def persist(
    call: Callable[[], T],
    *,
    until: float,
    wait: Callable[[float], object],
    pause_s: float = 0.5,
    tries_max: int = 1000,
) -> T:
    """Call until it does not raise Transient, with growing pauses; the last one is raised when time is up.

    `until` is an instant of `time.monotonic`. `wait` sleeps, and returns something true to give up at once.
    """
    tries = 0
    while True:
        tries += 1
        try:
            return call()
        except Transient as error:
            pause = max(error.retry_after_s, min(pause_s * 2 ** (tries - 1), PAUSE_MAX_S))
            if tries >= tries_max or time.monotonic() + pause > until or wait(pause):
                raise
