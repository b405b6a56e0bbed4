"""A worker: claims tasks in batches, runs their handlers side by side, reports what came of them, and stays alive.

Knows the engine only as a `WorkSource`, so that the same worker runs beside the database or far from it. It claims
ahead of what runs, and reports in groups while the next tasks run; a slot is free when its report was accepted. While
a handler blocks its event loop, another process keeps its lease alive: see `heartbeat`.
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
from typing import Any
from uuid import UUID

from windlass.core.check import (
    LARGE_MAX_BYTES,
    check_able,
    check_count,
    check_name,
    check_names,
    check_payload,
    check_seconds,
    check_type,
)
from windlass.core.command import Cancelled, Claimed, Complete, Fail, Release, Report
from windlass.core.error import Invalid, InvalidState, LeaseLost, Unavailable, WindlassError
from windlass.core.failure import Failure
from windlass.core.lease import Activity, Extension, Lease, Reach, check_about
from windlass.core.task import Task
from windlass.core.text import line_of, words_of
from windlass.sdk.complaint import Complaint
from windlass.sdk.context import told_to_cancel
from windlass.sdk.heartbeat import Heartbeat
from windlass.sdk.leaving import Leaving
from windlass.sdk.outcome import Outcome, log_failure, outcome_of, tried
from windlass.sdk.reporter import AFTER_ERROR_S, BATCH_MAX, Reporter
from windlass.sdk.runnable import Every, Handler, Runnable, runnables
from windlass.sdk.signals import Cancel, unfit_is_bad_data
from windlass.sdk.trace import attempting
from windlass.sdk.waiting import first_of, stopped
from windlass.sdk.work_source import Declared, WorkSource

log = logging.getLogger("windlass.worker")

Attempt = tuple[UUID, int]

CLAIM_WAIT_S = 60.0
BEATS_PER_LEASE, IDLE_BEATS_PER_LEASE = 3, 2  # who holds nothing loses little with its lease
START_MAX = 20  # handlers a turn of the event loop
STOP_NOW_S = 2.0  # for handlers to notice that they are to end
GIVE_UP_S = 10.0  # the same, when the lease is lost


class Worker:
    """Runs handlers by kind: those of an app, or plain async functions of one payload; or one handler for all kinds.
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
        check_able("source", source, "open_lease", "extend_lease", "await_news", "end_lease", "claim", "report")
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
        self._handlers = runnables(handlers, kinds)
        self._kinds = None if isinstance(self._handlers, Every) else list(self._handlers)
        if name is not None:
            check_name("name", name)
        self.name = name or f"{socket.gethostname()}-{os.getpid()}"
        self._source, self._queues = source, tuple(queues)
        self._namespace, self._labels, self._version = namespace, tuple(labels), version
        self._concurrency, self._prefetch, self._lease_ttl_s = concurrency, prefetch, lease_ttl_s
        self._heartbeat = Heartbeat(reach_of(source) if heartbeat_process else None, self._heard_cancel, self._on_loop)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[Any] | None = None  # which runs the worker
        self._leaving = False  # all that was to be reported is
        self._complain = Complaint(log)
        self.lease_options: dict[str, Any] = {}  # what else its leases are opened with
        self.on_lease: Callable[[Lease], None] = lambda _: None  # told of each lease that is opened
        self.declaration: Declared | None = None  # what the app of its handlers has to say beside
        self._waiting: deque[Claimed] = deque()  # claimed ahead, and not begun
        self._starting: asyncio.Handle | None = None
        self._running: dict[Attempt, asyncio.Task[Outcome]] = {}
        self._told_to_cancel: set[Attempt] = set()
        self._held: set[Attempt] = set()  # claimed, and not reported yet
        self._reporter = Reporter(source, lambda: self._at_least(BATCH_MAX), self._answered)
        self._reporting: asyncio.Task[None] | None = None
        self._slot_free = asyncio.Event()
        self._stopping = asyncio.Event()
        self._stopping_now = asyncio.Event()
        self._ended_all = asyncio.Event()
        self._ended_all.set()

    # ----------------------------------------------------------------------------------------- life

    async def run(self) -> None:
        """Work until `stop` is called; then finish what runs. A lost lease is replaced by a new one."""
        self._loop, self._main = asyncio.get_running_loop(), asyncio.current_task()
        self._ended_all.clear()
        reporter = self._reporting = asyncio.create_task(self._reporter.run())
        reporter.add_done_callback(self._reporter_ended)
        declaring: asyncio.Task[None] | None = None
        try:
            if self.declaration is not None:
                await first_of(self.declaration.begin(), self._stopping.wait())
                declaring = asyncio.create_task(self.declaration.keep())
            while not self._stopping.is_set():
                await self._work_under_a_lease()
            self._leaving = True
            if reporter.done():
                if not reporter.cancelled():
                    reporter.result()
                raise InvalidState(f"the worker {self.name} cannot report any more")
        finally:
            try:
                await stopped(reporter, *([] if declaring is None else [declaring]))
            finally:
                await asyncio.to_thread(self._heartbeat.close)
                self._ended_all.set()

    def _reporter_ended(self, reporter: asyncio.Task[None]) -> None:
        """Without it, nothing that runs here would ever be told: the worker ends, and what it held goes to others."""
        self._slot_free.set()
        if self._main is None or self._main.cancelling() or self._main.done():
            return  # the worker ends anyway
        if not self._leaving:
            why = "it was cancelled" if reporter.cancelled() else line_of(reporter.exception() or InvalidState())
            self.stop_now()
            log.critical("the worker %s ends: its loop that reports has stopped: %s", self.name, why)

    @property
    def queues(self) -> tuple[str, ...]:
        return self._queues

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(self._handlers)

    def active_count(self) -> int:
        """How many tasks run here now."""
        return len(self._running)

    def stop(self) -> None:
        """Claim nothing more, give back what was not begun, and end when what runs has ended."""
        self._stopping.set()

    def stop_now(self) -> None:
        """End at once: handlers are told to stop, and what they ran is given back, at no cost to its budgets."""
        self._stopping.set()
        self._stopping_now.set()

    async def shutdown(self, timeout_s: float | None = None) -> None:
        """Stop, and wait for the end; what still runs after `timeout_s` is given back."""
        if timeout_s is not None:
            check_seconds("timeout_s", timeout_s)
        self.stop()
        try:
            await asyncio.wait_for(self._ended_all.wait(), timeout_s)
        except TimeoutError:
            self.stop_now()
            await self._ended_all.wait()

    async def _work_under_a_lease(self) -> None:
        now = time.monotonic()
        try:
            lease = await self._source.open_lease(
                self.name, self._queues, kinds=self._kinds, labels=self._labels, namespace=self._namespace,
                ttl_s=self._lease_ttl_s, host=socket.gethostname(), pid=os.getpid(), version=self._version,
                concurrency=self._concurrency, **self.lease_options,
            )  # fmt: skip
        except Unavailable as error:
            self._complain("cannot reach the engine, trying again: %s", error)
            await asyncio.sleep(AFTER_ERROR_S)
            return
        self._heartbeat.extended(lease, now)
        self.on_lease(lease)
        beats = asyncio.create_task(self._beat_loop(lease))
        claims = asyncio.create_task(self._claim_loop(lease))
        stop = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({beats, claims, stop}, return_when=asyncio.FIRST_COMPLETED)
            await stopped(claims)
            self._give_back(lease)
            if self._stopping.is_set():
                await first_of(self._drain(), self._stopping_now.wait())
        finally:
            await stopped(beats, claims, stop)
            await self._abandon(lease)

    async def _drain(self) -> None:
        """Let what runs come to its end, and its reports be accepted, as long as there is somebody who sends them: at
        the end of its event loop everybody is cancelled at once."""
        while self._running:
            await asyncio.wait(self._running.values())
        while self._held and not (self._reporting is None or self._reporting.done()):
            self._slot_free.clear()
            await self._slot_free.wait()

    async def _abandon(self, lease: Lease) -> None:
        """The lease is over: nothing that still runs under it can be reported any more."""
        self._give_back(lease)
        for task in list(self._running.values()):
            task.cancel()
        if self._stopping_now.is_set() and self._running:
            await asyncio.wait(self._running.values(), timeout=STOP_NOW_S)
            self._reporter.add(
                *(Release(*attempt, lease.id) for attempt in self._running)
            )  # those that nothing can interrupt
            self._running.clear()
        try:
            await asyncio.wait_for(self._drain(), self._patience_s())
        except TimeoutError:
            if self._running:
                log.warning("%d handlers do not stop: they keep their places, and others go on", len(self._running))
        self._heartbeat.extended(lease, time.monotonic())
        with contextlib.suppress(WindlassError):
            if self._reporter.completed or self._reporter.failed:
                await self._beat(lease)
        with contextlib.suppress(WindlassError):
            await self._source.end_lease(lease)

    def _patience_s(self) -> float | None:
        """For handlers that were told to stop. One that does not must not keep the worker from its next lease."""
        if self._stopping_now.is_set():
            return STOP_NOW_S
        return None if self._stopping.is_set() else GIVE_UP_S

    # ----------------------------------------------------------------------------------------- loops

    async def _claim_loop(self, lease: Lease) -> None:
        """Claim while there is room. While one claim is under way, the room for the next one gathers."""
        while True:
            free = self._room()
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
            self._begin(claimed, lease)

    def _room(self) -> int:
        """For how many more. What has ended needs no slot while its report is on its way, so that claims and reports
        overlap; but no more may wait for their answer than can run, since all of it runs again if we die."""
        slots = self._concurrency + self._prefetch
        return min(slots - len(self._running) - len(self._waiting), slots + self._concurrency - len(self._held))

    def _at_least(self, many: int) -> int:
        """How many make a claim or a report worth its while. In the midst of starting handlers more will have ended in
        a moment, and one statement serves all of them; otherwise nobody waits for company."""
        return 1 if self._starting is None else max(1, many)

    def _begin(self, claimed: Sequence[Claimed], lease: Lease) -> None:
        """Handlers are started a turn of the event loop later: by then the next claim is on its way, and the database
        works on it while they run."""
        self._heartbeat.begun(lease, claimed)
        self._held.update([(one.task.id, one.task.attempt) for one in claimed])
        self._waiting += claimed
        if self._starting is None:
            self._starting = asyncio.get_running_loop().call_soon(self._start_waiting, lease)

    def _start_waiting(self, lease: Lease) -> None:
        """A few at a time: short ones end before the next begin, so that their garbage is never old, and what is read
        from the network need not wait for all of them."""
        if self._starting is not None:
            self._starting.cancel()  # whoever came first, comes for all
        for _ in range(min(len(self._waiting), self._concurrency - len(self._running), START_MAX)):
            self._start(self._waiting.popleft(), lease)
        again = self._waiting and len(self._running) < self._concurrency
        self._starting = asyncio.get_running_loop().call_soon(self._start_waiting, lease) if again else None
        if not again:  # what was too little to claim or to report is enough now
            self._slot_free.set()
            self._reporter.wake()

    def _start(self, one: Claimed, lease: Lease) -> None:
        task = one.task
        running = self._running[task.id, task.attempt] = asyncio.create_task(self._run_one(one))
        running.add_done_callback(partial(self._ended, task, lease))

    def _give_back(self, lease: Lease) -> None:
        """What was claimed ahead and not begun: somebody else may run it, and no budget was used."""
        if self._starting is not None:
            self._starting.cancel()
            self._starting = None
            self._reporter.wake()
        self._reporter.add(*(Release(one.task.id, one.task.attempt, lease.id) for one in self._waiting))
        self._waiting.clear()

    def _answered(self, attempts: set[Attempt]) -> None:
        self._held.difference_update(attempts)
        self._slot_free.set()

    async def _beat(self, lease: Lease) -> Extension:
        """Tells what has ended as well; a heartbeat that fails leaves that to the next."""
        reports = self._reporter
        activity = Activity(reports.completed, reports.failed, self._stopping.is_set())
        extension = await self._source.extend_lease(lease, list({task_id for task_id, _ in self._held}), activity)
        reports.completed, reports.failed = reports.completed - activity.completed, reports.failed - activity.failed
        return extension

    async def _beat_loop(self, lease: Lease) -> None:
        """A worker that stops says so at once, and goes on with its heartbeats while it finishes what runs."""
        draining = False
        while True:
            beats = BEATS_PER_LEASE if self._held else IDLE_BEATS_PER_LEASE
            news = self._source.await_news(lease, self._lease_ttl_s / beats)
            await (news if draining else first_of(news, self._stopping.wait()))
            now, draining = time.monotonic(), self._stopping.is_set()
            try:
                extension = await self._beat(lease)
            except LeaseLost:
                log.warning("the lease was lost: what runs is given up")
                return
            except Unavailable as error:
                log.warning("no heartbeat: %s", error)
                continue
            self._heartbeat.extended(lease, now, self._held)
            if extension.drain and not self._stopping.is_set():
                log.info("told to drain: finishing what runs")
                self.stop()
            self._start_waiting(lease)  # what was claimed in this very turn hears it too
            for cancel in extension.cancels:
                self._cancel((cancel.task_id, cancel.attempt))
            for attempt in [held for held in self._running if held[0] in extension.lost]:
                self._running[attempt].cancel()  # timed out, or with somebody else: nobody waits for it any more

    def _cancel(self, attempt: Attempt) -> None:
        task = self._running.get(attempt)
        if task is not None and attempt not in self._told_to_cancel:
            self._told_to_cancel.add(attempt)
            told_to_cancel.add(attempt)
            task.cancel()

    def _heard_cancel(self, attempt: Attempt) -> None:
        """By the heartbeat process, while the event loop may be blocked: a handler that asks is told all the same."""
        if attempt in self._running:
            told_to_cancel.add(attempt)
        self._on_loop(self._cancel, attempt)

    def _on_loop(self, call: Callable[..., None], *arguments: Any) -> None:
        """From any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                self._loop.call_soon_threadsafe(call, *arguments)

    # ----------------------------------------------------------------------------------------- one task

    async def _run_one(self, claimed: Claimed) -> Outcome:
        return await outcome_of(self._result_of(claimed), self._handlers[claimed.task.kind].failure)

    async def _result_of(self, claimed: Claimed) -> bytes:
        """What the handler returned, as JSON. What the engine would not keep is a failure of the handler."""
        with attempting(claimed.task):
            result = await self._handlers[claimed.task.kind].run(claimed)
        with unfit_is_bad_data():
            check_payload("result", result, LARGE_MAX_BYTES)
        return result

    def _ended(self, task: Task, lease: Lease, ended: asyncio.Task[Outcome]) -> None:
        """Every attempt that was begun comes here, also one that was cancelled before its first step."""
        attempt = (task.id, task.attempt)
        if self._running.pop(attempt, None) is not None:
            report = self._report_of(task, lease.id, ended)
            self._reporter.add(report)
            if isinstance(report, Fail):
                log_failure(task, report.failure)
        elif not ended.cancelled():
            ended.exception()  # it was given back while it ran: nobody wants to know
        if told_to_cancel:  # by anybody in this process, and nearly always empty
            self._told_to_cancel.discard(attempt)
            told_to_cancel.discard(attempt)
        self._heartbeat.ended(attempt)
        self._slot_free.set()
        if self._waiting and self._starting is None:
            self._start(self._waiting.popleft(), lease)

    def _report_of(self, task: Task, lease_id: UUID, ended: asyncio.Task[Outcome]) -> Report:
        if ended.cancelled() and ended.cancelling():
            return self._on_cancelled(task, lease_id)
        # Cancelled, but not by us: something inside the handler was. Given back, it would be claimed again at once.
        error = asyncio.CancelledError() if ended.cancelled() else ended.exception()
        outcome = ended.result() if error is None else tried(self._handlers[task.kind].failure, error)
        match outcome:
            case Leaving():
                return outcome.report(task, lease_id)
            case Cancel():
                return Cancelled(task.id, task.attempt, lease_id, words_of(outcome))
            case Failure():
                return Fail(task.id, task.attempt, lease_id, outcome)
            case _:
                return Complete(task.id, task.attempt, lease_id, outcome)

    def _on_cancelled(self, task: Task, lease_id: UUID) -> Report:
        """Told to stop by a cancel, or torn away because the worker goes: then somebody else may run it."""
        if (task.id, task.attempt) in self._told_to_cancel:
            return Cancelled(task.id, task.attempt, lease_id)
        return Release(task.id, task.attempt, lease_id)


def reach_of(source: object) -> Reach | None:
    """A source that other processes cannot reach (one in memory) has no `reach`; then only the worker itself beats."""
    reach = getattr(source, "reach", None)
    return reach() if callable(reach) else None
