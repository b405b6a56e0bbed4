"""A task, for its client: its script, its progress, and its outputs.

Threads wait with `wait_for`, coroutines with `await`. Waiters are woken even if listeners raise.
"""

from __future__ import annotations

import asyncio
import logging
from _thread import allocate_lock
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from os import urandom
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .service import Service

log = logging.getLogger("windlass.stdio")

INITIAL, QUEUED, RUNNING = "INITIAL", "QUEUED", "RUNNING"
COMPLETE, CANCELED, FAILED, CRASHED = "COMPLETE", "CANCELED", "FAILED", "CRASHED"
ENDS = {"COMPLETION": COMPLETE, "CANCELATION": CANCELED, "FAILURE": FAILED}
_TEXTS = {CANCELED: "Task was canceled", FAILED: "Task failed", CRASHED: "Task crashed"}


class TaskError(Exception):
    """The task did not complete: `task.status` is FAILED, CANCELED or CRASHED, `task.error` is the reason."""

    def __init__(self, task: Task) -> None:
        text = _TEXTS.get(task.status, task.status)
        super().__init__(f"{text}: {task.error}" if task.error else text)
        self.task = task


@dataclass(frozen=True)
class Update:
    """Something that happened to a task: LAUNCH, UPDATE, one of its ends, or CRASH."""

    task: Task
    response_type: str
    message: str | None = None
    current: Any = None
    maximum: Any = None
    info: Any = None


Listener = Callable[[Update], object]


class Task:
    """Made by `Service.task`. Starts with `start`, or with the first wait."""

    def __init__(self, service: Service, script: str, inputs: dict[str, Any] | None, queue: str | None) -> None:
        self.uuid = urandom(16).hex()
        self.service, self.script, self.queue = service, script, queue
        self.inputs: dict[str, Any] = {} if inputs is None else inputs
        self.outputs: dict[str, Any] = {}
        self.status = INITIAL
        self.error: str | None = None
        self.traceparent: str | None = None
        self._listeners: list[Listener] = []
        self._waiters: list[Callable[[], object]] = []
        self._finished = False
        self._starting = allocate_lock()

    # ----------------------------------------------------------------------------------------- requests

    def listen(self, listener: Listener) -> Task:
        """Add a listener before the start. It is called for every update, in the thread that reads the worker."""
        if self.status != INITIAL:
            raise RuntimeError("listeners must be added before the task is started")
        self._listeners.append(listener)
        return self

    def start(self) -> Task:
        """Send it to the worker, once."""
        with self._starting:
            if self.status != INITIAL:
                raise RuntimeError("the task was already started")
            self.status = QUEUED
        self.service.send_task(self)
        return self

    def cancel(self) -> None:
        """Ask its script to stop. The script decides whether and when it does."""
        if not self._finished:
            self.service.send_cancel(self)

    # ----------------------------------------------------------------------------------------- waiting

    @property
    def is_finished(self) -> bool:
        return self._finished

    @property
    def is_error(self) -> bool:
        return self.status in _TEXTS

    def wait_for(self, timeout: float | None = None) -> Task:
        """Start it if need be, and wait for its end. Raises TaskError unless it completed; TimeoutError if that takes
        longer than `timeout` seconds; the task then continues."""
        if self.status == INITIAL:
            self.start()
        if not self._finished:
            lock = allocate_lock()
            lock.acquire()
            self._waiters.append(lock.release)
            # It may have ended since the last check, without a look at this waiter.
            woken = self._finished or lock.acquire(timeout=-1 if timeout is None else max(0.0, timeout))
            if not woken and not self._finished:
                with suppress(ValueError):
                    self._waiters.remove(lock.release)
                raise TimeoutError(f"the task is {self.status} after {timeout} s")
        if self.status != COMPLETE:
            raise TaskError(self)
        return self

    def result(self, timeout: float | None = None) -> Any:
        """The output `result`; waits for the end."""
        return self.wait_for(timeout).outputs.get("result")

    def __await__(self) -> Generator[Any, None, Any]:
        return self._wait().__await__()

    async def _wait(self) -> Any:
        """A coroutine that is cancelled while it waits asks the script to stop."""
        if self.status == INITIAL:
            self.start()
        ended = asyncio.Event()
        self._waiters.append(partial(_call_in_loop, asyncio.get_running_loop(), ended.set))
        try:
            if not self._finished:
                await ended.wait()
        except asyncio.CancelledError:
            self.cancel()
            raise
        return self.result()

    async def updates(self) -> AsyncIterator[Update]:
        """Start it, and yield its updates until it has ended."""
        updates: asyncio.Queue[Update | None] = asyncio.Queue()
        put = partial(_call_in_loop, asyncio.get_running_loop(), updates.put_nowait)
        self.listen(put)
        self._waiters.append(partial(put, None))
        self.start()
        while (update := await updates.get()) is not None:
            yield update

    # ----------------------------------------------------------------------------------------- responses

    def on_response(self, kind: str, response: dict[str, Any]) -> None:
        """A response that is not the end."""
        if kind == "LAUNCH":
            self.status = RUNNING
        self._notify(kind, response)

    def end(self, kind: str, status: str, *, outputs: dict[str, Any] | None = None, error: str | None = None) -> None:
        """End it, once. Its outputs are set before waiters are woken."""
        if self._finished:
            return
        self.outputs.update(outputs or {})
        self.error, self.status = error, status
        self._finished = True
        self._notify(kind, {})
        while self._waiters:
            with suppress(IndexError):
                self._waiters.pop()()

    def _notify(self, kind: str, response: dict[str, Any]) -> None:
        if not self._listeners:
            return
        get = response.get
        update = Update(self, kind, get("message"), get("current"), get("maximum"), get("info"))
        for listener in self._listeners:
            try:
                listener(update)
            except Exception:
                log.exception("a listener of the task %s failed", self.uuid)


def _call_in_loop(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: object) -> None:
    with suppress(RuntimeError):  # the loop has been closed
        loop.call_soon_threadsafe(function, *args)
