"""Repeats a call until it is answered, however long that takes; and cancels tasks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from windlass.errors import Unavailable
from windlass.net.backoff import Backoff

log = logging.getLogger("windlass.wrapper")

PAUSE_S, PAUSE_MAX_S = 0.2, 15.0
T = TypeVar("T")


async def until_answered(what: str, call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call while the server is unavailable. Returns its answer, or raises another error of it. Cancel it to
    give up."""
    backoff = Backoff(PAUSE_S, PAUSE_MAX_S)
    while True:
        try:
            return await call()
        except Unavailable as error:
            log.warning("%s: %s; trying again", what, error)
            await asyncio.sleep(backoff.next_s(getattr(error, "after_s", 0.0)))


async def cancel_all(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
