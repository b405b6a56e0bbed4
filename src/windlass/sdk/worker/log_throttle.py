"""Logs a repeated problem every 30 seconds instead of every time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

AGAIN_S = 30.0


class LogThrottle:
    """`warn("cannot reach it: %s", error)` logs at once if the text differs from the last one, else every 30 s."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock = log, clock
        self._last, self._logged_s = "", 0.0

    def __call__(self, text: str, *arguments: object) -> None:
        message, now_s = text % arguments, self._clock()
        if message != self._last or now_s - self._logged_s >= AGAIN_S:
            self._last, self._logged_s = message, now_s
            self._log.warning("%s", message)
