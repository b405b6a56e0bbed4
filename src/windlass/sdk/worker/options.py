"""The options of a worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict


class WorkerOptions(TypedDict, total=False):
    """The options of a worker, the same in code and on the command line."""

    queues: Sequence[str] | None  # default: the queues that the app's handlers name
    kinds: Sequence[str] | None  # of the handlers it has; default: all
    name: str | None  # default: host and process id
    namespace: str
    labels: Sequence[str]  # what this worker offers and tasks may require
    version: str  # of the program, shown to operators
    concurrency: int  # how many tasks run at the same time
    prefetch: int  # how many more tasks it claims ahead
    lease_ttl_s: float  # how long after its last heartbeat its tasks go to other workers
    heartbeat_process: bool  # keep the lease while a handler blocks the event loop
