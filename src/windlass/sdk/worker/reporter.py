"""Sends the reports of one worker, in groups, each until it is answered.

A lost answer is harmless, because a repeated report gets the same answer. A lost report is not. A report that cannot be
sent at all becomes a failure of its own attempt, so that no other report waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from uuid import UUID

from windlass.core.command import Complete, Fail, Report
from windlass.core.failure import Category, Failure
from windlass.core.text import line_of
from windlass.errors import Forbidden, Unauthenticated, Unavailable, WindlassError
from windlass.sdk.worker.asyncio_tools import AFTER_ERROR_S
from windlass.sdk.worker.work_source import WorkSource

log = logging.getLogger("windlass.worker")

BATCH_MAX = 500
UNSENT = "REPORT_NOT_SENT"


class Reporter:
    """`batch_min` gives the number of reports worth a call; `on_answer` receives the attempts that have an answer."""

    __slots__ = ("_batch_min", "_on_answer", "_pending", "_ready", "_source", "completed", "failed")

    def __init__(
        self, source: WorkSource, batch_min: Callable[[], int], on_answer: Callable[[set[tuple[UUID, int]]], None]
    ) -> None:
        self._source, self._batch_min, self._on_answer = source, batch_min, on_answer
        self._pending: list[Report] = []
        self._ready = asyncio.Event()
        self.completed, self.failed = 0, 0  # accepted reports that no heartbeat has counted yet

    def add(self, *reports: Report) -> None:
        if reports:
            self._pending += reports
            self._ready.set()

    def wake(self) -> None:
        """Check again whether there are enough reports for a call."""
        self._ready.set()

    async def run(self) -> None:
        """Send batches. Each contains all reports that were added while the last one was under way."""
        while True:
            await self._ready.wait()
            self._ready.clear()
            while len(self._pending) >= self._batch_min():
                batch, self._pending = self._pending[:BATCH_MAX], self._pending[BATCH_MAX:]
                again = await self._send(batch)
                undecided = {(report.task_id, report.attempt) for report in again}
                self._on_answer({(report.task_id, report.attempt) for report in batch} - undecided)
                if again:
                    asyncio.get_running_loop().call_later(AFTER_ERROR_S, self.add, *again)

    async def _send(self, batch: Sequence[Report]) -> list[Report]:
        """Returns those that could not be decided now, because another transaction holds the task's row."""
        while True:
            try:
                answers = await self._source.report(batch)
            except Unavailable as error:
                log.warning("cannot report, trying again: %s", error)
                await asyncio.sleep(AFTER_ERROR_S)
                continue
            except (Unauthenticated, Forbidden):
                raise  # the server refuses all reports of this worker
            except Exception as error:
                return await self._send_apart(batch, error)
            return [report for report, answer in zip(batch, answers, strict=True) if self._is_undecided(report, answer)]

    async def _send_apart(self, batch: Sequence[Report], error: Exception) -> list[Report]:
        """One report of the batch cannot be sent: send each alone, and that one as a failure."""
        if len(batch) > 1:
            return [again for report in batch for again in await self._send([report])]
        [report] = batch
        if isinstance(report, Fail) and report.failure.reason == UNSENT:
            raise error
        log.error(
            "the report on task %s, attempt %d cannot be sent: %s", report.task_id, report.attempt, line_of(error)
        )
        message = f"the outcome could not be reported: {line_of(error)}"
        failure = Failure(Category.DATA_QUALITY, message, UNSENT, retryable=False)
        return await self._send([Fail(report.task_id, report.attempt, report.lease_id, failure)])

    def _is_undecided(self, report: Report, answer: object) -> bool:
        if isinstance(answer, WindlassError):
            log.warning("report on task %s, attempt %d: %s", report.task_id, report.attempt, answer)
            return isinstance(answer, Unavailable)
        self.completed += isinstance(report, Complete)
        self.failed += isinstance(report, Fail)
        return False
