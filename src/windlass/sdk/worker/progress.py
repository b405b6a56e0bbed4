"""Progress, checkpoints and log lines of running handlers, sent to the engine in batches.

May be called from async code and from threads; nothing here waits. The first report goes out at once, then the latest
of each attempt a few times a second. What is left when a handler ends goes out before its outcome is reported.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Protocol

from windlass.core.command import Claimed
from windlass.core.progress import LINE_MAX, LINES_MAX, Amount, Line, ProgressReport
from windlass.core.task import Task
from windlass.core.text import clean, line_of
from windlass.errors import InvalidState, Unavailable, WindlassError
from windlass.sdk.duration import Duration, seconds
from windlass.sdk.worker.asyncio_tools import cancel_and_wait

log = logging.getLogger("windlass.worker")

EVERY_S = 0.25
BATCH_MAX = 500


class ProgressTarget(Protocol):
    """Where progress goes: an engine."""

    async def note(self, notes: Sequence[ProgressReport]) -> Sequence[WindlassError | None]: ...


class ProgressSink(Protocol):
    """Receives what a handler reports through its context."""

    def progress(self, amount: Amount) -> None: ...
    def checkpoint(self, data: bytes) -> Saved: ...
    def line(self, level: str, message: str) -> None: ...


class Saved:
    """Completes when a checkpoint is in the database: `await` it in async code, call `wait()` in a thread, or ignore
    it."""

    def __init__(self) -> None:
        self.future: Future[None] = Future()

    def __await__(self) -> Generator[Any, None, None]:
        return asyncio.shield(asyncio.wrap_future(self.future)).__await__()

    def wait(self, timeout: Duration | None = None) -> None:
        """Raises LeaseLost if the attempt is over, TimeoutError if it takes too long."""
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            raise InvalidState("wait() would block the event loop: await it instead")
        self.future.result(None if timeout is None else seconds("timeout", timeout))

    def resolve(self, error: Exception | None) -> None:
        if not self.future.done():
            self.future.set_exception(error) if error is not None else self.future.set_result(None)


class ProgressSender:
    """Sends the progress of all attempts that run in one event loop."""

    def __init__(self, target: ProgressTarget, *, pause: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._target, self._pause = target, pause
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[AttemptProgress, None] = {}  # a set that keeps its order
        self._one_at_a_time = asyncio.Lock()  # so that a later report does not overtake an earlier one
        self._runner: asyncio.Task[None] | None = None
        self.lock = threading.Lock()  # one for all attempts, since it is never held for long

    def attempt(self, claimed: Claimed) -> AttemptProgress:
        return AttemptProgress(self, claimed.task)

    def schedule(self, attempt: AttemptProgress) -> None:
        """Send what this attempt has, soon. May be called from any thread; does nothing when the loop has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._enqueue, attempt)

    def _enqueue(self, attempt: AttemptProgress) -> None:
        if attempt.closed:
            return
        self._waiting[attempt] = None
        if self._runner is None:
            self._runner = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch = list(self._waiting)[:BATCH_MAX]
                for attempt in batch:
                    del self._waiting[attempt]
                await self.send(batch)
                await self._pause(EVERY_S)
        finally:
            self._runner = None

    async def send(self, batch: Sequence[AttemptProgress]) -> None:
        """Send what these attempts have. If the engine is unavailable, it is merged with later reports."""
        async with self._one_at_a_time:
            notes = {attempt: taken for attempt in batch if (taken := attempt.take()) is not None}
            if not notes:
                return
            try:
                answers = await self._target.note([note for note, _ in notes.values()])
            except Unavailable as error:
                log.warning("cannot send the progress of %d attempts, trying again: %s", len(notes), error)
                for attempt, (note, saved) in notes.items():
                    attempt.put_back(note, saved, error)
                return
            except Exception as error:  # progress decides nothing: drop it, and let the attempt run
                log.warning("dropping progress of %d attempts that cannot be sent: %s", len(notes), line_of(error))
                for _, saved in notes.values():
                    if saved is not None:
                        saved.resolve(error)
                return
            finally:
                for attempt in notes:
                    attempt.sending = False
        for (_, saved), answer in zip(notes.values(), answers, strict=True):
            if saved is not None:
                saved.resolve(answer)

    def forget(self, attempt: AttemptProgress) -> None:
        self._waiting.pop(attempt, None)

    async def close(self) -> None:
        if self._runner is not None:
            await cancel_and_wait(self._runner)


class AttemptProgress:
    """Progress of one attempt that was not sent yet. Created for every attempt, though most never report any."""

    __slots__ = (
        "_checkpoint", "_lines", "_lock", "_number", "_progress", "_saved", "_scheduled", "_sender", "_task", "closed",
        "sending",
    )  # fmt: skip

    def __init__(self, sender: ProgressSender, task: Task) -> None:
        self._sender, self._task = sender, task
        self._lock = sender.lock
        self._progress: Amount | None = None
        self._checkpoint: bytes | None = None
        self._saved: Saved | None = None
        self._lines: list[tuple[int, str, str, float]] = []
        self._number = 0
        self._scheduled = self.closed = self.sending = False

    def progress(self, amount: Amount) -> None:
        with self._lock:
            self._progress = amount
        self._schedule()

    def checkpoint(self, data: bytes) -> Saved:
        with self._lock:
            self._checkpoint = data
            saved = self._saved = self._saved or Saved()
        self._schedule()
        return saved

    def line(self, level: str, message: str) -> None:
        message = clean(message, LINE_MAX)
        with self._lock:
            self._lines.append((self._number, level, message, time.monotonic()))
            if len(self._lines) >= 2 * LINES_MAX:
                del self._lines[:LINES_MAX]
            self._number += 1
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._sender.schedule(self)

    @property
    def empty(self) -> bool:
        return self._progress is None and self._checkpoint is None and not self._lines

    def take(self) -> tuple[ProgressReport, Saved | None] | None:
        """Everything not sent yet, as one report; None if there is nothing."""
        with self._lock:
            self._scheduled = False
            task, saved, now_s = self._task, self._saved, time.monotonic()
            if self.empty or task.lease_id is None:
                return None
            self.sending = True
            lines = tuple(
                Line(number, level, text, now_s - at_s) for number, level, text, at_s in self._lines[-LINES_MAX:]
            )
            note = ProgressReport(task.id, task.attempt, task.lease_id, self._progress, self._checkpoint, lines)
            self._progress = self._checkpoint = self._saved = None
            self._lines = []
        return note, saved

    def put_back(self, note: ProgressReport, saved: Saved | None, error: Unavailable) -> None:
        with self._lock:
            self._progress = self._progress or note.progress
            self._checkpoint = note.checkpoint if self._checkpoint is None else self._checkpoint
            now_s = time.monotonic()
            self._lines[:0] = [(line.number, line.level, line.message, now_s - line.age_s) for line in note.lines]
            if saved is not None and self._saved is None:
                self._saved = saved
            elif saved is not None:
                saved.resolve(error)
        self._schedule()

    async def close(self) -> None:
        """The handler has ended: send the rest, once, since the engine retries by itself. Also wait for reports under
        way, since the engine accepts no progress of an attempt whose outcome was reported."""
        self.closed = True
        if self.empty and not self.sending:
            return
        self._sender.forget(self)
        await self._sender.send([self])
        if self._saved is not None:
            self._saved.resolve(Unavailable("the checkpoint could not be written"))
