"""What handlers say while they run, sent in groups and not too often: progress, checkpoints, lines of their log.

May be called from async code and from threads; nothing here waits. The first word goes out at once, then the latest of
each attempt a few times a second, and what is left when its handler ends goes out before its end is reported.
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
from windlass.core.error import InvalidState, Unavailable, WindlassError
from windlass.core.note import LINE_MAX, LINES_MAX, Amount, Line, Note
from windlass.core.task import Task
from windlass.core.text import clean, line_of
from windlass.sdk.duration import Duration, seconds

log = logging.getLogger("windlass.worker")

EVERY_S = 0.25
BATCH_MAX = 500


class NoteTarget(Protocol):
    """Where notes go: an engine."""

    async def note(self, notes: Sequence[Note]) -> Sequence[WindlassError | None]: ...


class Saying(Protocol):
    """What a context needs in order to pass on what its handler says."""

    def progress(self, amount: Amount) -> None: ...
    def checkpoint(self, data: bytes) -> Saved: ...
    def line(self, level: str, message: str) -> None: ...


class Saved:
    """That a checkpoint is in the database: `await` it in async code, `wait()` for it in a thread, or do neither."""

    def __init__(self) -> None:
        self.future: Future[None] = Future()

    def __await__(self) -> Generator[Any, None, None]:
        return asyncio.shield(asyncio.wrap_future(self.future)).__await__()

    def wait(self, timeout: Duration | None = None) -> None:
        """Raises LeaseLost if the attempt is over, TimeoutError if it takes too long."""
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            raise InvalidState("this is inside an event loop: await it")
        self.future.result(None if timeout is None else seconds("timeout", timeout))

    def tell(self, error: Exception | None) -> None:
        if not self.future.done():
            self.future.set_exception(error) if error is not None else self.future.set_result(None)


class Notes:
    """The notes of all attempts that run in one event loop."""

    def __init__(self, target: NoteTarget, *, pause: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._target, self._pause = target, pause
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[AttemptNotes, None] = {}  # a set that keeps its order
        self._one_at_a_time = asyncio.Lock()  # so that a later word does not arrive before an earlier one
        self._runner: asyncio.Task[None] | None = None
        self.lock = threading.Lock()  # of all attempts together: it is held for a moment

    def of(self, claimed: Claimed) -> AttemptNotes:
        return AttemptNotes(self, claimed.task)

    def changed(self, attempt: AttemptNotes) -> None:
        """From any thread; too late when the loop has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._enqueue, attempt)

    def _enqueue(self, attempt: AttemptNotes) -> None:
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

    async def send(self, batch: Sequence[AttemptNotes]) -> None:
        """What cannot be sent now waits for the next time, behind what was said since."""
        async with self._one_at_a_time:
            said = {attempt: taken for attempt in batch if (taken := attempt.take()) is not None}
            if not said:
                return
            try:
                answers = await self._target.note([note for note, _ in said.values()])
            except Unavailable as error:
                log.warning("cannot write what %d attempts said: %s", len(said), error)
                for attempt, (note, saved) in said.items():
                    attempt.put_back(note, saved, error)
                return
            except Exception as error:  # a note decides nothing: what cannot be written is left out, and told
                log.warning("what %d attempts said cannot be written: %s", len(said), line_of(error))
                for _, saved in said.values():
                    if saved is not None:
                        saved.tell(error)
                return
            finally:
                for attempt in said:
                    attempt.sending = False
        for (_, saved), answer in zip(said.values(), answers, strict=True):
            if saved is not None:
                saved.tell(answer)

    def forget(self, attempt: AttemptNotes) -> None:
        self._waiting.pop(attempt, None)

    async def close(self) -> None:
        if self._runner is not None:
            self._runner.cancel()
            with suppress(asyncio.CancelledError):
                await self._runner


class AttemptNotes:
    """What one attempt has said and was not sent yet. Made for every attempt, most of which never say anything."""

    __slots__ = (
        "_checkpoint", "_lines", "_lock", "_notes", "_number", "_progress", "_saved", "_task", "_told", "closed",
        "sending",
    )  # fmt: skip

    def __init__(self, notes: Notes, task: Task) -> None:
        self._notes, self._task = notes, task
        self._lock = notes.lock
        self._progress: Amount | None = None
        self._checkpoint: bytes | None = None
        self._saved: Saved | None = None
        self._lines: list[tuple[int, str, str, float]] = []
        self._number = 0
        self._told = False  # that there is something to send
        self.closed = self.sending = False

    def progress(self, amount: Amount) -> None:
        with self._lock:
            self._progress = amount
        self._tell()

    def checkpoint(self, data: bytes) -> Saved:
        with self._lock:
            self._checkpoint = data
            saved = self._saved = self._saved or Saved()
        self._tell()
        return saved

    def line(self, level: str, message: str) -> None:
        message = clean(message, LINE_MAX)
        with self._lock:
            self._lines.append((self._number, level, message, time.monotonic()))
            if len(self._lines) >= 2 * LINES_MAX:
                del self._lines[:LINES_MAX]
            self._number += 1
        self._tell()

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            self._notes.changed(self)

    @property
    def silent(self) -> bool:
        return self._progress is None and self._checkpoint is None and not self._lines

    def take(self) -> tuple[Note, Saved | None] | None:
        """All of it, as one note; None if there is nothing."""
        with self._lock:
            self._told = False
            task, saved, now_s = self._task, self._saved, time.monotonic()
            if self.silent or task.lease_id is None:
                return None
            self.sending = True
            lines = tuple(
                Line(number, level, text, now_s - at_s) for number, level, text, at_s in self._lines[-LINES_MAX:]
            )
            note = Note(task.id, task.attempt, task.lease_id, self._progress, self._checkpoint, lines)
            self._progress = self._checkpoint = self._saved = None
            self._lines = []
        return note, saved

    def put_back(self, note: Note, saved: Saved | None, error: Unavailable) -> None:
        with self._lock:
            self._progress = self._progress or note.progress
            self._checkpoint = note.checkpoint if self._checkpoint is None else self._checkpoint
            now_s = time.monotonic()
            self._lines[:0] = [(line.number, line.level, line.message, now_s - line.age_s) for line in note.lines]
            if saved is not None and self._saved is None:
                self._saved = saved
            elif saved is not None:
                saved.tell(error)
        self._tell()

    async def close(self) -> None:
        """The handler has ended: send what is left, once (the engine has been patient already), and do not overtake
        what is on its way, since nothing is accepted of an attempt whose end was reported."""
        self.closed = True
        if self.silent and not self.sending:
            return
        self._notes.forget(self)
        await self._notes.send([self])
        if self._saved is not None:
            self._saved.tell(Unavailable("the checkpoint could not be written"))
