"""What a handler can know about the attempt that it runs in. `current()` gives it anywhere below the handler."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from contextvars import ContextVar
from datetime import datetime
from functools import cached_property
from typing import Any
from uuid import UUID

from windlass.core.command import Claimed
from windlass.core.error import Invalid, InvalidState
from windlass.core.task import Task

_current: ContextVar[Context] = ContextVar("windlass_context")

# Attempts that somebody asked to stop, while they run here. The worker adds to it, from the event loop or from the
# thread that hears the heartbeat process, so that a handler that blocks the loop can still ask.
told_to_cancel: set[tuple[UUID, int]] = set()


class Context:
    """One attempt at one task, as its handler sees it."""

    def __init__(self, claimed: Claimed) -> None:
        if not isinstance(claimed, Claimed) or not isinstance(claimed.task, Task):
            raise Invalid(f"must be a claimed task, not {type(claimed).__name__}", field="claimed")
        self._task = claimed.task
        self._cancelled = False

    @cached_property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """Log lines that say which task and attempt they belong to."""
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


class _AttemptLog(logging.LoggerAdapter[logging.Logger]):
    """Log lines that say which task and attempt they belong to."""

    def __init__(self, logger: logging.Logger, context: Context) -> None:
        super().__init__(logger, {"task_id": str(context._task.id), "attempt": context._task.attempt})

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


def current() -> Context:
    """The context of the handler that is running here."""
    try:
        return _current.get()
    except LookupError:
        raise InvalidState("there is no running handler here") from None


def enter(context: Context) -> None:
    """Make it the current one, for this asyncio task or thread."""
    _current.set(context)
