"""What can be said about one task, each as a value that knows its rule.

A command carries what was said and hands it to `core`; it reads nothing and writes nothing. `jitter` was drawn when the
command was made, so that a batch that is run again decides the same.
"""

from __future__ import annotations

from typing import Protocol
from uuid import UUID

import msgspec

from windlass.core import task as rules
from windlass.core.failure import Failure
from windlass.core.task import Task
from windlass.core.transition import Instant, Transition


class Command(Protocol):
    @property
    def task_id(self) -> UUID: ...

    def decide(self, task: Task, now: Instant) -> Transition: ...


class Complete(msgspec.Struct, frozen=True, gc=False):
    """The handler returned; `result` is JSON text."""

    task_id: UUID
    attempt: int
    lease_id: UUID
    result: bytes | None = None

    def decide(self, task: Task, now: Instant) -> Transition:
        return rules.complete(task, self.attempt, self.lease_id, self.result, now)


class Fail(msgspec.Struct, frozen=True):
    """The handler failed. Whether another try follows is decided by the rule."""

    task_id: UUID
    attempt: int
    lease_id: UUID
    failure: Failure
    jitter: float = 0.0

    def decide(self, task: Task, now: Instant) -> Transition:
        return rules.fail(task, self.attempt, self.lease_id, self.failure, now, self.jitter)


class Cancelled(msgspec.Struct, frozen=True):
    """The worker stopped the attempt."""

    task_id: UUID
    attempt: int
    lease_id: UUID
    message: str = ""

    def decide(self, task: Task, now: Instant) -> Transition:
        return rules.report_cancelled(task, self.attempt, self.lease_id, self.message, now)


class Sleep(msgspec.Struct, frozen=True):
    """The workflow waits for a time, or with `until=None` for a signal, and holds no worker meanwhile."""

    task_id: UUID
    attempt: int
    lease_id: UUID
    until: Instant | None = None

    def decide(self, task: Task, now: Instant) -> Transition:
        return rules.sleep(task, self.attempt, self.lease_id, self.until, now)


class Release(msgspec.Struct, frozen=True):
    """The worker gives the task back unrun."""

    task_id: UUID
    attempt: int
    lease_id: UUID

    def decide(self, task: Task, now: Instant) -> Transition:
        return rules.release(task, self.attempt, self.lease_id, now)


class Park(msgspec.Struct, frozen=True):
    """The worker's code no longer matches the record of the workflow: a person has to look."""

    task_id: UUID
    attempt: int
    lease_id: UUID
    failure: Failure

    def decide(self, task: Task, now: Instant) -> Transition:
        return rules.park(task, self.attempt, self.lease_id, self.failure, now)


Report = Complete | Fail | Cancelled | Sleep | Release | Park


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """An attempt that has begun, and what to do in it."""

    task: Task
    payload: bytes


class Cancel(msgspec.Struct, frozen=True):
    """A client or an operator asks to cancel."""

    task_id: UUID
    reason: str = ""
    force: bool = False

    def decide(self, task: Task, now: Instant) -> Transition:
        return rules.cancel(task, self.reason, now, force=self.force)


class Wake(msgspec.Struct, frozen=True):
    task_id: UUID

    def decide(self, task: Task, now: Instant) -> Transition:
        return rules.wake(task, now)


class Resume(msgspec.Struct, frozen=True):
    task_id: UUID

    def decide(self, task: Task, now: Instant) -> Transition:
        return rules.resume(task, now)
