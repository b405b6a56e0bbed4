"""A service that takes pushes, for tests: `python -m tests.e2e.pushed PORT FOLDER`, under uvicorn.

What its handlers do is noted in FOLDER, a line each; those that wait do so until a file `go` is there.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from windlass import App, Context, current

SECRET, ENGINE = "WINDLASS_SIGNING_SECRET", "PUSHED_ENGINE"
app = App("pushed", queue="near")


def folder() -> Path:
    return Path(os.environ["PUSHED_FOLDER"])


def note(*words: object) -> None:
    with (folder() / "notes").open("a") as file:
        file.write(" ".join(map(str, words)) + "\n")


async def until_go(ctx: Context) -> None:
    note("begun", ctx.attempt)
    try:
        while not (folder() / "go").exists():  # noqa: ASYNC110 (the other side is another process)
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        note("stopped", ctx.attempt)
        raise
    note("done", ctx.attempt)


@app.task(timeout="1h")
async def greet(ctx: Context, name: str, times: int = 1) -> str:
    assert ctx.deadline_at is not None
    ctx.progress(1, 2, "half way")
    ctx.log.info("greeting %s", name)
    return " ".join([f"Hello, {name}!"] * times)


@app.task
def double(number: int) -> int:
    return 2 * number


@app.task(max_losses=20)
async def wait(ctx: Context) -> int:
    await until_go(ctx)
    return ctx.attempt


@app.task(max_losses=20)
async def resume(ctx: Context) -> int | None:
    """The first attempt leaves something behind and waits; the next one finds it."""
    left: int | None = ctx.last_checkpoint(int)
    if left is None:
        await ctx.checkpoint(7)
        await until_go(current())
    return left


@app.task(max_attempts=2, retry_delay="10ms")
async def refuse() -> None:
    raise LookupError("there is no such thing")


def main(port: int) -> None:
    import uvicorn
    from fastapi import FastAPI

    worker = app.callback_worker(secret=os.environ[SECRET], drain="20s", callback_url=os.environ.get(ENGINE) or None)
    api = FastAPI()
    api.include_router(worker.router("/windlass"))
    uvicorn.run(api, port=port, log_level="warning", access_log=False)


if __name__ == "__main__":
    os.environ["PUSHED_FOLDER"] = sys.argv[2]
    main(int(sys.argv[1]))
