"""What a handler may raise to say how its attempt is to end, and what a caller gets when a task did not succeed.

`Retry`, `Fail` and `Cancel` are for handlers. Any other exception is a failure of the user's code, which is tried again
unless the handler's `retry_on` says otherwise.
"""

from __future__ import annotations

import traceback
from types import TracebackType
from uuid import UUID

from windlass.core.check import check_type
from windlass.core.error import Invalid, TooLarge, WindlassError
from windlass.core.failure import Category, Failure
from windlass.core.task import Task
from windlass.core.text import line_of, words_of
from windlass.core.transition import State
from windlass.sdk.duration import Duration, seconds


class Retry(Exception):
    """Try again, after a while of your choice or as the policy says. Counts as a failed attempt."""

    def __init__(self, message: str = "the handler asked for another try", *, after: Duration | None = None) -> None:
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
    """What an exception of a handler means: the user's code is to blame unless the exception says otherwise."""
    reason = type(error).__name__
    message, trace = words_of(error) or reason, trace_of(error)
    if isinstance(error, Retry):
        return Failure(Category.USER_CODE, message, reason, trace, retryable=True, retry_after_s=error.after_s)
    if isinstance(error, Fail):
        return Failure(error.category, message, reason, trace, retryable=error.retryable)
    if isinstance(error, TooLarge):  # and will be the next time
        retryable = False
    return Failure(Category.USER_CODE, message, reason, trace, retryable=retryable)


def trace_of(error: BaseException) -> str:
    """The traceback as text. Exceptions may be nested more deeply than it can be written."""
    try:
        return "".join(traceback.format_exception(error))
    except Exception:
        return "".join(traceback.format_tb(error.__traceback__)) + line_of(error)


class _UnfitIsBadData:
    """Entered several times in every attempt: as a generator it would be a tenth of what an attempt costs."""

    __slots__ = ()

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Invalid):
            raise Fail(error.message, category=Category.DATA_QUALITY) from None


_UNFIT_IS_BAD_DATA = _UnfitIsBadData()


def unfit_is_bad_data() -> _UnfitIsBadData:
    """A payload that does not fit its handler will not fit it the next time either, and so will a result that cannot be
    kept."""
    return _UNFIT_IS_BAD_DATA


class TaskFailed(WindlassError):
    """The task did not succeed."""

    code = "task_failed"
    task_id: UUID | None = None
    state: State | None = None
    failure: Failure | None = None

    @classmethod
    def of(cls, task: Task) -> TaskFailed:
        """What is raised for a task that has ended, and not in success."""
        said = task.error.line if task.error is not None else "no reason was given"
        made = cls(f"task {task.id} {_PAST[task.state]}: {said}", task_id=task.id, state=task.state)
        made.task_id, made.state, made.failure = task.id, task.state, task.error
        return made

    @property
    def category(self) -> Category | None:
        return self.failure.category if self.failure is not None else None

    @property
    def remote_traceback(self) -> str:
        """The traceback in the worker, as text."""
        return self.failure.trace if self.failure is not None else ""


_PAST = {State.FAILED: "failed", State.CANCELLED: "was cancelled", State.SKIPPED: "was skipped"}
