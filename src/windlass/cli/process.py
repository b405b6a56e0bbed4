"""How a command that has to wait for something is run."""

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

THREADS_S = 2.0  # for threads that somebody left behind

COLLECT_AFTER = (50_000, 20, 100)


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """On uvloop, as servers and workers are."""
    import uvloop

    return uvloop.run(work)


def run_for_others(work: Coroutine[Any, Any, T]) -> T:
    """The same where code of others runs: a task of theirs that calls `sys.exit` ends itself, and not the process. Once
    the signals are ours, no KeyboardInterrupt is Ctrl-C."""
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
                with suppress(Exception):  # what logs is code of the program, too
                    log.warning("a task that a handler began raised %s: it has ended, nothing else", line_of(error))


def end_threads_of_others() -> None:
    """The process ends, also if somebody has left a thread behind that does not."""
    until_s = time.monotonic() + THREADS_S
    others = [one for one in threading.enumerate() if one is not threading.current_thread() and not one.daemon]
    for thread in others:
        thread.join(max(0.0, until_s - time.monotonic()))
    left = sorted(thread.name for thread in others if thread.is_alive())
    if left:
        with suppress(Exception):
            log.warning("ending without threads that still run: %s", ", ".join(left))
        end_now(0)


def end_now(code: int) -> None:
    """Without waiting for anybody."""
    with suppress(Exception):
        logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code)


def keep_for_good() -> None:
    """A server is up: the collector need not look through what it holds for life, nor after every few hundred objects
    of requests, which leave no cycles behind."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
