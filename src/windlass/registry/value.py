"""Inputs, outputs and contexts: JSON on the wire, values in Python."""

from __future__ import annotations

from typing import Any

import msgspec

from windlass.core.error import Invalid
from windlass.core.json_text import UNWRITABLE, write_json
from windlass.registry.option import WorkflowError


def write_value(what: str, value: Any) -> bytes:
    """Raises WorkflowError for what JSON has no form for, NaN and infinity included: no other try would mend it."""
    try:
        return write_json(value)
    except UNWRITABLE as error:
        raise WorkflowError(f"the {what} cannot be written as JSON: {error}", retryable=False) from None


def read_value(field: str, text: bytes) -> Any:
    try:
        return msgspec.json.decode(text) if text else None
    except msgspec.DecodeError as error:
        raise Invalid(f"is not JSON: {error}", field=field) from None
