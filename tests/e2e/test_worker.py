"""The worker's own book-keeping: every attempt that it holds is reported, however it ends; only so can it stop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest
from tests.kit.work import until

from windlass import Claimed, Lease, State, StoreBusy, Task, WindlassError, Worker
from windlass.core.command import Cancelled, Complete, Fail, Release, Report
from windlass.core.lease import Activity, CancelSignal, Extension
from windlass.errors import InvalidState, LeaseLost, Unauthenticated
from windlass.sdk.worker import worker as worker_module

pytestmark = pytest.mark.slow

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

    async def await_notification(self, lease: Lease, timeout_s: float) -> bool:
        with contextlib.suppress(TimeoutError):  # then it is told again, as an engine does with each heartbeat
            async with asyncio.timeout(timeout_s):
                self._extension = await self._news.get()
        return True

    async def extend_lease(self, lease: Lease, active: Sequence[UUID] | None, activity: Activity) -> Extension:
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


class Strict(Source):
    """One that cannot send some reports."""

    def __init__(self, *refused: type) -> None:
        super().__init__()
        self.refused, self.tries = refused, 0

    async def report(self, reports: Sequence[Report]) -> list[Task | WindlassError]:
        self.tries += 1
        if any(isinstance(report, self.refused) for report in reports):
            raise UnicodeEncodeError("utf-8", "caf\udce9", 3, 4, "surrogates not allowed")
        return await super().report(reports)


async def test_a_report_that_cannot_be_sent_is_told_as_a_failure_instead() -> None:
    async def handler(payload: None) -> int:
        return 17

    report = await report_of(Strict(Complete), handler)
    assert isinstance(report, Fail)
    assert report.failure.reason == "REPORT_NOT_SENT"
    assert "surrogates not allowed" in report.failure.message
    assert not report.failure.may_retry


@pytest.mark.parametrize("how", ["cannot send", "revoked", "cancelled"])
async def test_a_worker_whose_reports_stop_ends_with_a_clear_line(caplog: pytest.LogCaptureFixture, how: str) -> None:
    class Revoked(Source):
        async def report(self, reports: Sequence[Report]) -> list[Task | WindlassError]:
            raise Unauthenticated("the key was revoked")

    async def handler(payload: None) -> int:
        if how == "cancelled":
            worker._reporting.cancel()
        return 17

    source = {"cannot send": Strict(Complete, Fail), "revoked": Revoked()}.get(how, Source())
    worker = Worker(source, {"job": handler}, heartbeat_process=False)
    expected = {"cannot send": UnicodeEncodeError, "revoked": Unauthenticated}.get(how, InvalidState)
    with pytest.raises(expected):
        await asyncio.wait_for(worker.run(), SOON_S)
    assert "its reporter has stopped" in caplog.text


async def test_a_handler_that_exits_has_failed() -> None:
    async def handler(payload: None) -> None:
        raise SystemExit(3)

    report = await report_of(Source(), handler)
    assert isinstance(report, Fail)
    assert report.failure.line == "SystemExit: 3"


async def test_a_handler_that_does_not_stop_keeps_no_worker_from_its_next_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Losing(Source):
        leases = 0

        async def open_lease(self, worker: str, queues: Sequence[str], **rest: Any) -> Lease:
            self.leases += 1
            return await super().open_lease(worker, queues, **rest)

        async def extend_lease(self, lease: Lease, active: Sequence[UUID] | None, activity: Activity) -> Extension:
            if self.leases == 1 and begun.is_set():
                raise LeaseLost("it ran out")
            return await super().extend_lease(lease, active, activity)

        async def await_notification(self, lease: Lease, timeout_s: float) -> bool:
            return await super().await_notification(lease, 0.01)

    async def handler(number: int) -> int:
        begun.set()
        while number == 0 and not goes_on.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await goes_on.wait()
        return number

    begun, goes_on = asyncio.Event(), asyncio.Event()
    monkeypatch.setattr(worker_module, "GIVE_UP_S", 0.05)
    source = Losing()
    source._line = asyncio.Queue()
    deaf, other = source.task, msgspec.structs.replace(source.task, id=uuid4())
    source._line.put_nowait(Claimed(deaf, b"0"))
    worker = Worker(source, {"job": handler}, heartbeat_process=False)
    running = asyncio.create_task(worker.run())
    try:
        await until(lambda: source.leases == 2)
        source._line.put_nowait(Claimed(other, b"1"))
        report = await asyncio.wait_for(source.reported.get(), SOON_S)
        assert report.task_id == other.id
    finally:
        goes_on.set()
    worker.stop()
    await asyncio.wait_for(running, SOON_S)
    assert (await source.reported.get()).task_id == deaf.id, "late, and perhaps still in time"
