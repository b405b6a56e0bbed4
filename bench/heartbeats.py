"""Heartbeats over HTTP: how many a second one server process answers, and whether many running tasks stay alive.

`python -m bench.heartbeats rate URL` measures one server process against a plain echo of the same size. `… soak URL`
keeps many tasks running with a heartbeat each second, and counts heartbeats that are refused and tasks that are
declared zombies. Both print one line of JSON. `… long` is the soak on a separate PostgreSQL, with its progress on
standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import uvloop

from bench import process
from bench.progress import Progress
from bench.sender import Sender, cpu_s, senders, serve_forever, serving
from windlass import Engine
from windlass.contracts.callback.delivery import PUSH, Push
from windlass.contracts.callback.rules import scope_of
from windlass.contracts.callback.server.service import Service
from windlass.core.queue import QueueConfig
from windlass.core.states import Effect
from windlass.core.submission import Submission
from windlass.net.ids import ulid
from windlass.store.store import Store

QUEUE = "heartbeats"
MODULE = "bench.heartbeats"
P99_MAX_MS = 250.0
OnProgress = Callable[[float, str], None]  # elapsed seconds, and a note


# --------------------------------------------------------------------------------------------- running tasks


async def _deliver_nothing(effect: Effect) -> None:
    """An engine starts pushed attempts only if it has a way to deliver them."""


async def push_tasks(url: str, count: int, interval_s: float) -> dict[str, tuple[str, str]]:
    """Tasks that were pushed, each with its token. They are not delivered: the benchmark is their worker."""
    engine = Engine(Store(url), listen=False, effects={PUSH: _deliver_nothing})
    interval_ms = int(interval_s * 1000)
    push = Push(url="http://127.0.0.1:1/", heartbeat_interval_ms=interval_ms, heartbeat_timeout_ms=3 * interval_ms)
    await engine.queues.put(QUEUE, delivery=push, limits=QueueConfig())
    await engine.submit_many([Submission(kind="heartbeat", queue=QUEUE) for _ in range(count)])
    while (await engine.tasks.totals()).get("queued", 0):  # type: ignore[call-overload]
        await engine.parts.outgoing.dispatch_tick()
        async with engine.store.begin() as tx:  # make room for the next pushes
            await tx.session.connection.execute("delete from windlass.outbox")
    now = await engine.parts.clock.now()
    tokens = await Service(engine, time.monotonic).tokens()
    pushed: dict[str, tuple[str, str]] = {}
    after = None
    while True:
        page = await engine.tasks.page(queue=QUEUE, limit=1000, after=after)
        for row in page.tasks:
            scope = scope_of(row.task, now, timedelta(hours=2))
            pushed[str(row.task.id)] = (ulid("task", row.task.id), tokens.make(scope))
        after = page.next
        if after is None:
            break
    await engine.close()
    return pushed


def request(action: str, task: str, token: str) -> bytes:
    body = msgspec.json.encode({"attempt": 1, "workerId": "bench"})
    head = (
        f"POST /v1/tasks/{task}/{action} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def start_all(crew: list[Sender], tasks: dict[str, tuple[str, str]]) -> None:
    left = [request("started", *task) for task in tasks.values()]

    async def work(sender: Sender) -> None:
        while left:
            assert (await sender.send(left.pop())).status == 200

    await asyncio.gather(*map(work, crew))


# --------------------------------------------------------------------------------------------- measurements


async def rate(url: str, tasks: int, seconds: float, database_pid: int) -> dict[str, float]:
    """The highest rate of one server process, first of the echo, then of heartbeats."""
    known = await push_tasks(url, tasks, 30.0)
    requests = [request("heartbeat", *task) for task in known.values()]
    async with serving(MODULE, "echo") as (port, _), senders(port) as crew:
        echoed = await _flood(crew, requests, seconds)
    async with serving(MODULE, "serve", url) as (port, pid), senders(port) as crew:
        await start_all(crew, known)
        before_s = cpu_s(pid, database_pid)
        answered = await _flood(crew, requests, seconds)
        spent_s = cpu_s(pid, database_pid) - before_s
    return {"rate": answered / seconds, "echo_rate": echoed / seconds, "cpu_us": 1e6 * spent_s / max(1, answered)}


async def _flood(crew: list[Sender], requests: list[bytes], seconds: float) -> int:
    until, count = time.perf_counter() + seconds, 0

    async def work(place: int, sender: Sender) -> None:
        nonlocal count
        while time.perf_counter() < until:
            place = (place + len(crew)) % len(requests)
            assert (await sender.send(requests[place])).status == 200
            count += 1

    await asyncio.gather(*(work(place, sender) for place, sender in enumerate(crew)))
    return count


async def soak(
    url: str, tasks: int, interval_s: float, seconds: float, on_progress: OnProgress = lambda _elapsed_s, _note: None
) -> dict[str, float]:
    """Send a heartbeat for each task in every interval, evenly spread. Counts the refused ones."""
    on_progress(0, f"making {tasks:,} tasks")
    known = await push_tasks(url, tasks, interval_s)
    took_ms: list[float] = []
    refused = 0
    async with serving(MODULE, "serve", url) as (port, pid), senders(port) as crew:
        await start_all(crew, known)
        began = time.perf_counter()
        before_s = process.cpu_s(pid)
        due = [(i * interval_s / len(known), request("heartbeat", *task)) for i, task in enumerate(known.values())]

        async def work(place: int, sender: Sender) -> None:
            nonlocal refused
            mine, turn = due[place :: len(crew)], 0
            while True:
                for offset_s, heartbeat in mine:
                    at = began + turn * interval_s + offset_s
                    if at > began + seconds:
                        return
                    await asyncio.sleep(max(0.0, at - time.perf_counter()))
                    sent = time.perf_counter()
                    refused += (await sender.send(heartbeat)).status != 200
                    took_ms.append(1e3 * (time.perf_counter() - sent))
                turn += 1

        async def report() -> None:
            seen = 0
            while True:
                await asyncio.sleep(1)
                longest_ms, seen = max(took_ms[seen:], default=0.0), len(took_ms)
                note = f"{seen:,} heartbeats, {refused} refused, the longest of the last second {longest_ms:.0f} ms"
                on_progress(time.perf_counter() - began, note)

        reporting = asyncio.create_task(report())
        try:
            await asyncio.gather(*(work(place, sender) for place, sender in enumerate(crew)))
        finally:
            reporting.cancel()
        spent_s = process.cpu_s(pid) - before_s
    took_ms.sort()
    return {
        "heartbeats": len(took_ms),
        "refused": refused,
        "zombies": await _zombies(url),
        "p50_ms": took_ms[len(took_ms) // 2],
        "p99_ms": took_ms[int(len(took_ms) * 0.99)],
        "longest_ms": took_ms[-1],
        "server_cpu_us": 1e6 * spent_s / len(took_ms),
    }


async def _zombies(url: str) -> int:
    store = Store(url, connections=1)
    async with store.begin() as tx:
        found = await tx.session.connection.fetchval("select count(*) from windlass.history where what = 'zombie'")
    await store.close()
    return int(found)


# --------------------------------------------------------------------------------------------- servers


async def serve(url: str) -> None:
    from windlass.contracts.callback.server.options import PushOptions
    from windlass.serve import open_engine, open_server

    async with open_engine(url) as engine, open_server(engine, http="127.0.0.1:0", push=PushOptions()) as place:
        engine.parts.effects.clear()  # deliver nothing: the parent process is the worker
        await serve_forever(place)


async def echo() -> None:
    """The same server with a constant answer of the same size."""
    from types import SimpleNamespace

    from windlass.net.server.server import listening

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        body = b'{"acknowledged":true,"shouldCancel":false,"serverTime":"2026-01-01T00:00:00.000000Z"}'
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    app.state = SimpleNamespace(closing=asyncio.Event())  # type: ignore[attr-defined]
    async with listening(app, "127.0.0.1", 0) as place:  # type: ignore[arg-type]
        await serve_forever(place)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.heartbeats")
    parser.add_argument("command", choices=("rate", "soak", "serve", "echo", "long"))
    parser.add_argument("url", nargs="?", default="")
    parser.add_argument("--tasks", type=int, default=5000)
    parser.add_argument("--interval", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--database_pid", type=int, default=0)
    options = parser.parse_args()
    match options.command:
        case "serve":
            uvloop.run(serve(options.url))
        case "echo":
            uvloop.run(echo())
        case "rate":
            print(json.dumps(uvloop.run(rate(options.url, options.tasks, options.seconds, options.database_pid))))
        case "soak":
            print(json.dumps(uvloop.run(soak(options.url, options.tasks, options.interval, options.seconds))))
        case "long":
            return _long(options)
    return 0


def _long(options: argparse.Namespace) -> int:
    """`make soak-callback`: the soak on a separate PostgreSQL, with a verdict."""
    from bench.server import Server
    from windlass.serve import migrate_database

    progress = Progress(options.seconds, "s")
    with Server() as server, server.database("soak") as url:
        asyncio.run(migrate_database(url))
        figures = uvloop.run(soak(url, options.tasks, options.interval, options.seconds, progress.tell))
    progress.close()
    print(json.dumps(figures))
    good = figures["refused"] == figures["zombies"] == 0 and figures["p99_ms"] < P99_MAX_MS
    print(f"{'holds' if good else 'DOES NOT HOLD'}: no false zombie, p99 under {P99_MAX_MS:g} ms")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
