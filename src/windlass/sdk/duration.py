"""Durations: text such as "90s", "10m", "1h30m" or "2d", a timedelta, or a number of seconds."""

from __future__ import annotations

import re
from datetime import timedelta

from windlass.core.validation import check_seconds
from windlass.errors import Invalid

Duration = str | int | float | timedelta

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)\s*")


def seconds(field: str, duration: Duration, *, least: float = 0.0) -> float:
    """The duration in seconds. Raises Invalid, with this field."""
    if isinstance(duration, timedelta):
        value: float = duration.total_seconds()
    elif isinstance(duration, str):
        value = _parse(field, duration)
    else:
        value = duration
    check_seconds(field, value, least=least)
    return float(value)


def _parse(field: str, text: str) -> float:
    total, position, text = 0.0, 0, text.strip()
    while position < len(text):
        part = _PART.match(text, position)
        if part is None:
            break
        total += float(part[1]) * _SECONDS[part[2]]
        position = part.end()
    if not text or position < len(text):
        raise Invalid(f'{text!r} is not a duration such as "90s", "10m", "1h30m" or "2d"', field=field)
    return total
