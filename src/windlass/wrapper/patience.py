"""How something is said until it was heard: again and again, with growing pauses, for as long as it takes."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from windlass.core.error import Unavailable

log = logging.getLogger("windlass.wrapper")

PAUSE_S, PAUSE_MAX_S = 0.2, 15.0
T = TypeVar("T")


async def until_heard(what: str, say: Callable[[], Awaitable[T]]) -> T:
    """Its answer, which may be another error. Nothing is given up: whoever wants that cancels it."""
    pause_s = PAUSE_S
    while True:
        try:
            return await say()
        except Unavailable as error:
            log.warning("%s: %s; trying again", what, error)
            await asyncio.sleep(max(spread(pause_s), getattr(error, "after_s", 0.0)))
            pause_s = min(2 * pause_s, PAUSE_MAX_S)


def spread(seconds: float) -> float:
    """Those who lost the same dispatcher do not come back at the same moment."""
    return seconds * random.uniform(0.7, 1.0)  # noqa: S311
