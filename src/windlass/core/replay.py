"""Retry by hand. An ended task is replayed as a new task that names it; a waiting task is made available now.

Terminal states never change. Each ended task is replayed at most once, since the key of the new task is made from the
id of the old one: a repeated request has no effect. If the new task fails as well, that one is replayed.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from msgspec.structs import replace

from windlass.core.ids import derived_id
from windlass.core.states import Effect, Entry, Instant, State, Transition, Verb, move
from windlass.core.submission import Submission
from windlass.core.task import JOB, Task, resume
from windlass.errors import InvalidState

REPLAYABLE = frozenset({State.FAILED, State.CANCELLED, State.SKIPPED})
_OWN = ("id", "available_at", "deadline_at", "run_id", "parent_id", "trace")
_KEPT = tuple(name for name in Submission.__struct_fields__ if name in Task.__struct_fields__ and name not in _OWN)


def replay(task: Task, payload: bytes, requires: tuple[str, ...], wire: bytes | None, id_: UUID) -> Submission:
    """The same task again, with fresh budgets and without its deadline, which may have passed."""
    if task.state not in REPLAYABLE:
        raise InvalidState(
            f"the task is {task.state}; only failed, cancelled and skipped tasks are replayed", task_id=task.id
        )
    return copy(
        task, id=id_, payload=payload, requires=requires, wire=wire, run_id=task.run_id, replay_of=task.id,
        idempotency_key=f"windlass:replay:{task.id}",
    )  # fmt: skip


def turn_of(replayed: Submission) -> Effect:
    """The effect that asks the job of a replay whether it is the turn of this task."""
    assert replayed.id is not None, replayed
    body: dict[str, object] = {"job_id": str(replayed.job_id)}
    return Effect(derived_id("turn", replayed.id), JOB, replayed.namespace, replayed.id, 0, body)


def copy(task: Task, **fields: Any) -> Submission:
    """A submission of the same work. Times, run, parent and trace belong to the task itself and are left out."""
    return Submission(**{name: getattr(task, name) for name in _KEPT}, **fields)


def make_available(task: Task, now: Instant) -> Transition:
    """End the delay of a task that waits for a time (a retry, a delay), or resume a parked task."""
    if task.state is State.PARKED:
        return resume(task, now)
    if task.state is not State.QUEUED:
        raise InvalidState(
            f"the task is {task.state}: only queued and parked tasks can be made available", task_id=task.id
        )
    if task.available_at <= now:
        return Transition(Verb.NOTE, task, task)
    entry = Entry(task.id, now, task.attempt, "made_available", None, {"was_due_at": task.available_at})
    return move(Verb.NOTE, task, replace(task, available_at=now), (entry,))
