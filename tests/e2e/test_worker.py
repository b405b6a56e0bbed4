"""The worker's own book-keeping: every attempt that it holds is reported, however it ends; only so can it stop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

from windlass import Claimed, Lease, State, StoreBusy, Task, WindlassError, Worker
from windlass.core.command import Cancelled, Complete, Fail, Release, Report
from windlass.core.lease import CancelSignal, Extension
from windlass.sdk import worker as worker_module

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SOON_S = 45.0


class Source:
    """An engine of one task: it is claimed at once; `on_claim` tells at the same moment what a heartbeat answers."""

    def __init__(self, on_claim: Extension | None = None) -> None:
        self.task = Task(uuid4(), "default", "default", "job", State.RUNNING, NOW, attempt=1, started_at=NOW)
        self.reported: asyncio.Queue[Report] = asyncio.Queue()
        self._line: asyncio.Queue[Claimed] = asyncio.Queue()
        self._line.put_nowait(Claimed(self.task, b"null"))
        self._news: asyncio.Queue[Extension] = asyncio.Queue()
        self._on_claim = on_claim
        self._extension = Extension(NOW, ())

    async def open_lease(self, worker: str, queues: Sequence[str], **rest: Any) -> Lease:
        return Lease(uuid4(), "default", worker, tuple(queues), None, (), 30.0, NOW)

    async def claim(self, lease: Lease, limit: int, *, wait_s: float) -> list[Claimed]:
        claimed = await self._line.get()
        if self._on_claim is not None:
            self._news.put_nowait(self._on_claim)
        return [claimed]

    async def await_news(self, lease: Lease, timeout_s: float) -> bool:
        with contextlib.suppress(TimeoutError):  # then it is told again, as an engine does with each heartbeat
            async with asyncio.timeout(timeout_s):
                self._extension = await self._news.get()
        return True

    async def extend_lease(self, lease: Lease, active: Sequence[UUID] | None) -> Extension:
        return self._extension

    async def end_lease(self, lease: Lease) -> None:
        pass

    async def report(self, reports: Sequence[Report]) -> list[Task | WindlassError]:
        for report in reports:
            self.reported.put_nowait(report)
        return [self.task for _ in reports]


async def report_of(source: Source, handler: Any) -> Report:
    """What the worker says about the one task; the worker must be able to stop afterwards."""
    worker = Worker(source, {"job": handler})
    running = asyncio.create_task(worker.run())
    try:
        report = await asyncio.wait_for(source.reported.get(), SOON_S)
        worker.stop()
        await asyncio.wait_for(running, SOON_S)
        return report
    finally:
        running.cancel()


def never(started: list[str]) -> Any:
    async def handler(payload: None) -> None:
        started.append("started")
        await asyncio.Event().wait()

    return handler


async def test_a_result_is_reported() -> None:
    async def handler(payload: None) -> int:
        return 17

    report = await report_of(Source(), handler)
    assert isinstance(report, Complete)
    assert report.result == b"17"


async def test_an_attempt_that_is_cancelled_before_its_first_step_is_reported() -> None:
    source = Source()
    source._on_claim = Extension(NOW, (CancelSignal(source.task.id, 1, "not needed"),))
    started: list[str] = []
    assert isinstance(await report_of(source, never(started)), Cancelled)


async def test_an_attempt_that_is_lost_before_its_first_step_is_given_back() -> None:
    source = Source()
    source._on_claim = Extension(NOW, (), (source.task.id,))
    started: list[str] = []
    assert isinstance(await report_of(source, never(started)), Release)


async def test_a_handler_that_was_cancelled_by_something_of_its_own_has_failed() -> None:
    async def handler(payload: None) -> None:
        inner = asyncio.ensure_future(asyncio.Event().wait())
        inner.cancel()
        await inner

    report = await report_of(Source(), handler)
    assert isinstance(report, Fail), "given back, it would be claimed again at once, for ever"
    assert report.failure.reason == "CancelledError"


async def test_a_report_that_could_not_be_decided_now_is_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class BusySource(Source):
        refusals = 2

        async def report(self, reports: Sequence[Report]) -> list[Task | WindlassError]:
            if self.refusals:
                self.refusals -= 1
                return [StoreBusy("somebody holds the row") for _ in reports]
            return await super().report(reports)

    async def handler(payload: None) -> int:
        return 17

    monkeypatch.setattr(worker_module, "AFTER_ERROR_S", 0.01)
    assert isinstance(await report_of(BusySource(), handler), Complete)


@pytest.mark.parametrize("error", [RuntimeError("broken"), GeneratorExit("odd")], ids=lambda e: type(e).__name__)
async def test_whatever_a_handler_raises_is_a_failure(error: BaseException) -> None:
    async def handler(payload: None) -> None:
        raise error

    report = await report_of(Source(), handler)
    assert isinstance(report, Fail)
    assert report.failure.reason == type(error).__name__


def test_an_event_loop_that_ends_is_not_held_up_by_a_worker() -> None:
    """`asyncio.run` cancels everybody at once, those too who would have sent the reports."""

    async def main() -> asyncio.Task[None]:
        started = asyncio.Event()

        async def handler(payload: None) -> None:
            started.set()
            await asyncio.Event().wait()

        running = asyncio.create_task(Worker(Source(), {"job": handler}).run())
        await asyncio.wait_for(started.wait(), SOON_S)
        return running

    assert asyncio.run(main()).cancelled()
