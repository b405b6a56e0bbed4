"""Backfills: which partitions of a job are made again, in pages, and how a backfill ends.

A selection is never expanded as a whole. Keys are a list, bounds are a `Run` of the job's scheme, and a status is a
scan of the job's own output: each is taken page by page, and a `Mark` says where the next page begins. The mark is
stored in the transaction that makes the tasks of a page, so a server that dies in between has made all or none.

The jobs below need no tasks of the backfill. When a task of it commits, its partition has a new revision, and routing
owes that revision to the jobs that read it, as it owes any other. A task of the backfill for the same partition would
be a second one. `downstream` therefore makes no tasks: it lets the backfill follow those of routing to their end.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

import msgspec

from windlass.core.validation import check_text
from windlass.datasets.rules.dag import ExecutionStrategy, Job, When
from windlass.datasets.rules.partition import (
    BIGINT_MAX,
    BIGINT_MIN,
    PARTITION_MAX,
    Key,
    Run,
    Scheme,
    Span,
    keys_between,
)
from windlass.datasets.rules.status import PartitionStatus
from windlass.errors import Invalid

KEYS_MAX = 10_000
STATUSES = frozenset({PartitionStatus.MISSING, PartitionStatus.FAILED, PartitionStatus.STALE})


class BackfillState(StrEnum):
    """The state of a backfill. `planned` is that of a dry run."""

    PLANNED = "planned"
    RUNNING = "running"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


OPEN = frozenset({BackfillState.RUNNING, BackfillState.CANCELLING})


class Selection(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which partitions of a job: by their keys, between two bounds, or by the status of the job's own output."""

    keys: tuple[str, ...] = ()
    start: int | str | None = None
    end: int | str | None = None
    status: tuple[PartitionStatus, ...] = ()

    @property
    def by_bounds(self) -> bool:
        return self.start is not None or self.end is not None


class Mark(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a selection was taken. `part` is the input or output whose partitions come next, if there are several;
    `number` and `key` are a place in it."""

    part: int = 0
    number: int | None = None
    key: str = ""


BEGIN = Mark()


class Chosen(NamedTuple):
    """A page of keys, and the mark of the next one; None at the end."""

    keys: list[str]
    mark: Mark | None


class Tally(msgspec.Struct, frozen=True):
    """The tasks of a backfill: how many are open, and how the others ended."""

    unfinished: int = 0
    failed: int = 0
    cancelled: int = 0


# ------------------------------------------------------------------------------------------ what is selected


def check(selection: Selection, job: Job, scheme: Scheme | None) -> None:
    """Raise Invalid with the field that is wrong. `scheme` is that of the job, None if it declares none."""
    if job.execution_strategy is not ExecutionStrategy.PER_PARTITION:
        raise Invalid(f"job {job.name} does not work by partitions", field="job")
    given = [bool(selection.keys), selection.by_bounds, bool(selection.status)]
    if given.count(True) != 1:
        raise Invalid("give either keys, or start and end, or status", field="select")
    if selection.keys:
        _check_keys(selection.keys, scheme)
    elif selection.by_bounds:
        bounds(selection, scheme)
    else:
        wrong = sorted(set(selection.status) - STATUSES)
        if wrong:
            raise Invalid(f"may be {', '.join(sorted(STATUSES))}, not {wrong[0]}", field="select.status")
        if not job.outputs:
            raise Invalid(f"job {job.name} has no output that has a status: give keys", field="select.status")


def _check_keys(keys: Sequence[str], scheme: Scheme | None) -> None:
    if len(keys) > KEYS_MAX:
        raise Invalid(f"must have at most {KEYS_MAX} keys; give start and end for more", field="select.keys")
    seen: set[str] = set()
    for place, key in enumerate(keys):
        field = f"select.keys[{place}]"
        check_text(field, key, PARTITION_MAX)
        if key in seen:
            raise Invalid(f"{key[:100]!r} is there twice", field=field)
        seen.add(key)
        if scheme is not None:
            _check_key(scheme, key, field)


def _check_key(scheme: Scheme, key: str, field: str) -> None:
    try:
        scheme.span(key)
    except Invalid as error:
        raise Invalid(str(error).partition(": ")[2] or str(error), field=field) from None


def bounds(selection: Selection, scheme: Scheme | None) -> Run | Span | None:
    """The partitions between two bounds: a run of the job's scheme, None if it has none there; without a scheme, the
    numbers between which the partitions of its inputs lie."""
    if selection.start is None or selection.end is None:
        missing = "start" if selection.start is None else "end"
        raise Invalid("is missing: give both start and end", field=f"select.{missing}")
    try:
        if scheme is not None:
            return keys_between(scheme, selection.start, selection.end)
    except Invalid as error:
        field = f"select.{error.field}" if error.field in ("start", "end") else "select"
        raise Invalid(str(error).partition(": ")[2] or str(error), field=field) from None
    if isinstance(scheme, Key):
        raise Invalid("partitions of kind key have no order; name their keys", field="select.start")
    for name, value in (("start", selection.start), ("end", selection.end)):
        if not isinstance(value, int) or not BIGINT_MIN <= value <= BIGINT_MAX:
            raise Invalid("must be a whole number, since the job declares no partitions", field=f"select.{name}")
    assert isinstance(selection.start, int), selection
    assert isinstance(selection.end, int), selection
    if selection.start > selection.end:
        raise Invalid("must not be before start", field="select.end")
    return Span(selection.start, selection.end)


# ------------------------------------------------------------------------------------------ pages


def keys_page(keys: Sequence[str], mark: Mark, limit: int) -> Chosen:
    """A page of a list of keys."""
    begin = mark.number or 0
    end = begin + limit
    return Chosen(list(keys[begin:end]), Mark(number=end) if end < len(keys) else None)


def run_page(run: Run | None, mark: Mark, limit: int) -> Chosen:
    """A page of a run. Only its own partitions are expanded."""
    if run is None:
        return Chosen([], None)
    first = run.span.first if mark.number is None else mark.number
    page = list(islice(Run(run.scheme, Span(first, run.span.last)).partitions(), limit))
    end = page[-1][1].last if page else run.span.last
    return Chosen([key for key, _ in page], Mark(number=end + 1) if end < run.span.last else None)


# ------------------------------------------------------------------------------------------ tasks and the end


def is_there(when: When, inputs: Collection[int], committed: Collection[int]) -> bool:
    """Whether a task for a partition may start: with `any` one triggering input has it, with `all` every one. If not,
    the task waits for its input."""
    return set(inputs) <= set(committed) if when is When.ALL else bool(set(inputs) & set(committed))


def end_state(state: BackfillState, selected: bool, tally: Tally) -> BackfillState:
    """The state of a backfill after its tasks were counted. `selected` says that all of its tasks are made."""
    if state not in OPEN or tally.unfinished:
        return state
    if state is BackfillState.CANCELLING:
        return BackfillState.CANCELLED
    if not selected:
        return state
    if tally.failed:
        return BackfillState.FAILED
    return BackfillState.CANCELLED if tally.cancelled else BackfillState.SUCCEEDED
