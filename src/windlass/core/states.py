"""The transitions of a task's state, as one table, and the value that describes one transition.

`TABLE` lists every change of a task's state. `move` asserts that a transition is in the table. The diagram in
docs/concepts/lifecycle.md is generated from the table.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from windlass.errors import WindlassError

if TYPE_CHECKING:
    from windlass.core.task import Task

Instant = datetime


class State(StrEnum):
    """The state of a task."""

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
    """The cause of a transition. Each verb has an actor: see docs/concepts/glossary.md."""

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
    NOTE = "note"  # records something about the task; its state does not change


_B, _Q, _R, _S, _P = State.BLOCKED, State.QUEUED, State.RUNNING, State.SLEEPING, State.PARKED
_OK, _F, _C, _SK = State.SUCCEEDED, State.FAILED, State.CANCELLED, State.SKIPPED

# From `queued`, COMPLETE, FAIL, RETRY, SLEEP and PARK are late replies: the lease expired, and no worker claimed since.
TABLE: dict[Verb, frozenset[tuple[State, State]]] = {
    Verb.UNBLOCK: frozenset({(_B, _Q)}),
    Verb.SKIP: frozenset({(_B, _SK)}),
    Verb.CLAIM: frozenset({(_Q, _R)}),
    Verb.COMPLETE: frozenset({(_R, _OK), (_Q, _OK)}),
    Verb.FAIL: frozenset({(_R, _F), (_Q, _F)}),
    Verb.RETRY: frozenset({(_R, _Q), (_Q, _Q)}),
    Verb.RELEASE: frozenset({(_R, _Q)}),
    Verb.SLEEP: frozenset({(_R, _S), (_Q, _S), (_R, _Q), (_Q, _Q)}),  # to `queued`: its wait is already over
    Verb.WAKE: frozenset({(_S, _Q)}),
    Verb.PARK: frozenset({(_R, _P), (_Q, _P)}),
    Verb.RESUME: frozenset({(_P, _Q)}),
    Verb.EXPIRE: frozenset({(_R, _Q), (_R, _F), (_R, _C)}),
    Verb.CANCEL: frozenset({(_B, _C), (_Q, _C), (_S, _C), (_P, _C), (_R, _C)}),
    Verb.TIME_OUT: frozenset({(_R, _Q), (_R, _F), (_R, _C), (_Q, _F), (_B, _F), (_S, _F), (_P, _F)}),
    Verb.NOTE: frozenset((s, s) for s in State),
}


class Entry(msgspec.Struct, frozen=True):
    """One line of a task's history: what happened, to which attempt, when, by which worker, and further details."""

    task_id: UUID
    at: Instant
    attempt: int
    what: str
    worker: str | None = None
    detail: dict[str, object] | None = None


class Effect(msgspec.Struct, frozen=True):
    """Work to carry out after the commit, at least once. A repeated effect has the same id."""

    id: UUID
    kind: str
    namespace: str
    task_id: UUID
    attempt: int
    body: dict[str, object]


class Transition(msgspec.Struct, frozen=True):
    """The result of a command, applied in one transaction or not at all.

    `before` is the record that the rule read under the row lock. A `refusal` is the answer to a report that changes
    nothing; it may still leave a history entry. `writes` are records besides the task; their writers are
    registered with the store by type (`store.writers`). `answer` is what the caller gets instead of the task.
    """

    verb: Verb
    before: Task
    after: Task
    history: tuple[Entry, ...] = ()
    effects: tuple[Effect, ...] = ()
    refusal: WindlassError | None = None
    writes: tuple[object, ...] = ()
    answer: object | None = None

    @property
    def changed(self) -> bool:
        return self.after is not self.before


def move(
    verb: Verb, before: Task, after: Task, history: tuple[Entry, ...] = (), effects: tuple[Effect, ...] = ()
) -> Transition:
    """The only way to build a transition that changes a task."""
    assert (before.state, after.state) in TABLE[verb], (verb, before.state, after.state, before.id)
    return Transition(verb, before, after, history, effects)
