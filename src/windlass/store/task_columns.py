"""The columns of a task that queries read, insert and update, from the fields of `Task` and `Submission`.

A new field needs a line here only if it is not stored as it is. `records` converts columns to fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from operator import attrgetter
from types import NoneType
from typing import Any, get_args
from uuid import UUID

import msgspec

from windlass.core.submission import Submission
from windlass.core.task import Task

TASK_COLUMNS: tuple[str, ...] = Task.__struct_fields__
# Columns that are the same for all tasks of a claim, and so are not read for each.
CLAIM_COLUMNS = (
    "namespace", "queue", "state", "priority", "concurrency_key", "outcome", "lease_id", "worker", "started_at",
)  # fmt: skip
STARTED_COLUMNS = tuple(name for name in TASK_COLUMNS if name not in CLAIM_COLUMNS)
# Columns that no rule changes: those of the submission, and two that statements of their own set. `update_tasks` writes
# all others.
_SUBMITTED_ONCE = {*Submission.__struct_fields__} - {"id", "available_at"}
_CONSTANT = _SUBMITTED_ONCE | {"has_dependents", "awaited"}
CHANGED_COLUMNS = tuple(name for name in TASK_COLUMNS if name not in _CONSTANT)
# Fields of a submission from which `insert_tasks` computes columns; it writes all others as they are.
_COMPUTED = frozenset(("available_at", "delay_s", "requires", "policy", "after", "after_any_outcome"))
SUBMITTED_COLUMNS = tuple(name for name in Submission.__struct_fields__ if name not in _COMPUTED)

_TYPES = {
    UUID: "uuid", str: "text", int: "integer", float: "double precision", bool: "boolean", bytes: "bytea",
    datetime: "timestamptz",
}  # fmt: skip


def _types(record: type[msgspec.Struct]) -> dict[str, str]:
    """The PostgreSQL type of each field; a record within a record is jsonb."""
    found = {}
    for field in msgspec.structs.fields(record):
        [type_] = [each for each in get_args(field.type) or (field.type,) if each is not NoneType][:1]
        is_json = isinstance(type_, type) and issubclass(type_, msgspec.Struct)
        found[field.name] = "jsonb" if is_json else _TYPES.get(type_, "text")
    return found


_TASK_TYPES, _SUBMISSION_TYPES = _types(Task), _types(Submission)


def _array(type_: str, number: int) -> str:
    return f"${number}::{'text' if type_ == 'jsonb' else type_}[]"  # JSON is sent as text


# The names that queries use for lists of columns. The arrays of `insert_tasks` follow the six that it computes from.
PLACEHOLDERS = {
    "{task_columns}": ", ".join(f"t.{name}" for name in TASK_COLUMNS),
    "{started_columns}": ", ".join(f"t.{name}" for name in STARTED_COLUMNS),
    "{changed_columns}": ", ".join(CHANGED_COLUMNS),
    "{changed_arrays}": ", ".join(_array(_TASK_TYPES[name], i) for i, name in enumerate(CHANGED_COLUMNS, 1)),
    "{changed_assignments}": ", ".join(
        f"{name} = u.{name}::{_TASK_TYPES[name]}" for name in CHANGED_COLUMNS if name != "id"
    ),
    "{submitted_columns}": ", ".join(SUBMITTED_COLUMNS),
    "{submitted_values}": ", ".join(f"u.{name}" for name in SUBMITTED_COLUMNS),
    "{submitted_arrays}": ", ".join(_array(_SUBMISSION_TYPES[name], i) for i, name in enumerate(SUBMITTED_COLUMNS, 7)),
}

_encode = msgspec.json.Encoder().encode


def as_json(value: object) -> str | None:
    """The text of a structured column; None for NULL."""
    return None if value is None else _encode(value).decode()


_CHANGED = [(attrgetter(name), _TASK_TYPES[name] == "jsonb") for name in CHANGED_COLUMNS]
_SUBMITTED = [attrgetter(name) for name in SUBMITTED_COLUMNS]


def changed_values(tasks: Sequence[Task]) -> list[list[Any]]:
    """One list for each of the changed columns."""
    return [[as_json(value) for value in map(get, tasks)] if json else list(map(get, tasks)) for get, json in _CHANGED]


def submitted_values(submissions: Sequence[Submission]) -> list[list[Any]]:
    """One list for each of the submitted columns."""
    return [list(map(get, submissions)) for get in _SUBMITTED]
