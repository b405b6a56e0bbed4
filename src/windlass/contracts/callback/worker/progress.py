"""Progress, a checkpoint and log lines of a running handler, until the next heartbeat carries them.

May be called from any thread; nothing here waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from windlass.contracts.callback.wire.envelope import Line
from windlass.core.progress import LINE_MAX, LINES_MAX, Amount
from windlass.core.text import clean
from windlass.errors import LeaseLost, Unavailable
from windlass.sdk.worker.progress import Saved

Fields = dict[str, Any]  # of a heartbeat


class LatestProgress:
    """The progress of one attempt. `on_change` is called when there is something to send."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change, self._lock = on_change, threading.Lock()
        self.fresh = False  # there is something that was not sent yet
        self._checkpoint: bytes | None = None
        self._saved: list[Saved] = []
        self._lines: list[tuple[int, str, str, float]] = []
        self._number = 0
        self._over = False
        self.amount: Amount | None = None  # the last one, sent or not

    def progress(self, amount: Amount) -> None:
        with self._lock:
            self.amount = amount
        self._notify()

    def checkpoint(self, data: bytes) -> Saved:
        saved = Saved()
        with self._lock:
            self._checkpoint = data
            self._saved.append(saved)
            over = self._over
        if over:
            saved.resolve(LeaseLost("the attempt is over"))
        self._notify()
        return saved

    def line(self, level: str, message: str) -> None:
        with self._lock:
            self._lines.append((self._number, level, clean(message, LINE_MAX), time.monotonic()))
            del self._lines[:-LINES_MAX]
            self._number += 1
        self._notify()

    def _notify(self) -> None:
        if not self.fresh:
            self.fresh = True
            self._on_change()

    def take(self) -> Fields:
        """The fields of the next heartbeat. Progress is in each of them, the rest is sent once."""
        with self._lock:
            self.fresh = False
            fields: Fields = {}
            if (amount := self.amount) is not None:
                percent = int(min(100.0, 100.0 * amount.current / amount.maximum)) if amount.maximum else None
                message = amount.message or (None if amount.maximum else f"{amount.current:g}")
                fields |= {"progress_pct": percent, "message": message}
            if self._checkpoint is not None:
                fields["checkpoint"] = msgspec.Raw(self._checkpoint)
            if self._lines:
                now_s = time.monotonic()
                fields["log"] = tuple(
                    Line(number=number, level=level, message=text, age_ms=int((now_s - at_s) * 1000))  # type: ignore[arg-type]
                    for number, level, text, at_s in self._lines
                )
            return fields

    def on_accepted(self, fields: Fields) -> None:
        """The engine has stored these fields."""
        with self._lock:
            lines = {line.number for line in fields.get("log", ())}
            self._lines = [line for line in self._lines if line[0] not in lines]
            saved: list[Saved] = []
            if "checkpoint" in fields and self._checkpoint == bytes(fields["checkpoint"]):
                self._checkpoint, saved, self._saved = None, self._saved, []
        for one in saved:
            one.resolve(None)

    def on_failed(self) -> None:
        """Send everything again with the next heartbeat."""
        with self._lock:
            self.fresh = True

    def close(self, *, lost: bool) -> None:
        """Nothing more will be sent: resolve the checkpoints that wait."""
        with self._lock:
            self._over = True
            waiting, self._saved = self._saved, []
        for one in waiting:
            error = "the attempt is over" if lost else "the checkpoint could not be written"
            one.resolve(LeaseLost(error) if lost else Unavailable(error))
