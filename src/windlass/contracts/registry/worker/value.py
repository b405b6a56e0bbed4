"""Converts inputs, outputs and contexts between JSON and Python values."""

from __future__ import annotations

from typing import Any

import msgspec

from windlass.contracts.registry.worker.options import WorkflowError
from windlass.core.json_text import UNWRITABLE, write_json
from windlass.errors import Invalid


def write_value(what: str, value: Any) -> bytes:
    """Raises a non-retryable WorkflowError for values that JSON cannot represent, such as NaN and infinity."""
    try:
        return write_json(value)
    except UNWRITABLE as error:
        raise WorkflowError(f"the {what} cannot be written as JSON: {error}", retryable=False) from None


def read_value(field: str, text: bytes) -> Any:
    try:
        return msgspec.json.decode(text) if text else None
    except msgspec.DecodeError as error:
        raise Invalid(f"is not JSON: {error}", field=field) from None
