"""How a running command is told to end: the first Ctrl-C or SIGTERM asks, the second one ends it at once."""

from __future__ import annotations

import asyncio
import signal


def stop_signal() -> asyncio.Event:
    """Set at the first signal; the second one ends the process at once."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def first(number: signal.Signals) -> None:
        loop.remove_signal_handler(number)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, first, number)
    return stop
