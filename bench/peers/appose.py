"""The reference implementation of the stdio contract; it takes part in that row only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from bench.subject import Subject


class Appose(Subject):
    name = "appose"
    part = "appose"
    requirements: ClassVar[Sequence[str]] = ["appose==0.12.0", "numpy>=2"]
    settings = "its own Python worker and client, as they come"
    drain_tasks = 0

    def takes_part(self, kind: str) -> bool:
        return kind == "stdio"

    async def setup(self, url: str) -> None:
        raise NotImplementedError

    async def open(self, url: str) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    async def submit(self, index: int, sent_at: float) -> None:
        raise NotImplementedError

    def work(self, url: str) -> None:
        raise NotImplementedError


SUBJECT = Appose
