"""Encodes payloads, results, checkpoints, steps and signals as JSON. NaN and infinity are refused, not written as
null."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import msgspec

UNWRITABLE = (TypeError, ValueError, NotImplementedError, OverflowError, RecursionError, msgspec.MsgspecError)
_NULL = b"null"


class JsonWriter:
    """`to_builtin` converts values of types that msgspec does not know."""

    def __init__(self, to_builtin: Callable[[Any], Any] | None = None) -> None:
        self._to_builtin = to_builtin
        self._encode = msgspec.json.Encoder(enc_hook=to_builtin).encode

    def write(self, value: Any) -> bytes:
        """Raises one of `UNWRITABLE`."""
        text = self._encode(value)
        if value is not None and _NULL in text:
            self._check_finite(value)
        return text

    def _check_finite(self, value: Any) -> None:
        """Each null in the text is a None, or NaN or infinity, which JSON does not have."""
        plain = msgspec.to_builtins(value, enc_hook=self._to_builtin, str_keys=True)
        try:
            json.dumps(plain, allow_nan=False, default=lambda _: None)
        except ValueError:
            place, number = next(_not_finite(plain, ""), ("", math.nan))
            raise ValueError(
                f"{f'{place} is ' if place else ''}{_name(number)}, which JSON has no number for"
            ) from None


def _not_finite(value: Any, place: str) -> Any:
    """The places of NaN and infinity, such as `rows[3].mean`, with their values."""
    left = [(place, value)]
    while left:
        place, value = left.pop()
        if isinstance(value, float) and not math.isfinite(value):
            yield place, value
        elif isinstance(value, dict):
            left += [(f"{place}.{name}" if place else str(name), each) for name, each in value.items()]
        elif isinstance(value, list | tuple):
            left += [(f"{place}[{number}]", each) for number, each in enumerate(value)]


def _name(number: float) -> str:
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


write_json = JsonWriter().write
