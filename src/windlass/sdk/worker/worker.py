"""A worker: claims tasks in batches, runs their handlers concurrently, reports outcomes, and sends heartbeats.

Knows the engine only as a `WorkSource`, so that the same worker runs beside the database or far from it. It claims
tasks ahead, and reports in batches while the next tasks run; a slot is free when its report was accepted. While a
handler blocks the event loop, another process keeps the lease alive: see `heartbeat`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from windlass.core.command import Cancelled, Claimed, Complete, Fail, Release, Report
from windlass.core.failure import Failure
from windlass.core.lease import Activity, Extension, Lease, Reach, check_about
from windlass.core.task import Task
from windlass.core.text import line_of, words_of
from windlass.core.validation import (
    LARGE_MAX_BYTES,
    check_able,
    check_count,
    check_name,
    check_names,
    check_payload,
    check_seconds,
    check_type,
)
from windlass.errors import Invalid, InvalidState, LeaseLost, Unavailable, WindlassError
from windlass.sdk.context import cancel_requests
from windlass.sdk.handler.runnable import AnyKind, Handler, Runnable, resolve_handlers
from windlass.sdk.signals import Cancel, invalid_is_bad_data
from windlass.sdk.trace import attempt_span
from windlass.sdk.worker.asyncio_tools import AFTER_ERROR_S, cancel_and_wait, wait_for_first
from windlass.sdk.worker.heartbeat import Attempt, Heartbeat
from windlass.sdk.worker.log_throttle import LogThrottle
from windlass.sdk.worker.outcome import Outcome, log_failure, outcome_of, safe_failure
from windlass.sdk.worker.reporter import BATCH_MAX, Reporter
from windlass.sdk.worker.work_source import WorkSource
from windlass.sdk.workflow.exits import WorkflowExit

if TYPE_CHECKING:
    from windlass.sdk.schedule import Declaration

log = logging.getLogger("windlass.worker")

CLAIM_WAIT_S = 60.0
HEARTBEATS_PER_LEASE, IDLE_HEARTBEATS_PER_LEASE = 3, 2  # an idle worker loses little with its lease
START_MAX = 20  # handlers to start in one iteration of the event loop
STOP_NOW_S = 2.0  # for handlers to notice that they were cancelled
GIVE_UP_S = 10.0  # the same, when the lease is lost


class Worker:
    """Runs a handler for each kind (of an app, or plain async functions of one payload), or one handler for all kinds.
    See `WorkerOptions`."""

    def __init__(
        self,
        source: WorkSource,
        handlers: Mapping[str, Handler | Runnable] | Runnable,
        *,
        queues: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
        name: str | None = None,
        namespace: str = "default",
        labels: Sequence[str] = (),
        version: str = "",
        concurrency: int = 100,
        prefetch: int = 0,
        lease_ttl_s: float = 30.0,
        heartbeat_process: bool = True,
    ) -> None:
        check_able("source", source, "open_lease", "extend_lease", "await_notification", "end_lease", "claim", "report")
        queues = ("default",) if queues is None else queues
        check_names("queues", queues)
        check_count("concurrency", concurrency, least=1, most=100_000)
        check_count("prefetch", prefetch, most=100_000)
        check_seconds("lease_ttl_s", lease_ttl_s, least=0.5)
        check_name("namespace", namespace)
        check_names("labels", labels)
        check_about("", 0, version)
        check_type("heartbeat_process", heartbeat_process, bool)
        if not queues:
            raise Invalid("must name at least one queue", field="queues")
        self._handlers = resolve_handlers(handlers, kinds)
        self._kinds = None if isinstance(self._handlers, AnyKind) else list(self._handlers)
        if name is not None:
            check_name("name", name)
        self.name = name or f"{socket.gethostname()}-{os.getpid()}"
        self._source, self._queues = source, tuple(queues)
        self._namespace, self._labels, self._version = namespace, tuple(labels), version
        self._concurrency, self._prefetch, self._lease_ttl_s = concurrency, prefetch, lease_ttl_s
        on_cancel = self._cancel_from_heartbeat_process
        self._heartbeat = Heartbeat(reach_of(source) if heartbeat_process else None, on_cancel, self._on_loop)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[Any] | None = None  # which runs the worker
        self._all_reported = False
        self._warn = LogThrottle(log)
        self.lease_options: dict[str, Any] = {}  # further arguments of `open_lease`
        self.on_lease: Callable[[Lease], None] = lambda _: None  # called with each lease that is opened
        self.declaration: Declaration | None = None  # of the app whose handlers run here
        self._waiting: deque[Claimed] = deque()  # claimed ahead, and not started
        self._starting: asyncio.Handle | None = None
        self._running: dict[Attempt, asyncio.Task[Outcome]] = {}
        self._cancelled: set[Attempt] = set()  # running, and their cancel was requested
        self._held: set[Attempt] = set()  # claimed, and not reported yet
        self._reporter = Reporter(source, lambda: self._at_least(BATCH_MAX), self._on_answer)
        self._reporting: asyncio.Task[None] | None = None
        self._slot_free = asyncio.Event()
        self._stopping = asyncio.Event()
        self._stopping_now = asyncio.Event()
        self._ended = asyncio.Event()
        self._ended.set()

    # ----------------------------------------------------------------------------------------- life

    async def run(self) -> None:
        """Work until `stop` is called; then finish what runs. A lost lease is replaced by a new one."""
        self._loop, self._main = asyncio.get_running_loop(), asyncio.current_task()
        self._ended.clear()
        reporter = self._reporting = asyncio.create_task(self._reporter.run())
        reporter.add_done_callback(self._on_reporter_end)
        declaring: asyncio.Task[None] | None = None
        try:
            if self.declaration is not None:
                await wait_for_first(self.declaration.begin(), self._stopping.wait())
                declaring = asyncio.create_task(self.declaration.keep())
            while not self._stopping.is_set():
                await self._work_under_a_lease()
            self._all_reported = True
            if reporter.done():
                if not reporter.cancelled():
                    reporter.result()
                raise InvalidState(f"the worker {self.name} cannot report any more")
        finally:
            try:
                await cancel_and_wait(reporter, *([] if declaring is None else [declaring]))
            finally:
                await asyncio.to_thread(self._heartbeat.close)
                self._ended.set()

    def _on_reporter_end(self, reporter: asyncio.Task[None]) -> None:
        """Without a reporter no outcome would reach the engine: end the worker, so that its tasks go to others."""
        self._slot_free.set()
        if self._main is None or self._main.cancelling() or self._main.done():
            return  # the worker ends anyway
        if not self._all_reported:
            why = "it was cancelled" if reporter.cancelled() else line_of(reporter.exception() or InvalidState())
            self.stop_now()
            log.critical("the worker %s ends, since its reporter has stopped: %s", self.name, why)

    @property
    def queues(self) -> tuple[str, ...]:
        return self._queues

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(self._handlers)

    def active_count(self) -> int:
        """The number of tasks that run here now."""
        return len(self._running)

    def stop(self) -> None:
        """Claim nothing more, release tasks that were not started, and end when the running ones have ended."""
        self._stopping.set()

    def stop_now(self) -> None:
        """End at once: cancel handlers and release their tasks, which costs those tasks no attempt."""
        self._stopping.set()
        self._stopping_now.set()

    async def shutdown(self, timeout_s: float | None = None) -> None:
        """Stop, and wait for the end; tasks that still run after `timeout_s` are released."""
        if timeout_s is not None:
            check_seconds("timeout_s", timeout_s)
        self.stop()
        try:
            await asyncio.wait_for(self._ended.wait(), timeout_s)
        except TimeoutError:
            self.stop_now()
            await self._ended.wait()

    async def _work_under_a_lease(self) -> None:
        now = time.monotonic()
        try:
            lease = await self._source.open_lease(
                self.name, self._queues, kinds=self._kinds, labels=self._labels, namespace=self._namespace,
                ttl_s=self._lease_ttl_s, host=socket.gethostname(), pid=os.getpid(), version=self._version,
                concurrency=self._concurrency, **self.lease_options,
            )  # fmt: skip
        except Unavailable as error:
            self._warn("cannot reach the engine, trying again: %s", error)
            await asyncio.sleep(AFTER_ERROR_S)
            return
        self._heartbeat.on_extended(lease, now)
        self.on_lease(lease)
        heartbeats = asyncio.create_task(self._heartbeat_loop(lease))
        claims = asyncio.create_task(self._claim_loop(lease))
        stop = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({heartbeats, claims, stop}, return_when=asyncio.FIRST_COMPLETED)
            await cancel_and_wait(claims)
            self._release_waiting(lease)
            if self._stopping.is_set():
                await wait_for_first(self._drain(), self._stopping_now.wait())
        finally:
            await cancel_and_wait(heartbeats, claims, stop)
            await self._abandon(lease)

    async def _drain(self) -> None:
        """Wait until the running tasks have ended and their reports are accepted. Stops waiting when the reporter has
        ended, since an event loop that closes cancels all its tasks at once."""
        while self._running:
            await asyncio.wait(self._running.values())
        while self._held and not (self._reporting is None or self._reporting.done()):
            self._slot_free.clear()
            await self._slot_free.wait()

    async def _abandon(self, lease: Lease) -> None:
        """The lease is over: cancel what still runs under it, since its outcome would be refused."""
        self._release_waiting(lease)
        for task in list(self._running.values()):
            task.cancel()
        if self._stopping_now.is_set() and self._running:
            await asyncio.wait(self._running.values(), timeout=STOP_NOW_S)
            # what is left are handlers that cannot be interrupted
            self._reporter.add(*(Release(*attempt, lease.id) for attempt in self._running))
            self._running.clear()
        # A handler that does not stop must not keep the worker from its next lease.
        timeout_s = STOP_NOW_S if self._stopping_now.is_set() else None if self._stopping.is_set() else GIVE_UP_S
        try:
            await asyncio.wait_for(self._drain(), timeout_s)
        except TimeoutError:
            if self._running:
                log.warning("%d handlers do not stop: they keep their slots, the worker continues", len(self._running))
        self._heartbeat.on_extended(lease, time.monotonic())
        with contextlib.suppress(WindlassError):
            if self._reporter.completed or self._reporter.failed:
                await self._send_heartbeat(lease)
        with contextlib.suppress(WindlassError):
            await self._source.end_lease(lease)

    # ----------------------------------------------------------------------------------------- loops

    async def _claim_loop(self, lease: Lease) -> None:
        """Claim while there are free slots. While one claim is under way, slots for the next one become free."""
        while True:
            free = self._free_slots()
            if free < self._at_least(min(BATCH_MAX, self._concurrency) // 2):
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
            self._add(claimed, lease)

    def _free_slots(self) -> int:
        """The number of tasks to claim. A task that has ended needs no slot while its report is under way, so that
        claims and reports overlap. But no more reports may be under way than tasks can run, since all those tasks run
        again if this process dies."""
        slots = self._concurrency + self._prefetch
        return min(slots - len(self._running) - len(self._waiting), slots + self._concurrency - len(self._held))

    def _at_least(self, many: int) -> int:
        """The number of tasks worth a claim or a report. While handlers are being started, more will end in a moment,
        and one statement serves all of them; otherwise 1."""
        return 1 if self._starting is None else max(1, many)

    def _add(self, claimed: Sequence[Claimed], lease: Lease) -> None:
        """Start handlers in the next iteration of the event loop: by then the next claim is on its way, and the
        database works on it while they run."""
        self._heartbeat.on_claimed(lease, claimed)
        self._held.update([(one.task.id, one.task.attempt) for one in claimed])
        self._waiting += claimed
        if self._starting is None:
            self._starting = asyncio.get_running_loop().call_soon(self._start_waiting, lease)

    def _start_waiting(self, lease: Lease) -> None:
        """Start a few at a time: short handlers end before the next start, so that their garbage stays young, and data
        from the network does not wait for all of them."""
        if self._starting is not None:
            self._starting.cancel()  # this call does the work of the scheduled one
        for _ in range(min(len(self._waiting), self._concurrency - len(self._running), START_MAX)):
            self._start(self._waiting.popleft(), lease)
        again = self._waiting and len(self._running) < self._concurrency
        self._starting = asyncio.get_running_loop().call_soon(self._start_waiting, lease) if again else None
        if not again:  # fewer tasks are worth a claim or a report now: see `_at_least`
            self._slot_free.set()
            self._reporter.wake()

    def _start(self, one: Claimed, lease: Lease) -> None:
        task = one.task
        running = self._running[task.id, task.attempt] = asyncio.create_task(self._run_one(one))
        running.add_done_callback(partial(self._on_end, task, lease))

    def _release_waiting(self, lease: Lease) -> None:
        """Release tasks that were claimed ahead and not started, at no cost to their budgets."""
        if self._starting is not None:
            self._starting.cancel()
            self._starting = None
            self._reporter.wake()
        self._reporter.add(*(Release(one.task.id, one.task.attempt, lease.id) for one in self._waiting))
        self._waiting.clear()

    def _on_answer(self, attempts: set[Attempt]) -> None:
        self._held.difference_update(attempts)
        self._slot_free.set()

    async def _send_heartbeat(self, lease: Lease) -> Extension:
        """Sends the counts of ended tasks as well; when it fails, the next heartbeat sends them."""
        reports = self._reporter
        activity = Activity(reports.completed, reports.failed, self._stopping.is_set())
        extension = await self._source.extend_lease(lease, list({task_id for task_id, _ in self._held}), activity)
        reports.completed, reports.failed = reports.completed - activity.completed, reports.failed - activity.failed
        return extension

    async def _heartbeat_loop(self, lease: Lease) -> None:
        """A worker that stops sends a heartbeat at once, and goes on with them while it finishes its tasks."""
        draining = False
        while True:
            per_lease = HEARTBEATS_PER_LEASE if self._held else IDLE_HEARTBEATS_PER_LEASE
            news = self._source.await_notification(lease, self._lease_ttl_s / per_lease)
            await (news if draining else wait_for_first(news, self._stopping.wait()))
            now, draining = time.monotonic(), self._stopping.is_set()
            try:
                extension = await self._send_heartbeat(lease)
            except LeaseLost:
                log.warning("the lease was lost: cancelling what runs under it")
                return
            except Unavailable as error:
                log.warning("the heartbeat failed: %s", error)
                continue
            self._heartbeat.on_extended(lease, now, self._held)
            if extension.drain and not self._stopping.is_set():
                log.info("the engine requests a drain: finishing running tasks")
                self.stop()
            self._start_waiting(lease)  # so that a cancel also finds tasks that were claimed in this iteration
            for cancel in extension.cancels:
                self._cancel((cancel.task_id, cancel.attempt))
            for attempt in [held for held in self._running if held[0] in extension.lost]:
                self._running[attempt].cancel()  # timed out, or leased to another worker: its outcome would be refused

    def _cancel(self, attempt: Attempt) -> None:
        task = self._running.get(attempt)
        if task is not None and attempt not in self._cancelled:
            self._cancelled.add(attempt)
            cancel_requests.add(attempt)
            task.cancel()

    def _cancel_from_heartbeat_process(self, attempt: Attempt) -> None:
        """From a thread, while the event loop may be blocked: a handler that reads `ctx.cancelled` sees it at once."""
        if attempt in self._running:
            cancel_requests.add(attempt)
        self._on_loop(self._cancel, attempt)

    def _on_loop(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call a function in the worker's event loop, from any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                self._loop.call_soon_threadsafe(call, *arguments)

    # ----------------------------------------------------------------------------------------- one task

    async def _run_one(self, claimed: Claimed) -> Outcome:
        return await outcome_of(self._result_of(claimed), self._handlers[claimed.task.kind].failure)

    async def _result_of(self, claimed: Claimed) -> bytes:
        """The handler's result, as JSON. A result that the engine would refuse is a failure of the handler."""
        with attempt_span(claimed.task):
            result = await self._handlers[claimed.task.kind].run(claimed)
        with invalid_is_bad_data:
            check_payload("result", result, LARGE_MAX_BYTES)
        return result

    def _on_end(self, task: Task, lease: Lease, ended: asyncio.Task[Outcome]) -> None:
        """Called for every attempt that was started, even if it was cancelled before its first step."""
        attempt = (task.id, task.attempt)
        if self._running.pop(attempt, None) is not None:
            report = self._report_of(task, lease.id, ended)
            self._reporter.add(report)
            if isinstance(report, Fail):
                log_failure(task, report.failure)
        elif not ended.cancelled():
            ended.exception()  # released while it ran: mark the exception as read
        if cancel_requests:  # of any worker in this process, and nearly always empty
            self._cancelled.discard(attempt)
            cancel_requests.discard(attempt)
        self._heartbeat.on_ended(attempt)
        self._slot_free.set()
        if self._waiting and self._starting is None:
            self._start(self._waiting.popleft(), lease)

    def _report_of(self, task: Task, lease_id: UUID, ended: asyncio.Task[Outcome]) -> Report:
        if ended.cancelled() and ended.cancelling():
            if (task.id, task.attempt) in self._cancelled:
                return Cancelled(task.id, task.attempt, lease_id)
            return Release(task.id, task.attempt, lease_id)  # the worker stops: another one may run it
        # Cancelled, but not by this worker: something inside the handler was. Released, it would be claimed at once.
        error = asyncio.CancelledError() if ended.cancelled() else ended.exception()
        outcome = ended.result() if error is None else safe_failure(self._handlers[task.kind].failure, error)
        match outcome:
            case WorkflowExit():
                return outcome.report(task, lease_id)
            case Cancel():
                return Cancelled(task.id, task.attempt, lease_id, words_of(outcome))
            case Failure():
                return Fail(task.id, task.attempt, lease_id, outcome)
            case _:
                return Complete(task.id, task.attempt, lease_id, outcome)


def reach_of(source: object) -> Reach | None:
    """How another process reaches this source. One in memory cannot be reached; then there is no heartbeat process."""
    reach = getattr(source, "reach", None)
    return reach() if callable(reach) else None
