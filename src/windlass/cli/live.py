"""Tables that redraw themselves, for terminals; elsewhere one look is all there is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from rich.live import Live

from windlass.cli.output import console, made_table, table

EVERY_S = 1.0


def watching(columns: Sequence[str], look: Callable[[], Iterable[Sequence[object]]]) -> None:
    """Until Ctrl-C, which is no failure here."""
    if not console.is_terminal:
        table(columns, look(), nothing="There is nothing yet.")
        return
    with suppress(KeyboardInterrupt), Live(made_table(columns, look()), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(EVERY_S)
            live.update(made_table(columns, look()), refresh=True)
