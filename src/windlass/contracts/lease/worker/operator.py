"""Operators: what runs a task, a Python function in this process or a program in its own process.

Owns the shape of an operator and of its answer, and the messages that an operator may send while it runs. An untrusted
operator is always a program in a sandbox, even if it is written as a function.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from inspect import isawaitable, iscoroutinefunction, isfunction
from pathlib import Path
from typing import Annotated, Any, Protocol

import msgspec
from msgspec import Meta

from windlass.contracts.lease.sandbox import call
from windlass.contracts.lease.worker.data import Input, Output, TaskData
from windlass.core.failure import Failure
from windlass.errors import Invalid
from windlass.sdk.signals import failure_of
from windlass.sdk.worker.outcome import CallResult, describe

ANY = "*"
MIB = 1024 * 1024


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one run may use. The memory limit holds for each process and for all together, CPU time and file size for
    each process. None means no limit, for trusted operators only."""

    timeout_s: Annotated[float, Meta(gt=0)] | None = None
    cpu_s: Annotated[int, Meta(ge=1)] | None = None
    memory_bytes: Annotated[int, Meta(ge=32 * MIB)] | None = None
    output_bytes: Annotated[int, Meta(ge=1, le=64 * MIB)] = MIB
    folder_bytes: Annotated[int, Meta(ge=4096)] | None = None
    file_bytes: Annotated[int, Meta(ge=4096)] | None = None
    processes: Annotated[int, Meta(ge=1)] | None = None
    files: Annotated[int, Meta(ge=16)] | None = None
    grace_s: Annotated[float, Meta(ge=0)] = 10.0


UNTRUSTED = {
    "timeout_s": 300.0, "cpu_s": 300, "memory_bytes": 1024 * MIB, "folder_bytes": 64 * MIB, "file_bytes": 64 * MIB,
    "processes": 64, "files": 256,
}  # fmt: skip


