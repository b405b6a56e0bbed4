"""A worker: claims tasks in batches, runs their handlers side by side, reports what came of them, and stays alive.

Knows the engine only as a `WorkSource`, so that the same worker runs beside the database or far from it. It claims
ahead of what runs, and reports in groups while the next tasks run; a slot is free when its report was accepted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, cast
from uuid import UUID

import msgspec

from windlass.core.check import check_able, check_count, check_name, check_names, check_payload, check_seconds
from windlass.core.command import Cancelled, Claimed, Complete, Fail, Release, Report
from windlass.core.error import Invalid, LeaseLost, Unavailable, WindlassError
from windlass.core.failure import Failure
from windlass.core.lease import Extension, Lease
from windlass.core.task import Task
from windlass.sdk.signals import Cancel, failure_of

log = logging.getLogger("windlass.worker")

Handler = Callable[[Any], Awaitable[Any]]
Attempt = tuple[UUID, int]

CLAIM_WAIT_S = 60.0
AFTER_ERROR_S = 1.0
BEATS_PER_LEASE = 3
BATCH_MAX = 500


class WorkSource(Protocol):
    """Where work comes from: an engine in this process, or a server far away."""

    async def open_lease(self, worker: str, queues: Sequence[str], *, kinds: Sequence[str] | None,
                         ttl_s: float) -> Lease: ...  # fmt: skip
    async def extend_lease(self, lease: Lease, active: Sequence[UUID] | None) -> Extension: ...
    async def await_news(self, lease: Lease, timeout_s: float) -> bool: ...
    async def end_lease(self, lease: Lease) -> None: ...
    async def claim(self, lease: Lease, limit: int, *, wait_s: float) -> list[Claimed]: ...
    async def report(self, reports: Sequence[Report]) -> list[Task | WindlassError]: ...


class Runnable(Protocol):
    """What a worker runs: one attempt to its result, as JSON text, and what an exception of it means."""

    async def run(self, claimed: Claimed) -> bytes: ...

    def failure(self, error: BaseException) -> Failure: ...


class PlainHandler:
    """An async function that takes a payload and returns a result, both as JSON values."""

    def __init__(self, function: Handler) -> None:
        self._function = function

    async def run(self, claimed: Claimed) -> bytes:
        return msgspec.json.encode(await self._function(msgspec.json.decode(claimed.payload)))

    def failure(self, error: BaseException) -> Failure:
        return failure_of(error)


class Worker:
    """Runs handlers by kind: those of an app, or plain async functions of one payload."""

    def __init__(
        self,
        source: WorkSource,
        handlers: Mapping[str, Handler | Runnable],
        *,
        queues: Sequence[str] = ("default",),
        name: str | None = None,
        concurrency: int = 100,
        lease_ttl_s: float = 30.0,
    ) -> None:
        check_able("source", source, "open_lease", "extend_lease", "await_news", "end_lease", "claim", "report")
        check_names("queues", queues)
        check_count("concurrency", concurrency, least=1, most=100_000)
        check_seconds("lease_ttl_s", lease_ttl_s, least=0.5)
        if not queues:
            raise Invalid("must name at least one queue", field="queues")
        self._handlers = _runnable(handlers)
        if name is not None:
            check_name("name", name)
        self.name = name or f"{socket.gethostname()}-{os.getpid()}"
        self._source, self._queues = source, tuple(queues)
        self._concurrency, self._lease_ttl_s = concurrency, lease_ttl_s
        self._running: dict[Attempt, asyncio.Task[bytes]] = {}
        self._told_to_cancel: set[Attempt] = set()
        self._reports: list[Report] = []
        self._held: set[Attempt] = set()  # claimed, and not reported yet
        self._something_to_report = asyncio.Event()
        self._slot_free = asyncio.Event()
        self._stopping = asyncio.Event()

    # ----------------------------------------------------------------------------------------- life

    async def run(self) -> None:
        """Work until `stop` is called; then finish what runs. A lost lease is replaced by a new one."""
        reporter = asyncio.create_task(self._report_loop())
        try:
            while not self._stopping.is_set():
                await self._work_under_a_lease()
        finally:
            reporter.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reporter

    @property
    def queues(self) -> tuple[str, ...]:
        return self._queues

    def stop(self) -> None:
        """Claim nothing more."""
        self._stopping.set()

    async def _work_under_a_lease(self) -> None:
        try:
            lease = await self._source.open_lease(
                self.name, self._queues, kinds=list(self._handlers), ttl_s=self._lease_ttl_s
            )
        except Unavailable as error:
            log.warning("cannot reach the engine, trying again: %s", error)
            await asyncio.sleep(AFTER_ERROR_S)
            return
        beats = asyncio.create_task(self._beat_loop(lease))
        claims = asyncio.create_task(self._claim_loop(lease))
        stop = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({beats, claims, stop}, return_when=asyncio.FIRST_COMPLETED)
            await _stopped(claims)
            if self._stopping.is_set():
                await self._drain()
        finally:
            await _stopped(beats, claims, stop)
            await self._abandon(lease)

    async def _drain(self) -> None:
        """Let what runs come to its end, and its reports be accepted."""
        while self._running:
            await asyncio.wait(self._running.values())
        while self._held:
            self._slot_free.clear()
            await self._slot_free.wait()

    async def _abandon(self, lease: Lease) -> None:
        """The lease is over: nothing that still runs under it can be reported any more."""
        for task in list(self._running.values()):
            task.cancel()
        await self._drain()
        with contextlib.suppress(WindlassError):
            await self._source.end_lease(lease)

    # ----------------------------------------------------------------------------------------- loops

    async def _claim_loop(self, lease: Lease) -> None:
        """Claim while there is room. While one claim is under way, the room for the next one gathers."""
        while True:
            free = self._concurrency - len(self._held)
            if free <= 0:
                self._slot_free.clear()
                await self._slot_free.wait()
                continue
            try:
                claimed = await self._source.claim(lease, min(free, BATCH_MAX), wait_s=CLAIM_WAIT_S)
            except LeaseLost:
                return
            except Unavailable as error:
                log.warning("cannot claim, trying again: %s", error)
                await asyncio.sleep(AFTER_ERROR_S)
                continue
            self._begin(claimed, lease)

    def _begin(self, claimed: Sequence[Claimed], lease: Lease) -> None:
        for one in claimed:
            attempt = (one.task.id, one.task.attempt)
            self._held.add(attempt)
            running = self._running[attempt] = asyncio.create_task(self._run_one(one))
            running.add_done_callback(partial(self._ended, one.task, lease.id))

    async def _beat_loop(self, lease: Lease) -> None:
        while True:
            await self._source.await_news(lease, self._lease_ttl_s / BEATS_PER_LEASE)
            try:
                extension = await self._source.extend_lease(lease, list({task_id for task_id, _ in self._held}))
            except LeaseLost:
                log.warning("the lease was lost: what runs is given up")
                return
            except Unavailable as error:
                log.warning("no heartbeat: %s", error)
                continue
            for cancel in extension.cancels:
                self._cancel((cancel.task_id, cancel.attempt))
            for attempt in [held for held in self._running if held[0] in extension.lost]:
                self._running[attempt].cancel()  # timed out, or with somebody else: nobody waits for it any more

    def _cancel(self, attempt: Attempt) -> None:
        task = self._running.get(attempt)
        if task is not None and attempt not in self._told_to_cancel:
            self._told_to_cancel.add(attempt)
            task.cancel()

    async def _report_loop(self) -> None:
        """Everything that ended while the last group was on its way goes with the next."""
        while True:
            await self._something_to_report.wait()
            self._something_to_report.clear()
            while self._reports:
                batch, self._reports = self._reports[:BATCH_MAX], self._reports[BATCH_MAX:]
                again = await self._send(batch)
                self._held.difference_update(
                    (report.task_id, report.attempt) for report in batch if report not in again
                )
                self._slot_free.set()
                if again:
                    asyncio.get_running_loop().call_later(AFTER_ERROR_S, self._say, again)

    def _say(self, reports: Sequence[Report]) -> None:
        self._reports += reports
        self._something_to_report.set()

    async def _send(self, batch: list[Report]) -> list[Report]:
        """A report is sent until it was answered: to lose an answer is harmless, to lose a report is not. Returns those
        that could not be decided now (somebody holds the task's row): the others do not wait for them."""
        while True:
            try:
                answers = await self._source.report(batch)
            except Unavailable as error:
                log.warning("cannot report, trying again: %s", error)
                await asyncio.sleep(AFTER_ERROR_S)
                continue
            for report, answer in zip(batch, answers, strict=True):
                if isinstance(answer, WindlassError):
                    log.warning("report on task %s, attempt %d: %s", report.task_id, report.attempt, answer)
            return [report for report, answer in zip(batch, answers, strict=True) if isinstance(answer, Unavailable)]

    # ----------------------------------------------------------------------------------------- one task

    async def _run_one(self, claimed: Claimed) -> bytes:
        """What the handler returned, as JSON. What the engine would not keep is a failure of the handler."""
        result = await self._handlers[claimed.task.kind].run(claimed)
        check_payload("result", result)
        return result

    def _ended(self, task: Task, lease_id: UUID, ended: asyncio.Task[bytes]) -> None:
        """Every attempt that was begun comes here, also one that was cancelled before its first step."""
        del self._running[task.id, task.attempt]
        self._say([self._report_of(task, lease_id, ended)])
        self._told_to_cancel.discard((task.id, task.attempt))

    def _report_of(self, task: Task, lease_id: UUID, ended: asyncio.Task[bytes]) -> Report:
        if ended.cancelled() and ended.cancelling():
            return self._on_cancelled(task, lease_id)
        # Cancelled, but not by us: something inside the handler was. Given back, it would be claimed again at once.
        error = asyncio.CancelledError() if ended.cancelled() else ended.exception()
        if isinstance(error, Cancel):
            return Cancelled(task.id, task.attempt, lease_id, str(error))
        if error is not None:
            return Fail(task.id, task.attempt, lease_id, self._handlers[task.kind].failure(error))
        return Complete(task.id, task.attempt, lease_id, ended.result())

    def _on_cancelled(self, task: Task, lease_id: UUID) -> Report:
        """Told to stop by a cancel, or torn away because the worker goes: then somebody else may run it."""
        if (task.id, task.attempt) in self._told_to_cancel:
            return Cancelled(task.id, task.attempt, lease_id)
        return Release(task.id, task.attempt, lease_id)


def _runnable(handlers: Mapping[str, Handler | Runnable]) -> dict[str, Runnable]:
    if not isinstance(handlers, Mapping) or not handlers:
        raise Invalid("must map at least one kind to a handler", field="handlers")
    check_names("handlers", list(handlers))
    made: dict[str, Runnable] = {}
    for kind, handler in handlers.items():
        if hasattr(handler, "run") and hasattr(handler, "failure"):
            made[kind] = cast("Runnable", handler)
        elif callable(handler):
            made[kind] = PlainHandler(handler)
        else:
            raise Invalid(f"{kind} must be an async function or a handler of an app", field="handlers")
    return made


async def _stopped(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
