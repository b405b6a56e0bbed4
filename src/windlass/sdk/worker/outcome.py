"""The outcome of a handler, as data. Nothing that a handler raises goes further, except a cancel by its worker.

Formatting an exception runs code of its author: `__str__` may raise, or take long. Unless that code is known to be
harmless, it runs in a thread, with a time limit of a few seconds.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any

from windlass.core.command import storable
from windlass.core.failure import Category, Failure
from windlass.core.task import Task
from windlass.core.text import clean
from windlass.sdk.signals import Cancel
from windlass.sdk.workflow.exits import WorkflowExit

log = logging.getLogger("windlass.worker")

LINE_MAX = 1000  # characters of a failure in the log of the worker
DESCRIBE_S = 5.0  # to turn an exception into text
PLAIN_MAX = 10_000  # characters of arguments that are formatted in the event loop
CHAIN_MAX = 20

TOO_LONG = f"no message: it took longer than {DESCRIBE_S:g} s to format"

ToFailure = Callable[[BaseException], Failure]  # what an exception means
Outcome = bytes | Failure | WorkflowExit | Cancel
_PLAIN_VALUES = (str, int, float, bool, type(None))


async def outcome_of(run: Awaitable[bytes], failure: ToFailure) -> Outcome:
    """Raises nothing but CancelledError. `failure` turns an exception into a failure."""
    try:
        return await run
    except asyncio.CancelledError:
        raise
    except (WorkflowExit, Cancel) as end:
        return end
    except GeneratorExit as error:  # this coroutine may be closing, so it must not await
        return safe_failure(failure, error)
    except BaseException as error:  # SystemExit and KeyboardInterrupt too: they end the attempt, not the worker
        return await describe(failure, error)


async def describe(failure: ToFailure, error: BaseException) -> Failure:
    """The failure that an exception means. Does not block the event loop."""
    if is_plain(error):
        return safe_failure(failure, error)
    try:
        async with asyncio.timeout(DESCRIBE_S):
            return await asyncio.wrap_future(_describe_in_thread(failure, error))
    except TimeoutError:
        return placeholder_failure(error, TOO_LONG)


def describe_sync(failure: ToFailure, error: BaseException) -> Failure:
    """`describe` for programs without an event loop."""
    if is_plain(error):
        return safe_failure(failure, error)
    try:
        return _describe_in_thread(failure, error).result(DESCRIBE_S)
    except TimeoutError:
        return placeholder_failure(error, TOO_LONG)


def _describe_in_thread(failure: ToFailure, error: BaseException) -> Future[Failure]:
    """Use a daemon thread, so that formatting that never ends does not keep the program alive."""
    described: Future[Failure] = Future()

    def run() -> None:
        result = safe_failure(failure, error)
        with suppress(InvalidStateError):  # too late: the caller has given up
            described.set_result(result)

    try:
        threading.Thread(target=run, name="windlass-describe", daemon=True).start()
    except RuntimeError as problem:  # no more threads can be started
        described.set_result(placeholder_failure(error, f"no message: {problem}"))
    return described


def safe_failure(failure: ToFailure, error: BaseException) -> Failure:
    """The failure that an exception means, or a placeholder if formatting it raises."""
    try:
        return storable(failure(error))
    except BaseException as problem:
        return placeholder_failure(error, f"no message: formatting it raised {type(problem).__name__}")


def placeholder_failure(error: BaseException, why: str) -> Failure:
    name = type(error).__name__
    return Failure(Category.USER_CODE, f"{name} ({why})", name)


class CallResult:
    """The value or the exception of a call in another thread. A future cannot carry every exception: StopIteration
    would never arrive."""

    __slots__ = ("error", "value")

    def __init__(self, call: Callable[[], Any]) -> None:
        self.value: Any = None
        self.error: BaseException | None = None
        try:
            self.value = call()
        except BaseException as error:
            self.error = error

    def get(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value


def log_failure(task: Task, failure: Failure) -> None:
    """Log it. The program's own log handlers may raise, which must not end the worker."""
    with suppress(Exception):
        line = clean(failure.line, LINE_MAX)
        log.warning("task %s (%s), attempt %d failed: %s", task.id, task.kind, task.attempt, line)


def is_plain(error: BaseException) -> bool:
    """Whether its text, and that of its causes, is short and made by Python's code or ours alone."""
    pending = [error]
    with suppress(BaseException):  # its class may override any of these attributes
        for _ in range(CHAIN_MAX):
            if not pending:
                return True
            one = pending.pop()
            module, text = type(one).__module__.partition(".")[0], type(one).__str__
            if module not in ("builtins", "windlass") and text is not BaseException.__str__:
                return False
            if isinstance(one, BaseExceptionGroup) or getattr(one, "__notes__", None):
                return False
            if any(type(value) not in _PLAIN_VALUES for value in one.args):
                return False
            if sum(len(value) for value in one.args if isinstance(value, str)) > PLAIN_MAX:
                return False
            pending += [cause for cause in (one.__cause__, one.__context__) if cause is not None]
    return False
