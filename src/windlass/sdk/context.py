"""What a handler can know about the attempt that it runs in. `current()` gives it anywhere below the handler."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from functools import cached_property
from typing import Any, TypeVar, overload
from uuid import UUID

from windlass.core.check import check_able, check_payload, check_type
from windlass.core.command import Claimed
from windlass.core.error import Invalid, InvalidState
from windlass.core.note import LEVELS, LINE_MAX, check_checkpoint, checked_amount
from windlass.core.task import Task
from windlass.core.text import clean
from windlass.sdk.note import AttemptNotes, Saved, Saying
from windlass.sdk.schema import from_json, to_json
from windlass.sdk.signals import trace_of

T = TypeVar("T")

_current: ContextVar[Context] = ContextVar("windlass_context")

# Attempts that somebody asked to stop, while they run here. The worker adds to it, from the event loop or from the
# thread that hears the heartbeat process, so that a handler that blocks the loop can still ask.
told_to_cancel: set[tuple[UUID, int]] = set()


class Context:
    """One attempt at one task, as its handler sees it."""

    def __init__(self, claimed: Claimed, saying: Saying | None = None, left_behind: bytes | None = None) -> None:
        if not isinstance(claimed, Claimed) or not isinstance(claimed.task, Task):
            raise Invalid(f"must be a claimed task, not {type(claimed).__name__}", field="claimed")
        if saying is not None and saying.__class__ is not AttemptNotes:  # which is our own
            check_able("saying", saying, "line")
        if left_behind is not None:
            check_payload("left_behind", left_behind)
        self._task, self._saying, self._left_behind = claimed.task, saying, left_behind
        self._cancelled = False

    @cached_property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """Log lines that say which task and attempt they belong to. From INFO up they are kept with the attempt."""
        return _AttemptLog(logging.getLogger(f"windlass.task.{self._task.kind}"), self)

    @property
    def task_id(self) -> UUID:
        return self._task.id

    @property
    def attempt(self) -> int:
        """1 for the first try. Goes up with each new try, whatever became of the last one."""
        return self._task.attempt

    @property
    def failures(self) -> int:
        """How many tries have failed so far; a worker that died does not count."""
        return self._task.failures

    @property
    def kind(self) -> str:
        return self._task.kind

    @property
    def queue(self) -> str:
        return self._task.queue

    @property
    def worker(self) -> str:
        return self._task.worker or ""

    @property
    def deadline_at(self) -> datetime | None:
        """When the engine takes this attempt away, if it does: its timeout or the task's deadline."""
        return self._task.timer_at

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt at this task: hand it to services that recognise a repeated request."""
        return f"windlass-{self._task.id}"

    @property
    def cancelled(self) -> bool:
        """Whether somebody asked to stop. For functions in threads, which cannot be interrupted and have to ask."""
        return self._cancelled or (self._task.id, self._task.attempt) in told_to_cancel

    def tell_cancelled(self) -> None:
        self._cancelled = True

    # ----------------------------------------------------------------------------------------- saying

    def progress(self, current: float, maximum: float | None = None, message: str = "") -> None:
        """Say how far it is. Never waits; of many in a short time, the last one is written."""
        amount = checked_amount(current, maximum, message)
        if self._saying is not None:
            self._saying.progress(amount)

    def checkpoint(self, data: object) -> Saved:
        """Leave something for the next attempt, should this one not come to its end; the last one counts. It is written
        soon: `await` what this returns (in a thread: `.wait()`) where the work may only go on when it has been."""
        text = to_json("checkpoint", data)
        check_checkpoint(text)
        self._left_behind = text
        if self._saying is not None:
            return self._saying.checkpoint(text)
        saved = Saved()
        saved.tell(None)
        return saved

    @overload
    def last_checkpoint(self) -> Any: ...
    @overload
    def last_checkpoint(self, kind: type[T]) -> T | None: ...

    def last_checkpoint(self, kind: Any = Any) -> Any:
        """What this attempt or an earlier one left with `checkpoint`, with the type that is asked for; None if nothing
        was left."""
        return None if self._left_behind is None else from_json("checkpoint", self._left_behind, kind)

    def say(self, level: str, message: str) -> None:
        """Keep a line of the log with the attempt."""
        if level not in LEVELS:
            raise Invalid(f"{level!r} is not a level", field="level")
        check_type("message", message, str)
        if self._saying is not None:
            self._saying.line(level, clean(message, LINE_MAX))


class _AttemptLog(logging.LoggerAdapter[logging.Logger]):
    """Log lines that say which task and attempt they belong to. From INFO up they are kept with the attempt, whatever
    the program does with its logs."""

    def __init__(self, logger: logging.Logger, context: Context) -> None:
        super().__init__(logger, {"task_id": str(context._task.id), "attempt": context._task.attempt})
        self._context = context

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if level < logging.INFO and not self.isEnabledFor(level):
            return
        try:
            text = str(msg) % args if args else str(msg)
        except Exception:  # what is logged is code of others: it may not fit, or have no words
            text = " ".join(_shown(part) for part in (msg, *args))
            msg, args = "%s", (text,)
        self._context.say(_level(level), text + _trace(kwargs.get("exc_info")))
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
        super().log(level, msg, *args, **kwargs)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


def _level(number: int) -> str:
    """The name of a level, or of the next one below that has one."""
    return LEVELS[max(0, min(number // 10, len(LEVELS)) - 1)]


def _trace(exc_info: Any) -> str:
    error = exc_info if isinstance(exc_info, BaseException) else sys.exc_info()[1] if exc_info else None
    return "" if error is None else f"\n{trace_of(error).rstrip()}"


def _shown(value: object) -> str:
    try:
        return str(value)
    except Exception as problem:
        return f"({type(value).__name__}: {type(problem).__name__} in its __str__)"


def current() -> Context:
    """The context of the handler that is running here."""
    try:
        return _current.get()
    except LookupError:
        raise InvalidState("there is no running handler here") from None


@contextmanager
def entered(context: Context) -> Iterator[None]:
    """Make it the current one for a while."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)


def enter(context: Context) -> None:
    """Make it the current one, for this asyncio task or thread."""
    _current.set(context)
