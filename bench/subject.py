"""What is measured, ours or a peer, behind one interface, so that all are treated alike.

A subject's class is imported in two places: by the harness for its facts, and by `bench.agent` inside the subject's own
environment for its work. So the library itself is imported only within methods. Standard library only.
"""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

BATCH = 1000


class Subject(ABC):
    """One engine under test. Its task is a no-op that calls `recorder.hit(index, sent_at)`; its flow does the same and
    then three durable steps, one after the other."""

    name: ClassVar[str]
    part: ClassVar[str] = "peers"  # the environment it lives in, "" for ours
    requirements: ClassVar[Sequence[str]] = ()
    settings: ClassVar[str] = ""  # what was set for it, for the report
    drain_tasks: ClassVar[int]  # so many that a drain takes a few seconds
    flow_tasks: ClassVar[int] = 0  # the same for flows; none if it has no durable steps
    batches: ClassVar[bool] = True  # whether it has a call that submits many
    parks: ClassVar[bool] = True  # whether tasks can wait without a worker; else they are streamed to a live one
    stored_sql: ClassVar[str] = ""  # how many tasks are there, in whatever state
    done_sql: ClassVar[str] = ""  # how many of them succeeded

    unit: str = "noop"  # what is submitted: "noop" or "flow"

    # The harness's side.

    def missing(self) -> str | None:
        """Why it cannot be measured here, or None; installs what the package index does not have."""
        return None

    def takes_part(self, kind: str) -> bool:
        """Whether it has what this measurement asks for."""
        return {"submit_batch": self.batches, "flow_1": self.flow_tasks > 0, "stdio": False}.get(kind, True)

    def open_store(self, folder: Path) -> Store | None:
        """A store of its own, where it does not use PostgreSQL."""
        return None

    def worker_commands(self, python: Path, url: str, count: int) -> list[list[str]]:
        """What starts `count` worker processes."""
        return [[str(python), "-m", "bench.agent", self.name, "work", url]] * count

    # The agent's side, in the subject's environment.

    @abstractmethod
    async def setup(self, url: str) -> None:
        """Make the schema in an empty database."""

    @abstractmethod
    async def open(self, url: str) -> None:
        """Connect a client."""

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    async def submit(self, index: int, sent_at: float) -> None:
        """Submit one task; it is durable when this returns."""

    async def submit_many(self, indexes: range) -> None:
        """Submit many in one call."""
        raise NotImplementedError

    @abstractmethod
    def work(self, url: str) -> None:
        """Run a worker until the process is told to end."""

    # What only ours is asked.

    async def fill_finished(self, url: str, count: int) -> None:
        """Put `count` finished tasks with their history into the store, as a long-lived installation has them."""
        raise NotImplementedError

    async def hand_off(self, url: str, count: int, rate: float) -> list[float]:
        """Seconds from submit to start with client, engine and worker in one process, sample by sample."""
        raise NotImplementedError


class Store:
    """A store that is not PostgreSQL: where it is, and the process that is it."""

    def __init__(self, url: str, process: subprocess.Popen[bytes]) -> None:
        self.url, self.process = url, process
