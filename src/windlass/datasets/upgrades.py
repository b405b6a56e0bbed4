"""Upgrades: a job that continues takes a new version of an input as the old one, and is owed only what is new.

A cutover notes which version the job has read, in constant time. Until all that the job was given is carried over to
the new version, it reads the old one, so that no window and no partition is given twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from windlass.datasets.tables.jobs import JobTable, LiveEdge

CARRY_MAX = 20_000  # partitions in one transaction


async def carry_over(jobs: JobTable, edges: Iterable[LiveEdge]) -> tuple[set[UUID], bool]:
    """Carry on the upgrades of locked jobs by one step. Returns the jobs that are not through, and whether something
    was done."""
    unfinished: set[UUID] = set()
    changed = False
    for edge in edges:
        if edge.from_index is None or edge.current_version is None:
            continue
        if await _is_through(jobs, edge):
            await jobs.end_upgrade(edge)
            changed = True
        else:
            unfinished.add(edge.job_id)
            changed |= edge.by_partition
    return unfinished, changed


async def _is_through(jobs: JobTable, edge: LiveEdge) -> bool:
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
    await jobs.carry_cursor(edge)
    return True
