"""A process of a worker's pool: runs one attempt after the other in its main thread, and sends their outcomes.

It ends with its parent. To cancel an attempt, the worker kills the process.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import os
import queue
import runpy
import signal
import socket
import sys
import threading
from collections import deque
from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import Any

from windlass.core.command import Claimed
from windlass.core.failure import Category
from windlass.core.progress import Amount
from windlass.core.text import clean, words_of
from windlass.errors import LeaseLost
from windlass.sdk.context import Context, set_current
from windlass.sdk.processes.frames import (
    LENGTH,
    Done,
    Failed,
    FromProcess,
    ProgressMessage,
    Run,
    Stopped,
    decode_to,
    frame,
)
from windlass.sdk.signals import Cancel, Fail, failure_of, invalid_is_bad_data
from windlass.sdk.worker.outcome import describe_sync
from windlass.sdk.worker.progress import Saved

PR_SET_PDEATHSIG = 1


def main(descriptor: int, parent: int) -> None:
    _end_with_parent(parent)
    Child(socket.socket(fileno=descriptor)).work()


class Child:
    """The process, seen from inside."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._writing = threading.Lock()
        self._work: queue.SimpleQueue[Run] = queue.SimpleQueue()
        self._unsaved: deque[Saved] = deque()

    def work(self) -> None:
        threading.Thread(target=self._receive, daemon=True).start()
        while True:
            run = self._work.get()
            self._send(self._outcome(run))

    def _outcome(self, run: Run) -> FromProcess:
        handler = None
        try:
            handler = find_handler(run)
            return Done(self._run(handler, run))
        except Cancel as stop:
            return Stopped(clean(words_of(stop)))
        except BaseException as error:
            return Failed(describe_sync(failure_of if handler is None else handler.failure, error))

    def _run(self, handler: Any, run: Run) -> bytes:
        context = Context(Claimed(run.task, run.payload), self, run.checkpoint)
        with invalid_is_bad_data:
            arguments = handler.schema.arguments(run.payload)
        if handler.schema.context_parameter is not None:
            arguments[handler.schema.context_parameter] = context
        set_current(context)
        result = handler(**arguments)
        if inspect.isawaitable(result):
            result = asyncio.run(_awaited(result))
        with invalid_is_bad_data:
            encoded: bytes = handler.schema.result(result)
        return encoded

    # ----------------------------------------------------------------------------------------- progress of its context

    def progress(self, amount: Amount) -> None:
        self._send(ProgressMessage(progress=amount))

    def checkpoint(self, data: bytes) -> Saved:
        saved = Saved()
        with self._writing:
            self._unsaved.append(saved)
            self._connection.sendall(frame(ProgressMessage(checkpoint=data)))
        return saved

    def line(self, level: str, message: str) -> None:
        self._send(ProgressMessage(level=level, message=message))

    def _send(self, message: FromProcess) -> None:
        with self._writing:
            self._connection.sendall(frame(message))

    # ----------------------------------------------------------------------------------------- messages of the worker

    def _receive(self) -> None:
        while True:
            message = decode_to(self._read(LENGTH.unpack(self._read(LENGTH.size))[0]))
            if isinstance(message, Run):
                self._unsaved.clear()
                self._work.put(message)
            elif self._unsaved:
                self._unsaved.popleft().resolve(None if message.error is None else LeaseLost(message.error))

    def _read(self, size: int) -> bytes:
        read = bytearray()
        while len(read) < size:
            part = self._connection.recv(size - len(read))
            if not part:
                os._exit(0)  # the worker has ended, or has closed the connection
            read += part
        return bytes(read)


def find_handler(run: Run) -> Any:
    """Find a handler by its name in its module; one that has another name there, by its kind."""
    module = _module(run)
    found: Any = module
    for part in run.name.split("."):
        found = getattr(found, part, None)
    if getattr(found, "kind", None) == run.kind:
        return found
    for value in vars(module).values():
        handlers = getattr(value, "handlers", None)
        if isinstance(handlers, dict) and run.kind in handlers:
            return handlers[run.kind]
    raise Fail(f"importing {run.module} defines no handler {run.kind}", category=Category.CONFIGURATION)


def _module(run: Run) -> ModuleType:
    """The handler's module. A script runs under another name than `__main__`, so that its main block does not run."""
    if run.script is None:
        return import_module(run.module)
    module = sys.modules.get("__mp_main__")
    if module is None:
        module = ModuleType("__mp_main__")
        sys.modules["__mp_main__"] = sys.modules["__main__"] = module
        module.__dict__.update(runpy.run_path(run.script, run_name="__mp_main__"))
    return module


async def _awaited(result: Any) -> Any:
    return await result


def _end_with_parent(parent: int) -> None:
    """End when the parent does. On Linux the kernel does it, even while a C call holds the interpreter's lock."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
