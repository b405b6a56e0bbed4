"""Output of commands: tables or JSON, and exit codes that mean the same for every command.

Results go to standard output, and nothing else does, so that they can be piped; errors go to standard error. Colours,
progress bars and live tables are for terminals only; rich honours `NO_COLOR`.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from enum import IntEnum
from pathlib import Path
from typing import Any

import msgspec
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from windlass.errors import Rejected, Unavailable, WindlassError


class Exit(IntEnum):
    """Exit codes. Scripts may rely on them."""

    OK = 0
    FAILED = 1  # the request failed or was refused
    USAGE = 2  # the command, a flag or a setting is wrong; nothing was done
    UNREACHABLE = 3  # the server or the database did not answer: retry
    INTERRUPTED = 130


class Pipe(Console):
    """A console for output that may be piped. A closed pipe is no failure: see `commands.run`."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


console = Pipe(soft_wrap=True, highlight=False)
help_console = Pipe(highlight=False)  # wraps at the width of the terminal
errors = Console(stderr=True, soft_wrap=True, highlight=False)

STATE_STYLES = {
    "blocked": "", "queued": "", "running": "cyan", "sleeping": "", "parked": "magenta",
    "succeeded": "green", "failed": "red", "cancelled": "yellow", "skipped": "",
}  # fmt: skip
NARROW = 8  # the last column of a table may be as narrow as this


class Unusable(Rejected):
    """A flag, an argument or a setting is invalid."""

    code = "usage"


def command_to_type() -> str:
    """How to call this program from the current folder: `windlass`, or its path if it is not on `PATH`."""
    called, found = Path(sys.argv[0]), shutil.which("windlass")
    if called.name != "windlass" or (found is not None and Path(found).samefile(called)):
        return "windlass"
    return os.path.relpath(called) if called.absolute().is_relative_to(Path.cwd()) else str(called.absolute())


def show(value: object, as_json: bool, print_text: Callable[[], None]) -> None:
    """Prints the result: as JSON, or with `print_text`."""
    if as_json:
        print_json(value)
    else:
        print_text()


def print_json(value: object) -> None:
    """Prints one JSON text: indented on a terminal, on one line elsewhere."""
    text = msgspec.json.encode(value)
    if console.is_terminal:
        text = msgspec.json.format(text, indent=2)
    sys.stdout.write(text.decode() + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """Prints a line of text with rich markup."""
    console.print(text)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, nothing: str) -> None:
    """Prints a table without borders. A terminal gets colours and the columns that fit; a pipe gets everything."""
    lines = [list(row) for row in rows]
    if not lines:
        console.print(nothing, style="dim")
    elif console.is_terminal:
        console.print(render_table(columns, lines), soft_wrap=False)
    else:
        texts = [list(columns), *([_cell(value).plain for value in line] for line in lines)]
        widths = [max(map(cell_len, column)) for column in zip(*texts, strict=True)]
        for text in texts:
            print("  ".join(set_cell_size(cell, width) for cell, width in zip(text, widths, strict=True)).rstrip())


def render_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A table for a terminal, one line per row. Columns that do not fit are left out from the right, so put the most
    important ones first. The last column that fits may be truncated, except for an id, which people copy."""
    lines = [list(row) for row in rows]
    newest = max((value for line in lines for value in line if isinstance(value, Timestamp)), default="")
    cells = [[_cell(value.near(newest) if isinstance(value, Timestamp) else value) for value in line] for line in lines]
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    widths = [max(map(cell_len, [name, *(line[i].plain for line in cells)])) for i, name in enumerate(columns)]
    for name, width in zip(columns, _fitting(columns, widths), strict=False):
        made.add_column(name, no_wrap=True, overflow="ellipsis", width=width)
    for line in cells:
        made.add_row(*line[: len(made.columns)])
    return made


def _fitting(columns: Sequence[str], widths: Sequence[int]) -> list[int]:
    """The widths of the columns that fit. Only the last one may be narrower than its content."""
    fitting = [widths[0]]
    begin = widths[0] + 2
    for name, width in zip(columns[1:], widths[1:], strict=True):
        room = console.width - begin
        if room < (width if name == "id" else min(width, NARROW)):
            break
        fitting.append(min(width, room))
        begin += width + 2
    return fitting


def _cell(value: object) -> Text:
    if value is None:
        return Text("")
    text = str(value)
    return Text(text, style=STATE_STYLES.get(text, ""))


def pairs(rows: Iterable[tuple[str, object]]) -> None:
    """Prints the fields of a record, one per line, without the empty ones."""
    made = Table.grid(padding=(0, 2, 0, 0))
    for name, value in rows:
        if value is not None and value != "":
            made.add_row(Text(name, style="bold"), _cell(value))
    console.print(made, soft_wrap=False)


class Timestamp(str):
    """A time in UTC, to the second."""

    __slots__ = ()

    def near(self, newest: str) -> str:
        """Shortened as `ls` does it: the time of day if it is on the day of `newest`, else the date."""
        return self[11:] if self[:10] == newest[:10] else self[:10]


def instant(text: object) -> str:
    """A timestamp of the API as readable text; empty if there is none."""
    try:
        return Timestamp(datetime.fromisoformat(str(text)).strftime("%Y-%m-%d %H:%M:%S"))
    except ValueError:
        return ""


def report_error(error: WindlassError, as_json: bool) -> Exit:
    """Prints an error on standard error, as one line or as JSON. Returns the exit code."""
    if as_json:
        body: dict[str, Any] = {"code": error.code, "message": error.message, **error.details}
        sys.stderr.write(msgspec.json.encode({"error": body}, enc_hook=str).decode() + "\n")
    else:
        errors.print(f"[red]error[/red] {escape(error.message)}")
    if isinstance(error, Unusable):
        return Exit.USAGE
    return Exit.UNREACHABLE if isinstance(error, Unavailable) else Exit.FAILED