class Operator(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One way to run tasks. `read` are the paths that an untrusted operator may read besides system programs and
    Python; the modules of a function are imported from them."""

    function: str | None = None
    command: list[str] | None = None
    trusted: bool = True
    process: bool = False  # run a function in its own process, which can be killed
    read: list[Path] = []
    env: dict[str, str] = {}
    limits: Limits = Limits()

    @property
    def in_process(self) -> bool:
        """Whether it runs in the wrapper itself, which only a trusted function may."""
        return self.function is not None and self.trusted and not self.process

    @property
    def enforced(self) -> Limits:
        """The limits in force. An untrusted operator is never without limits."""
        if self.trusted:
            return self.limits
        defaults = {name: value for name, value in UNTRUSTED.items() if getattr(self.limits, name) is None}
        return msgspec.structs.replace(self.limits, **defaults)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of an operator that succeeded."""

    outputs: list[Any] = []
    events: list[Any] = []
    result: Any = None


class OperatorFailed(Exception):
    """The operator failed, with a message for people. `retryable` False: another attempt would fail as well."""

    def __init__(self, message: str, *, retryable: bool | None = None) -> None:
        super().__init__(message)
        self.retryable = retryable


class MessageSink(Protocol):
    """Takes the messages of a running operator, in order. `send` may be called from any thread."""

    def send(self, message: Mapping[str, Any]) -> None: ...


class Context(call.Context):
    """What a function in the wrapper's process may use while it runs."""

    def __init__(self, task: Mapping[str, Any], messages: MessageSink) -> None:
        super().__init__(messages.send)
        self.data = TaskData(task, messages.send)
        self._cancelled = threading.Event()

    @property
    def inputs(self) -> Sequence[Input]:
        """The inputs of the task."""
        return self.data.inputs

    def output(self, index: int = 0) -> Output:
        """An output of the task, to write or to publish."""
        return self.data.output(index)

    @property
    def cancelled(self) -> bool:
        """Whether the task was cancelled. A function in a thread has to stop by itself."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        self._cancelled.set()


def checked(name: str, operator: Operator) -> Operator:
    """The operator, if it can be run. Raises Invalid."""
    field = f"operators.{name}"
    if (operator.function is None) == (operator.command is None):
        raise Invalid("must have a function or a command, and not both", field=field)
    if operator.command is not None and not operator.command:
        raise Invalid("must name a program", field=f"{field}.command")
    if operator.function is not None and ":" not in operator.function:
        raise Invalid("must be like module:function", field=f"{field}.function")
    for path in operator.read:
        if not path.exists():
            raise Invalid(f"there is no {path}", field=f"{field}.read")
    if operator.in_process:
        load(operator.function or "")
    return operator


def functions_of(module: str) -> dict[str, str]:
    """The functions that a module defines, as `module:function` by name. Names that begin with `_` are left out."""
    _add_current_folder()
    try:
        found = vars(import_module(module))
    except ImportError as error:
        raise Invalid(f"{module} cannot be imported: {error}", field="operators") from None
    names = [name for name, value in found.items() if isfunction(value) and value.__module__ == module]
    return {name: f"{module}:{name}" for name in names if not name.startswith("_")}


def _add_current_folder() -> None:
    """Let modules of the current folder be imported, as `python -m` does."""
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)


def load(target: str) -> Callable[..., Any]:
    """Import `module:function`."""
    _add_current_folder()
    try:
        found = call.find(target)
    except (ImportError, AttributeError) as error:
        raise Invalid(f"{target}: {error}", field="function") from None
    if not callable(found):
        raise Invalid(f"{target} is not a function", field="function")
    function: Callable[..., Any] = found
    return function


class Functions:
    """Runs functions in this process: async ones in the event loop, others in threads."""

    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="operator")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def run(self, operator: Operator, task: Mapping[str, Any], messages: MessageSink) -> Answer:
        function, context = load(operator.function or ""), Context(task, messages)
        arguments = (dict(task), context) if call.takes_context(function) else (dict(task),)
        limit = asyncio.timeout(operator.limits.timeout_s)
        try:
            async with limit:
                value = await self._call(function, arguments, context, operator.limits.grace_s)
            answer = answer_of(value if call.is_answer(value) else {"result": value})
            return msgspec.structs.replace(answer, outputs=[*context.data.reports, *answer.outputs])
        except (OperatorFailed, asyncio.CancelledError):
            raise
        except BaseException as error:  # a function that calls exit() ends its run, not the wrapper
            if limit.expired():
                context.cancel()
                raise OperatorFailed(f"it ran longer than {operator.limits.timeout_s:g} s") from None
            failure = await describe(_failure_of, error)
            raise OperatorFailed(failure.line, retryable=failure.retryable) from None

    async def _call(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], context: Context, grace_s: float
    ) -> Any:
        if iscoroutinefunction(function):
            return await function(*arguments)
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._threads, CallResult, partial(function, *arguments))
        try:
            value = (await asyncio.shield(running)).get()
        except asyncio.CancelledError:
            context.cancel()
            await asyncio.wait({running}, timeout=grace_s)
            raise
        return await value if isawaitable(value) else value


def _failure_of(error: BaseException) -> Failure:
    """The failure, with the error's own `retryable` if it has one."""
    retryable = getattr(error, "retryable", None)
    return failure_of(error, retryable if isinstance(retryable, bool) else None)


def answer_of(value: Mapping[str, Any]) -> Answer:
    """Raises OperatorFailed for an error that the operator reports, and for an answer of a wrong shape."""
    if value.get("error") is not None:
        retryable = value.get("retryable")
        raise OperatorFailed(str(value["error"]), retryable=retryable if isinstance(retryable, bool) else None)
    for name in ("outputs", "events"):
        if not isinstance(value.get(name) or [], list):
            raise OperatorFailed(f"its {name} must be a list", retryable=False)
    return Answer(outputs=value.get("outputs") or [], events=value.get("events") or [], result=value.get("result"))
