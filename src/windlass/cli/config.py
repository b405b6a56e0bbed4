"""`windlass config show`: the settings in force and where they were set."""

from __future__ import annotations

import os
from typing import Annotated

from cyclopts import Parameter

from windlass import settings
from windlass.cli import options
from windlass.cli.output import errors, show, table


def show_config(*, origin: Annotated[bool, Parameter(show_default=False)] = False, json: options.Json = False) -> None:
    """Show the settings in force. Secrets are masked.

    Parameters
    ----------
    origin
        Also show where each is set: flag, variable, file or default.
    """
    loaded = options.load()
    rows = [
        {"name": name, "value": loaded.shown(name), **({"origin": loaded.origins[name]} if origin else {})}
        for name in settings.names()
    ]
    columns = ("name", "value", "origin")[: 3 if origin else 2]
    show(rows, json, lambda: table(columns, [[_text(row[c]) for c in columns] for row in rows], nothing=""))
    for variable, near in settings.misspelt(os.environ).items():
        errors.print(f"[yellow]note[/yellow] {variable} is not a setting; did you mean {near}?")


def _text(value: object) -> str:
    if value is None:
        return "-"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
