"""What the fields of ours are called on this wire: callers are told of the one that they wrote."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from windlass.core.error import Invalid

WORDS = {
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
def in_words_of_the_wire() -> Iterator[None]:
    """What is wrong within is told in these words."""
    try:
        yield
    except Invalid as error:
        if error.field not in WORDS:
            raise
        raise type(error)(error.message.removeprefix(f"{error.field}: "), field=WORDS[error.field]) from None
