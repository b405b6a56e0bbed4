"""Reports of a running attempt: its progress, a checkpoint for the next attempt, log lines.

They decide nothing, so they may be dropped: only the last progress and the last checkpoint count, and only the last log
lines of the last attempts are stored. A report of an attempt that is over changes nothing.
"""

from __future__ import annotations

from uuid import UUID

import msgspec
from msgspec.structs import replace

from windlass.core.states import Instant
from windlass.core.validation import (
    check_attempt,
    check_count,
    check_list,
    check_payload,
    check_seconds,
    check_type,
    clean_text,
)
from windlass.errors import Invalid, TooLarge

AMOUNT_MAX = 1e15
MESSAGE_MAX = 1000
CHECKPOINT_MAX_BYTES = 256 * 1024
LINE_MAX = 2000
LINES_MAX = 500  # per attempt
ATTEMPTS_KEPT = 10  # attempts of a task whose lines are stored
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


class Amount(msgspec.Struct, frozen=True):
    """How far an attempt is: `current` of `maximum`, which may be unknown."""

    current: float
    maximum: float | None = None
    message: str = ""


class Line(msgspec.Struct, frozen=True):
    """A line of an attempt's log. The worker numbers its lines from 0, so that a repeated line is recognised. `age_s`
    is a duration, since the worker's clock may be wrong."""

    number: int
    level: str
    message: str
    age_s: float = 0.0


class ProgressReport(msgspec.Struct, frozen=True):
    """Progress, checkpoint and log lines of an attempt, reported together."""

    task_id: UUID
    attempt: int
    lease_id: UUID
    progress: Amount | None = None
    checkpoint: bytes | None = None
    lines: tuple[Line, ...] = ()


class Progress(msgspec.Struct, frozen=True):
    """The progress of a task, as people see it. `attempt` reported it, and may be over."""

    current: float
    maximum: float | None
    message: str
    attempt: int
    at: Instant

    @property
    def fraction(self) -> float | None:
        """From 0 to 1, where that is known."""
        return min(1.0, self.current / self.maximum) if self.maximum else None


class LogLine(msgspec.Struct, frozen=True):
    """A line of the log of a task, as people see it."""

    attempt: int
    number: int
    at: Instant
    level: str
    message: str


def checked_amount(current: float, maximum: float | None = None, message: str = "") -> Amount:
    check_seconds("current", current, most=AMOUNT_MAX)
    if maximum is not None:
        check_seconds("maximum", maximum, most=AMOUNT_MAX)
    return Amount(
        float(current), None if maximum is None else float(maximum), clean_text("message", message, MESSAGE_MAX)
    )


def check_checkpoint(data: bytes) -> None:
    check_payload("checkpoint", data)
    if len(data) > CHECKPOINT_MAX_BYTES:
        raise TooLarge(f"has {len(data)} bytes, the limit is {CHECKPOINT_MAX_BYTES}", field="checkpoint")


def checked_progress_report(note: ProgressReport) -> ProgressReport:
    """The report as it may be stored. Texts are cleaned and cut rather than refused, since losing them is worse."""
    check_type("note", note, ProgressReport)
    check_attempt(note)
    progress = note.progress
    if progress is not None:
        check_type("progress", progress, Amount)
        progress = checked_amount(progress.current, progress.maximum, progress.message)
    if note.checkpoint is not None:
        check_checkpoint(note.checkpoint)
    lines = tuple(_checked_line(line) for line in check_list("lines", note.lines)[-LINES_MAX:])
    return replace(note, progress=progress, lines=lines)


def _checked_line(line: object) -> Line:
    if not isinstance(line, Line):
        raise Invalid(f"must be a line, not {type(line).__name__}", field="lines")
    check_count("lines.number", line.number, most=2**31 - 1)
    check_seconds("lines.age_s", line.age_s)
    if line.level not in LEVELS:
        raise Invalid(f"{line.level!r} is not a level", field="lines.level")
    return replace(line, message=clean_text("lines.message", line.message, LINE_MAX))
