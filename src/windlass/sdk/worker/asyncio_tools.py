"""Waits for asyncio: for the first of several calls, for the end of cancelled tasks, for an engine to be available."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from windlass.errors import Unavailable

T = TypeVar("T")

AFTER_ERROR_S = 1.0  # until a failed call is repeated


async def until_available(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat an idempotent call while the engine is unavailable."""
    while True:
        try:
            return await call()
        except Unavailable:
            await asyncio.sleep(AFTER_ERROR_S)


async def wait_for_first(*calls: Awaitable[Any]) -> None:
    """Wait until one of the calls has ended; cancel the others."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_and_wait(*tasks)


async def cancel_and_wait(*tasks: asyncio.Future[Any]) -> None:
    """Cancel these tasks and wait for their end.

    `asyncio.wait` raises only a cancel of the caller. `await task` with its CancelledError suppressed would swallow
    that one too, and the caller would run on for ever.
    """
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.result()
