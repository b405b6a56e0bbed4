"""The moves a task can make, as one table, and the value that describes one move.

Two rules about this file: every change of a task's state is in `TABLE`, and a move that is not in it cannot be
built (`move` asserts it). The diagram in docs/concepts/lifecycle.md is generated from the table.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from windlass.core.error import WindlassError

if TYPE_CHECKING:
    from windlass.core.dataset import DatasetEvent, Publish
    from windlass.core.step import Signal, Step
    from windlass.core.step_attempt import StepAttempt
    from windlass.core.task import Task

Instant = datetime


class State(StrEnum):
    """Where a task is in its life."""

    BLOCKED = "blocked"
    QUEUED = "queued"
    RUNNING = "running"
    SLEEPING = "sleeping"
    PARKED = "parked"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


TERMINAL = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED, State.SKIPPED})


class Verb(StrEnum):
    """What moves a task. Each verb has its actor: see docs/concepts/glossary.md."""

    UNBLOCK = "unblock"
    SKIP = "skip"
    CLAIM = "claim"
    COMPLETE = "complete"
    FAIL = "fail"
    RETRY = "retry"
    RELEASE = "release"
    SLEEP = "sleep"
    WAKE = "wake"
    PARK = "park"
    RESUME = "resume"
    EXPIRE = "expire"
    CANCEL = "cancel"
    TIME_OUT = "time_out"
    NOTE = "note"  # something about the task was recorded; its state stays


_B, _Q, _R, _S, _P = State.BLOCKED, State.QUEUED, State.RUNNING, State.SLEEPING, State.PARKED
_OK, _F, _C, _SK = State.SUCCEEDED, State.FAILED, State.CANCELLED, State.SKIPPED

# From `queued`, COMPLETE, FAIL, RETRY, SLEEP and PARK are late replies: the lease ran out, nobody has claimed since.
TABLE: dict[Verb, frozenset[tuple[State, State]]] = {
    Verb.UNBLOCK: frozenset({(_B, _Q)}),
    Verb.SKIP: frozenset({(_B, _SK)}),
    Verb.CLAIM: frozenset({(_Q, _R)}),
    Verb.COMPLETE: frozenset({(_R, _OK), (_Q, _OK)}),
    Verb.FAIL: frozenset({(_R, _F), (_Q, _F)}),
    Verb.RETRY: frozenset({(_R, _Q), (_Q, _Q)}),
    Verb.RELEASE: frozenset({(_R, _Q)}),
    Verb.SLEEP: frozenset({(_R, _S), (_Q, _S), (_R, _Q), (_Q, _Q)}),  # to `queued`: what it waits for has come already
    Verb.WAKE: frozenset({(_S, _Q)}),
    Verb.PARK: frozenset({(_R, _P), (_Q, _P)}),
    Verb.RESUME: frozenset({(_P, _Q)}),
    Verb.EXPIRE: frozenset({(_R, _Q), (_R, _F), (_R, _C)}),
    Verb.CANCEL: frozenset({(_B, _C), (_Q, _C), (_S, _C), (_P, _C), (_R, _C)}),
    Verb.TIME_OUT: frozenset({(_R, _Q), (_R, _F), (_R, _C), (_Q, _F), (_B, _F), (_S, _F), (_P, _F)}),
    Verb.NOTE: frozenset((s, s) for s in State),
}


class Entry(msgspec.Struct, frozen=True):
    """One line of a task's history: what happened, to which attempt, when, by whom, and what else is to know."""

    task_id: UUID
    at: Instant
    attempt: int
    what: str
    worker: str | None = None
    detail: dict[str, object] | None = None


class Effect(msgspec.Struct, frozen=True):
    """Something to carry out after the commit, at least once. The same effect again has the same id."""

    id: UUID
    kind: str
    namespace: str
    task_id: UUID
    attempt: int
    body: dict[str, object]


class Transition(msgspec.Struct, frozen=True):
    """What follows from what was said: applied as a whole, in one transaction, or not at all.

    `before` is the record the rule saw under the row lock. A `refusal` is the answer to a report that changes
    nothing; it may still leave a history entry. `steps` are recorded, `signals` kept, `consumed` are used up; `told` is
    the record of a step that stands already; `attempts` are tries at steps, begun or ended. `events` and `publishes`
    are recorded with it.
    """

    verb: Verb
    before: Task
    after: Task
    history: tuple[Entry, ...] = ()
    effects: tuple[Effect, ...] = ()
    refusal: WindlassError | None = None
    steps: tuple[Step, ...] = ()
    signals: tuple[Signal, ...] = ()
    consumed: tuple[Signal, ...] = ()
    told: Step | None = None
    attempts: tuple[StepAttempt, ...] = ()
    events: tuple[DatasetEvent, ...] = ()
    publishes: tuple[Publish, ...] = ()

    @property
    def changed(self) -> bool:
        return self.after is not self.before


def move(
    verb: Verb, before: Task, after: Task, history: tuple[Entry, ...] = (), effects: tuple[Effect, ...] = ()
) -> Transition:
    """The only way to build a transition that changes a task."""
    assert (before.state, after.state) in TABLE[verb], (verb, before.state, after.state, before.id)
    return Transition(verb, before, after, history, effects)
