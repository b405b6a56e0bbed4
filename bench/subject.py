"""The interface of everything that is measured, Windlass or a peer.

A subject's class is imported in two places: by the harness for its attributes, and by `bench.agent` inside the
subject's own environment to run it. So methods import the library, and this module needs the standard library only.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

BATCH = 1000
T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine, on uvloop if the environment has it."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    result: T = uvloop.run(work)
    return result


class Subject:
    """One engine under test. Its task is a no-op that calls `recorder.hit(index, sent_at)`; its flow does the same and
    then three durable steps, one after the other."""

    name: ClassVar[str]
    part: ClassVar[str] = "peers"  # its virtual environment, "" for ours
    requirements: ClassVar[Sequence[str]] = ()
    settings: ClassVar[str] = ""  # how it is configured, for the report
    drain_tasks: ClassVar[int] = 0  # enough for a drain of a few seconds
    flow_tasks: ClassVar[int] = 0  # the same for flows; 0 if it has no durable steps
    batches: ClassVar[bool] = True  # whether it has a call that submits many
    parks: ClassVar[bool] = True  # whether tasks can wait without a worker; else they are streamed to a live one
    stored_sql: ClassVar[str] = ""  # counts its tasks, in any state
    done_sql: ClassVar[str] = ""  # counts those that succeeded

    unit: str = "noop"  # what is submitted: "noop" or "flow"

    # For the harness.

    def missing(self) -> str | None:
        """Install what the package index does not have. Returns the reason why it cannot be measured here, or None."""
        return None

    def takes_part(self, kind: str) -> bool:
        """Whether it supports this measurement."""
        return {"submit_batch": self.batches, "flow_1": self.flow_tasks > 0, "stdio": False}.get(kind, True)

    def open_store(self, folder: Path) -> Store | None:
        """Start its own store, if it does not use PostgreSQL."""
        return None

    def worker_commands(self, python: Path, url: str, count: int) -> list[list[str]]:
        """The commands that start `count` worker processes."""
        return [[str(python), "-m", "bench.agent", self.name, "work", url]] * count

    # For the agent, in the subject's environment.

    async def setup(self, url: str) -> None:
        """Create the schema in an empty database."""

    async def open(self, url: str) -> None:
        """Connect a client."""
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    async def submit(self, index: int, sent_at: float) -> None:
        """Submit one task; it is durable when this returns."""
        raise NotImplementedError

    async def submit_many(self, indexes: range) -> None:
        """Submit many in one call."""
        raise NotImplementedError

    def work(self, url: str) -> None:
        """Run a worker until the process is terminated."""
        run(self.run_worker(url))

    async def run_worker(self, url: str) -> None:
        raise NotImplementedError

    # Only for ours.

    async def fill_finished(self, url: str, count: int) -> None:
        """Put `count` finished tasks with their history into the store, as a long-lived installation has them."""
        raise NotImplementedError

    async def hand_off(self, url: str, count: int, rate: float) -> list[float]:
        """The latencies from submit to start, in seconds, with client, engine and worker in one process."""
        raise NotImplementedError


class Store:
    """A store that is not PostgreSQL: its URL and its process."""

    def __init__(self, url: str, process: subprocess.Popen[bytes]) -> None:
        self.url, self.process = url, process
