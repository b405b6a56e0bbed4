"""A task inside a worker: the object that scripts know as `task`, and how it ends.

The first terminal response wins; later responses are not sent.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

from .script import Script, script_of, trace_of
from .wire import decode

if TYPE_CHECKING:
    from .shm import NDArray, SharedMemory  # most tasks have no array, and skip its import

TERMINAL = frozenset({"COMPLETION", "CANCELATION", "FAILURE"})


class Host(Protocol):
    """The part of a worker that its tasks use."""

    exports: dict[str, Any]

    def encode(self, response: dict[str, Any]) -> bytes: ...
    def send(self, line: bytes) -> None: ...


class Task:
    """The API of a script. `inputs` are also names in the script; `outputs` go to the client at the end."""

    def __init__(self, host: Host, request: dict[str, Any], has_types: bool) -> None:
        self.uuid: str = request["task"]
        self.inputs: dict[str, Any] = {}
        self.outputs: dict[str, Any] = {}
        self.cancel_requested = False
        self.traceparent = request.get("traceparent")
        self._host, self._script, self._raw = host, request["script"], request.get("inputs") or {}
        self._has_types = has_types
        self.ended = False
        self._ending = Lock()
        self._blocks: list[weakref.ref[SharedMemory]] = []

    @property
    def cancelRequested(self) -> bool:  # noqa: N802 - the protocol has both spellings
        return self.cancel_requested

    def update(self, *args: Any, message: Any = None, current: Any = None, maximum: Any = None,
               info: dict[str, Any] | None = None) -> None:  # fmt: skip
        """Report progress: `update(message, current, maximum)` or `update(current, maximum, message)`."""
        if len(args) > 4:
            raise TypeError("update takes a message, the current and the maximum value, and info")
        if args and _is_number(args[0]):
            names = ("current", "maximum", "message", "info")
        else:
            names = ("message", "current", "maximum", "info")
        named = {"message": message, "current": current, "maximum": maximum, "info": info}
        values = {
            **dict(zip(names, args, strict=False)),
            **{name: value for name, value in named.items() if value is not None},
        }
        response: dict[str, Any] = {}
        if values.get("message") is not None:
            response["message"] = str(values["message"])
        for name in ("current", "maximum"):
            if (value := values.get(name)) is not None:
                number = _number(value)
                response[name] = value if number is None else number
        response["info"] = values.get("info")
        self._respond("UPDATE", response)

    def cancel(self) -> None:
        """End as cancelled. The script continues, but its responses are not sent."""
        self._respond("CANCELATION", {})

    def fail(self, error: Any = None) -> None:
        """End as failed."""
        self._respond("FAILURE", {} if error is None else {"error": str(error)})

    def export(self, *mappings: dict[str, Any], **variables: Any) -> None:
        """Make these names available to later tasks of this worker."""
        for mapping in mappings:
            self._host.exports.update(mapping)
        self._host.exports.update(variables)

    def forget(self, *names: str) -> None:
        """Remove exported names."""
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

    # ----------------------------------------------------------------------------------------- lifecycle

    def run(self) -> None:
        """Run the script, from LAUNCH to a terminal response. Raises nothing."""
        script: Script | None = None
        try:
            self._respond("LAUNCH", {})
            script = script_of(self._script)
            self.inputs = self._decode() if self._has_types else self._raw
            names: dict[str, Any] = {"__name__": "__main__", "task": self, **self._host.exports, **self.inputs}
            self.outputs.update(script.run(names))
            self._respond("COMPLETION", {"outputs": self.outputs})
        except BaseException as error:
            self.fail(trace_of(error, script))
        finally:
            self._raw = {}

    def _decode(self) -> dict[str, Any]:
        """Blocks are attached here, in the task, so that a missing one fails no other task."""
        from .shm import decode_array, decode_block

        def block(value: dict[str, Any]) -> SharedMemory:
            shm = decode_block(value)
            self._blocks.append(weakref.ref(shm))
            return shm

        def exported(value: dict[str, Any]) -> Any:
            return self._host.exports.get(str(value.get("var_name")), value)

        decoders = {"shm": block, "ndarray": decode_array, "worker_object": exported}
        inputs: dict[str, Any] = decode(self._raw, decoders)
        return inputs

    def release_memory(self) -> bool:
        """After the end: drop inputs and outputs. True if a reference cycle still holds shared memory of an input."""
        self.inputs, self.outputs = {}, {}
        return any(block() is not None for block in self._blocks)

    def _respond(self, kind: str, response: dict[str, Any]) -> None:
        """Encode the line before the task ends, so that outputs that cannot be encoded become a failure."""
        if self.ended:
            return
        response["task"], response["responseType"] = self.uuid, kind
        line = self._host.encode(response)
        if kind not in TERMINAL:
            self._host.send(line)
            return
        with self._ending:
            ended, self.ended = self.ended, True
        if not ended:
            self._host.send(line)


def _is_number(value: object) -> bool:
    return not isinstance(value, str) and value is not None and _number(value) is not None


def _number(value: Any) -> Any:
    """A number, whole ones as int, as the reference implementation sends them; None if it is no number."""
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
