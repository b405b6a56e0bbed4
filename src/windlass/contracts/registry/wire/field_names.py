"""The names of our fields on this wire, so that errors name the field that the caller wrote."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from windlass.errors import Invalid

WIRE_NAMES = {
    "namespace": "namespace_id",
    "queue": "task_queue",
    "kind": "workflow_type",
    "kinds": "workflow_types",
    "kind_limits": "workflow_type_concurrency",
    "host": "hostname",
    "cron": "cron_expr",
    "payload": "input",
    "wire": "context",
}


@contextmanager
def wire_field_names() -> Iterator[None]:
    """Renames the field of an `Invalid` to its name on this wire."""
    try:
        yield
    except Invalid as error:
        if error.field not in WIRE_NAMES:
            raise
        raise type(error)(error.message.removeprefix(f"{error.field}: "), field=WIRE_NAMES[error.field]) from None
