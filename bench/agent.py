"""The part of the harness that runs inside a subject's environment: `python -m bench.agent SUBJECT COMMAND URL …`.

Drives one subject through its client and prints one line of JSON. Takes the times beside the measured call, so that no
figure includes the start of a process. Standard library only (uvloop if it is installed).
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any, cast

from bench.recorder import quantiles
from bench.subject import BATCH, Subject, run

WARM_UP = 20
CROWD = 64


def load(name: str) -> Subject:
    if name.startswith("windlass"):
        return cast("Subject", importlib.import_module("bench.ours").SUBJECTS[name]())
    return cast("Subject", importlib.import_module(f"bench.peers.{name}").SUBJECT())


async def setup(subject: Subject, arguments: argparse.Namespace) -> dict[str, float]:
    await subject.setup(arguments.url)
    return {}


async def one(subject: Subject, arguments: argparse.Namespace) -> dict[str, float]:
    """One caller, one call at a time."""
    return await _crowd(subject, arguments, 1)


async def crowd(subject: Subject, arguments: argparse.Namespace) -> dict[str, float]:
    """Many callers in one process, each with one call at a time."""
    return await _crowd(subject, arguments, CROWD)


async def _crowd(subject: Subject, arguments: argparse.Namespace, callers: int) -> dict[str, float]:
    await subject.open(arguments.url)
    for index in range(WARM_UP):
        await subject.submit(index, 0.0)
    submitted = 0
    until = time.perf_counter() + arguments.seconds

    async def caller() -> None:
        nonlocal submitted
        while time.perf_counter() < until:
            submitted += 1
            await subject.submit(WARM_UP + submitted, 0.0)

    figures = await _timed(asyncio.gather(*(caller() for _ in range(callers))))
    await subject.close()
    return {**figures, "timed": submitted, "stored": WARM_UP + submitted}


async def batch(subject: Subject, arguments: argparse.Namespace) -> dict[str, float]:
    """One caller, a thousand tasks per call."""
    await subject.open(arguments.url)
    await subject.submit_many(range(BATCH))

    async def batches() -> None:
        for first in range(BATCH, BATCH + arguments.count, BATCH):
            await subject.submit_many(range(first, first + BATCH))

    figures = await _timed(batches())
    await subject.close()
    return {**figures, "timed": arguments.count, "stored": BATCH + arguments.count}


async def fill(subject: Subject, arguments: argparse.Namespace) -> dict[str, float]:
    """Submit tasks 0 to count in the fastest way. For a subject that streams to a live worker, this is the drain."""
    await subject.open(arguments.url)
    started = time.monotonic()
    if subject.batches:
        for first in range(0, arguments.count, BATCH):
            await subject.submit_many(range(first, min(first + BATCH, arguments.count)))
    else:
        indexes = iter(range(arguments.count))

        async def caller() -> None:
            for index in indexes:
                await subject.submit(index, 0.0)

        await asyncio.gather(*(caller() for _ in range(CROWD)))
    await subject.close()
    return {"started_at": started, "stored": arguments.count}


async def warm(subject: Subject, arguments: argparse.Namespace) -> dict[str, float]:
    """A few tasks with negative indexes, to warm up a worker."""
    await subject.open(arguments.url)
    for index in range(arguments.count):
        await subject.submit(-1 - index, time.monotonic())
        await asyncio.sleep(0.05)
    await subject.close()
    return {}


async def paced(count: int, rate: float, submit: Callable[[int, float], Awaitable[None]]) -> None:
    """Call at a steady rate with jitter, so that calls do not stay in phase with a fixed poll interval."""
    started = time.monotonic()
    for index in range(count):
        due = started + (index + index * 7919 % 97 / 97) / rate
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        await submit(index, time.monotonic())


async def pace(subject: Subject, arguments: argparse.Namespace) -> dict[str, float]:
    """Tasks for a worker that is idle in between."""
    await subject.open(arguments.url)
    await subject.submit(-1_000, time.monotonic())  # the connection's first statement is not a sample
    await asyncio.sleep(0.3)
    await paced(arguments.count, arguments.rate, subject.submit)
    await subject.close()
    return {}


async def fill_finished(subject: Subject, arguments: argparse.Namespace) -> dict[str, float]:
    await subject.fill_finished(arguments.url, arguments.count)
    return {}


async def hand_off(subject: Subject, arguments: argparse.Namespace) -> dict[str, float]:
    latencies = sorted(await subject.hand_off(arguments.url, arguments.count, arguments.rate))
    if len(latencies) != arguments.count:
        raise RuntimeError(f"{arguments.count} sent, {len(latencies)} started")
    return quantiles(latencies)


async def _timed(work: Any) -> dict[str, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    await work
    return {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}


COMMANDS = {f.__name__: f for f in (setup, one, crowd, batch, fill, warm, pace, fill_finished, hand_off)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.agent", description=__doc__)
    parser.add_argument("subject")
    parser.add_argument("command", choices=[*COMMANDS, "work"])
    parser.add_argument("url")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--rate", type=float, default=20.0)
    parser.add_argument("--unit", choices=["noop", "flow"], default="noop")
    arguments = parser.parse_args()
    subject = load(arguments.subject)
    subject.unit = arguments.unit
    if arguments.command == "work":
        subject.work(arguments.url)
    else:
        print(json.dumps(run(COMMANDS[arguments.command](subject, arguments))), flush=True)


if __name__ == "__main__":
    main()
