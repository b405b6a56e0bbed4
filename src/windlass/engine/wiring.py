"""How the parts of an engine are put together. Each part gets what it needs when it is made, and keeps it.

Knows no contract: their services are made on an engine, by `Engine.service`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from windlass.core.command import Claimed, Command, Release, Report
from windlass.core.states import State
from windlass.core.task import Task
from windlass.engine.claim.claimer import Claimer, lease_id_of
from windlass.engine.clock import DatabaseClock
from windlass.engine.commit.committer import Committer
from windlass.engine.commit.decider import Decider
from windlass.engine.commit.lock_waits import LockWaits
from windlass.engine.liveness.leases import Leases
from windlass.engine.liveness.workers import Workers
from windlass.engine.loops.loops import Loops
from windlass.engine.loops.retention import Retention
from windlass.engine.loops.schedule_loop import Pace, ScheduleLoop
from windlass.engine.manage.keys import Keys
from windlass.engine.manage.kind_policies import Kinds
from windlass.engine.manage.progress import ProgressReports
from windlass.engine.manage.queues import Queues
from windlass.engine.manage.retry_replay import RetryReplay
from windlass.engine.manage.schedules import Schedules
from windlass.engine.manage.token_keys import TokenKeys
from windlass.engine.manage.workflows import Workflows
from windlass.engine.notifications import Notifications, Timers
from windlass.engine.payloads.blob_port import Blobs
from windlass.engine.payloads.large import LargePayloads
from windlass.engine.payloads.objects import DELETE, Objects
from windlass.engine.payloads.payload import Payloads
from windlass.engine.randomness import Randomness
from windlass.engine.read.change_feed import Changes
from windlass.engine.read.metrics import Gauges
from windlass.engine.read.runs import Runs
from windlass.engine.read.tasks import TaskViews
from windlass.engine.secrets import Cipher, Secrets
from windlass.engine.send.outbox import EffectHandler, Outbox
from windlass.engine.send.outgoing import OutgoingAttempts
from windlass.engine.submit.submitter import Submitter
from windlass.errors import Unavailable
from windlass.store.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of an engine."""

    randomness: Randomness
    timers: Timers
    pause: Callable[[float], Awaitable[None]]
    stopwatch: Callable[[], float]
    effects: Mapping[str, EffectHandler]
    poll_s: float | None  # None: listen
    keep_finished_s: float
    pace: Pace
    blobs: Callable[[], Blobs] | None
    payload_max_bytes: int
    cipher: Cipher | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of one engine, for the engine itself and for the services of contracts."""

    store: Store
    randomness: Randomness
    notifications: Notifications
    pause: Callable[[float], Awaitable[None]]
    stopwatch: Callable[[], float]
    clock: DatabaseClock
    effects: dict[str, EffectHandler]
    lock_waits: LockWaits
    decider: Decider
    commands: Committer[Command, Task]
    reports: Committer[Report, Task | State]
    claimer: Claimer
    submitter: Submitter
    large: LargePayloads
    objects: Objects
    payloads: Payloads
    leases: Leases
    workers: Workers
    workflows: Workflows
    progress: ProgressReports
    changes: Changes
    gauges: Gauges
    keys: Keys
    token_keys: TokenKeys
    secrets: Secrets
    runs: Runs
    tasks: TaskViews
    queues: Queues
    repair: RetryReplay
    schedules: Schedules
    kinds: Kinds
    schedule_loop: ScheduleLoop
    outbox: Outbox
    outgoing: OutgoingAttempts
    loops: Loops

    async def close(self, services: Sequence[Callable[[], Awaitable[None]]]) -> None:
        """Finish the accepted work: close first the parts that accept work, then those that write it."""
        await self.loops.stop()
        for close in (
            self.outgoing.close, *services, self.outbox.close, self.submitter.close, self.claimer.close,
            self.workflows.close, self.reports.close, self.commands.close, self.lock_waits.close, self.leases.close,
            self.workers.close, self.progress.close, self.changes.close, self.keys.close,
        ):  # fmt: skip
            with contextlib.suppress(Unavailable):
                await close()
        self.schedule_loop.close()
        self.notifications.close()
        await self.store.close()


def build(store: Store, options: Options) -> Parts:
    """The parts of an engine on this store."""
    randomness, pause, stopwatch = options.randomness, options.pause, options.stopwatch
    notifications, lock_waits = Notifications(options.timers), LockWaits()
    store.announce = notifications.announce
    decider = Decider(store, lock_waits)
    commands = decider.line(pause=pause)
    reports: Committer[Report, Task | State] = Committer(decider.carry_out_reports, pause=pause)

    async def give_back(claimed: Sequence[Claimed]) -> None:
        """Queue tasks again whose caller left; no budget is used. Those that cannot be given back now expire."""
        with contextlib.suppress(Unavailable):
            await reports.call_all([Release(c.task.id, c.task.attempt, lease_id_of(c.task)) for c in claimed])

    claimer = Claimer(store, notifications, randomness, give_back, pause=pause, stopwatch=stopwatch)

    def on_listening() -> None:
        claimer.listening = True

    objects = Objects(store, randomness, options.blobs, options.payload_max_bytes)
    effects = dict(options.effects) if options.blobs is None else {**options.effects, DELETE: objects.delete}
    submitter = Submitter(store, randomness, claimer, lock_waits, objects, pause=pause)
    tasks, secrets, changes = TaskViews(store), Secrets(store, options.cipher), Changes(store, pause=pause)
    outbox = Outbox(store, randomness, lambda: effects)
    schedule_loop = ScheduleLoop(store, randomness, notifications, options.pace)
    return Parts(
        store=store, randomness=randomness, notifications=notifications, pause=pause, stopwatch=stopwatch,
        clock=DatabaseClock(store, stopwatch), effects=effects, lock_waits=lock_waits, decider=decider,
        commands=commands, reports=reports, claimer=claimer, submitter=submitter,
        large=LargePayloads(objects, claimer, commands, reports, randomness),
        objects=objects,
        payloads=Payloads(tasks, objects),
        leases=Leases(store, randomness, pause=pause),
        workers=Workers(store, randomness, notifications, claimer.rescue, pause=pause),
        workflows=Workflows(store, randomness, decider, objects, pause=pause),
        progress=ProgressReports(store, pause=pause),
        changes=changes,
        gauges=Gauges(store, stopwatch),
        keys=Keys(store, randomness, stopwatch=stopwatch),
        token_keys=TokenKeys(store, randomness, secrets),
        secrets=secrets,
        runs=Runs(store),
        tasks=tasks,
        queues=Queues(store, secrets, pause=pause, stopwatch=stopwatch),
        repair=RetryReplay(store, randomness, submitter, commands, objects),
        schedules=Schedules(store, randomness),
        kinds=Kinds(store, stopwatch),
        schedule_loop=schedule_loop,
        outbox=outbox,
        outgoing=OutgoingAttempts(store, randomness, notifications, claimer, effects, stopwatch),
        loops=Loops(
            store, randomness, notifications, outbox, schedule_loop, changes, Retention(options.keep_finished_s),
            options.poll_s, on_listening,
        ),
    )  # fmt: skip
