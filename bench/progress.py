"""The progress of a long run on standard error: one line that is redrawn on a terminal, a line every 15 s elsewhere.

Callers may report as often as they like; most reports are not shown.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

REDRAW_S, NEXT_LINE_S = 0.2, 15.0


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
        self._is_terminal = self._stream.isatty()
        self._began_s = clock()
        self._shown_s: float | None = None
        self._drawn = False

    def tell(self, done: float, note: str = "") -> None:
        """Show the first report at once, and later ones from time to time."""
        now_s = self._clock()
        if self._shown_s is not None and now_s - self._shown_s < (REDRAW_S if self._is_terminal else NEXT_LINE_S):
            return
        self._shown_s = now_s
        text = self._text(done, now_s - self._began_s, note)
        if self._is_terminal:
            self._write(f"\r{text[: max(1, self._columns() - 1)]}\x1b[K")
            self._drawn = True
        else:
            self._write(text + "\n")

    def say(self, text: str) -> None:
        """Write a line that stays, above the one that is redrawn."""
        self.close()
        self._write(f"{_clock_text(self._clock() - self._began_s)}  {text}\n")

    def close(self) -> None:
        """Remove the line that is redrawn."""
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
