"""Trace context: the W3C `traceparent` that a task carries, so that everything it causes belongs to one trace."""

from __future__ import annotations

import re

from windlass.errors import Invalid

_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def is_traceparent(value: object) -> bool:
    return isinstance(value, str) and _TRACEPARENT.fullmatch(value) is not None


def check_trace(field: str, value: object) -> None:
    if not is_traceparent(value):
        raise Invalid("must be a traceparent, such as 00-<32 hex digits>-<16 hex digits>-01", field=field)
