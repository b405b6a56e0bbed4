"""The zoo as handlers of an app: in the event loop, in threads, in processes. Workers of any kind import it."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from tests.kit.zoo import BEASTS, MEGABYTE, Endless, Mute, Nothing, Slow, let_out

from windlass import App, Context, Fail, Retry

app = App("zoo", threads=8, processes=1)


@app.task(kind="in the loop", max_attempts=1)
async def in_loop(name: str) -> Any:
    return let_out(name)


@app.task(kind="in a thread", max_attempts=1)
def in_thread(name: str) -> Any:
    return let_out(name)


@app.task(kind="in a process", max_attempts=1, run_in="process")
def in_process(name: str) -> Any:
    return let_out(name)


@app.task(kind="says", max_attempts=1)
async def says(ctx: Context, what: str) -> Any:
    return await TALKERS[what][0](ctx)


@app.task(kind="neighbour")
async def neighbour(number: int) -> int:
    await asyncio.sleep(0.01)
    return 2 * number


@app.task(kind="neighbour in a thread")
def threaded_neighbour(number: int) -> int:
    return 2 * number


async def coroutine(_: Context) -> Any:
    return asyncio.sleep(0)


async def swallows(_: Context) -> str:
    asyncio.current_task().cancel()  # type: ignore[union-attr]
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        return "swallowed"
    return "not cancelled"


async def cancels_itself(_: Context) -> None:
    raise asyncio.CancelledError("by myself")


async def cancelled_inside(_: Context) -> None:
    inner = asyncio.ensure_future(asyncio.sleep(60))
    inner.cancel("inside")
    await inner


async def stops_iterating(_: Context) -> None:
    raise StopAsyncIteration


async def slow_words(_: Context) -> None:
    raise Slow


async def endless_words(_: Context) -> None:
    raise Endless


async def in_group(_: Context) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_raising(Mute()))
        group.create_task(_raising(ValueError("caf\udce9")))


async def _raising(error: BaseException) -> None:
    raise error


async def logs_badly(ctx: Context) -> str:
    ctx.log.info("%d %s", "no number")  # noqa: PLE1206
    ctx.log.warning("caf\udce9 \x00 %s", "\x1b[31m")
    ctx.log.error(Mute())
    ctx.log.info("%s", Nothing())
    ctx.log.info("x" * 5 * MEGABYTE)
    try:
        raise Mute  # noqa: TRY301
    except Mute:
        ctx.log.exception("with a trace")
    for number in range(3000):
        ctx.log.info("line %d", number)
    return "logged"


async def progress_nan(ctx: Context) -> None:
    ctx.progress(math.nan, 1.0)


async def progress_words(ctx: Context) -> str:
    ctx.progress(0.25, 1.0, "caf\udce9\x00")
    return "said"


async def checkpoint_nan(ctx: Context) -> None:
    await ctx.checkpoint({"mean": math.nan})


async def checkpoint_surrogate(ctx: Context) -> None:
    await ctx.checkpoint("caf\udce9")


async def fails_with_surrogate(_: Context) -> None:
    raise Fail("caf\udce9\x00")


async def retries_with_surrogate(_: Context) -> None:
    raise Retry("caf\udce9", after=0.001)


# What they end as: True, failed; False, done.
TALKERS: dict[str, tuple[Any, bool]] = {
    "a coroutine": (coroutine, True),
    "swallows its cancel": (swallows, False),
    "cancels itself": (cancels_itself, True),
    "is cancelled inside": (cancelled_inside, True),
    "stops iterating": (stops_iterating, True),
    "words that come late": (slow_words, True),
    "words that never come": (endless_words, True),
    "fails in a group": (in_group, True),
    "logs badly": (logs_badly, False),
    "progress of NaN": (progress_nan, True),
    "progress with a surrogate": (progress_words, False),
    "a checkpoint of NaN": (checkpoint_nan, True),
    "a checkpoint with a surrogate": (checkpoint_surrogate, True),
    "Fail with a surrogate": (fails_with_surrogate, True),
    "Retry with a surrogate": (retries_with_surrogate, True),
}

ALL: list[tuple[Any, str, bool | None]] = [
    *((in_loop, name, fails) for name, (_, fails) in BEASTS.items()),
    *((in_thread, name, fails) for name, (_, fails) in BEASTS.items()),
    *((says, name, fails) for name, (_, fails) in TALKERS.items()),
]
