"""How a running command is told to end: by Ctrl-C or SIGTERM, more urgently each time."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable

log = logging.getLogger("windlass.cli")

SIGNALS = (signal.SIGINT, signal.SIGTERM)
KEEP_S = 2.0


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
            for number in SIGNALS:
                loop.remove_signal_handler(number)
        action()

    def keep() -> None:
        """A handler that runs here may have taken the signals: then nothing could end the process any more."""
        if not left:
            return
        taken = [number.name for number in SIGNALS if signal.getsignal(number) is not ours[number]]
        if taken:
            take()
        loop.call_later(KEEP_S, keep)
        if taken:
            log.warning("somebody has changed what %s does: it ends this process again", " and ".join(taken))

    def take() -> None:
        for number in SIGNALS:
            loop.add_signal_handler(number, received)
            ours[number] = signal.getsignal(number)

    ours: dict[signal.Signals, object] = {}
    take()
    loop.call_later(KEEP_S, keep)
