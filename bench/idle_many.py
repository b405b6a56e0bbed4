"""What a thousand idle workers cost the server that they are connected to (P10S, P10P)."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench import process
from bench.harness import Contestant, Failed, Figures, Stage
from bench.ours import KEY

WORKERS = 1_000
ARRIVE_S, WATCH_FACTOR = 180.0, 6  # in this window every poll ends and is repeated


def idle_polls(stage: Stage, contestant: Contestant) -> Figures:
    """Workers of the registry contract, each with an open poll and heartbeats every 10 s."""
    return _idle(stage, contestant, "polls")


def idle_sessions(stage: Stage, contestant: Contestant) -> Figures:
    """Workers of our SDK, each with an open stream and its heartbeats."""
    return _idle(stage, contestant, "sessions")


def _idle(stage: Stage, contestant: Contestant, kind: str) -> Figures:
    count = max(20, int(WORKERS * stage.scale.share))
    window_s = stage.scale.window_s * WATCH_FACTOR
    with stage.place(contestant) as place, stage.windlass_server(contestant, place) as (server, _, address):
        memory_mb = process.pss_mb(server.pid)
        with _crowd(stage, kind, address, count):
            time.sleep(stage.scale.settle_s)
            before = process.cpu_s(server.pid), process.cpu_s(place.server_pid), stage.transactions(place)
            time.sleep(window_s)
            after = process.cpu_s(server.pid), process.cpu_s(place.server_pid), stage.transactions(place)
            grown_kb = 1024 * (process.pss_mb(server.pid) - memory_mb) / count
    cpu, database_cpu, queries = ((b - a) / window_s for a, b in zip(before, after, strict=True))
    return {
        "queries_per_s_per_100": 100 * queries / count,
        "server_cpu_percent": 100 * cpu,
        "database_cpu_percent": 100 * database_cpu,
        "kb_per_worker": grown_kb,
    }


@contextmanager
def _crowd(stage: Stage, kind: str, address: str, count: int) -> Iterator[None]:
    command = [sys.executable, "-m", "bench.crowd", kind, address, KEY, str(count)]
    with stage.running(command, kind) as crowd:
        until = time.monotonic() + ARRIVE_S
        while f"{count} wait" not in crowd.log.read_text(errors="replace"):
            crowd.check()
            if time.monotonic() > until:
                raise Failed(f"{count} workers did not arrive within {ARRIVE_S:.0f} s: {process.tail(crowd.log)}")
            time.sleep(0.1)
        yield
        crowd.check()
