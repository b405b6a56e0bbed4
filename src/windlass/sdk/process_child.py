"""A process of a worker's pool: runs one attempt after the other in its main thread, and says what came of each.

It ends with its parent, and when somebody kills it, which is how an attempt in a process is cancelled.
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
from windlass.core.error import LeaseLost
from windlass.core.failure import Category
from windlass.core.note import Amount
from windlass.core.text import clean, words_of
from windlass.sdk.context import Context, enter
from windlass.sdk.note import Saved
from windlass.sdk.outcome import in_words
from windlass.sdk.process_message import LENGTH, Done, Failed, FromProcess, Run, Said, Stopped, decode_to, frame
from windlass.sdk.signals import Cancel, Fail, failure_of, unfit_is_bad_data

PR_SET_PDEATHSIG = 1


def main(descriptor: int, parent: int) -> None:
    _end_with_parent(parent)
    Child(socket.socket(fileno=descriptor)).work()


class Child:
    """The process, seen from inside."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._writing = threading.Lock()
        self._work: queue.SimpleQueue[Run] = queue.SimpleQueue()
        self._unsaved: deque[Saved] = deque()

    def work(self) -> None:
        threading.Thread(target=self._listen, daemon=True).start()
        while True:
            run = self._work.get()
            self._say(self._outcome(run))

    def _outcome(self, run: Run) -> FromProcess:
        handler = None
        try:
            handler = find_handler(run)
            return Done(self._run(handler, run))
        except Cancel as stop:
            return Stopped(clean(words_of(stop)))
        except BaseException as error:
            return Failed(in_words(failure_of if handler is None else handler.failure, error))

    def _run(self, handler: Any, run: Run) -> bytes:
        context = Context(Claimed(run.task, run.payload), self, run.left_behind)
        with unfit_is_bad_data():
            arguments = handler.schema.arguments(run.payload)
        if handler.schema.context_parameter is not None:
            arguments[handler.schema.context_parameter] = context
        enter(context)
        result = handler(**arguments)
        if inspect.isawaitable(result):
            result = asyncio.run(_awaited(result))
        with unfit_is_bad_data():
            encoded: bytes = handler.schema.result(result)
        return encoded

    # ----------------------------------------------------------------------------------------- what its context says

    def progress(self, amount: Amount) -> None:
        self._say(Said(progress=amount))

    def checkpoint(self, data: bytes) -> Saved:
        saved = Saved()
        with self._writing:
            self._unsaved.append(saved)
            self._line.sendall(frame(Said(checkpoint=data)))
        return saved

    def line(self, level: str, message: str) -> None:
        self._say(Said(level=level, message=message))

    def _say(self, message: FromProcess) -> None:
        with self._writing:
            self._line.sendall(frame(message))

    # ----------------------------------------------------------------------------------------- what it is told

    def _listen(self) -> None:
        while True:
            message = decode_to(self._read(LENGTH.unpack(self._read(LENGTH.size))[0]))
            if isinstance(message, Run):
                self._unsaved.clear()
                self._work.put(message)
            elif self._unsaved:
                self._unsaved.popleft().tell(None if message.error is None else LeaseLost(message.error))

    def _read(self, size: int) -> bytes:
        read = bytearray()
        while len(read) < size:
            part = self._line.recv(size - len(read))
            if not part:
                os._exit(0)  # the worker has gone, or wants no more of us
            read += part
        return bytes(read)


def find_handler(run: Run) -> Any:
    """By its name in its module; a handler that was given another name there, by its kind."""
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
    raise Fail(f"{run.module} has no handler {run.kind} when it is imported", category=Category.CONFIGURATION)


def _module(run: Run) -> ModuleType:
    """A script is run again, but not as `__main__`, so that what stands behind that question is not."""
    if run.script is None:
        return import_module(run.module)
    known = sys.modules.get("__mp_main__")
    if known is None:
        known = ModuleType("__mp_main__")
        sys.modules["__mp_main__"] = sys.modules["__main__"] = known
        known.__dict__.update(runpy.run_path(run.script, run_name="__mp_main__"))
    return known


async def _awaited(result: Any) -> Any:
    return await result


def _end_with_parent(parent: int) -> None:
    """Also while a C call holds the interpreter's lock, where the kernel can see to it (Linux)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
