"""Writers of the records that a transition has besides its task (`Transition.writes`), by the type of the record.

The module that owns a table registers the writer of its records. A writer gets all records of its type in a batch and
writes them with one statement.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from windlass.core.states import Transition
from windlass.store.pool import Session

R = TypeVar("R")
Writer = Callable[[Session, list[R]], Awaitable[None]]

_WRITERS: dict[type, Writer[object]] = {}


def register_writer(kind: type[R], write: Writer[R]) -> None:
    """Types are written in the order of their registration."""
    assert kind not in _WRITERS, f"{kind.__name__} has a writer already"
    _WRITERS[kind] = write  # type: ignore[assignment]  # it gets records of its type only


async def write_records(session: Session, transitions: Sequence[Transition]) -> None:
    """Write the records of a batch, with one call for each type."""
    by_type: dict[type, list[object]] = {}
    for transition in transitions:
        for record in transition.writes:
            by_type.setdefault(type(record), []).append(record)
    if not by_type:
        return
    for kind, write in _WRITERS.items():
        if kind in by_type:
            await write(session, by_type.pop(kind))
    assert not by_type, f"no writer is registered for {', '.join(kind.__name__ for kind in by_type)}"
