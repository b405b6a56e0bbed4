"""Limits log lines that callers can cause at will to one of each kind in ten seconds, and counts the others."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

EVERY_S = 10.0


class Throttle:
    """Throttles one logger. `reason` is the kind of a line."""

    def __init__(self, log: logging.Logger, stopwatch: Callable[[], float] = time.monotonic) -> None:
        self._log, self._stopwatch = log, stopwatch
        self._last: dict[str, tuple[float, int]] = {}

    def warn(self, reason: str, detail: str) -> None:
        """Log a warning, unless one of this kind was just logged. `reason` must not come from a caller: every new value
        takes memory."""
        at_s, more = self._last.get(reason, (-EVERY_S, 0))
        if self._stopwatch() - at_s < EVERY_S:
            self._last[reason] = at_s, more + 1
            return
        self._last[reason] = self._stopwatch(), 0
        self._log.warning("%s: %s%s", reason, detail, f" (and {more} more since the last such line)" if more else "")
