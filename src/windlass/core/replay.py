"""A person says that something shall be tried again.

Terminal states never change: what has ended is done again as a new task that names the old one. What waits for its
time is made available now. Each ended task is replayed at most once (the new one has a key made from the old id), so
that asking twice is asking once; if the new one fails as well, that one is replayed.
"""

from __future__ import annotations

from uuid import UUID

from msgspec.structs import replace

from windlass.core.states import Entry, Instant, State, Transition, Verb, move
from windlass.core.submission import Submission
from windlass.core.task import Task, resume
from windlass.errors import InvalidState

REPLAYABLE = frozenset({State.FAILED, State.CANCELLED, State.SKIPPED})


def replay(task: Task, payload: bytes, requires: tuple[str, ...], wire: bytes | None, id_: UUID) -> Submission:
    """The same work once more, with fresh budgets and without the deadline, which may have passed."""
    if task.state not in REPLAYABLE:
        raise InvalidState(f"the task is {task.state}; only what did not succeed is replayed", task_id=task.id)
    return Submission(
        id=id_,
        kind=task.kind,
        payload=payload,
        queue=task.queue,
        namespace=task.namespace,
        priority=task.priority,
        concurrency_key=task.concurrency_key,
        idempotency_key=f"windlass:replay:{task.id}",
        policy=task.policy,
        requires=requires,
        run_id=task.run_id,
        wire=wire,
        replay_of=task.id,
    )


def make_available(task: Task, now: Instant) -> Transition:
    """What waits for its time (a retry, a delay) is available now; what is parked goes on."""
    if task.state is State.PARKED:
        return resume(task, now)
    if task.state is not State.QUEUED:
        raise InvalidState(f"the task is {task.state}: there is nothing to try again", task_id=task.id)
    if task.available_at <= now:
        return Transition(Verb.NOTE, task, task)
    entry = Entry(task.id, now, task.attempt, "made_available", None, {"was_due_at": task.available_at})
    return move(Verb.NOTE, task, replace(task, available_at=now), (entry,))
