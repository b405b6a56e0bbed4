"""Runs: the group a task belongs to, and what the end of one task means for those that wait for it.

The join is never a counter: a task waits as long as an edge to an unfinished task is left. Edges are settled one run
at a time under the lock of the run's row, so that two tasks that end together cannot both see the other as open,
and cannot both release the task that waits for them.
"""

from __future__ import annotations

from uuid import UUID

import msgspec
from msgspec.structs import replace

from windlass.core.failure import Category, Failure
from windlass.core.states import Instant, State, Transition, Verb, move
from windlass.core.task import Task, end

_PAST = {State.CANCELLED: "was cancelled", State.FAILED: "failed", State.SKIPPED: "was skipped"}


class Edge(msgspec.Struct, frozen=True):
    """`task_id` waits for `upstream_id`: for its success, or with `any_outcome` for its end, however it ends."""

    task_id: UUID
    upstream_id: UUID
    upstream_state: State
    any_outcome: bool = False


def settle(task: Task, ended: list[Edge], open_edges: int, now: Instant) -> Transition:
    """What the waiting task does now that these upstream tasks have ended and `open_edges` have not.

    The first upstream task that did not succeed decides at once: a failure or a skip skips, a cancel cancels.
    Both then settle the tasks that wait for this one in turn.
    """
    if task.state is not State.BLOCKED:
        return Transition(Verb.NOTE, task, task)
    broken = next((e for e in ended if e.upstream_state is not State.SUCCEEDED and not e.any_outcome), None)
    if broken is not None:
        message = f"task {broken.upstream_id}, which this one waits for, {_PAST[broken.upstream_state]}"
        if broken.upstream_state is State.CANCELLED:
            failure = Failure(Category.CANCELLED, message, "UPSTREAM_CANCELLED", retryable=False)
            return end(Verb.CANCEL, task, State.CANCELLED, failure, now)
        failure = Failure(Category.CANCELLED, message, "UPSTREAM_NOT_SUCCEEDED", retryable=False)
        return end(Verb.SKIP, task, State.SKIPPED, failure, now)
    if open_edges > 0:
        return Transition(Verb.NOTE, task, task)
    return move(Verb.UNBLOCK, task, replace(task, state=State.QUEUED, available_at=max(task.available_at, now)))
