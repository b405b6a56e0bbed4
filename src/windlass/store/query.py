"""Named queries, read from the .sql files beside this module, so that SQL is reviewed as SQL.

A query begins with `-- name: its_name`, followed by comment lines with its promise. `{task_columns}` stands for the
columns of a task record, in the order of `core.task.Task`; `{step_columns}` and `{schedule_columns}` are like it, and
`{started_columns}` leaves out what a claim knows of all its tasks.
"""

from __future__ import annotations

import re
from importlib.resources import files

from windlass.core.schedule import Schedule
from windlass.core.step import Step
from windlass.core.task import Task

TASK_COLUMNS: tuple[str, ...] = Task.__struct_fields__
# What a claim of one lane says or writes itself, and so need not be told for each task.
SAID_BY_CLAIM = frozenset(
    ("namespace", "queue", "state", "priority", "concurrency_key", "outcome", "lease_id", "worker", "started_at")
)
STARTED_COLUMNS = tuple(name for name in TASK_COLUMNS if name not in SAID_BY_CLAIM)
_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


def load_queries() -> dict[str, str]:
    """Every query by its name; a name that is there twice is a mistake."""
    columns = ", ".join(f"t.{name}" for name in TASK_COLUMNS)
    started_columns = ", ".join(f"t.{name}" for name in STARTED_COLUMNS)
    step_columns = ", ".join(f"s.{name}" for name in Step.__struct_fields__)
    schedule_columns = ", ".join(f"s.{name}" for name in Schedule.__struct_fields__)
    queries: dict[str, str] = {}
    for file in sorted(files("windlass.store").joinpath("sql").iterdir(), key=lambda entry: entry.name):
        _, *parts = _NAME.split(file.read_text(encoding="utf-8"))
        for name, text in zip(parts[::2], parts[1::2], strict=True):
            assert name not in queries, f"query {name} is there twice"
            text = text.strip().replace("{task_columns}", columns).replace("{step_columns}", step_columns)
            text = text.replace("{schedule_columns}", schedule_columns)
            queries[name] = text.replace("{started_columns}", started_columns)
    return queries


QUERIES = load_queries()
