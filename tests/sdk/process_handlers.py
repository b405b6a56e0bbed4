"""Handlers that run in processes, which import this module to find them."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import time
from dataclasses import dataclass

from windlass import App, Cancel, Context, Fail, Retry, current

app = App("cpu", processes=2)


@dataclass
class Point:
    x: int
    y: int = 0


@app.task(run_in="process")
def norm(point: Point, scale: float = 1.0) -> tuple[float, int]:
    return ((point.x**2 + point.y**2) ** 0.5 * scale, os.getpid())


@app.task(run_in="process")
async def doubled(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


@app.task(run_in="process", retry_delay="1ms")
def walk(ctx: Context) -> list[int]:
    begun = ctx.last_checkpoint(Point) or Point(0)
    ctx.progress(begun.x + 1, 3, "on the way")
    ctx.log.info("try %d", current().attempt)
    ctx.checkpoint(Point(begun.x + 1)).wait("20s")
    if ctx.attempt < 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return [ctx.attempt, begun.x]


@app.task(run_in="process", max_attempts=1)
def end(how: str) -> None:
    print("some words before the end", file=sys.stderr, flush=True)
    match how:
        case "exit":
            os._exit(3)
        case "signal":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "raise":
            raise ValueError("not like this")
        case "fail":
            raise Fail("bad rows", category="DATA_QUALITY")
        case "retry":
            raise Retry("later", after="1ms")
        case "cancel":
            raise Cancel("not needed")
        case "system exit":
            sys.exit(4)


@app.task(run_in="process", cancel_grace="60s")
def spin(ctx: Context) -> None:
    ctx.checkpoint(os.getpid()).wait("20s")
    while True:
        time.sleep(3600)


@app.task(run_in="process")
def hold_the_lock(ctx: Context) -> None:
    """A C call during which no Python code of this process can run."""
    ctx.checkpoint(os.getpid()).wait("20s")
    ctypes.PyDLL(None).sleep(60)


renamed = app.task(run_in="process", kind="cpu.other")(norm.function)
