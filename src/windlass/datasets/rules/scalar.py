"""Scalars of a DAG file: text to values.

A scalar is read by the type of its field, so that `name: no` is the text "no". Inside `config`, where fields have no
types, the core schema of YAML 1.2 decides. Quoted scalars are always text.
"""

from __future__ import annotations

import math
import re

INT_MIN, INT_MAX = -(2**63), 2**63 - 1
_INT = re.compile(r"[-+]?[0-9]+")
_OCTAL, _HEX = re.compile(r"0o[0-7]+"), re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_DURATION = re.compile(r"([1-9][0-9]{0,8})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
DIGITS_MAX = 4000  # Python refuses to read longer numbers
NEVER = -1


class BadScalar(ValueError):
    """A scalar that has no value. The message says why."""


def read_int(text: str) -> int:
    """A whole number, in any notation of the core schema. Raises BadScalar."""
    value = _whole(text)
    if value is None:
        raise BadScalar("must be a whole number")
    return value


def read_bool(text: str) -> bool:
    """Raises BadScalar for anything but true and false."""
    if text not in _BOOLS:
        raise BadScalar("must be true or false")
    return _BOOLS[text]


def read_duration(text: str) -> int:
    """Seconds, or `NEVER`. Raises BadScalar."""
    if text == "never":
        return NEVER
    if text == "0":
        return 0
    found = _DURATION.fullmatch(text)
    if found is None:
        raise BadScalar("must be a time such as 90s, 5m, 2h or 1d, or 0, or never")
    return int(found[1]) * _SECONDS[found[2]]


def read_core(text: str) -> object:
    """A plain scalar by the core schema of YAML 1.2. Raises BadScalar for numbers that JSON does not have."""
    if text in _NULLS:
        return None
    if text in _BOOLS:
        return _BOOLS[text]
    if (whole := _whole(text)) is not None:
        return whole
    if _NOT_FINITE.fullmatch(text):
        raise BadScalar("is not a number that JSON has")
    if not _FLOAT.fullmatch(text):
        return text
    value = float(text)
    if not math.isfinite(value):
        raise BadScalar("is too large for a number")
    return value


def _whole(text: str) -> int | None:
    base = 10 if _INT.fullmatch(text) else 8 if _OCTAL.fullmatch(text) else 16 if _HEX.fullmatch(text) else 0
    if not base:
        return None
    value = int(text, base) if len(text) <= DIGITS_MAX else INT_MAX + 1
    if not INT_MIN <= value <= INT_MAX:
        raise BadScalar("is too large: whole numbers have 64 bits")
    return value
