"""What is committed and was not given to a job, as the tasks that it is owed. Reads only."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from uuid import UUID

from windlass.datasets.rules.owed import BUILD, Given, Owed, Partition, Trigger
from windlass.datasets.rules.route import task_key
from windlass.datasets.tables.jobs import JobTable, LiveEdge

OWED_MAX = 500  # tasks of one job and input in one transaction


async def owed_data(jobs: JobTable, edges: Sequence[LiveEdge]) -> tuple[list[Owed], set[UUID]]:
    """What is owed on the triggering edges of locked jobs, and the jobs to which more may be owed."""
    owed: list[Owed] = []
    more: set[UUID] = set()
    for job_id, found in by_job(edges).items():
        if found[0].needs_all:
            parts = [await owed_to_all(jobs, found, None, OWED_MAX)]
        else:
            parts = [await _owed_on(jobs, edge) for edge in found]
        owed += [one for part in parts for one in part]
        if any(len(part) >= OWED_MAX for part in parts):
            more.add(job_id)
    return owed, more


async def owed_to_all(
    jobs: JobTable,
    edges: Sequence[LiveEdge],
    keys: Collection[str] | None,
    limit: int,
    trigger: Trigger = BUILD,
    trace: str | None = None,
) -> list[Owed]:
    """What is owed to a job that waits for all of its inputs. With `keys`, only these partitions. A task is given the
    partition of every input; its key is that of the first which is new to the job."""
    inputs = {edge.input_index: edge for edge in edges}
    versions = {index: edge.dataset_version for index, edge in inputs.items() if edge.dataset_version is not None}
    if len(versions) < len(inputs):
        return []
    owed = []
    for parts in (await jobs.owed_to_all(edges[0].job_id, versions, keys, limit)).values():
        given = [Given(index, versions[index], partition=part) for index, part, _ in parts]
        new = next(each for each, (_, _, known) in zip(given, parts, strict=True) if not known)
        key = task_key(inputs[new.input_index].dataset_uuid, new)
        owed.append(Owed(edges[0].job_id, edges[0].deployment_id, key, trigger, tuple(given), trace))
    return owed


def by_job(edges: Iterable[LiveEdge]) -> Mapping[UUID, list[LiveEdge]]:
    """The triggering edges of each job."""
    found: dict[UUID, list[LiveEdge]] = {}
    for edge in edges:
        if edge.trigger:
            found.setdefault(edge.job_id, []).append(edge)
    return found


async def _owed_on(jobs: JobTable, edge: LiveEdge) -> list[Owed]:
    version = edge.dataset_version
    if version is None:
        return []
    if edge.by_partition:
        parts: list[Partition] = await jobs.owed_partitions(edge.job_id, version, edge.input_index, OWED_MAX)
        given = [Given(edge.input_index, version, partition=part) for part in parts]
    else:
        cursor = await jobs.owed_cursor(edge.job_id, version)
        given = [] if cursor is None else [Given(edge.input_index, version, cursor)]
    return [Owed(edge.job_id, edge.deployment_id, task_key(edge.dataset_uuid, each), BUILD, (each,)) for each in given]
