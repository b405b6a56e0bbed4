"""Ports for servers that cannot listen on port 0 and report the port that they got."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

LOWEST = 10_240  # those below belong to services that people know
RUNS = 16  # processes that run tests beside each other get ports of their own


def free_port() -> int:
    """One that nobody else gets by chance, also while its server is away for a while.

    A port from the system's own range could be given to any client before the server has begun to listen, and a
    client that connects to such a port while no server listens may even be connected to itself.
    """
    for port in _candidates:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise AssertionError("no port is free")


def _draw() -> Iterator[int]:
    ours = range(LOWEST + _number_of_run(), _first_of_the_system(), RUNS)
    if not ours:
        while True:
            yield 0
    begin = random.SystemRandom().randrange(len(ours))
    while True:
        yield from ours[begin:]
        begin = 0


def _number_of_run() -> int:
    name = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    return int(name.removeprefix("gw")) % RUNS


def _first_of_the_system() -> int:
    known = Path("/proc/sys/net/ipv4/ip_local_port_range")
    return int(known.read_text().split()[0]) if known.exists() else 32_768


_candidates = _draw()
