"""A worker process whose handlers block everything: `python -m tests.e2e.blocked DSN LEASE_TTL_S`."""

from __future__ import annotations

import asyncio
import ctypes
import re
import sys
import time

from windlass import App, Context

TTL_S = float(sys.argv[2]) if len(sys.argv) > 2 else 2.0
HELD_S = 1.75 * TTL_S

app = App("blocked", sys.argv[1] if len(sys.argv) > 1 else None)


def say(word: str) -> None:
    print(word, flush=True)


@app.task
async def nothing() -> None: ...


@app.task
async def busy_loop() -> float:
    """Python code that never lets the event loop run."""
    say("blocking")
    began = time.monotonic()
    while time.monotonic() - began < HELD_S:
        pass
    return time.monotonic() - began


@app.task
async def holds_the_lock() -> float:
    """A C function called without giving up the interpreter's lock: no thread of this process can run."""
    say("blocking")
    began = time.monotonic()
    ctypes.PyDLL(None).usleep(int(HELD_S * 1e6))
    return time.monotonic() - began


@app.task
async def hangs() -> None:
    """The same for so long that nobody waits for it."""
    say("blocking")
    ctypes.PyDLL(None).sleep(600)


@app.task
async def catastrophic_match() -> float:
    """The same in real life: a regular expression that backtracks."""
    say("blocking")
    began = time.monotonic()
    length = 20
    while time.monotonic() - began < HELD_S:
        re.match(r"(a+)+$", "a" * length + "b")
        length += 1
    return time.monotonic() - began


@app.task
async def asks_while_blocking(ctx: Context) -> None:
    say("blocking")
    while not ctx.cancelled:
        pass
    await asyncio.sleep(0)


async def main() -> None:
    async with app:
        worker = app.worker(lease_ttl_s=TTL_S, concurrency=1)
        working = asyncio.create_task(worker.run())
        say("ready")
        await working


if __name__ == "__main__":
    asyncio.run(main())
