"""How a command that has to wait for something is run."""

from __future__ import annotations

import gc
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

COLLECT_AFTER = (50_000, 20, 100)


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """On uvloop, as servers and workers are."""
    import uvloop

    return uvloop.run(work)


def keep_for_good() -> None:
    """A server is up: the collector need not look through what it holds for life, nor after every few hundred objects
    of requests, which leave no cycles behind."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
