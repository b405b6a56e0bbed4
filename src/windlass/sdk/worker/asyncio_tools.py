"""Waiting for several things at once, and ending what is no longer waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any


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
