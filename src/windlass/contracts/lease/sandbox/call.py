"""Calls one Python function in its own process: `call.py module:function FOLDER…`.

The task comes on stdin, the answer goes to stdout, and what the function prints goes to stderr. It needs nothing else
of Windlass.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

FAILED = 1
MESSAGE_MAX = 16_000
THREADS_S = 2.0


class Context:
    """What a function may report while it runs. Reports are sent at once; the task ends after all were accepted."""

    def __init__(self, send: Callable[[dict[str, Any]], object]) -> None:
        self._send = send

    def emit(self, *events: dict[str, Any]) -> None:
        """Report dataset events."""
        self._send({"say": "events", "events": list(events)})

    def publish(self, **batch: Any) -> None:
        """Publish a batch of a buffered dataset: dataset_uuid, dataset_version, batch_uri, record_count."""
        self._send({"say": "publish", **batch})

    @property
    def inputs(self) -> Any:
        raise _in_wrapper("inputs")

    def output(self, index: int = 0) -> Any:
        raise _in_wrapper(f"output({index})")

    @property
    def cancelled(self) -> bool:
        return False  # a process is cancelled by a signal


def _in_wrapper(name: str) -> RuntimeError:
    """The wrapper reads and writes data, which a process of its own cannot reach."""
    return RuntimeError(f"context.{name} is for trusted functions without `process = true`")


def main() -> None:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")

    def write(value: dict[str, Any]) -> None:
        line = json.dumps(value, allow_nan=False)  # may raise: then nothing of it is written
        out.write(f"{line}\n")
        out.flush()

    os.dup2(2, 1)  # what code prints, native code too, is not part of the answer
    target, *folders = sys.argv[1:]
    sys.path[:0] = folders
    task = json.load(sys.stdin)
    try:
        answer = call(find(target), task, Context(write))
        write(answer if is_answer(answer) else {"result": answer})
        code = 0
    except BaseException as error:  # a function that calls exit() fails its own run
        message = _message(error)
        _print_trace(message)
        retryable = getattr(error, "retryable", None)
        write({"error": message, "retryable": retryable if isinstance(retryable, bool) else None})
        code = FAILED
    _end(code)


def _end(code: int) -> None:
    """End the process. Threads that the function left behind get `THREADS_S` to finish."""
    until_s = time.monotonic() + THREADS_S
    others = [t for t in threading.enumerate() if t is not threading.current_thread() and not t.daemon]
    for thread in others:
        thread.join(max(0.0, until_s - time.monotonic()))
    if any(thread.is_alive() for thread in others):
        os._exit(code)
    sys.exit(code)


def _message(error: BaseException) -> str:
    """The error's type and message, cut to `MESSAGE_MAX`. Its `__str__` may raise."""
    try:
        message = str(error)
    except BaseException as problem:
        message = f"(no message: {type(problem).__name__} in its __str__)"
    return f"{type(error).__name__}: {message[:MESSAGE_MAX]}".rstrip(": ").encode("utf-8", "replace").decode()


def _print_trace(fallback: str) -> None:
    try:
        trace = traceback.format_exc()
    except Exception:
        trace = fallback
    with suppress(Exception):
        sys.__stderr__.write(trace[-MESSAGE_MAX:])  # type: ignore[union-attr]
        sys.__stderr__.flush()  # type: ignore[union-attr]


def find(target: str) -> Any:
    module, _, name = target.partition(":")
    found: Any = import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def call(function: Any, task: dict[str, Any], context: Context) -> Any:
    answer = function(task, context) if takes_context(function) else function(task)
    return asyncio.run(_awaited(answer)) if inspect.isawaitable(answer) else answer


async def _awaited(answer: Any) -> Any:
    return await answer


def takes_context(function: Any) -> bool:
    """Whether the function takes a second positional argument."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional for p in inspect.signature(function).parameters.values()) > 1


def is_answer(value: Any) -> bool:
    """Whether this is a whole answer with outputs, events or a result. Any other value is the result itself."""
    return isinstance(value, dict) and bool(value) and value.keys() <= {"outputs", "events", "result"}


if __name__ == "__main__":
    main()
