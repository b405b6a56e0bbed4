"""How a running command is told to end: by Ctrl-C or SIGTERM, more urgently each time."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable


def stop_signal() -> asyncio.Event:
    """Set at the first signal; the second one ends the process at once."""
    stop = asyncio.Event()
    on_stop(stop.set)
    return stop


def on_stop(*actions: Callable[[], None]) -> None:
    """The first signal calls the first action, the second the second; one for which there is none ends the process."""
    loop, left = asyncio.get_running_loop(), list(actions)

    def received() -> None:
        action = left.pop(0)
        if not left:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
        action()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, received)
