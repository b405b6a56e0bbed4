"""Routing: which jobs an event of a dataset wakes, and the key by which a task for it exists once.

| output is declared | version | jobs that read it | held | `routing` |
| --- | --- | --- | --- | --- |
| no | | | | `undeclared` |
| in the lake or buffered, and not committed | | | | `uncommitted` |
| yes | no live deployment points to it | | | `old_version` |
| yes | live | none that it triggers | | `no_consumer` |
| yes | live | some | some | `held`; the others get their task |
| yes | live | some | none | `routed`, or `duplicate` if all tasks were there |

An event only makes a task sooner: what is owed is found again by comparing commits and consumptions. So a job that
needs more than this event (all of its inputs, or partitions of another size) gets no task here, but a candidate that
the same comparison decides. Deployments that are built or ready count with their own pointers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import StrEnum
from uuid import UUID

import msgspec

from windlass.datasets.rules.owed import Given, Owed, Partition, TaskKey, Trigger, cursor_task, partition_task
from windlass.datasets.rules.partition import Ordered, Run, Span, is_aligned, touched


class Routing(StrEnum):
    """What became of an event."""

    UNDECLARED = "undeclared"
    UNCOMMITTED = "uncommitted"
    OLD_VERSION = "old_version"
    NO_CONSUMER = "no_consumer"
    HELD = "held"
    ROUTED = "routed"
    DUPLICATE = "duplicate"


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """An event to be routed: a cursor that a dataset has reached, or a revision of a partition. `in_lake` says that its
    rows are files, which have to be `committed`; `late` that its cursor is below the high water. `trace` is that of the
    task which reported it."""

    id: UUID
    dataset_uuid: UUID
    dataset_version: UUID
    declared: bool = True
    in_lake: bool = False
    committed: bool = True
    cursor: int | None = None
    late: bool = False
    partition_key: str | None = None
    span: Span | None = None
    revision: int = 1
    trace: str | None = None


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    """An input of a job in a live deployment, with the version that it reads now: None if there is none. `active` says
    that the deployment is the active one, `needs_all` that the job waits for all of its inputs. `scheme` is that of the
    job's own partitions, None if they are those of its input."""

    job_id: UUID
    deployment_id: UUID
    input_index: int
    dataset_uuid: UUID
    dataset_version: UUID | None = None
    active: bool = True
    trigger: bool = True
    by_partition: bool = False
    needs_all: bool = False
    scheme: Ordered | None = None


class Candidate(msgspec.Struct, frozen=True):
    """Partitions that a job may be owed now, if all that they need is committed: one by its key, or a run of them."""

    job_id: UUID
    deployment_id: UUID
    partitions: str | Run


class Route(msgspec.Struct, frozen=True):
    """What follows from an event. `blocked` are the jobs that are held and get their task later."""

    owed: tuple[Owed, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    blocked: frozenset[UUID] = frozenset()
    ended: Routing | None = None  # it wakes nobody, for this reason

    def routing(self, new: Collection[TaskKey], later: Collection[TaskKey] = ()) -> Routing:
        """What became of the event, after these tasks were new, and those are made later."""
        if self.ended is not None:
            return self.ended
        if self.blocked or any(one.key in later for one in self.owed):
            return Routing.HELD
        return Routing.ROUTED if not self.owed or any(one.key in new for one in self.owed) else Routing.DUPLICATE


def route(event: Event, edges: Iterable[Edge], live: Collection[UUID], held: Collection[UUID] = ()) -> Route:
    """What follows from an event. `live` are the versions that live deployments point to, `held` the jobs that get no
    tasks now."""
    if not event.declared:
        return Route(ended=Routing.UNDECLARED)
    if event.in_lake and not event.committed:
        return Route(ended=Routing.UNCOMMITTED)
    if event.dataset_version not in live:
        return Route(ended=Routing.OLD_VERSION)
    woken = _by_job(edge for edge in edges if wakes(edge, event))
    if not woken:
        return Route(ended=Routing.NO_CONSUMER)
    if event.late:
        return Route(ended=Routing.DUPLICATE)
    free = [found for job_id, found in woken.items() if job_id not in held]
    return Route(
        owed=tuple(_owed(found, event) for found in free if not _is_candidate(found[0], event)),
        candidates=tuple(each for found in free if (each := _candidate(found[0], event)) is not None),
        blocked=frozenset(job_id for job_id in woken if job_id in held),
    )


def wakes(edge: Edge, event: Event) -> bool:
    """Whether an event is one for which the job of an edge has tasks. A partition wakes no reader of cursors, nor a
    cursor a reader of partitions."""
    return (
        edge.trigger
        and edge.dataset_uuid == event.dataset_uuid
        and edge.by_partition == (event.partition_key is not None)
        and edge.dataset_version == event.dataset_version
    )


# ------------------------------------------------------------------------------------------ one event


def _by_job(edges: Iterable[Edge]) -> dict[UUID, list[Edge]]:
    """The edges of each job. A job that did not change is in two deployments at the same time and is woken once: for
    the active one, if that has it."""
    found: dict[UUID, list[Edge]] = {}
    for edge in sorted(edges, key=lambda edge: not edge.active):
        found.setdefault(edge.job_id, []).append(edge)
    return found


def _owed(edges: list[Edge], event: Event) -> Owed:
    partition = None
    if event.partition_key is not None:
        first, last = (None, None) if event.span is None else (event.span.first, event.span.last)
        partition = Partition(event.partition_key, first, last, event.revision)
    given = {
        edge.input_index: Given(edge.input_index, event.dataset_version, event.cursor, partition)
        for edge in sorted(edges, key=lambda edge: edge.input_index)
    }
    return Owed(
        edges[0].job_id, edges[0].deployment_id, task_key(event.dataset_uuid, next(iter(given.values()))),
        Trigger("event", event_id=event.id), tuple(given.values()), event.trace,
    )  # fmt: skip


def task_key(dataset_uuid: UUID, given: Given) -> str:
    """The key of the task for new data of an input."""
    if given.partition is None:
        assert given.cursor is not None, given
        return cursor_task(dataset_uuid, given.dataset_version, given.cursor)
    assert given.partition.revision is not None, given
    return partition_task(dataset_uuid, given.dataset_version, given.partition.key, given.partition.revision)


def _is_candidate(edge: Edge, event: Event) -> bool:
    if event.partition_key is None:
        return False
    own = edge.scheme is None or (event.span is not None and is_aligned(edge.scheme, event.span))
    return edge.needs_all or not own


def _candidate(edge: Edge, event: Event) -> Candidate | None:
    """None if the event is a task by itself, or touches no partition of the job."""
    if event.partition_key is None or not _is_candidate(edge, event):
        return None
    partitions: str | Run | None = event.partition_key
    if edge.scheme is not None:
        partitions = touched(edge.scheme, event.span) if event.span is not None else None
    return None if partitions is None else Candidate(edge.job_id, edge.deployment_id, partitions)
