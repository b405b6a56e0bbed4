"""Windows of a PerUpdate consumer: which part of an input one of its tasks reads.

A window is `(after, to]`. It is fixed when an attempt begins, from the cursor that the consumer has reached and the
cursor of the task. Only one task of a consumer runs at a time, and only an accepted completion moves the cursor, so the
windows of accepted completions are disjoint and leave no gap, whatever fails, repeats or comes late.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

NOOP: dict[str, object] = {"noop": True}  # the result of a task whose window is empty


class Window(NamedTuple):
    """The rows with a cursor above `after`, up to and with `to`. `after` is None at the beginning of the dataset."""

    after: int | None
    to: int


class CursorTask(msgspec.Struct, frozen=True):
    """A task of a PerUpdate consumer that waits or runs."""

    task_id: UUID
    dataset_version: UUID
    cursor: int
    running: bool = False


def window(stored: int | None, cursor: int) -> Window | None:
    """The window of an attempt that begins now. `stored` is the cursor that the consumer has reached, None at first.
    None if nothing is left to read; the task then completes at once, with `NOOP`."""
    return None if stored is not None and cursor <= stored else Window(stored, cursor)


def widen(fields: dict[str, Any], attempt: str, high_water: int | None) -> bool:
    """Let the window of a task that coalesces (its `wire`) end at the high water. That is fixed once for an attempt,
    also if its claim is repeated: the cursor of the consumer moves there when the attempt succeeds. Returns whether it
    was not fixed yet."""
    window = fields["window"]
    if window.get("attempt") == attempt:
        return False
    window |= {"cursor": raised(high_water, window["cursor"]), "attempt": attempt}
    for given in fields["inputs"]:
        if given.get("mode") == "cursor" and given["dataset_version"] == window["dataset_version"]:
            given["cursor_to"] = window["cursor"]
    return True


def reached(stored: int | None, window: Window) -> int:
    """The cursor of the consumer after an accepted completion, also if `where` took no row. It never goes back."""
    return window.to if stored is None else max(stored, window.to)


def raised(high_water: int | None, cursor: int) -> int:
    """The high water of a dataset after an event."""
    return cursor if high_water is None else max(high_water, cursor)


def wakes(high_water: int | None, cursor: int) -> bool:
    """Whether an event wakes consumers. An event below the high water is late: the one that set it woke them."""
    return high_water is None or cursor >= high_water


def owed(stored: int | None, high_water: int | None) -> int | None:
    """The cursor for which a consumer should have a task; None if it has read everything."""
    if high_water is None or (stored is not None and high_water <= stored):
        return None
    return high_water


def blocker(task: CursorTask, others: Iterable[CursorTask]) -> CursorTask | None:
    """The task of the same consumer for which this one has to wait, or None if it may begin. One that runs blocks all
    others; of those that wait, a smaller cursor of the same input goes first."""
    others = [other for other in others if other.task_id != task.task_id]
    first = (other for other in others if other.dataset_version == task.dataset_version and _before(other, task))
    return next((other for other in others if other.running), None) or min(first, key=_place, default=None)


def _before(one: CursorTask, other: CursorTask) -> bool:
    return _place(one) < _place(other)


def _place(task: CursorTask) -> tuple[int, UUID]:
    return task.cursor, task.task_id
