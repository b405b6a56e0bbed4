"""Why a job has or has not processed a partition, or all of its updates: one word, always the first that is true.

    not_live           the job is in no live deployment
    committed          its result was made from the newest revisions of its inputs
    queued, running    a task of it waits or runs
    failed             its newest task failed for good
    paused             its DAG is paused
    held               too many of its tasks wait, or those of a job below
    waiting_for_input  an input that it needs is not committed
    not_owed           there is nothing for it to do

A partition that is owed and has no task yet is `queued` without a task: the reconcile loop makes it. Of a job that
reads updates, and of a source, the same is answered without a partition: then its revisions are cursors.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from uuid import UUID

import msgspec

from windlass.datasets.rules.status import PartitionStatus


class Because(StrEnum):
    """The first thing that is true of a partition of a job."""

    NOT_LIVE = "not_live"
    COMMITTED = "committed"
    QUEUED = "queued"
    RUNNING = "running"
    FAILED = "failed"
    PAUSED = "paused"
    HELD = "held"
    WAITING_FOR_INPUT = "waiting_for_input"
    NOT_OWED = "not_owed"


class InputState(msgspec.Struct, frozen=True, kw_only=True):
    """A partition of an input that triggers the job. Revisions are None if there is none: the `newest` one that is
    committed, the one that the result was `made` from, and the one that a task was `given`. With partitions of another
    size there is one of these for each that the job needs. `cause` says why it is not committed, if that is known."""

    name: str
    partition_key: str
    newest: int | None = None
    made: int | None = None
    given: int | None = None
    cause: str = ""


class TaskState(msgspec.Struct, frozen=True):
    """The newest task of the job for the partition. `reason` is that of its last failure."""

    task_id: UUID
    state: str  # queued, running, failed, or any other
    attempt: int = 0
    max_attempts: int = 0
    reason: str = ""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a partition of a job; with an empty key, about all that it reads. `has_result` says that its
    output is committed or, if it has none, that a task of it succeeded. `needs_all`: it is owed only when every input
    has the partition."""

    job: str
    partition_key: str
    live: bool = True
    has_result: bool = False
    inputs: tuple[InputState, ...] = ()
    needs_all: bool = False
    task: TaskState | None = None
    paused: bool = False
    held_by: str | None = None  # the job that is too slow: itself, or one below


class Missing(msgspec.Struct, frozen=True):
    """A partition of an input that is not committed."""

    name: str
    partition_key: str


class Why(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer, as the API gives it."""

    state: PartitionStatus
    because: Because
    detail: str
    task_id: UUID | None = None
    missing: tuple[Missing, ...] = ()


def why(facts: Facts) -> Why:
    """Why a partition is as it is."""
    because = _because(facts)
    missing = _missing(facts) if because is Because.WAITING_FOR_INPUT else ()
    task = facts.task if facts.task is not None and facts.task.state == because else None
    detail = _detail(facts, because, task, missing)
    keys = tuple(Missing(each.name, each.partition_key) for each in missing)
    return Why(status(facts), because, detail, task.task_id if task else None, keys)


def status(facts: Facts) -> PartitionStatus:
    """The partition of the job's own output, as it is shown."""
    if facts.task is not None and facts.task.state in ("queued", "running") and not is_newest(facts):
        return PartitionStatus.RUNNING
    if facts.has_result:
        return PartitionStatus.COMMITTED if is_newest(facts) else PartitionStatus.STALE
    return (
        PartitionStatus.FAILED if facts.task is not None and facts.task.state == "failed" else PartitionStatus.MISSING
    )


def is_newest(facts: Facts) -> bool:
    """Whether the result was made from the newest revisions of its inputs."""
    return facts.has_result and all(each.newest == each.made for each in facts.inputs if each.newest is not None)


_OF_TASK = (Because.QUEUED, Because.RUNNING, Because.FAILED)


def _because(facts: Facts) -> Because:
    if not facts.live:
        return Because.NOT_LIVE
    if is_newest(facts):
        return Because.COMMITTED
    if facts.task is not None and facts.task.state in _OF_TASK:
        return Because(facts.task.state)
    if facts.paused:
        return Because.PAUSED
    if facts.held_by is not None:
        return Because.HELD
    if _missing(facts):
        return Because.WAITING_FOR_INPUT
    is_owed = any(each.newest is not None and each.newest != each.given for each in facts.inputs)
    return Because.QUEUED if is_owed else Because.NOT_OWED


def _missing(facts: Facts) -> tuple[InputState, ...]:
    """What it waits for: nothing if one input is complete and that is enough, else all that is not committed."""
    missing = tuple(each for each in facts.inputs if each.newest is None)
    complete = {each.name for each in facts.inputs} - {each.name for each in missing}
    return () if complete and not facts.needs_all else missing


def _detail(facts: Facts, because: Because, task: TaskState | None, missing: Sequence[InputState]) -> str:
    place = f"partition {facts.partition_key} of {facts.job}" if facts.partition_key else facts.job
    match because:
        case Because.NOT_LIVE:
            return f"{facts.job} is in no deployment that is active, building or ready"
        case Because.COMMITTED if not facts.partition_key:
            return f"{facts.job} has read all updates of its inputs" if facts.inputs else f"{facts.job} has succeeded"
        case Because.COMMITTED:
            return f"{place} is made from the newest revisions of its inputs"
        case Because.QUEUED if task is None:
            return f"{place} is owed; its task will be made"
        case Because.QUEUED:
            return f"the task of {place} waits"
        case Because.RUNNING:
            return f"the task of {place} runs"
        case Because.FAILED:
            return f"the task of {place} failed for good{_failure(task)}"
        case Because.PAUSED:
            return f"the DAG of {facts.job} is paused"
        case Because.HELD:
            return f"{facts.job} gets no tasks: {facts.held_by} has too many that wait"
        case Because.WAITING_FOR_INPUT:
            return "; ".join(_absence(each) for each in missing[:10])
        case Because.NOT_OWED if not facts.inputs:
            return f"nothing has started {place}"
        case Because.NOT_OWED:
            return f"nothing that {place} is made from has changed"


def _failure(task: TaskState | None) -> str:
    if task is None:
        return ""
    tries = f" after {task.attempt} of {task.max_attempts} attempts" if task.max_attempts else ""
    return f"{tries}: {task.reason}" if task.reason else tries


def _absence(missing: InputState) -> str:
    what = f"has not committed {missing.partition_key}" if missing.partition_key else "has no data yet"
    return f"{missing.name} {what}" + (f" ({missing.cause})" if missing.cause else "")
