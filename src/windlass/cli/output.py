"""How commands speak: tables for people, JSON for programs, and an exit code that means the same everywhere.

Standard output carries the answer and nothing else, so that it can be piped; what went wrong goes to standard error.
Colours, bars and tables that redraw themselves are for terminals only; `NO_COLOR` is honoured by rich.
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

from windlass.core.error import Rejected, Unavailable, WindlassError


class Exit(IntEnum):
    """What a program that calls us may rely on."""

    OK = 0
    FAILED = 1  # it was carried out, or refused, and the answer is no
    USAGE = 2  # the command, a flag or a setting is wrong; nothing was done
    UNREACHABLE = 3  # the server or the database did not answer: worth another try
    INTERRUPTED = 130


class Pipe(Console):
    """For an answer that may be piped: whoever has read enough is no failure (see `commands.run`)."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


console = Pipe(soft_wrap=True, highlight=False)
help_console = Pipe(highlight=False)  # help is read, not parsed: its lines end where the terminal does
errors = Console(stderr=True, soft_wrap=True, highlight=False)

STATE_STYLES = {
    "succeeded": "green", "failed": "red", "cancelled": "yellow", "running": "cyan", "parked": "magenta",
}  # fmt: skip


NARROW = 8


class Unusable(Rejected):
    """What was typed or set cannot be meant."""

    code = "usage"


def command_to_type() -> str:
    """What a person types in this folder to run this command: its name, or its path if a shell would not find it."""
    called, found = Path(sys.argv[0]), shutil.which("windlass")
    if called.name != "windlass" or (found is not None and Path(found).samefile(called)):
        return "windlass"
    return os.path.relpath(called) if called.absolute().is_relative_to(Path.cwd()) else str(called.absolute())


def show(value: object, as_json: bool, tell: Callable[[], None]) -> None:
    """The answer: as it is for a program, told for a person."""
    if as_json:
        print_json(value)
    else:
        tell()


def print_json(value: object) -> None:
    """One JSON text, indented on a terminal and in one line elsewhere."""
    text = msgspec.json.encode(value)
    if console.is_terminal:
        text = msgspec.json.format(text, indent=2)
    sys.stdout.write(text.decode() + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """A line for a person, in rich's markup."""
    console.print(text)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, nothing: str) -> None:
    """Rows without frames. A terminal gets colours and what fits its width; a pipe gets all, so that grep finds it."""
    lines = [list(row) for row in rows]
    if not lines:
        console.print(nothing, style="dim")
    elif console.is_terminal:
        console.print(made_table(columns, lines), soft_wrap=False)
    else:
        texts = [list(columns), *([_cell(value).plain for value in line] for line in lines)]
        widths = [max(map(cell_len, column)) for column in zip(*texts, strict=True)]
        for text in texts:
            print("  ".join(set_cell_size(cell, width) for cell, width in zip(text, widths, strict=True)).rstrip())


def made_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """For a terminal: one line a row. What does not fit its width is left out from the right, so that what matters most
    stands first; the last one that fits may be cut, but never an id, which people copy."""
    lines = [list(row) for row in rows]
    newest = max((value for line in lines for value in line if isinstance(value, When)), default="")
    cells = [[_cell(value.near(newest) if isinstance(value, When) else value) for value in line] for line in lines]
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    widths = [max(map(cell_len, [name, *(line[i].plain for line in cells)])) for i, name in enumerate(columns)]
    for name, width in zip(columns, _fitting(columns, widths), strict=False):
        made.add_column(name, no_wrap=True, overflow="ellipsis", width=width)
    for line in cells:
        made.add_row(*line[: len(made.columns)])
    return made


def _fitting(columns: Sequence[str], widths: Sequence[int]) -> list[int]:
    """How wide each column is, of those that fit: all as wide as they are, but for the last."""
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
    """A thing in detail: its fields below each other; what is not there is left out."""
    made = Table.grid(padding=(0, 2, 0, 0))
    for name, value in rows:
        if value is not None and value != "":
            made.add_row(Text(name, style="bold"), _cell(value))
    console.print(made, soft_wrap=False)


class When(str):
    """A time as people read it: to the second, UTC."""

    __slots__ = ()

    def near(self, newest: str) -> str:
        """Short, as `ls` does it: the time on the day of the newest, the day otherwise."""
        return self[11:] if self[:10] == newest[:10] else self[:10]


def instant(text: object) -> str:
    """A time of the API for a person; nothing where there is none."""
    try:
        return When(datetime.fromisoformat(str(text)).strftime("%Y-%m-%d %H:%M:%S"))
    except ValueError:
        return ""


def complain(error: WindlassError, as_json: bool) -> Exit:
    """One line for a person, or one object for a program, on standard error; and what to end with."""
    if as_json:
        body: dict[str, Any] = {"code": error.code, "message": error.message, **error.details}
        sys.stderr.write(msgspec.json.encode({"error": body}, enc_hook=str).decode() + "\n")
    else:
        errors.print(f"[red]error[/red] {escape(error.message)}")
    if isinstance(error, Unusable):
        return Exit.USAGE
    return Exit.UNREACHABLE if isinstance(error, Unavailable) else Exit.FAILED
