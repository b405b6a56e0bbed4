"""Runs the event loop of a command, and ends the process."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from windlass.core.text import line_of

T = TypeVar("T")

log = logging.getLogger("windlass.cli")

THREADS_S = 2.0  # for threads that user code left running

COLLECT_AFTER = (50_000, 20, 100)


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine on uvloop."""
    import uvloop

    return uvloop.run(work)


def run_user_code(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that calls user code. A `sys.exit` in an asyncio task of the user ends that task only. After
    our signal handlers are installed, a KeyboardInterrupt does not come from Ctrl-C."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        loop = runner.get_loop()
        main = loop.create_task(work)
        while True:
            try:
                return loop.run_until_complete(main)
            except (SystemExit, KeyboardInterrupt) as error:
                if main.done() or signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                    main.cancel()
                    raise
                with suppress(Exception):  # log handlers are user code, too
                    log.warning("an asyncio task of a handler raised %s: ended that task only", line_of(error))


def end_remaining_threads() -> None:
    """Ends the process even if user code left a thread running."""
    until_s = time.monotonic() + THREADS_S
    others = [
        thread for thread in threading.enumerate() if thread is not threading.current_thread() and not thread.daemon
    ]
    for thread in others:
        thread.join(max(0.0, until_s - time.monotonic()))
    left = sorted(thread.name for thread in others if thread.is_alive())
    if left:
        with suppress(Exception):
            log.warning("exiting although threads are still running: %s", ", ".join(left))
        end_now(0)


def end_now(code: int) -> None:
    """Flushes the output and exits without waiting for threads."""
    with suppress(Exception):
        logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code)


def freeze_heap() -> None:
    """Call when a server is up. The garbage collector then skips long-lived objects and runs less often, because
    requests leave no cycles behind."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
