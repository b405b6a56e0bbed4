"""What a thousand idle workers cost the one server that they are connected to (P10)."""

from __future__ import annotations

import socket
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from bench import process
from bench.harness import Contestant, Failed, Figures, Place, Stage
from bench.ours import KEY
from bench.process import Child

WORKERS = 1_000
ARRIVE_S, WATCH_FACTOR = 180.0, 6  # long enough to see every poll begin again


def idle_polls(stage: Stage, who: Contestant) -> Figures:
    """Workers of the registry contract, each with an open poll and heartbeats every 10 s."""
    return _idle(stage, who, "polls")


def idle_sessions(stage: Stage, who: Contestant) -> Figures:
    """Workers of our SDK, each with an open stream and its heartbeats."""
    return _idle(stage, who, "sessions")


def _idle(stage: Stage, who: Contestant, kind: str) -> Figures:
    from bench.measure import _transactions  # which knows us

    count = max(20, int(WORKERS * stage.scale.share))
    window_s = stage.scale.window_s * WATCH_FACTOR
    with stage.place(who) as place, _server(stage, who, place) as (server, address):
        memory_mb = process.pss_mb(server.pid)
        with _crowd(stage, kind, address, count):
            time.sleep(stage.scale.settle_s)
            before = process.cpu_s(server.pid), process.cpu_s(place.server_pid), _transactions(stage, place)
            time.sleep(window_s)
            after = process.cpu_s(server.pid), process.cpu_s(place.server_pid), _transactions(stage, place)
            grown_kb = 1024 * (process.pss_mb(server.pid) - memory_mb) / count
    cpu, database_cpu, queries = ((b - a) / window_s for a, b in zip(before, after, strict=True))
    return {
        "queries_per_s_per_100": 100 * queries / count,
        "server_cpu_percent": 100 * cpu,
        "database_cpu_percent": 100 * database_cpu,
        "kb_per_worker": grown_kb,
    }


@contextmanager
def _server(stage: Stage, who: Contestant, place: Place) -> Iterator[tuple[Child, str]]:
    http, address = (f"127.0.0.1:{_free_port()}" for _ in range(2))
    command = [who.python.with_name("windlass"), "serve", "--database-url", place.url, "--http", http]
    with _running(stage, [*command, "--grpc", address, "--api-key", KEY], "serve") as server:
        until = time.monotonic() + 30
        while time.monotonic() < until:
            server.check()
            with suppress(OSError), urllib.request.urlopen(f"http://{http}/readyz", timeout=1):
                break
            time.sleep(0.1)
        yield server, address


@contextmanager
def _crowd(stage: Stage, kind: str, address: str, count: int) -> Iterator[None]:
    command = [sys.executable, "-m", "bench.crowd", kind, address, KEY, str(count)]
    with _running(stage, command, kind) as crowd:
        until = time.monotonic() + ARRIVE_S
        while f"{count} wait" not in crowd.log.read_text(errors="replace"):
            crowd.check()
            if time.monotonic() > until:
                raise Failed(f"{count} workers did not arrive within {ARRIVE_S:.0f} s: {process.tail(crowd.log)}")
            time.sleep(0.1)
        yield
        crowd.check()


@contextmanager
def _running(
    stage: Stage, command: list[str | Path], name: str, variables: Mapping[str, str] | None = None
) -> Iterator[Child]:
    environment = {**stage.environment(), **(variables or {})}
    child = Child(command, environment=environment, folder=stage.code, log=stage.folder / f"{name}.log")
    try:
        yield child
    finally:
        child.stop()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])
