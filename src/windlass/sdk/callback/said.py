"""What a handler says while it runs, until a heartbeat takes it along: progress, a checkpoint, lines of its log.

May be called from any thread; nothing here waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from windlass.core.error import LeaseLost, Unavailable
from windlass.core.note import LINE_MAX, LINES_MAX, Amount
from windlass.core.text import clean
from windlass.sdk.note import Saved
from windlass.wire.envelope import Line

Taken = dict[str, Any]  # fields of a heartbeat


class Said:
    """Of one attempt. `news` is called when there is something to send."""

    def __init__(self, news: Callable[[], None]) -> None:
        self._news, self._lock = news, threading.Lock()
        self._fresh = False  # something was not sent yet
        self._checkpoint: bytes | None = None
        self._saved: list[Saved] = []
        self._lines: list[tuple[int, str, str, float]] = []
        self._number = 0
        self._over = False
        self.amount: Amount | None = None  # the last one, sent or not

    def progress(self, amount: Amount) -> None:
        with self._lock:
            self.amount = amount
        self._tell()

    def checkpoint(self, data: bytes) -> Saved:
        saved = Saved()
        with self._lock:
            self._checkpoint = data
            self._saved.append(saved)
            over = self._over
        if over:
            saved.tell(LeaseLost("the attempt is over"))
        self._tell()
        return saved

    def line(self, level: str, message: str) -> None:
        with self._lock:
            self._lines.append((self._number, level, clean(message, LINE_MAX), time.monotonic()))
            del self._lines[:-LINES_MAX]
            self._number += 1
        self._tell()

    @property
    def fresh(self) -> bool:
        return self._fresh

    def _tell(self) -> None:
        if not self._fresh:
            self._fresh = True
            self._news()

    def take(self) -> Taken:
        """What the next heartbeat carries. Progress is told in each, the rest once."""
        with self._lock:
            self._fresh = False
            taken: Taken = {}
            if self.amount is not None:
                taken |= {"progress_pct": percent(self.amount), "message": words(self.amount)}
            if self._checkpoint is not None:
                taken["checkpoint"] = msgspec.Raw(self._checkpoint)
            if self._lines:
                now_s = time.monotonic()
                taken["log"] = tuple(
                    Line(number=number, level=level, message=text, age_ms=int((now_s - at_s) * 1000))  # type: ignore[arg-type]
                    for number, level, text, at_s in self._lines
                )
            return taken

    def sent(self, taken: Taken) -> None:
        """The engine has it."""
        with self._lock:
            lines = {line.number for line in taken.get("log", ())}
            self._lines = [line for line in self._lines if line[0] not in lines]
            saved: list[Saved] = []
            if "checkpoint" in taken and self._checkpoint == bytes(taken["checkpoint"]):
                self._checkpoint, saved, self._saved = None, self._saved, []
        for one in saved:
            one.tell(None)

    def unsent(self) -> None:
        """It goes with the next heartbeat."""
        with self._lock:
            self._fresh = True

    def close(self, *, lost: bool) -> None:
        """Nothing more will be sent: who waits for a checkpoint is told."""
        with self._lock:
            self._over = True
            waiting, self._saved = self._saved, []
        for one in waiting:
            one.tell(LeaseLost("the attempt is over") if lost else Unavailable("the checkpoint could not be written"))


def percent(amount: Amount) -> int | None:
    """Whole, and never more than all of it. None where the whole is unknown."""
    return None if not amount.maximum else int(min(100.0, 100.0 * amount.current / amount.maximum))


def words(amount: Amount) -> str | None:
    """The message; where there is none and no percentage either, the amount itself."""
    return amount.message or (f"{amount.current:g}" if not amount.maximum else None)
