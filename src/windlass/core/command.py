"""The commands on one task, each as a value that knows its rule.

A command carries the data of a request and passes it to its rule; it reads nothing and writes nothing. `jitter` was
drawn when the command was made, so that a batch that is run again decides the same.
"""

from __future__ import annotations

from typing import Protocol, get_args
from uuid import UUID

import msgspec
from msgspec.structs import force_setattr, replace

from windlass.core import task as rules
from windlass.core.context import CommandWithContext
from windlass.core.failure import Category, Failure
from windlass.core.replay import make_available
from windlass.core.states import Instant, Transition
from windlass.core.step import StepCommandContext
from windlass.core.task import Task
from windlass.core.text import clean
from windlass.core.validation import (
    check_attempt,
    check_ids,
    check_instant,
    check_names,
    check_payload,
    check_seconds,
    check_type,
)
from windlass.errors import Invalid


class Command(Protocol):
    @property
    def task_id(self) -> UUID: ...

    def decide(self, task: Task, now: Instant) -> Transition: ...


class _Report(msgspec.Struct, frozen=True):
    """A worker's report on its attempt."""

    task_id: UUID
    attempt: int
    lease_id: UUID


class Complete(_Report, frozen=True, gc=False):
    """The handler returned; `result` is JSON text."""

    result: bytes | None = None

    def decide(self, task: Task, now: Instant) -> Transition:
        return rules.complete(task, self.attempt, self.lease_id, self.result, now)


class Fail(_Report, frozen=True):
    """The handler failed. The rule decides whether another try follows."""

    failure: Failure
    jitter: float = 0.0

    def decide(self, task: Task, now: Instant) -> Transition:
        return rules.fail(task, self.attempt, self.lease_id, self.failure, now, self.jitter)


class Cancelled(_Report, frozen=True):
    """The worker stopped the attempt."""

    message: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.message, str):
            force_setattr(self, "message", clean(self.message))

    def decide(self, task: Task, now: Instant) -> Transition:
        return rules.report_cancelled(task, self.attempt, self.lease_id, self.message, now)


class Sleep(CommandWithContext, frozen=True):
    """The workflow waits for a time, for signals, for child tasks, or without any of them until it is woken. It does
    not sleep if one of them has come."""

    context = StepCommandContext

    task_id: UUID
    attempt: int
    lease_id: UUID
    until: Instant | None = None
    signals: tuple[str, ...] = ()
    children: tuple[UUID, ...] = ()

    def decide_with(self, task: Task, context: StepCommandContext, now: Instant) -> Transition:
        come = any(context.pending(task.id, name) is not None for name in self.signals) or any(
            (child := context.child(task, child_id)) is None or child.terminal for child_id in self.children
        )
        return rules.sleep(task, self.attempt, self.lease_id, self.until, now, come=come)


class Release(_Report, frozen=True):
    """The worker gives the task back unrun."""

    def decide(self, task: Task, now: Instant) -> Transition:
        return rules.release(task, self.attempt, self.lease_id, now)


class Park(_Report, frozen=True):
    """The worker's code no longer matches the record of the workflow, so a person has to decide."""

    failure: Failure

    def decide(self, task: Task, now: Instant) -> Transition:
        return rules.park(task, self.attempt, self.lease_id, self.failure, now)


Report = Complete | Fail | Cancelled | Sleep | Release | Park
_REPORTS = get_args(Report)


def checked_report(report: Report, jitter: float) -> Report:
    """The report, checked, with its jitter. Raises Invalid naming the first field that cannot be accepted."""
    if not isinstance(report, _REPORTS):
        raise Invalid(f"must be a report, not {type(report).__name__}", field="report")
    check_attempt(report)
    match report:
        case Complete(result=result) if result is not None:
            check_payload("result", result)
        case Fail(failure=failure):
            return replace(report, failure=storable(failure), jitter=jitter)
        case Park(failure=failure):
            return replace(report, failure=storable(failure))
        case Cancelled(message=message):
            check_type("message", message, str)
        case Sleep(until=until, signals=signals, children=children):
            if until is not None:
                check_instant("until", until)
            check_names("signals", signals)
            check_ids("children", children)
    return report


def storable(failure: Failure) -> Failure:
    """The failure that a worker reports, checked. `Failure` itself makes its texts storable."""
    check_type("failure", failure, Failure)
    for field in ("message", "reason", "trace"):
        check_type(f"failure.{field}", getattr(failure, field), str)
    if failure.category not in Category.__members__.values():
        raise Invalid(f"{failure.category!r} is not a category", field="failure.category")
    if failure.retryable is not None:
        check_type("failure.retryable", failure.retryable, bool)
    if failure.retry_after_s is not None:
        check_seconds("failure.retry_after_s", failure.retry_after_s)
    return replace(failure, category=Category(failure.category))


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """An attempt that has begun, with its payload."""

    task: Task
    payload: bytes

    @property
    def fence(self) -> tuple[UUID, int, UUID]:
        """Task, attempt and lease: the first fields of every report."""
        if self.task.lease_id is None:
            raise Invalid("no attempt has begun", field="claimed")
        return self.task.id, self.task.attempt, self.task.lease_id


class Cancel(msgspec.Struct, frozen=True):
    """A client or an operator cancels the task."""

    task_id: UUID
    reason: str = ""
    force: bool = False

    def decide(self, task: Task, now: Instant) -> Transition:
        return rules.cancel(task, self.reason, now, force=self.force)


class Wake(msgspec.Struct, frozen=True):
    task_id: UUID

    def decide(self, task: Task, now: Instant) -> Transition:
        return rules.wake(task, now)


class MakeAvailable(msgspec.Struct, frozen=True):
    """An operator makes a waiting task available now."""

    task_id: UUID

    def decide(self, task: Task, now: Instant) -> Transition:
        return make_available(task, now)


class Resume(msgspec.Struct, frozen=True):
    task_id: UUID

    def decide(self, task: Task, now: Instant) -> Transition:
        return rules.resume(task, now)
