"""The engine: the operations for clients, workers and operators. It checks arguments and delegates.

Any number of engines may run on one database. `start` runs the loops. Without it an engine still serves calls, and
tests call the ticks by hand.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Final, TypeVar
from uuid import UUID

from windlass.core import command
from windlass.core.command import Claimed, Report, checked_report
from windlass.core.failure import Failure
from windlass.core.lease import IDLE, Activity, Extension, Lease, Reach, check_lease
from windlass.core.payload_reference import MARK_BYTE, is_reference
from windlass.core.progress import Progress
from windlass.core.queue import QueueConfig, Rate, check_config
from windlass.core.states import State
from windlass.core.submission import Submission
from windlass.core.task import Task
from windlass.core.validation import (
    LARGE_MAX_BYTES,
    PAYLOAD_MAX_BYTES,
    check_able,
    check_callable,
    check_count,
    check_list,
    check_mapping,
    check_name,
    check_seconds,
    check_type,
    clean_text,
)
from windlass.engine.loops.schedule_loop import STEADY, Pace
from windlass.engine.notifications import LoopTimers, Timers
from windlass.engine.payloads.blob_port import Blobs
from windlass.engine.payloads.objects import LIMIT_BYTES, too_long
from windlass.engine.randomness import Randomness, SystemRandomness
from windlass.engine.read.metrics import Tally
from windlass.engine.secrets import Cipher
from windlass.engine.send.outbox import EffectHandler
from windlass.engine.submit.submitter import view_of
from windlass.engine.wiring import Parts
from windlass.errors import TooLarge, Unavailable, WindlassError
from windlass.store.store import Store
from windlass.store.tables.view import TaskView

log = logging.getLogger("windlass.engine")

S = TypeVar("S")
CLAIM_MAX = 10_000
RUN_PAGE = 500
KEEP_FINISHED_S = 7 * 86400.0


class Engine:
    """One engine on one database. `async with Engine(store) as engine:` opens and starts it."""

    def __init__(
        self,
        store: Store,
        *,
        randomness: Randomness | None = None,
        timers: Timers | None = None,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        stopwatch: Callable[[], float] = time.monotonic,
        effects: Mapping[str, EffectHandler] | None = None,
        listen: bool = True,
        poll_s: float = 1.0,
        keep_finished_s: float = KEEP_FINISHED_S,
        tally: Tally | None = None,
        pace: Pace = STEADY,
        blobs: Callable[[], Blobs] | None = None,
        payload_max_bytes: int = LIMIT_BYTES,
        cipher: Cipher | None = None,
    ) -> None:
        check_type("store", store, Store)
        check_type("listen", listen, bool)
        check_seconds("poll_s", poll_s, least=0.001)
        check_seconds("keep_finished_s", keep_finished_s)
        check_type("pace", pace, Pace)
        check_count("payload_max_bytes", payload_max_bytes, least=PAYLOAD_MAX_BYTES, most=LARGE_MAX_BYTES)
        _check_hooks(randomness, timers, pause, stopwatch, blobs, cipher)
        self.parts: Final = Parts(
            store, randomness=randomness or SystemRandomness(), timers=timers or LoopTimers(), pause=pause,
            stopwatch=stopwatch, effects={} if effects is None else _checked(effects),
            poll_s=None if listen else poll_s, keep_finished_s=keep_finished_s, pace=pace, blobs=blobs,
            payload_max_bytes=payload_max_bytes, cipher=cipher,
        )  # fmt: skip
        self.store: Final = store
        self.loops: Final = self.parts.loops
        self.tasks: Final = self.parts.tasks
        self.runs: Final = self.parts.runs
        self.queues: Final = self.parts.queues
        self.schedules: Final = self.parts.schedules
        self.workers: Final = self.parts.workers
        self.workflows: Final = self.parts.workflows
        self.keys: Final = self.parts.keys
        self.changes: Final = self.parts.changes
        self.payloads: Final = self.parts.payloads
        # What apps, workers and workflows call by the same names on a remote server: see `sdk.client`.
        self.results: Final = self.parts.payloads.results
        self.open_lease: Final = self.parts.leases.open
        self.end_lease: Final = self.parts.leases.end
        self.note: Final = self.parts.progress.write
        self.checkpoint: Final = self.parts.progress.checkpoint
        self.record_step: Final = self.parts.workflows.record
        self.load_steps: Final = self.parts.workflows.load
        self.transact_step: Final = self.parts.workflows.transact
        self.signal: Final = self.parts.workflows.signal
        self.fork: Final = self.parts.workflows.fork
        self.declare_schedules: Final = self.parts.schedules.declare
        self.declare_kinds: Final = self.parts.kinds.declare
        self._services: dict[object, Any] = {}
        self._closing: list[Callable[[], Awaitable[None]]] = []
        self.count(tally)

    # ----------------------------------------------------------------------------------------- contracts

    def service(self, make: Callable[[Engine], S]) -> S:
        """Return the service of a contract on this engine. The first call makes it with `make`."""
        found: S | None = self._services.get(make)
        if found is None:
            found = self._services[make] = make(self)
        return found

    def on_close(self, close: Callable[[], Awaitable[None]]) -> None:
        """Call `close` when the engine is closed, before the parts that a service uses are closed."""
        self._closing.append(close)

    def count(self, tally: Tally | None) -> None:
        """From now on, count events in this tally."""
        if tally is not None:
            check_type("tally", tally, Tally)
        parts = self.parts
        self.tally = parts.decider.tally = parts.schedule_loop.tally = parts.outgoing.dispatcher.tally = tally
        self.store.observer = tally

    # ----------------------------------------------------------------------------------------- life

    async def __aenter__(self) -> Engine:
        await self.store.check_schema()
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Run the loops. The engine listens for other processes from the first call that waits for something."""
        self.loops.start()

    async def ping(self) -> None:
        """Raise Unavailable unless the database answers."""
        async with self.store.single() as tx:
            await tx.now()

    async def listen(self) -> None:
        """Start to listen for notifications of other processes, or to poll. Call it before anything waits. A process
        that only submits does neither, so its own notifications do not wake it."""
        await self.loops.listen()

    async def close(self) -> None:
        """Finish the accepted work, then stop."""
        await self.parts.close(self._closing)

    # ----------------------------------------------------------------------------------------- clients

    async def submit(self, submission: Submission) -> UUID:
        """Accept a task. When this returns, it is durable."""
        return (await self.parts.submitter.submit(submission))[0]

    async def submit_and_view(self, submission: Submission) -> tuple[TaskView, bool]:
        """Accept a task. Returns its view, and whether it is certainly new; if not, the view is read back."""
        id_, begun = await self.parts.submitter.submit(submission)
        return (await self.tasks.get(id_), False) if begun is None else (view_of(submission, id_, begun), True)

    async def submit_many(self, submissions: Sequence[Submission]) -> list[UUID]:
        """Accept tasks, all or none, in one transaction."""
        check_list("submissions", submissions)
        return await self.parts.submitter.submit_all(submissions)

    async def submit_batch(self, submission: Submission, payloads: Sequence[bytes]) -> list[UUID]:
        """Accept a task for each payload, all else as in `submission`; all or none, in one transaction."""
        check_list("payloads", payloads)
        return await self.parts.submitter.submit_batch(submission, payloads)

    async def cancel(self, task_id: UUID, reason: str = "", *, force: bool = False) -> Task:
        """Cancel a task; `force` ends it at once, without waiting for its worker."""
        check_type("task_id", task_id, UUID)
        check_type("force", force, bool)
        return await self.parts.commands.call(command.Cancel(task_id, clean_text("reason", reason, 1000), force))

    async def cancel_run(self, run_id: UUID, reason: str = "") -> int:
        """Cancel every task of a run that has not ended. Returns the number of tasks that were cancelled. If some could
        not be cancelled now, raises Unavailable after all others were: call it again."""
        check_type("run_id", run_id, UUID)
        reason = clean_text("reason", reason, 1000)
        position, cancelled, busy = None, 0, None
        while True:
            async with self.store.begin() as tx:
                found = await tx.runs.run_task_ids(run_id, position, RUN_PAGE)
            if not found and busy is not None:
                raise busy
            if not found:
                return cancelled
            for outcome in await self.parts.commands.call_all([command.Cancel(id_, reason) for _, id_ in found]):
                if isinstance(outcome, Unavailable):
                    busy = outcome
                cancelled += isinstance(outcome, Task)  # one that ended meanwhile needed no cancel
            position = found[-1]

    async def wait(self, task_id: UUID, timeout_s: float) -> TaskView:
        """Return the task when it has ended, or as it is after `timeout_s`. Waits for a notification; does not poll."""
        check_type("task_id", task_id, UUID)
        check_seconds("timeout_s", timeout_s)
        deadline_s = self.parts.stopwatch() + timeout_s
        await self.listen()
        view = await self.tasks.get(task_id)
        if not view.task.terminal:
            async with self.store.begin() as tx:
                await tx.tasks.await_task(task_id)
        while not view.task.terminal:
            waiter = self.parts.notifications.waiter("task", task_id)
            try:
                view = await self.tasks.get(task_id)
                left_s = deadline_s - self.parts.stopwatch()
                if view.task.terminal or left_s <= 0:
                    break
                # A wake-up may be meant for all waiters, so the task is read again.
                await waiter.wait(self.parts.notifications.timers, left_s)
            finally:
                self.parts.notifications.leave(waiter)
        return await self.parts.objects.with_result(view) if is_reference(view.task.result) else view

    async def progress(self, task_id: UUID) -> Progress | None:
        """The progress of a task. None if it never reported any."""
        return (await self.parts.progress.progress([task_id])).get(task_id)

    # ----------------------------------------------------------------------------------------- workers

    def reach(self) -> Reach:
        """For the heartbeat process of a worker: how to reach the same database."""
        return Reach("windlass.engine.liveness.lease_extender", {"dsn": self.store.dsn, "pooled": self.store.pooled})

    async def extend_lease(
        self, lease: Lease, active: Sequence[UUID] | None = None, activity: Activity = IDLE
    ) -> Extension:
        """Extend the lease, and with it all attempts under it. The answer lists the attempts to stop."""
        return await self.parts.leases.extend(lease, active, activity)

    async def claim(self, lease: Lease, limit: int = 1, *, wait_s: float = 0.0) -> list[Claimed]:
        """Begin up to `limit` attempts. If no task is due, wait up to `wait_s` for the first."""
        check_lease(lease)
        check_count("limit", limit, least=1, most=CLAIM_MAX)
        check_seconds("wait_s", wait_s, most=3600.0)
        if wait_s > 0:
            await self.listen()
        claimed = await self.parts.claimer.claim(lease, limit, wait_s)
        if self.tally is not None:
            self.tally.started(claimed)
        if any(attempt.payload[0] == MARK_BYTE for attempt in claimed):
            return await self.parts.large.fetch(claimed)
        return claimed

    async def report(self, reports: Sequence[Report]) -> list[State | WindlassError]:
        """Carry out workers' reports on their attempts. Returns for each the new state of the task, or the error."""
        check_list("reports", reports)
        try:
            checked = [checked_report(report, self.parts.randomness.jitter()) for report in reports]
        except TooLarge:
            return await self.parts.large.report(reports)
        outcomes = await self.parts.reports.call_all(checked)
        return [outcome.state if isinstance(outcome, Task) else outcome for outcome in outcomes]

    async def complete(self, claimed: Claimed, result: bytes | None = None) -> Task:
        return await self._report(command.Complete(*_fence(claimed), result))

    async def fail(self, claimed: Claimed, failure: Failure) -> Task:
        return await self._report(command.Fail(*_fence(claimed), failure))

    async def sleep(self, claimed: Claimed, until: datetime | None) -> Task:
        return await self._report(command.Sleep(*_fence(claimed), until))

    async def release(self, claimed: Claimed) -> Task:
        return await self._report(command.Release(*_fence(claimed)))

    async def _report(self, report: Report) -> Task:
        if isinstance(report, command.Complete) and too_long(report.result):
            return await self.parts.large.complete(report)
        return await self.parts.commands.call(checked_report(report, self.parts.randomness.jitter()))

    async def await_notification(self, lease: Lease, timeout_s: float) -> bool:
        """Wait for a cancel of an attempt under this lease. Returns False after `timeout_s`."""
        check_lease(lease)
        check_seconds("timeout_s", timeout_s)
        await self.listen()
        waiter = self.parts.notifications.waiter("lease", lease.id)
        try:
            with contextlib.suppress(Unavailable):  # the next heartbeat carries the cancel anyway
                async with self.store.views() as views:  # a cancel announced before we began to wait
                    if await views.has_pending_cancel(lease.id):
                        return True
            return await waiter.wait(self.parts.notifications.timers, timeout_s)
        finally:
            self.parts.notifications.leave(waiter)

    # ----------------------------------------------------------------------------------------- operators

    async def configure_queue(
        self,
        queue: str,
        *,
        namespace: str = "default",
        paused: bool = False,
        max_running: int | None = None,
        max_running_per_kind: Mapping[str, int] | None = None,
        max_running_per_key: int | None = None,
        rate: Rate | None = None,
    ) -> QueueConfig:
        """Set the limits of a queue. A limit that is not given is removed."""
        check_name("queue", queue)
        check_name("namespace", namespace)
        per_kind = {} if max_running_per_kind is None else check_mapping("max_running_per_kind", max_running_per_kind)
        config = QueueConfig(paused, max_running, per_kind, max_running_per_key, rate)
        check_config(config)
        async with self.store.begin() as tx:
            await tx.configure(namespace, queue, config)
        return config

    async def pause_queue(self, queue: str, *, namespace: str = "default", paused: bool = True) -> QueueConfig:
        """Stop (or resume) claims from a queue. Running tasks go on."""
        return (await self.queues.pause(queue, namespace=namespace, paused=paused)).settings.config

    async def resume(self, task_id: UUID) -> Task:
        """Let a parked task go on."""
        check_type("task_id", task_id, UUID)
        return await self.parts.commands.call(command.Resume(task_id))

    async def wake(self, task_id: UUID) -> Task:
        """End a task's sleep now."""
        check_type("task_id", task_id, UUID)
        return await self.parts.commands.call(command.Wake(task_id))


def _check_hooks(
    randomness: object, timers: object, pause: object, stopwatch: object, blobs: object, cipher: object
) -> None:
    if randomness is not None:
        check_able("randomness", randomness, "new_id", "new_token", "jitter")
    if timers is not None:
        check_able("timers", timers, "call_later")
    check_callable("pause", pause)
    check_callable("stopwatch", stopwatch)
    if blobs is not None:
        check_callable("blobs", blobs)
    if cipher is not None:
        check_able("cipher", cipher, "encrypt", "decrypt")


def _fence(claimed: Claimed) -> tuple[UUID, int, UUID]:
    check_type("claimed", claimed, Claimed)
    check_type("claimed", claimed.task, Task)
    return claimed.fence


def _checked(effects: Mapping[str, EffectHandler]) -> dict[str, EffectHandler]:
    known = check_mapping("effects", effects)
    for kind, handler in known.items():
        check_name("effects", kind)
        check_callable("effects", handler)
    return known
