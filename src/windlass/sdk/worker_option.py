"""What a worker may be told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict


class WorkerOptions(TypedDict, total=False):
    """What a worker may be told, in code and on the command line alike."""

    queues: Sequence[str] | None  # by default those that the app's handlers name
    kinds: Sequence[str] | None  # of the handlers it has; by default all
    name: str | None  # by default host and process id
    namespace: str
    labels: Sequence[str]  # what this worker has and tasks may require
    version: str  # of the program, for people who look
    concurrency: int  # how many tasks run side by side
    prefetch: int  # how many more it holds ready
    lease_ttl_s: float  # how long after its last sign of life its tasks are given to others
    heartbeat_process: bool  # keep the lease while a handler blocks the event loop
