"""The context of a handler: the attempt that it runs in. `current()` returns it anywhere below the handler."""

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

from windlass.core.command import Claimed
from windlass.core.progress import LEVELS, LINE_MAX, check_checkpoint, checked_amount
from windlass.core.text import clean
from windlass.core.validation import check_able, check_payload, check_type
from windlass.errors import Invalid, InvalidState
from windlass.sdk.handler.schema import from_json, to_json
from windlass.sdk.signals import trace_of
from windlass.sdk.worker.progress import AttemptProgress, ProgressSink, Saved

T = TypeVar("T")

_current: ContextVar[Context] = ContextVar("windlass_context")

# Attempts in this process whose cancel was requested. The worker adds them from the event loop or from the thread that
# reads the heartbeat process, so that a handler that blocks the loop still sees `ctx.cancelled`.
cancel_requests: set[tuple[UUID, int]] = set()


class Context:
    """One attempt at one task, for its handler."""

    def __init__(self, claimed: Claimed, sink: ProgressSink | None = None, checkpoint: bytes | None = None) -> None:
        check_type("claimed", claimed, Claimed)
        if sink is not None and sink.__class__ is not AttemptProgress:  # most are, and need no check
            check_able("sink", sink, "line")
        if checkpoint is not None:
            check_payload("checkpoint", checkpoint)
        self._task, self._sink, self._checkpoint = claimed.task, sink, checkpoint
        self._cancelled = False

    @cached_property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose lines carry the task and the attempt. From INFO up they are stored with the attempt."""
        return _AttemptLog(logging.getLogger(f"windlass.task.{self._task.kind}"), self)

    @property
    def task_id(self) -> UUID:
        return self._task.id

    @property
    def attempt(self) -> int:
        """1 for the first attempt; each further attempt adds 1, however the last one ended."""
        return self._task.attempt

    @property
    def failures(self) -> int:
        """How many attempts have failed so far; a worker that died does not count."""
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
        """When the engine ends this attempt, if it does: at its timeout or the task's deadline."""
        return self._task.timer_at

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt at this task: pass it to services that recognise a repeated request."""
        return f"windlass-{self._task.id}"

    @property
    def cancelled(self) -> bool:
        """Whether a cancel was requested. For functions in threads, which cannot be interrupted and have to check."""
        return self._cancelled or (self._task.id, self._task.attempt) in cancel_requests

    def set_cancelled(self) -> None:
        self._cancelled = True

    # ----------------------------------------------------------------------------------------- progress

    def progress(self, current: float, maximum: float | None = None, message: str = "") -> None:
        """Report progress. Never waits. Of several reports in a short time, only the last one is stored."""
        amount = checked_amount(current, maximum, message)
        if self._sink is not None:
            self._sink.progress(amount)

    def checkpoint(self, data: object) -> Saved:
        """Store data for the next attempt, in case this one does not finish; the last checkpoint counts. It is stored
        soon: `await` the returned object (in a thread, call `.wait()`) to continue only when it is stored."""
        text = to_json("checkpoint", data)
        check_checkpoint(text)
        self._checkpoint = text
        if self._sink is not None:
            return self._sink.checkpoint(text)
        saved = Saved()
        saved.resolve(None)
        return saved

    @overload
    def last_checkpoint(self) -> Any: ...
    @overload
    def last_checkpoint(self, kind: type[T]) -> T | None: ...

    def last_checkpoint(self, kind: Any = Any) -> Any:
        """The last `checkpoint` of this attempt or an earlier one, as `kind`; None if there is none."""
        return None if self._checkpoint is None else from_json("checkpoint", self._checkpoint, kind)

    def say(self, level: str, message: str) -> None:
        """Store a log line with the attempt."""
        if level not in LEVELS:
            raise Invalid(f"{level!r} is not a level", field="level")
        check_type("message", message, str)
        if self._sink is not None:
            self._sink.line(level, clean(message, LINE_MAX))


class _AttemptLog(logging.LoggerAdapter[logging.Logger]):
    """Adds the task and the attempt to log lines. Lines from INFO up are stored with the attempt, however the program
    configures its logs."""

    def __init__(self, logger: logging.Logger, context: Context) -> None:
        super().__init__(logger, {"task_id": str(context._task.id), "attempt": context._task.attempt})
        self._context = context

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if level < logging.INFO and not self.isEnabledFor(level):
            return
        try:
            text = str(msg) % args if args else str(msg)
        except Exception:  # the message is the user's code: its arguments may not match, or its `__str__` may raise
            text = " ".join(_shown(part) for part in (msg, *args))
            msg, args = "%s", (text,)
        name = LEVELS[max(0, min(level // 10, len(LEVELS)) - 1)]  # of the next lower level that has a name
        self._context.say(name, text + _trace(kwargs.get("exc_info")))
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
        super().log(level, msg, *args, **kwargs)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


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
def use_context(context: Context) -> Iterator[None]:
    """Make it the current context inside the `with` block."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)


def set_current(context: Context) -> None:
    """Make it the current context of this asyncio task or thread."""
    _current.set(context)
