"""How a command that has to wait for something is run."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """On uvloop, as servers and workers are."""
    import uvloop

    return uvloop.run(work)
