"""A task inside a worker: the object that scripts know as `task`, and the one way in which it comes to its end.

The first terminal response wins; what a script says after it is not sent.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

from .script import Script, script_of, trace_of
from .wire import decode

if TYPE_CHECKING:
    from .shm import NDArray, SharedMemory  # most tasks have no array, and need not wait for its import

TERMINAL = frozenset({"COMPLETION", "CANCELATION", "FAILURE"})


class Host(Protocol):
    """What a task needs of its worker."""

    exports: dict[str, Any]

    def encode(self, response: dict[str, Any]) -> bytes: ...
    def send(self, line: bytes) -> None: ...


class Task:
    """What a script can ask and say. `inputs` are also names in the script; `outputs` go to the client at the end."""

    def __init__(self, host: Host, request: dict[str, Any], has_types: bool) -> None:
        self.uuid: str = request["task"]
        self.inputs: dict[str, Any] = {}
        self.outputs: dict[str, Any] = {}
        self.cancel_requested = False
        self.traceparent = request.get("traceparent")
        self._host, self._script, self._raw = host, request["script"], request.get("inputs") or {}
        self._has_types = has_types
        self._ended = False
        self._ending = Lock()
        self._blocks: list[weakref.ref[SharedMemory]] = []

    @property
    def cancelRequested(self) -> bool:  # noqa: N802 - its name in the other spelling of the document
        return self.cancel_requested

    @property
    def ended(self) -> bool:
        return self._ended

    def update(self, *said: Any, message: Any = None, current: Any = None, maximum: Any = None,
               info: dict[str, Any] | None = None) -> None:  # fmt: skip
        """Say how far it is: `update(message, current, maximum)` or `update(current, maximum, message)`."""
        if len(said) > 4:
            raise TypeError("update takes a message, the current and the maximum value, and info")
        if said and _is_number(said[0]):
            names = ("current", "maximum", "message", "info")
        else:
            names = ("message", "current", "maximum", "info")
        given = {
            **dict(zip(names, said, strict=False)),
            **_said(message=message, current=current, maximum=maximum, info=info),
        }
        response: dict[str, Any] = {}
        if given.get("message") is not None:
            response["message"] = str(given["message"])
        for name in ("current", "maximum"):
            if given.get(name) is not None:
                response[name] = _whole(given[name])
        response["info"] = given.get("info")
        self._respond("UPDATE", response)

    def cancel(self) -> None:
        """End as cancelled. The script goes on, but nothing of it is sent any more."""
        self._respond("CANCELATION", {})

    def fail(self, error: Any = None) -> None:
        """End as failed."""
        self._respond("FAILURE", {} if error is None else {"error": str(error)})

    def export(self, *mappings: dict[str, Any], **variables: Any) -> None:
        """Let later tasks of this worker know these names."""
        for mapping in mappings:
            self._host.exports.update(mapping)
        self._host.exports.update(variables)

    def forget(self, *names: str) -> None:
        """Take names back that were exported."""
        for name in names:
            self._host.exports.pop(name, None)

    def array(self, dtype: Any, shape: Any) -> NDArray:
        """A new array in shared memory, to fill and to return."""
        from .shm import NDArray

        return NDArray(dtype, shape)

    def share(self, array: Any) -> NDArray:
        """A numpy array copied into shared memory, to return."""
        from .shm import share

        return share(array)

    # ----------------------------------------------------------------------------------------- its life

    def run(self) -> None:
        """From LAUNCH to the end, whatever the script does."""
        script: Script | None = None
        try:
            self._respond("LAUNCH", {})
            script = script_of(self._script)
            self.inputs = self._decoded() if self._has_types else self._raw
            names: dict[str, Any] = {"__name__": "__main__", "task": self, **self._host.exports, **self.inputs}
            self.outputs.update(script.run(names))
            self._respond("COMPLETION", {"outputs": self.outputs})
        except BaseException as error:
            self.fail(trace_of(error, script))
        finally:
            self._raw = {}

    def _decoded(self) -> dict[str, Any]:
        """Blocks are attached here, in the task, so that one that is missing fails nobody else."""
        from .shm import decode_array, decode_block

        def block(said: dict[str, Any]) -> SharedMemory:
            made = decode_block(said)
            self._blocks.append(weakref.ref(made))
            return made

        def object_here(said: dict[str, Any]) -> Any:
            return self._host.exports.get(str(said.get("var_name")), said)

        decoders = {"shm": block, "ndarray": decode_array, "worker_object": object_here}
        inputs: dict[str, Any] = decode(self._raw, decoders)
        return inputs

    def let_go(self) -> bool:
        """After the end: forget what came in. True if a cycle in the script still holds memory that came with it."""
        self.inputs, self.outputs = {}, {}
        return any(block() is not None for block in self._blocks)

    def _respond(self, kind: str, said: dict[str, Any]) -> None:
        """The line is made before the end is taken: outputs that cannot be spelled leave room for a failure."""
        if self._ended:
            return
        said["task"], said["responseType"] = self.uuid, kind
        line = self._host.encode(said)
        if kind not in TERMINAL:
            self._host.send(line)
            return
        with self._ending:
            ended, self._ended = self._ended, True
        if not ended:
            self._host.send(line)


def _is_number(value: object) -> bool:
    return not isinstance(value, str) and value is not None and _number(value) is not None


def _number(value: Any) -> Any:
    """Whole numbers as they are on the wire of the reference; others keep their fraction."""
    if isinstance(value, int):
        return int(value)
    make: Callable[[Any], Any]
    for make in (float,) if not isinstance(value, str) else (int, float):
        try:
            number = make(value)
        except (TypeError, ValueError, OverflowError):
            continue
        return int(number) if isinstance(number, float) and number.is_integer() else number
    return None


def _whole(value: Any) -> Any:
    """What is no number is sent as it is."""
    number = _number(value)
    return value if number is None else number


def _said(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
