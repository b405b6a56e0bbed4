"""Log lines that callers can cause at will: each kind at most once in ten seconds, with how many were left out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

EVERY_S = 10.0


class Throttle:
    """For one logger. A kind is told apart by `reason`; what else a line holds does not matter."""

    def __init__(self, log: logging.Logger, stopwatch: Callable[[], float] = time.monotonic) -> None:
        self._log, self._stopwatch = log, stopwatch
        self._last: dict[str, tuple[float, int]] = {}

    def warn(self, reason: str, detail: str) -> None:
        """`reason` is one of few, and never something that a caller chose."""
        at_s, more = self._last.get(reason, (-EVERY_S, 0))
        if self._stopwatch() - at_s < EVERY_S:
            self._last[reason] = at_s, more + 1
            return
        self._last[reason] = self._stopwatch(), 0
        self._log.warning("%s: %s%s", reason, detail, f" (and {more} more since the last such line)" if more else "")
