"""The workflows that `windlass conformance registry` starts, run by the worker of `windlass.registry`.

    windlass conformance registry --parallel 8 -- python examples/registry_conformance.py

Write the same in your own language to check your own worker: see docs/howto/check-a-worker.md.
"""

import asyncio
import os
import time

from windlass.registry import Worker

worker = Worker(
    os.environ["KAGZI_SERVER_URL"],
    os.environ["KAGZI_TASK_QUEUE"],
    namespace=os.environ["KAGZI_NAMESPACE"],
    max_concurrent=int(os.environ["KAGZI_MAX_CONCURRENT"]),
    api_key=os.environ["WINDLASS_API_KEY"],
)


def give(value, work_ms=0):
    time.sleep(work_ms / 1000)
    return value


def refuse(message):
    raise RuntimeError(message)


@worker.register("conformance.echo")
async def echo(_context, value):
    return value


@worker.register("conformance.fail")
async def fail(_context, options):
    refuse(options["message"])


@worker.register("conformance.work")
async def work(_context, options):
    await asyncio.sleep(options["work_ms"] / 1000)
    return options["work_ms"]


@worker.register("conformance.steps")
async def steps(context, options):
    numbers = range(1, options["count"] + 1)
    return [await context.step(f"step-{number}", give, number, options.get("work_ms", 0)) for number in numbers]


@worker.register("conformance.step_fails")
async def step_fails(context, options):
    return await context.step("doomed", refuse, options["message"])


@worker.register("conformance.sleep")
async def sleep(context, options):
    before = await context.step("before", give, "before")
    await context.sleep(options["seconds"])
    return [before, await context.step("after", give, "after")]


asyncio.run(worker.run())
