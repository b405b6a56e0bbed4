"""What came of a handler, as data. Nothing that a handler raises goes further than this, but a cancel by its worker.

To put an exception into words runs code of its author: `__str__` may raise, or take its time. What is not known to be
harmless is done in a thread, and not waited for beyond a moment.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from windlass.core.command import storable
from windlass.core.failure import Category, Failure
from windlass.core.task import Task
from windlass.core.text import clean
from windlass.sdk.leaving import Leaving
from windlass.sdk.signals import Cancel

log = logging.getLogger("windlass.worker")

LINE_MAX = 1000  # characters of a failure in the log of the worker
WORDS_S = 5.0  # for an exception to say what it means
PLAIN_MAX = 10_000  # characters of arguments that are put into words at once
CHAIN_MAX = 20

TOO_LONG = f"it took longer than {WORDS_S:g} s to put it into words"

Meaning = Callable[[BaseException], Failure]
Outcome = bytes | Failure | Leaving | Cancel
_PLAIN_VALUES = (str, int, float, bool, type(None))


async def outcome_of(run: Awaitable[bytes], failure: Meaning) -> Outcome:
    """Raises nothing but CancelledError. `failure` says what an exception means."""
    try:
        return await run
    except asyncio.CancelledError:
        raise
    except (Leaving, Cancel) as end:
        return end
    except GeneratorExit as error:  # may be the end of this coroutine: nothing can be waited for
        return tried(failure, error)
    except BaseException as error:  # SystemExit and KeyboardInterrupt too: they end the attempt, not the worker
        return await described(failure, error)


async def described(failure: Meaning, error: BaseException) -> Failure:
    """What it means, in words. The event loop does not wait for them."""
    if is_plain(error):
        return tried(failure, error)
    loop = asyncio.get_running_loop()
    made: asyncio.Future[Failure] = loop.create_future()

    def set_made(found: Failure) -> None:
        if not made.done():
            made.set_result(found)

    def tell(found: Failure) -> None:
        with suppress(RuntimeError):  # the loop has been closed
            loop.call_soon_threadsafe(set_made, found)

    try:
        _describe(failure, error, tell)
        async with asyncio.timeout(WORDS_S):
            return await made
    except TimeoutError:
        return wordless(error, TOO_LONG)


def in_words(failure: Meaning, error: BaseException) -> Failure:
    """The same for programs that may wait."""
    if is_plain(error):
        return tried(failure, error)
    found: list[Failure] = []
    done = threading.Event()

    def tell(made: Failure) -> None:
        found.append(made)
        done.set()

    _describe(failure, error, tell)
    done.wait(WORDS_S)
    return found[0] if found else wordless(error, TOO_LONG)


def _describe(failure: Meaning, error: BaseException, tell: Callable[[Failure], None]) -> None:
    """In a thread that nobody waits for at the end of the program."""
    try:
        threading.Thread(target=lambda: tell(tried(failure, error)), name="windlass-words", daemon=True).start()
    except RuntimeError as problem:  # no thread to be had
        tell(wordless(error, f"it was not put into words: {problem}"))


def tried(failure: Meaning, error: BaseException) -> Failure:
    """What the exception means, or at least that there was one."""
    try:
        return storable(failure(error))
    except BaseException as problem:
        return wordless(error, f"it cannot be put into words: {type(problem).__name__}")


def wordless(error: BaseException, why: str) -> Failure:
    name = type(error).__name__
    return Failure(Category.USER_CODE, f"{name} ({why})", name)


class Returned:
    """What a call came to, in the thread that made it. A future cannot carry every exception: StopIteration would never
    arrive."""

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
    """What logs is code of the program, too: it may have been told to raise."""
    with suppress(Exception):
        line = clean(failure.line, LINE_MAX)
        log.warning("task %s (%s), attempt %d failed: %s", task.id, task.kind, task.attempt, line)


def is_plain(error: BaseException) -> bool:
    """Whether its words, and those of what caused it, are few and come from nobody's code but ours and Python's."""
    try:
        return _is_plain(error)
    except BaseException:
        return False


def _is_plain(error: BaseException) -> bool:
    left = [error]
    for _ in range(CHAIN_MAX):
        if not left:
            return True
        one = left.pop()
        kind = type(one)
        ours = kind.__module__.partition(".")[0] in ("builtins", "windlass") or kind.__str__ is BaseException.__str__
        if not ours or isinstance(one, BaseExceptionGroup) or getattr(one, "__notes__", None):
            return False
        if any(type(value) not in _PLAIN_VALUES for value in one.args):
            return False
        if sum(len(value) for value in one.args if isinstance(value, str)) > PLAIN_MAX:
            return False
        left += [cause for cause in (one.__cause__, one.__context__) if cause is not None]
    return False
