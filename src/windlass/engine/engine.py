"""The engine: what clients, workers and operators can ask of Windlass, in one place. Thin: it checks and delegates.

Any number of engines may run on one database. `start` runs the loops and listens for wake-ups; without it an engine
still serves calls, and ticks can be called by hand, which is what tests do.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any
from uuid import UUID

from windlass.core import command
from windlass.core.check import (
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
from windlass.core.command import Claimed, Report, checked_report
from windlass.core.error import TooLarge, Unavailable, WindlassError
from windlass.core.failure import Failure
from windlass.core.lease import IDLE, Activity, Extension, Lease, Reach, check_lease
from windlass.core.note import Note, Progress
from windlass.core.queue import QueueConfig, Rate, check_config
from windlass.core.reference import MARK_BYTE, is_reference
from windlass.core.step import Step
from windlass.core.step_command import StepCommand, StepResult
from windlass.core.submission import Submission
from windlass.core.task import Task
from windlass.core.transition import State
from windlass.engine.access import Access
from windlass.engine.blob import Blobs
from windlass.engine.callback import Callbacks
from windlass.engine.chance import Chance, SystemChance
from windlass.engine.change import Changes
from windlass.engine.claim import Claimer, claimed_task, lease_of
from windlass.engine.committer import Committer
from windlass.engine.dataset import Datasets
from windlass.engine.decide import Decider
from windlass.engine.fire import STEADY, Fires, Pace
from windlass.engine.holder import Holders
from windlass.engine.hub import Hub, LoopTimers, Timers
from windlass.engine.kind import Kinds
from windlass.engine.large import Large
from windlass.engine.lease import DEFAULT_TTL_S, Leases
from windlass.engine.loops import Loops
from windlass.engine.machine import Machines
from windlass.engine.message import Messages
from windlass.engine.metrics import Gauges, Tally
from windlass.engine.note import Notes
from windlass.engine.objects import DELETE, LIMIT_BYTES, Objects, too_long
from windlass.engine.outbox import EffectHandler, Outbox
from windlass.engine.patience import Patience
from windlass.engine.payload import Payloads
from windlass.engine.queue import Queues
from windlass.engine.repair import Repair
from windlass.engine.retention import Retention
from windlass.engine.run import Runs
from windlass.engine.schedule import Schedules
from windlass.engine.secret import Cipher, Secrets
from windlass.engine.sent import Sent
from windlass.engine.submit import Submitter
from windlass.engine.view import TaskViews
from windlass.engine.wakeup import Wakeups
from windlass.engine.worker import Workers
from windlass.engine.workflow import Workflows
from windlass.store.store import Store
from windlass.store.view import TaskView

log = logging.getLogger("windlass.engine")

CLAIM_MAX = 10_000
RUN_PAGE = 500
KEEP_FINISHED_S = 7 * 86400.0


class Engine:
    """One engine on one database. `async with Engine(dsn) as engine:` opens and starts it."""

    def __init__(
        self,
        store: Store,
        *,
        chance: Chance | None = None,
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
        _check_options(store, chance, timers, pause, stopwatch, listen, poll_s, keep_finished_s, pace)
        _check_storage(blobs, payload_max_bytes, cipher)
        self.store = store
        self.chance = chance or SystemChance()
        self.hub = Hub(timers or LoopTimers())
        self.effects = _checked({} if effects is None else effects)
        store.announce = self.hub.announce
        self._stopwatch, self._patience = stopwatch, Patience()
        self._decider = Decider(store, self._patience)
        self._commands = self._decider.line(pause=pause)
        self._reports: Committer[Report, Task | State] = Committer(self._decider.carry_out_reports, pause=pause)
        self.objects = Objects(store, self.chance, blobs, payload_max_bytes)
        if blobs is not None:
            self.effects[DELETE] = self.objects.delete
        self.workflows = Workflows(store, self.chance, self._decider, self.objects, pause=pause)
        self._claimer = Claimer(store, self.hub, self.chance, self._give_back, pause=pause, stopwatch=stopwatch)
        self._large = Large(self.objects, self._claimer, self._commands, self.report)
        self._submitter = Submitter(store, self.chance, self._claimer, self._patience, self.objects, pause=pause)
        self.leases = Leases(store, self.chance, pause=pause)
        self.workers = Workers(store, self.chance, self.hub, self._claimer.rescue, pause=pause)
        self.notes, self.changes = Notes(store, pause=pause), Changes(store, pause=pause)
        self.gauges, self.messages = Gauges(store, stopwatch), Messages(store, self.hub, stopwatch)
        self.access = Access(store, self.chance, stopwatch=stopwatch)
        self.runs, self.views, self.datasets = Runs(store), TaskViews(store), Datasets(store)
        self.payloads, self.secrets = Payloads(self.views, self.objects), Secrets(store, cipher)
        self.queues = Queues(store, self.secrets, pause=pause, stopwatch=stopwatch)
        self.repair = Repair(store, self.chance, self._submitter, self._commands, self.objects)
        self.retention, self._outbox = Retention(keep_finished_s), Outbox(store, self.chance, lambda: self.effects)
        self.sent = Sent(store, self.chance, self.hub, self._claimer, self.effects, stopwatch)
        self.wakeups = Wakeups(store, self.chance, self.hub, self.effects, stopwatch)
        self.callbacks = Callbacks(
            store, self.chance, self._decider, self.notes, self.objects, self.secrets, pause=pause, stopwatch=stopwatch
        )
        self.holders = Holders(store, self.chance, self._decider, self._patience, pause=pause)
        self.sent.settled += [self.callbacks.settled, self.holders.settled]
        self.schedules, self.kinds = Schedules(store, self.chance), Kinds(store, stopwatch)
        self.machines = Machines(store, self.chance, self._commands.call)
        self.declare_schedules, self.declare_kinds = self.schedules.declare, self.kinds.declare
        self.fires = Fires(store, self.chance, self.hub.timers, pace)
        self.loops = Loops(store, self.chance, self.hub, self._outbox, self.fires, self.changes, self.retention)
        self.loops.hear_by(None if listen else poll_s, self._hears)
        self.count(tally)

    def count(self, tally: Tally | None) -> None:
        """Count in this tally what happens from now on."""
        if tally is not None:
            check_type("tally", tally, Tally)
        self.tally = self._decider.tally = self.fires.tally = self.sent.dispatcher.tally = tally
        self.store.observer = self.holders.tally = tally

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
        """Run the loops. Wake-ups of other processes are listened for from the first call that waits for something."""
        self.loops.start()

    async def ping(self) -> None:
        """Raise Unavailable unless the database answers."""
        async with self.store.single() as tx:
            await tx.now()

    async def hear(self) -> None:
        """Before anything waits: hear what other processes announce, or poll. A process that only submits does neither,
        and so is not woken by its own announcements."""
        await self.loops.hear()

    def _hears(self) -> None:
        self._claimer.hears = True

    async def close(self) -> None:
        """Finish what was accepted, then stop."""
        await self.loops.stop()
        for part in (
            self.sent, self.wakeups, self._outbox, self._submitter, self._claimer, self.workflows, self.callbacks,
            self.holders, self.messages,
            self._reports, self._commands, self._patience, self.leases, self.workers, self.notes, self.changes,
            self.access,
        ):  # fmt: skip
            with contextlib.suppress(Unavailable):
                await part.close()
        self.fires.close()
        self.hub.close()
        await self.store.close()

    # ----------------------------------------------------------------------------------------- clients

    async def submit(self, submission: Submission) -> UUID:
        """Accept a task. When this returns, it is durable."""
        return await self._submitter.submit(submission)

    async def submit_many(self, submissions: Sequence[Submission]) -> list[UUID]:
        """Accept tasks, all or none, in one transaction."""
        check_list("submissions", submissions)
        return await self._submitter.submit_all(submissions)

    async def submit_batch(self, submission: Submission, payloads: Sequence[bytes]) -> list[UUID]:
        """Accept a task for each payload, all else as in `submission`; all or none, in one transaction."""
        check_list("payloads", payloads)
        return await self._submitter.submit_batch(submission, payloads)

    async def cancel(self, task_id: UUID, reason: str = "", *, force: bool = False) -> Task:
        """Ask a task to stop; `force` ends it at once, whatever its worker does."""
        check_type("task_id", task_id, UUID)
        check_type("force", force, bool)
        return await self._commands.call(command.Cancel(task_id, clean_text("reason", reason, 1000), force))

    async def cancel_run(self, run_id: UUID, reason: str = "") -> int:
        """Cancel every task of a run that has not ended; returns how many were asked. Unavailable if one could not be
        asked, after all others were: then ask again."""
        check_type("run_id", run_id, UUID)
        reason = clean_text("reason", reason, 1000)
        position, asked, busy = None, 0, None
        while True:
            async with self.store.begin() as tx:
                found = await tx.runs.run_task_ids(run_id, position, RUN_PAGE)
            if not found and busy is not None:
                raise busy
            if not found:
                return asked
            for outcome in await self._commands.call_all([command.Cancel(id_, reason) for _, id_ in found]):
                if isinstance(outcome, Unavailable):
                    busy = outcome
                asked += isinstance(outcome, Task)  # one that ended meanwhile needed no cancel
            position = found[-1]

    async def wait(self, task_id: UUID, timeout_s: float) -> TaskView:
        """The task when it has ended, or as it is after `timeout_s`. Told by a notification, not by polling."""
        check_type("task_id", task_id, UUID)
        check_seconds("timeout_s", timeout_s)
        deadline_s = self._stopwatch() + timeout_s
        await self.hear()
        view = await self.views.get(task_id)
        if not view.task.terminal:
            async with self.store.begin() as tx:
                await tx.tasks.await_task(task_id)
        while not view.task.terminal:
            ticket = self.hub.ticket("task", task_id)
            try:
                view = await self.views.get(task_id)
                left_s = deadline_s - self._stopwatch()
                if view.task.terminal or left_s <= 0:
                    break
                await ticket.wait(self.hub.timers, left_s)  # a wake-up may be for everybody, and mean nothing to us
            finally:
                self.hub.leave(ticket)
        return await self.objects.with_result(view) if is_reference(view.task.result) else view

    async def results(self, ids: Sequence[UUID], namespace: str | None = None) -> dict[UUID, bytes]:
        """What those of these tasks that succeeded returned, as JSON text; of one namespace, or of all."""
        return await self.payloads.results(ids, namespace)

    async def progress(self, task_id: UUID) -> Progress | None:
        """How far a task is, if it ever said so."""
        return (await self.notes.progress([task_id])).get(task_id)

    # ----------------------------------------------------------------------------------------- workers

    async def open_lease(
        self,
        worker: str,
        queues: Sequence[str],
        *,
        kinds: Sequence[str] | None = None,
        labels: Sequence[str] = (),
        namespace: str = "default",
        ttl_s: float = DEFAULT_TTL_S,
        host: str = "",
        pid: int = 0,
        version: str = "",
        delivery: str = "pull",
        concurrency: int = 0,
    ) -> Lease:
        """A worker begins: it may claim under this lease until it runs out. `host`, `pid`, `version` say who it is, and
        `concurrency` how many tasks it runs side by side.
        Invalid if none of the queues gives tasks to those who claim."""
        return await self.leases.open(
            worker, queues, kinds=kinds, labels=labels, namespace=namespace, ttl_s=ttl_s, host=host, pid=pid,
            version=version, delivery=delivery, concurrency=concurrency,
        )  # fmt: skip

    def reach(self) -> Reach:
        """How the heartbeat process of a worker reaches the same database."""
        return Reach("windlass.engine.keeper", {"dsn": self.store.dsn, "pooled": self.store.pooled})

    async def extend_lease(
        self, lease: Lease, active: Sequence[UUID] | None = None, activity: Activity = IDLE
    ) -> Extension:
        """A sign of life for all that runs under the lease; the answer tells what to stop."""
        return await self.leases.extend(lease, active, activity)

    async def end_lease(self, lease: Lease) -> None:
        await self.leases.end(lease)

    async def claim(self, lease: Lease, limit: int = 1, *, wait_s: float = 0.0) -> list[Claimed]:
        """Begin up to `limit` attempts; with none at hand, wait up to `wait_s` for the first."""
        check_lease(lease)
        check_count("limit", limit, least=1, most=CLAIM_MAX)
        check_seconds("wait_s", wait_s, most=3600.0)
        if wait_s > 0:
            await self.hear()
        claimed = await self._claimer.claim(lease, limit, wait_s)
        if self.tally is not None:
            self.tally.started(claimed)
        if any(attempt.payload[0] == MARK_BYTE for attempt in claimed):
            return await self._large.fetch(claimed)
        return claimed

    async def report(self, reports: Sequence[Report]) -> list[State | WindlassError]:
        """What workers have to say about their attempts; one answer each: the state of the task now, or why not."""
        check_list("reports", reports)
        try:
            checked = [checked_report(report, self.chance.jitter()) for report in reports]
        except TooLarge:
            return await self._large.report(reports)
        outcomes = await self._reports.call_all(checked)
        return [outcome.state if isinstance(outcome, Task) else outcome for outcome in outcomes]

    async def note(self, notes: Sequence[Note]) -> list[WindlassError | None]:
        """What attempts say while they run; one answer each, LeaseLost for an attempt that is over."""
        return await self.notes.write(notes)

    async def checkpoint(self, task_id: UUID) -> bytes | None:
        """What the last attempt left for the next one, as JSON text."""
        return await self.notes.checkpoint(task_id)

    async def complete(self, claimed: Claimed, result: bytes | None = None) -> Task:
        task = claimed_task(claimed)
        return await self._report(command.Complete(task.id, task.attempt, lease_of(task), result))

    async def fail(self, claimed: Claimed, failure: Failure) -> Task:
        task = claimed_task(claimed)
        return await self._report(command.Fail(task.id, task.attempt, lease_of(task), failure))

    async def sleep(self, claimed: Claimed, until: datetime | None) -> Task:
        task = claimed_task(claimed)
        return await self._report(command.Sleep(task.id, task.attempt, lease_of(task), until))

    async def release(self, claimed: Claimed) -> Task:
        task = claimed_task(claimed)
        return await self._report(command.Release(task.id, task.attempt, lease_of(task)))

    async def _report(self, report: Report) -> Task:
        if isinstance(report, command.Complete) and too_long(report.result):
            return await self._large.complete(report)
        return await self._commands.call(checked_report(report, self.chance.jitter()))

    async def _give_back(self, claimed: Sequence[Claimed]) -> None:
        """Claimed for somebody who is gone: back in line, no budget used. What cannot be given back now expires."""
        with contextlib.suppress(Unavailable):
            await self._reports.call_all(
                [command.Release(c.task.id, c.task.attempt, lease_of(c.task)) for c in claimed]
            )

    async def await_news(self, lease: Lease, timeout_s: float) -> bool:
        """Wait until a cancel is to be heard of under this lease; True if so, False after `timeout_s`."""
        check_lease(lease)
        check_seconds("timeout_s", timeout_s)
        await self.hear()
        ticket = self.hub.ticket("lease", lease.id)
        try:
            with contextlib.suppress(Unavailable):  # the heartbeat that follows will tell
                async with self.store.views() as views:  # what was announced before we stood here
                    if await views.unheard_cancels(lease.id):
                        return True
            return await ticket.wait(self.hub.timers, timeout_s)
        finally:
            self.hub.leave(ticket)

    # ----------------------------------------------------------------------------------------- workflows

    async def record_step(self, said: StepCommand) -> Step:
        """What a workflow has to say about one of its steps. When this returns, it is durable; the answer is the record
        that stands, which may be an earlier one. LeaseLost for an attempt that is over."""
        return await self.workflows.record(said)

    async def load_steps(self, task_id: UUID) -> list[Step]:
        """What a workflow has recorded so far, in the order in which its code asks."""
        return await self.workflows.load(task_id)

    async def transact_step(self, said: StepResult, work: Callable[[Any], Awaitable[bytes]]) -> Step:
        """Carry out a step on a connection of this database: its effects and its record are committed together."""
        return await self.workflows.transact(said, work)

    async def signal(
        self, task_id: UUID, name: str, payload: bytes = b"null", *, signal_id: UUID | None = None
    ) -> Task:
        """Send a signal to a workflow, which may ask for it now or later. The same `signal_id` again is the same."""
        return await self.workflows.signal(task_id, name, payload, signal_id)

    async def fork(self, task_id: UUID, from_step: str, *, occurrence: int = 1) -> UUID:
        """A new task that keeps what this workflow recorded before that step, and does the rest again."""
        return await self.workflows.fork(task_id, from_step, occurrence)

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
        """Set all of what is wanted of a queue; what is not given has no limit."""
        check_name("queue", queue)
        check_name("namespace", namespace)
        per_kind = {} if max_running_per_kind is None else check_mapping("max_running_per_kind", max_running_per_kind)
        config = QueueConfig(paused, max_running, per_kind, max_running_per_key, rate)
        check_config(config)
        async with self.store.begin() as tx:
            await tx.configure(namespace, queue, config)
        return config

    async def pause_queue(self, queue: str, *, namespace: str = "default", paused: bool = True) -> QueueConfig:
        """Stop (or resume) claims from a queue; what runs goes on."""
        check_type("paused", paused, bool)
        return (await self.queues.pause(queue, namespace=namespace, paused=paused)).settings.config

    async def resume(self, task_id: UUID) -> Task:
        """Let a parked task go on."""
        check_type("task_id", task_id, UUID)
        return await self._commands.call(command.Resume(task_id))

    async def wake(self, task_id: UUID) -> Task:
        """End a task's sleep now."""
        check_type("task_id", task_id, UUID)
        return await self._commands.call(command.Wake(task_id))


