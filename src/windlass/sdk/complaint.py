"""The same trouble again and again is worth a line now and then, not one a second."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

AGAIN_S = 30.0


class Complaint:
    """`complain("cannot reach it: %s", error)`: at once if it is another trouble than the last, else every so often."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock = log, clock
        self._last, self._said_s = "", 0.0

    def __call__(self, text: str, *arguments: object) -> None:
        said, now_s = text % arguments, self._clock()
        if said != self._last or now_s - self._said_s >= AGAIN_S:
            self._last, self._said_s = said, now_s
            self._log.warning("%s", said)
