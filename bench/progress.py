"""How far a long run is: a line that moves on a terminal, a line now and then elsewhere.

On standard error, so that the figures at the end stand alone on standard output. It may be told as often as somebody
likes; it decides what is worth showing.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

REDRAW_S, NOW_AND_THEN_S = 0.2, 15.0


class Progress:
    """`progress = Progress(600, "s"); progress.tell(17, "all is well"); progress.close()`."""

    def __init__(
        self,
        total: float,
        unit: str,
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        columns: Callable[[], int] = lambda: shutil.get_terminal_size().columns,
    ) -> None:
        self._total, self._unit = total, unit
        self._stream = sys.stderr if stream is None else stream
        self._clock, self._columns = clock, columns
        self._moves = self._stream.isatty()
        self._began_s = clock()
        self._told_s: float | None = None
        self._drawn = False

    def tell(self, done: float, note: str = "") -> None:
        """Shown at once the first time, and then as often as makes sense."""
        now_s = self._clock()
        if self._told_s is not None and now_s - self._told_s < (REDRAW_S if self._moves else NOW_AND_THEN_S):
            return
        self._told_s = now_s
        text = self._text(done, now_s - self._began_s, note)
        if self._moves:
            self._write(f"\r{text[: max(1, self._columns() - 1)]}\x1b[K")
            self._drawn = True
        else:
            self._write(text + "\n")

    def say(self, text: str) -> None:
        """A line that stays, above the one that moves."""
        self.close()
        self._write(f"{_clock_text(self._clock() - self._began_s)}  {text}\n")

    def close(self) -> None:
        """The line that moves is gone; what is printed next begins where it began."""
        if self._drawn:
            self._write("\r\x1b[K")
            self._drawn = False

    def _text(self, done: float, spent_s: float, note: str) -> str:
        parts = [f"{_clock_text(spent_s)}  {done:,.0f} of {self._total:,.0f} {self._unit}"]
        if 0 < done < self._total and spent_s >= 5:
            parts.append(f"about {_left_text(spent_s * (self._total - done) / done)} left")
        return ", ".join([*parts, *([note] if note else [])])

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _clock_text(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes:3d}:{rest:02d}"


def _left_text(seconds: float) -> str:
    return f"{max(1, round(seconds))} s" if seconds < 90 else f"{round(seconds / 60)} min"
