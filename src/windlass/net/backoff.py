"""Retries of clients: exponential pauses with jitter, never shorter than the server's Retry-After."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
JITTER = 0.3


class Transient(Exception):
    """A failure that may not occur again. `retry_after_s` is the pause that the server wants."""

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Backoff:
    """The pauses between tries: each is twice the one before, at most `max_s`."""

    def __init__(self, first_s: float, max_s: float) -> None:
        self._first_s, self._max_s = first_s, max_s
        self._pause_s = first_s

    def next_s(self, at_least_s: float = 0.0) -> float:
        """The next pause, with jitter, or `at_least_s` if that is longer."""
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, self._max_s)
        return max(at_least_s, jittered(min(pause_s, self._max_s)))

    def reset(self) -> None:
        """Start again with the first pause, after a success."""
        self._pause_s = self._first_s


def jittered(seconds: float) -> float:
    """Up to 30 % less, so that clients that lost the same server do not return at the same moment."""
    return seconds * random.uniform(1 - JITTER, 1.0)  # noqa: S311


def retry(
    call: Callable[[], T],
    backoff: Backoff,
    *,
    until: float,
    wait: Callable[[float], object] = time.sleep,
    tries_max: int = 1000,
) -> T:
    """Call until it raises no Transient. Raises the last one when another try would start after `until`.

    `until` is an instant of `time.monotonic`. `wait` sleeps; it returns a true value to give up at once.
    """
    while True:
        try:
            return call()
        except Transient as error:
            tries_max -= 1
            pause_s = backoff.next_s(error.retry_after_s)
            if tries_max <= 0 or time.monotonic() + pause_s > until or wait(pause_s):
                raise
