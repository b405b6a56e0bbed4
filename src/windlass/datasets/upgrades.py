"""Upgrades: a job that continues takes a new version of an input as the old one, and is owed only what is new.

A cutover notes which version the job has read, in constant time. Until all that the job was given is carried over to
the new version, it reads the old one, so that no window and no partition is given twice.

A cursor is the same in both versions, except of a buffered dataset, whose sinks count the batches of each version from
1. There the job reads the old version to its end, and the new one from where that was at the cutover.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from windlass.datasets.tables.jobs import JobTable, LiveEdge

CARRY_MAX = 20_000  # partitions in one transaction


class Progress(NamedTuple):
    """The jobs that are not through; those of them that are owed more of the old version first; and whether something
    was done."""

    unfinished: set[UUID]
    reading: set[UUID]
    changed: bool


async def carry_over(jobs: JobTable, edges: Iterable[LiveEdge]) -> Progress:
    """Carry on the upgrades of locked jobs by one step."""
    unfinished: set[UUID] = set()
    reading: set[UUID] = set()
    changed = False
    for edge in edges:
        if edge.from_index is None or edge.current_version is None:
            continue
        buffered = not edge.by_partition and await jobs.is_buffered(edge.dataset_uuid)
        if buffered and await _has_more(jobs, edge):
            unfinished.add(edge.job_id)
            reading.add(edge.job_id)
        elif await _is_through(jobs, edge, buffered=buffered):
            await jobs.end_upgrade(edge)
            changed = True
        else:
            unfinished.add(edge.job_id)
            changed |= edge.by_partition
    return Progress(unfinished, reading, changed)


async def _has_more(jobs: JobTable, edge: LiveEdge) -> bool:
    """Whether the old version has data for which the job has no task yet."""
    assert edge.dataset_version is not None, edge
    return await jobs.owed_cursor(edge.job_id, edge.dataset_version) is not None


async def _is_through(jobs: JobTable, edge: LiveEdge, *, buffered: bool) -> bool:
    """Carry over what one transaction can. Returns whether that is all."""
    assert edge.dataset_version is not None, edge
    if (edge.dataset_version, edge.from_index) == (edge.current_version, edge.input_index):
        return True  # a rollback came first
    if edge.by_partition:
        if await jobs.carry_over(edge, CARRY_MAX) == CARRY_MAX:
            return False
        await jobs.analyze_consumptions()
        return True
    if await jobs.has_open_window(edge.job_id, edge.dataset_version):
        return False  # its end decides where the next window begins
    await jobs.move_cursors(await jobs.ended_windows([edge.job_id]))
    if buffered:
        await jobs.start_at_cutover(edge)
    else:
        await jobs.carry_cursor(edge)
    return True
