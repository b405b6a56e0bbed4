"""Exceptions that end an attempt before the workflow has ended. Each makes the report for the engine.

They derive from BaseException, so that `except Exception` in a workflow cannot swallow them.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from windlass.core.command import Park, Release, Report, Sleep
from windlass.core.failure import Category, Failure
from windlass.core.task import Task


class WorkflowExit(BaseException):
    """End the attempt now."""

    def report(self, task: Task, lease_id: UUID) -> Report:
        raise NotImplementedError


class Suspended(WorkflowExit):
    """The workflow waits for a moment, a signal, or the end of a child task."""

    def __init__(
        self, until: datetime | None = None, signals: tuple[str, ...] = (), children: tuple[UUID, ...] = ()
    ) -> None:
        super().__init__("the workflow waits")
        self.until, self.signals, self.children = until, signals, children

    def merge(self, other: Suspended) -> Suspended:
        """Wait for whichever comes first."""
        until = min((u for u in (self.until, other.until) if u is not None), default=None)
        signals = tuple(dict.fromkeys(self.signals + other.signals))
        return Suspended(until, signals, tuple(dict.fromkeys(self.children + other.children)))

    def report(self, task: Task, lease_id: UUID) -> Report:
        return Sleep(task.id, task.attempt, lease_id, self.until, self.signals, self.children)


class CodeMismatch(WorkflowExit):
    """The code calls another step than the journal has at this place."""

    def __init__(self, difference: str) -> None:
        super().__init__(difference)
        self.difference = difference

    def report(self, task: Task, lease_id: UUID) -> Report:
        failure = Failure(Category.CONFIGURATION, self.difference, "CODE_MISMATCH", retryable=False)
        return Park(task.id, task.attempt, lease_id, failure)


class AttemptLost(WorkflowExit):
    """The engine has given the task to another worker, so that our outcome would be refused."""

    def report(self, task: Task, lease_id: UUID) -> Report:
        return Release(task.id, task.attempt, lease_id)
