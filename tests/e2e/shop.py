"""The app whose workers the tests start, drain, kill and reload: `windlass worker tests.e2e.shop:app`.

A handler that waits, waits for a file in WINDLASS_TEST_FOLDER, so that a test decides when it goes on.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

from windlass import App, Context

app = App("shop")
FOLDER = Path(os.environ.get("WINDLASS_TEST_FOLDER", "/nonexistent"))
LOOK_S = 0.005


def begun(ctx: Context) -> None:
    (FOLDER / f"begun-{ctx.task_id}").write_text(str(os.getpid()))


@app.task
async def short(number: int) -> int:
    await asyncio.sleep(0.05)
    return number


@app.task
async def until_let_go(ctx: Context) -> int:
    begun(ctx)
    while not (FOLDER / "go").exists():  # noqa: ASYNC110
        await asyncio.sleep(LOOK_S)
    return os.getpid()


@app.task
def in_thread_until_cancelled(ctx: Context) -> None:
    begun(ctx)
    while not ctx.cancelled:
        time.sleep(LOOK_S)
    (FOLDER / "heard").touch()
    raise RuntimeError("stopped because it was told to")


@app.task
def in_thread_for_ever(ctx: Context) -> None:
    begun(ctx)
    threading.Event().wait()


@app.task
async def for_ever(ctx: Context) -> None:
    begun(ctx)
    try:
        await asyncio.Event().wait()
    finally:
        (FOLDER / "heard").touch()


@app.task
async def holds_the_lock(seconds: float) -> None:
    """For longer than its lease, in C code that does not give up the interpreter's lock."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


@app.task(run_in="process")
def in_process_for_ever(ctx: Context) -> None:
    begun(ctx)
    threading.Event().wait()


@app.task(run_in="process")
def in_process_killed(ctx: Context) -> None:
    print("the last words of a process", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(retry_delay="1ms")
async def ends_its_worker(ctx: Context, code: int) -> int:
    if ctx.attempt == 1:
        os._exit(code)
    return ctx.attempt


@app.task(retry_delay="1ms")
async def kills_its_worker(ctx: Context) -> int:
    if ctx.attempt == 1:
        print("the last words of a worker", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    return ctx.attempt
