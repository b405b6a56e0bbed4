"""Named queries, read from .sql files, so that SQL is reviewed as SQL.

A query begins with `-- name: its_name` and a comment that describes it. `{task_columns}` stands for the columns of a
task record, in the order of `core.task.Task`, `{step_columns}` and `{schedule_columns}` for those of their records; the
others are in `task_columns`. Text that several queries share is a part (`-- part: its_name`). `{its_name($2, $3)}`
inserts it, with these values for its own $1 and $2.

The queries of the kernel are in `store/tables`, those that repeat a rule for speed in `store/fast_paths.sql`. A package
with tables of its own keeps its queries beside them and calls `register_queries`.
"""

from __future__ import annotations

import re
from importlib.resources import files

from windlass.core.schedule import Schedule
from windlass.core.step import Step
from windlass.store.task_columns import PLACEHOLDERS

_NAME = re.compile(r"^-- (name|part): (\w+)\n", re.MULTILINE)
_USE = re.compile(r"\{(\w+)\((.*?)\)\}", re.DOTALL)
_COLUMNS = {
    **PLACEHOLDERS,
    "{step_columns}": ", ".join(f"s.{name}" for name in Step.__struct_fields__),
    "{schedule_columns}": ", ".join(f"s.{name}" for name in Schedule.__struct_fields__),
}

QUERIES: dict[str, str] = {}
_PARTS: dict[str, str] = {}


def register_queries(package: str, *names: str) -> None:
    """Read the queries of a package: those of the files named, or of all its .sql files."""
    folder = files(package)
    found = names or [file.name for file in folder.iterdir() if file.name.endswith(".sql")]
    queries: dict[str, str] = {}
    for file in (folder / name for name in sorted(found)):
        _, *pieces = _NAME.split(file.read_text(encoding="utf-8"))
        for what, name, text in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
            known = _PARTS if what == "part" else queries
            assert name not in known.keys() | QUERIES.keys(), f"two queries or parts are named {name}"
            known[name] = text.strip()
    QUERIES.update({name: _expand(text) for name, text in queries.items()})


def _expand(text: str) -> str:
    """Replace the parts and the column lists of a query by their text."""

    def part(use: re.Match[str]) -> str:
        given = [argument.strip() for argument in use[2].split(",")]
        return re.sub(r"\$(\d+)", lambda own: given[int(own[1]) - 1], _PARTS[use[1]])

    text = _USE.sub(part, text)
    for name, columns in _COLUMNS.items():
        text = text.replace(name, columns)
    return text


register_queries("windlass.store.tables")
register_queries("windlass.store", "health.sql", "fast_paths.sql")
