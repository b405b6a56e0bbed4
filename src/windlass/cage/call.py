"""Calls one Python function in a process of its own: `call.py module:function FOLDER…`, the task on stdin, the answer
on stdout. Nothing of Windlass is needed, and what the function prints goes to stderr.
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
from contextlib import suppress
from importlib import import_module
from typing import IO, Any

FAILED = 1
WORDS_MAX = 16_000
THREADS_S = 2.0


class Context:
    """What a function may say while it works. Each is on its way when the call returns; the task ends after all of them
    were accepted."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out

    def emit(self, *events: dict[str, Any]) -> None:
        """Events: what has become of datasets."""
        self._say({"say": "events", "events": list(events)})

    def publish(self, **batch: Any) -> None:
        """A batch of a buffered dataset: dataset_uuid, dataset_version, batch_uri, record_count."""
        self._say({"say": "publish", **batch})

    @property
    def cancelled(self) -> bool:
        return False  # a process is told by a signal

    def _say(self, message: dict[str, Any]) -> None:
        self._out.write(json.dumps(message, allow_nan=False) + "\n")
        self._out.flush()


def main() -> None:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # prints, also those of native code, are no answer
    target, *folders = sys.argv[1:]
    sys.path[:0] = folders
    task = json.load(sys.stdin)
    try:
        answer = call(find(target), task, Context(out))
        line = json.dumps({"result": answer} if not is_answer(answer) else answer, allow_nan=False)
    except BaseException as error:  # who calls exit ends his run, as a failure
        said = _words(error)
        _print_trace(said)
        retryable = getattr(error, "retryable", None)
        line = json.dumps({"error": said, "retryable": retryable if isinstance(retryable, bool) else None})
        code = FAILED
    else:
        code = 0
    out.write(f"{line}\n")
    out.flush()
    _end(code)


def _end(code: int) -> None:
    """The function has ended, and so does its process: threads that it left behind have a moment."""
    until_s = time.monotonic() + THREADS_S
    others = [one for one in threading.enumerate() if one is not threading.current_thread() and not one.daemon]
    for thread in others:
        thread.join(max(0.0, until_s - time.monotonic()))
    if any(thread.is_alive() for thread in others):
        os._exit(code)
    sys.exit(code)


def _words(error: BaseException) -> str:
    """Its `__str__` may raise, and what it says may be longer than anybody reads."""
    try:
        said = str(error)
    except BaseException as problem:
        said = f"(no message: {type(problem).__name__} in its __str__)"
    return f"{type(error).__name__}: {said[:WORDS_MAX]}".rstrip(": ").encode("utf-8", "replace").decode()


def _print_trace(otherwise: str) -> None:
    try:
        trace = traceback.format_exc()
    except Exception:
        trace = otherwise
    with suppress(Exception):
        sys.__stderr__.write(trace[-WORDS_MAX:])  # type: ignore[union-attr]
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
    """Whether it has room for a second argument."""
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(one.kind in places for one in inspect.signature(function).parameters.values()) > 1


def is_answer(value: Any) -> bool:
    """Outputs, events and a result, as they are reported; anything else that a function returns is its result."""
    return isinstance(value, dict) and bool(value) and value.keys() <= {"outputs", "events", "result"}


if __name__ == "__main__":
    main()
