"""Named queries, read from the .sql files beside this module, so that SQL is reviewed as SQL.

A query begins with `-- name: its_name`, followed by comment lines with its promise. `{task_columns}` stands for the
columns of a task record, in the order of `core.task.Task`; `{step_columns}` and `{schedule_columns}` are like it, and
`{started_columns}` leaves out what a claim knows of all its tasks. What several queries share is a part (`-- part:
its_name`); `{its_name($2, $3)}` stands for it, with these as its own $1 and $2.
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
_NAME = re.compile(r"^-- (name|part): (\w+)\n", re.MULTILINE)
_USE = re.compile(r"\{(\w+)\((.*?)\)\}", re.DOTALL)
_COLUMNS = {
    "{task_columns}": ", ".join(f"t.{name}" for name in TASK_COLUMNS),
    "{started_columns}": ", ".join(f"t.{name}" for name in STARTED_COLUMNS),
    "{step_columns}": ", ".join(f"s.{name}" for name in Step.__struct_fields__),
    "{schedule_columns}": ", ".join(f"s.{name}" for name in Schedule.__struct_fields__),
}


def load_queries() -> dict[str, str]:
    """Every query by its name; a name that is there twice is a mistake."""
    found: dict[str, dict[str, str]] = {"name": {}, "part": {}}
    for file in sorted(files("windlass.store").joinpath("sql").iterdir(), key=lambda entry: entry.name):
        _, *pieces = _NAME.split(file.read_text(encoding="utf-8"))
        for what, name, text in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
            assert name not in found[what], f"{name} is there twice"
            found[what][name] = text.strip()
    return {name: _written_out(text, found["part"]) for name, text in found["name"].items()}


def _written_out(text: str, parts: dict[str, str]) -> str:
    """As the database gets it."""

    def part(use: re.Match[str]) -> str:
        given = [argument.strip() for argument in use[2].split(",")]
        return re.sub(r"\$(\d+)", lambda own: given[int(own[1]) - 1], parts[use[1]])

    text = _USE.sub(part, text)
    for name, columns in _COLUMNS.items():
        text = text.replace(name, columns)
    return text


QUERIES = load_queries()
