"""What can be said about one task, each as a value that knows its rule.

A command carries what was said and hands it to `core`; it reads nothing and writes nothing. `jitter` was drawn when the
command was made, so that a batch that is run again decides the same.
"""

from __future__ import annotations

from typing import Protocol, get_args
from uuid import UUID

import msgspec
from msgspec.structs import force_setattr, replace

from windlass.core import task as rules
from windlass.core.check import (
    check_count,
    check_instant,
    check_list,
    check_names,
    check_payload,
    check_seconds,
    check_type,
)
from windlass.core.error import Invalid
from windlass.core.failure import Category, Failure
from windlass.core.replay import hurry
from windlass.core.step import Facts
from windlass.core.task import Task
from windlass.core.text import clean
from windlass.core.transition import Instant, Transition


class Command(Protocol):
    @property
    def task_id(self) -> UUID: ...

    def decide(self, task: Task, now: Instant) -> Transition: ...


class Informed(msgspec.Struct, frozen=True):
    """A command that has to know more than the task's row: it is told the facts, read under the lock of that row."""

    def decide(self, task: Task, now: Instant) -> Transition:
        return self.decide_with(task, Facts(), now)

    def decide_with(self, task: Task, facts: Facts, now: Instant) -> Transition:
        raise NotImplementedError


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

    def __post_init__(self) -> None:
        if isinstance(self.message, str):
            force_setattr(self, "message", clean(self.message))

    def decide(self, task: Task, now: Instant) -> Transition:
        return rules.report_cancelled(task, self.attempt, self.lease_id, self.message, now)


class Sleep(Informed, frozen=True):
    """The workflow waits for a time, for signals, for child tasks, or with nothing given until somebody wakes it, and
    holds no worker meanwhile. It does not sleep if one of them has come."""

    task_id: UUID
    attempt: int
    lease_id: UUID
    until: Instant | None = None
    signals: tuple[str, ...] = ()
    children: tuple[UUID, ...] = ()

    def decide_with(self, task: Task, facts: Facts, now: Instant) -> Transition:
        come = any(facts.pending(task.id, name) is not None for name in self.signals) or any(
            (child := facts.child(task, child_id)) is None or child.terminal for child_id in self.children
        )
        return rules.sleep(task, self.attempt, self.lease_id, self.until, now, come=come)


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
_REPORTS = get_args(Report)


def checked_report(report: Report, jitter: float) -> Report:
    """The report as it may be carried out, with its chance. Raises Invalid for what is no report at all."""
    if not isinstance(report, _REPORTS):
        raise Invalid(f"must be a report, not {type(report).__name__}", field="report")
    check_type("task_id", report.task_id, UUID)
    check_type("lease_id", report.lease_id, UUID)
    check_count("attempt", report.attempt, least=1, most=2**31 - 1)
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
            for child_id in check_list("children", children):
                check_type("children", child_id, UUID)
    return report


def storable(failure: Failure) -> Failure:
    """What a worker tells of its failure, checked. Its texts are storable by themselves."""
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


class Hurry(msgspec.Struct, frozen=True):
    """An operator wants it tried now."""

    task_id: UUID

    def decide(self, task: Task, now: Instant) -> Transition:
        return hurry(task, now)


class Resume(msgspec.Struct, frozen=True):
    task_id: UUID

    def decide(self, task: Task, now: Instant) -> Transition:
        return rules.resume(task, now)
