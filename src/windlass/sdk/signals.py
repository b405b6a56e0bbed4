"""Exceptions that a handler raises to end its attempt, and the one that a caller gets when a task did not succeed.

`Retry`, `Fail` and `Cancel` are for handlers. Any other exception is a failure of the user's code, which is retried
unless the handler's `retry_on` leaves it out.
"""

from __future__ import annotations

import traceback
from uuid import UUID

from windlass.core.failure import Category, Failure
from windlass.core.states import State
from windlass.core.task import Task
from windlass.core.text import line_of, words_of
from windlass.core.validation import check_type
from windlass.errors import Invalid, TooLarge, WindlassError
from windlass.sdk.duration import Duration, seconds


class Retry(Exception):
    """Try again, after this delay or that of the retry policy. Counts as a failed attempt."""

    def __init__(self, message: str = "the handler requested a retry", *, after: Duration | None = None) -> None:
        check_type("message", message, str)
        super().__init__(message)
        self.after_s = None if after is None else seconds("after", after)


class Fail(Exception):
    """End as failed; by default without another try."""

    def __init__(self, message: str, *, category: Category | str = Category.USER_CODE, retryable: bool = False) -> None:
        check_type("message", message, str)
        check_type("retryable", retryable, bool)
        super().__init__(message)
        if category not in Category.__members__.values():
            raise Invalid(f"{category!r} is not a category", field="category")
        self.category, self.retryable = Category(category), retryable


class Cancel(Exception):
    """End as cancelled."""


def failure_of(error: BaseException, retryable: bool | None = None) -> Failure:
    """The failure that an exception means: of the user's code, unless the exception names another category."""
    reason = type(error).__name__
    message, trace = words_of(error) or reason, trace_of(error)
    if isinstance(error, Retry):
        return Failure(Category.USER_CODE, message, reason, trace, retryable=True, retry_after_s=error.after_s)
    if isinstance(error, Fail):
        return Failure(error.category, message, reason, trace, retryable=error.retryable)
    if isinstance(error, TooLarge):  # it will be too large the next time, too
        retryable = False
    return Failure(Category.USER_CODE, message, reason, trace, retryable=retryable)


def trace_of(error: BaseException) -> str:
    """The traceback as text; only the outermost one if exceptions are nested too deeply to format."""
    try:
        return "".join(traceback.format_exception(error))
    except Exception:
        return "".join(traceback.format_tb(error.__traceback__)) + line_of(error)


class _InvalidIsBadData:
    """Turn Invalid into a Fail without a retry: a payload that does not match its handler, or a result that cannot be
    stored, will be no better the next time.

    Every attempt enters it several times, and a generator would take a tenth of an attempt's time.
    """

    __slots__ = ()

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Invalid):
            raise Fail(error.message, category=Category.DATA_QUALITY) from None


invalid_is_bad_data = _InvalidIsBadData()


class TaskFailed(WindlassError):
    """The task did not succeed."""

    code = "task_failed"
    task_id: UUID | None = None
    state: State | None = None
    failure: Failure | None = None

    @classmethod
    def of(cls, task: Task) -> TaskFailed:
        """The exception for a task that has ended without success."""
        reason = task.error.line if task.error is not None else "no reason was given"
        error = cls(f"task {task.id} {_PAST[task.state]}: {reason}", task_id=task.id, state=task.state)
        error.task_id, error.state, error.failure = task.id, task.state, task.error
        return error

    @property
    def category(self) -> Category | None:
        return self.failure.category if self.failure is not None else None

    @property
    def remote_traceback(self) -> str:
        """The traceback in the worker, as text."""
        return self.failure.trace if self.failure is not None else ""


_PAST = {State.FAILED: "failed", State.CANCELLED: "was cancelled", State.SKIPPED: "was skipped"}
