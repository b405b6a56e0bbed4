"""Stops a running command on Ctrl-C or SIGTERM. Each further signal is more urgent."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable

log = logging.getLogger("windlass.cli")

SIGNALS = (signal.SIGINT, signal.SIGTERM)
CHECK_S = 2.0


def stop_signal() -> asyncio.Event:
    """Returns an event that the first signal sets. The second signal ends the process."""
    stop = asyncio.Event()
    on_stop(stop.set)
    return stop


def on_stop(*actions: Callable[[], None]) -> None:
    """The nth signal calls the nth action. A signal beyond the last action ends the process."""
    loop, left = asyncio.get_running_loop(), list(actions)

    def received() -> None:
        action = left.pop(0)
        if not left:
            for number in SIGNALS:
                loop.remove_signal_handler(number)
        action()

    def restore() -> None:
        """User code may have replaced our signal handlers, and then no signal would end the process any more."""
        if not left:
            return
        replaced = [number.name for number in SIGNALS if signal.getsignal(number) is not ours[number]]
        if replaced:
            install()
        loop.call_later(CHECK_S, restore)
        if replaced:
            log.warning("user code replaced the handler of %s: restored it", " and ".join(replaced))

    def install() -> None:
        for number in SIGNALS:
            loop.add_signal_handler(number, received)
            ours[number] = signal.getsignal(number)

    ours: dict[signal.Signals, object] = {}
    install()
    loop.call_later(CHECK_S, restore)
