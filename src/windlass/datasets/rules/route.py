"""Routing: which jobs an event of a dataset wakes, and the key by which a task for it exists once.

| output is declared | version | jobs that read it | held | `routing` |
| --- | --- | --- | --- | --- |
| no | | | | `undeclared` |
| in the lake, and not committed | | | | `uncommitted` |
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
from datetime import UTC
from enum import StrEnum
from uuid import UUID

import msgspec

from windlass.core.states import Instant
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
    rows are files, which have to be `committed`; `late` that its cursor is below the high water."""

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


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    """An input of a job in a live deployment. `dataset_version` is None for the current version of another DAG's
    dataset. `active` says that the deployment is the active one, `needs_all` that the job waits for all of its inputs.
    `scheme` is that of the job's own partitions, None if they are those of its input."""

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


class Pointer(msgspec.Struct, frozen=True):
    """The version of a dataset that a live deployment points to."""

    deployment_id: UUID
    dataset_uuid: UUID
    dataset_version: UUID
    active: bool = True


class Trigger(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a task exists, for the worker and for people. `kind` is event, source, build, backfill or invalidation."""

    kind: str
    source: str | None = None
    payload: object = None
    webhook: dict[str, object] | None = None
    event_id: UUID | None = None
    backfill_id: UUID | None = None
    invalidation_id: UUID | None = None


class Owed(msgspec.Struct, frozen=True):
    """A task that a job should have: once, by its `dedupe_key`. `inputs` are the inputs that the event is of."""

    job_id: UUID
    deployment_id: UUID
    inputs: tuple[int, ...]
    dedupe_key: str
    trigger: Trigger


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

    def routing(self, made: int) -> Routing:
        """What became of the event, after `made` tasks were new."""
        if self.ended is not None:
            return self.ended
        if self.blocked:
            return Routing.HELD
        return Routing.ROUTED if made or not self.owed else Routing.DUPLICATE


def route(event: Event, edges: Iterable[Edge], pointers: Collection[Pointer], held: Collection[UUID] = ()) -> Route:
    """What follows from an event. `pointers` are those of live deployments, `held` the jobs that get no tasks now."""
    if not event.declared:
        return Route(ended=Routing.UNDECLARED)
    if event.in_lake and not event.committed:
        return Route(ended=Routing.UNCOMMITTED)
    if not any(_points(pointer, event) for pointer in pointers):
        return Route(ended=Routing.OLD_VERSION)
    woken = _by_job(edge for edge in edges if wakes(edge, event, pointers))
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


def wakes(edge: Edge, event: Event, pointers: Iterable[Pointer]) -> bool:
    """Whether an event is one for which the job of an edge has tasks. A partition wakes no reader of cursors, nor a
    cursor a reader of partitions."""
    return (
        edge.trigger
        and edge.dataset_uuid == event.dataset_uuid
        and edge.by_partition == (event.partition_key is not None)
        and version_of(edge, pointers) == event.dataset_version
    )


def version_of(edge: Edge, pointers: Iterable[Pointer]) -> UUID | None:
    """The version that an edge reads: its own, that of its deployment, or the current one of the dataset."""
    if edge.dataset_version is not None:
        return edge.dataset_version
    found = [pointer for pointer in pointers if pointer.dataset_uuid == edge.dataset_uuid]
    own = (pointer.dataset_version for pointer in found if pointer.deployment_id == edge.deployment_id)
    current = (pointer.dataset_version for pointer in found if pointer.active)
    return next(own, None) or next(current, None)


# ------------------------------------------------------------------------------------------ keys of tasks
#
# Unique for each job. A second event, another server or the reconcile loop finds the same task.


def partition_task(dataset_uuid: UUID, dataset_version: UUID, partition_key: str, revision: int) -> str:
    """The key of the task for a revision of a partition. For a partition that is made from several of an input, the key
    is its own and the revision is the sum of theirs, which grows with each commit of one of them."""
    return f"partition:{dataset_uuid}:{dataset_version}:{partition_key}:{revision}"


def cursor_task(dataset_uuid: UUID, dataset_version: UUID, cursor: int) -> str:
    return f"cursor:{dataset_uuid}:{dataset_version}:{cursor}"


def invalidation_task(invalidation_id: UUID) -> str:
    return f"invalidation:{invalidation_id}"


def backfill_task(backfill_id: UUID, partition_key: str) -> str:
    return f"backfill:{backfill_id}:{partition_key}"


def fire_task(at: Instant) -> str:
    return f"fire:{at.astimezone(UTC).isoformat().replace('+00:00', 'Z')}"


def webhook_task(webhook_id: str) -> str:
    return f"webhook:{webhook_id}"


def emit_task(emit_id: UUID | str) -> str:
    return f"emit:{emit_id}"


# ------------------------------------------------------------------------------------------ one event


def _points(pointer: Pointer, event: Event) -> bool:
    return (pointer.dataset_uuid, pointer.dataset_version) == (event.dataset_uuid, event.dataset_version)


def _by_job(edges: Iterable[Edge]) -> dict[UUID, list[Edge]]:
    """The edges of each job. A job that did not change is in two deployments at the same time and is woken once: for
    the active one, if that has it."""
    found: dict[UUID, list[Edge]] = {}
    for edge in sorted(edges, key=lambda edge: not edge.active):
        found.setdefault(edge.job_id, []).append(edge)
    return found


def _owed(edges: list[Edge], event: Event) -> Owed:
    if event.partition_key is not None:
        key = partition_task(event.dataset_uuid, event.dataset_version, event.partition_key, event.revision)
    else:
        assert event.cursor is not None, event
        key = cursor_task(event.dataset_uuid, event.dataset_version, event.cursor)
    inputs = tuple(sorted({edge.input_index for edge in edges}))
    return Owed(edges[0].job_id, edges[0].deployment_id, inputs, key, Trigger("event", event_id=event.id))


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
