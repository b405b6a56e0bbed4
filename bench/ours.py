"""Windlass itself, through the adapter that every subject has.

The engine is not there yet: the class says what it will be asked, and `missing` says that it cannot be measured.
"""

from __future__ import annotations

from bench.subject import Subject


class Windlass(Subject):
    name = "windlass"
    part = ""
    settings = "defaults"
    drain_tasks = 80_000
    stored_sql = ""
    done_sql = ""

    def missing(self) -> str | None:
        return "the engine is not written yet"

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


SUBJECT = Windlass
