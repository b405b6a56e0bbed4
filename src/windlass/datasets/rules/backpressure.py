"""Backpressure: when a job gets no more tasks, and which jobs upstream wait with it.

A job is held when too many of its tasks wait, or one waits too long, and let go only well below that, so that it does
not flip with every task. What is owed to a held job stays owed.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from typing import TypeVar

import msgspec

Job = TypeVar("Job", bound=Hashable)

RELEASE_TENTHS = 8  # of the greatest depth


class QueueLimits(msgspec.Struct, frozen=True):
    """How many tasks of a job may wait, and how long. None is no limit. `halved` is for jobs of priority backfill,
    which leave the other half of a queue to others."""

    max_depth: int | None = None
    max_age_s: float | None = None
    halved: bool = False


def held(depth: int, age_s: float | None, limits: QueueLimits, was_held: bool) -> bool:
    """Whether a job is held. `depth` is the number of its tasks that wait, `age_s` how long the oldest waits; None if
    none does."""
    share = 2 if limits.halved else 1
    old = age_s is not None and limits.max_age_s is not None and age_s * share >= limits.max_age_s
    if old or limits.max_depth is None:
        return old
    if was_held:
        return depth * share * 10 > limits.max_depth * RELEASE_TENTHS
    return depth * share >= limits.max_depth


def with_upstream(slow: Collection[Job], edges: Iterable[tuple[Job, Job]]) -> dict[Job, Job]:
    """The jobs that are held, with those that wait for them, and for each the slow job because of which it is held.
    `edges` are pairs of a job and one that it triggers. A job waits if all that it triggers are held: what it made
    would only wait there. Sources among them pause."""
    readers: dict[Job, set[Job]] = {}
    writers: dict[Job, set[Job]] = {}
    for writer, reader in edges:
        readers.setdefault(writer, set()).add(reader)
        writers.setdefault(reader, set()).add(writer)
    found, todo = {job: job for job in slow}, list(slow)
    while todo:
        reader = todo.pop()
        for writer in writers.get(reader, ()):
            readers[writer] -= found.keys()
            if not readers[writer] and writer not in found:
                found[writer] = found[reader]
                todo.append(writer)
    return found
