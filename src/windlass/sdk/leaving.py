"""How a workflow leaves its attempt before it has come to its end. Each knows the report that says so.

They derive from BaseException, so that `except Exception` in a workflow cannot swallow them.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from windlass.core.command import Park, Release, Report, Sleep
from windlass.core.failure import Category, Failure
from windlass.core.task import Task


class Leaving(BaseException):
    """Leave the attempt now."""

    def report(self, task: Task, lease_id: UUID) -> Report:
        raise NotImplementedError


class Suspended(Leaving):
    """Nothing can be done until a moment has come, a signal, or the end of a child task."""

    def __init__(
        self, until: datetime | None = None, signals: tuple[str, ...] = (), children: tuple[UUID, ...] = ()
    ) -> None:
        super().__init__("the workflow waits")
        self.until, self.signals, self.children = until, signals, children

    def joined(self, other: Suspended) -> Suspended:
        """To wait for both is to wait for the first that comes."""
        until = min((u for u in (self.until, other.until) if u is not None), default=None)
        signals = tuple(dict.fromkeys(self.signals + other.signals))
        return Suspended(until, signals, tuple(dict.fromkeys(self.children + other.children)))

    def report(self, task: Task, lease_id: UUID) -> Report:
        return Sleep(task.id, task.attempt, lease_id, self.until, self.signals, self.children)


class Mismatched(Leaving):
    """The code asks for something else than what is recorded."""

    def __init__(self, difference: str) -> None:
        super().__init__(difference)
        self.difference = difference

    def report(self, task: Task, lease_id: UUID) -> Report:
        failure = Failure(Category.CONFIGURATION, self.difference, "CODE_MISMATCH", retryable=False)
        return Park(task.id, task.attempt, lease_id, failure)


class AttemptLost(Leaving):
    """The engine has given the task to somebody else: whatever we say now changes nothing."""

    def report(self, task: Task, lease_id: UUID) -> Report:
        return Release(task.id, task.attempt, lease_id)
