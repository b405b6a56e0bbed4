"""Tables that refresh on a terminal. Elsewhere they are printed once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from rich.live import Live

from windlass.cli.output import console, render_table, table

REFRESH_S = 1.0


def watch_table(columns: Sequence[str], read_rows: Callable[[], Iterable[Sequence[object]]]) -> None:
    """Shows the table until Ctrl-C, which ends it without an error."""
    if not console.is_terminal:
        table(columns, read_rows(), nothing="There is nothing yet.")
        return
    with (
        suppress(KeyboardInterrupt),
        Live(render_table(columns, read_rows()), console=console, auto_refresh=False) as live,
    ):
        while True:
            time.sleep(REFRESH_S)
            live.update(render_table(columns, read_rows()), refresh=True)