def _check_options(
    store: object, chance: object, timers: object, pause: object, stopwatch: object, listen: object, poll_s: object,
    keep_finished_s: object, pace: object,
) -> None:  # fmt: skip
    check_type("store", store, Store)
    if chance is not None:
        check_able("chance", chance, "new_id", "new_token", "jitter")
    if timers is not None:
        check_able("timers", timers, "call_later")
    check_callable("pause", pause)
    check_callable("stopwatch", stopwatch)
    check_type("listen", listen, bool)
    check_seconds("poll_s", poll_s, least=0.001)
    check_seconds("keep_finished_s", keep_finished_s)
    check_type("pace", pace, Pace)


def _check_storage(blobs: object, payload_max_bytes: object, cipher: object) -> None:
    if cipher is not None:
        check_able("cipher", cipher, "encrypt", "decrypt")
    if blobs is not None:
        check_callable("blobs", blobs)
    check_count("payload_max_bytes", payload_max_bytes, least=PAYLOAD_MAX_BYTES, most=LARGE_MAX_BYTES)


def _checked(effects: Mapping[str, EffectHandler]) -> dict[str, EffectHandler]:
    known = check_mapping("effects", effects)
    for kind, handler in known.items():
        check_name("effects", kind)
        check_callable("effects", handler)
    return known
