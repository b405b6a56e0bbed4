"""Values as JSON, and those that JSON does not know: dictionaries with the key `appose_type`, anywhere in a value.

Owns the spelling. What a name in such a dictionary stands for (a block of memory, an object of a worker) is decided by
the decoders that are given.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

TYPE = "appose_type"
MARK = b"appose_type"
Decoders = Mapping[str, Callable[[dict[str, Any]], Any]]


def refuse(value: object) -> Any:
    """What a client does with a value that cannot travel."""
    kind = type(value)
    hint = " (windlass.stdio.share makes an array that can)" if kind.__module__.startswith("numpy") else ""
    raise TypeError(f"a {kind.__module__}.{kind.__qualname__} cannot be sent to a worker{hint}")


def encoder(default: Callable[[object], Any]) -> Callable[[Any], str]:
    """`default` is asked for whatever is neither JSON nor knows its own spelling."""

    def spell(value: object) -> Any:
        known = getattr(value, "to_wire", None)
        if known is not None and getattr(type(value), "appose_type", None):
            return known()
        reference = _of_reference(value)
        return default(value) if reference is None else reference

    written = json.JSONEncoder(separators=(",", ":"), default=spell, allow_nan=False).encode

    def encode(value: Any) -> str:
        try:
            return written(value)
        except ValueError as error:
            if not str(error).startswith("Out of range float"):
                raise
            raise ValueError("NaN and infinity cannot be sent: JSON has no such numbers") from None

    return encode


def _of_reference(value: object) -> dict[str, Any] | None:
    """Arrays and blocks of the reference implementation, which scripts written for it make."""
    kind = type(value)
    if kind.__module__ != "appose.shm":
        return None
    if kind.__name__ == "NDArray":
        array: Any = value
        return {TYPE: "ndarray", "dtype": array.dtype, "shape": list(array.shape), "shm": array.shm}
    block: Any = value
    _hand_over(block)
    return {TYPE: "shm", "name": block.name, "rsize": block.rsize}


def _hand_over(block: Any) -> None:
    """Its own worker forgets a block once it is made, since the client cleans up. Here, it is forgotten when sent."""
    if not getattr(block, "_handed_over", False):
        from multiprocessing import resource_tracker

        block._handed_over = True
        resource_tracker.unregister(block._name, "shared_memory")


def decode(value: Any, decoders: Decoders) -> Any:
    """The value with all that `decoders` know put in place; other types stay dictionaries."""
    if isinstance(value, dict):
        known = decoders.get(value[TYPE]) if isinstance(value.get(TYPE), str) else None
        inner = {key: decode(each, decoders) for key, each in value.items()}
        return inner if known is None else known(inner)
    if isinstance(value, list):
        return [decode(each, decoders) for each in value]
    return value
