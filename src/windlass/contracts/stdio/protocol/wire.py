"""Values as JSON, with types that JSON lacks as objects with the key `appose_type`, anywhere in a value.

Owns the format. The decoders, which are arguments, decide what such an object stands for (a block of memory, an object
of a worker).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

TYPE = "appose_type"
MARK = b"appose_type"
AUTO = "_appose_auto_"  # prefix of names that a worker generates
Decoders = Mapping[str, Callable[[dict[str, Any]], Any]]


def refuse(value: object) -> Any:
    """Raise TypeError: a client cannot send this value."""
    kind = type(value)
    hint = " (windlass.stdio.share makes an array that can)" if kind.__module__.startswith("numpy") else ""
    raise TypeError(f"a {kind.__module__}.{kind.__qualname__} cannot be sent to a worker{hint}")


def encoder(default: Callable[[object], Any]) -> Callable[[Any], str]:
    """`default` encodes values that are neither JSON nor have `to_wire`."""

    def convert(value: object) -> Any:
        to_wire = getattr(value, "to_wire", None)
        if to_wire is not None and getattr(type(value), "appose_type", None):
            return to_wire()
        reference = _of_reference(value)
        return default(value) if reference is None else reference

    to_json = json.JSONEncoder(separators=(",", ":"), default=convert, allow_nan=False).encode

    def encode(value: Any) -> str:
        try:
            return to_json(value)
        except ValueError as error:
            if not str(error).startswith("Out of range float"):
                raise
            raise ValueError("NaN and infinity cannot be sent: JSON has no such numbers") from None

    return encode


def _of_reference(value: object) -> dict[str, Any] | None:
    """Arrays and blocks of the reference implementation, which scripts written for it use."""
    kind = type(value)
    if kind.__module__ != "appose.shm":
        return None
    if kind.__name__ == "NDArray":
        array: Any = value
        return {TYPE: "ndarray", "dtype": array.dtype, "shape": list(array.shape), "shm": array.shm}
    block: Any = value
    # The client cleans up the block, so the resource tracker must forget it: the reference worker does that when it
    # makes the block, we do it when we send it.
    if not getattr(block, "_handed_over", False):
        from multiprocessing import resource_tracker

        block._handed_over = True
        resource_tracker.unregister(block._name, "shared_memory")
    return {TYPE: "shm", "name": block.name, "rsize": block.rsize}


def decode(value: Any, decoders: Decoders) -> Any:
    """The value with all types that `decoders` know; other types stay dictionaries."""
    if isinstance(value, dict):
        decoder = decoders.get(value[TYPE]) if isinstance(value.get(TYPE), str) else None
        inner = {key: decode(each, decoders) for key, each in value.items()}
        return inner if decoder is None else decoder(inner)
    if isinstance(value, list):
        return [decode(each, decoders) for each in value]
    return value
