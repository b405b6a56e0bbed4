"""Ending tasks without losing a cancel of the one that ends them."""

from __future__ import annotations

import asyncio

import pytest

from windlass.sdk.worker.asyncio_tools import cancel_and_wait, wait_for_first


async def test_a_cancel_that_comes_while_the_others_end_is_not_lost() -> None:
    ending = asyncio.Event()

    async def slow_to_end() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ending.set()
            await asyncio.sleep(0.05)

    async def caller() -> None:
        while True:  # as the loop of heartbeats does
            await wait_for_first(asyncio.sleep(0.01), slow_to_end())

    running = asyncio.create_task(caller())
    await ending.wait()
    running.cancel()
    await asyncio.wait([running], timeout=5)

    assert running.cancelled()


async def test_what_failed_by_itself_is_raised() -> None:
    async def fail() -> None:
        raise OSError("broken")

    task = asyncio.create_task(fail())
    await asyncio.sleep(0)

    with pytest.raises(OSError, match="broken"):
        await cancel_and_wait(task)
