"""How an attempt ended, by the word of its own worker: what contracts whose workers say it in one report share.

Who may speak for an attempt is asked by each of them before; the rules of a task are those of `task`.
"""

from __future__ import annotations

from uuid import UUID

import msgspec

from windlass.core import task as rules
from windlass.core.failure import Category, Failure
from windlass.core.reference import is_reference
from windlass.core.task import Outcome, Task
from windlass.core.transition import Entry, Instant, State, Transition


def judged(
    task: Task,
    attempt: int,
    lease_id: UUID,
    outcome: Outcome,
    result: bytes | None,
    failure: Failure | None,
    now: Instant,
    jitter: float,
) -> Transition:
    """What follows from it, under this lease."""
    if outcome is Outcome.SUCCEEDED:
        return rules.complete(task, attempt, lease_id, as_known(task, result), now)
    if outcome is Outcome.CANCELLED:
        message = "" if failure is None else failure.message
        return rules.report_cancelled(task, attempt, lease_id, message, now)
    failure = failure or Failure(Category.USER_CODE, "the worker did not say why")
    return rules.fail(task, attempt, lease_id, failure, now, jitter)


def final_state(task: Task) -> State:
    """What became of a report: a failed attempt has failed, also if another one follows."""
    return task.state if task.terminal else State.FAILED


def as_known(task: Task, result: bytes | None) -> bytes | None:
    """The same JSON in another spelling is the same output."""
    known = task.result
    if known is None or result is None or known == result or is_reference(known) or is_reference(result):
        return result
    return known if _canonical(known) == _canonical(result) else result


def _canonical(content: bytes) -> bytes:
    return msgspec.json.encode(msgspec.json.decode(content), order="deterministic")


def entry(task: Task, what: str, now: Instant, detail: dict[str, object]) -> Entry:
    """A line of history about the current attempt, by its worker."""
    return Entry(task.id, now, task.attempt, what, task.worker, detail or None)
