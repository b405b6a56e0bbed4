"""How the parts of an engine are put together. Each part gets what it needs when it is made.

Knows no contract: `Engine.service` makes their services on an engine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence

from windlass.core.command import Claimed, Release, Report
from windlass.core.states import State
from windlass.core.task import Task
from windlass.engine.claim.claimer import Claimer
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


class Parts:
    """The parts of one engine, for the engine itself and for the services of contracts."""

    def __init__(
        self,
        store: Store,
        *,
        randomness: Randomness,
        timers: Timers,
        pause: Callable[[float], Awaitable[None]],
        stopwatch: Callable[[], float],
        effects: dict[str, EffectHandler],
        poll_s: float | None,
        keep_finished_s: float,
        pace: Pace,
        blobs: Callable[[], Blobs] | None,
        payload_max_bytes: int,
        cipher: Cipher | None,
    ) -> None:
        """With `poll_s` the engine polls that often instead of listening."""
        self.store, self.randomness, self.pause, self.stopwatch = store, randomness, pause, stopwatch
        self.notifications = notifications = Notifications(timers)
        store.announce = notifications.announce
        self.clock, self.secrets = DatabaseClock(store, stopwatch), Secrets(store, cipher)
        self.objects = Objects(store, randomness, blobs, payload_max_bytes)
        self.effects = effects if blobs is None else {**effects, DELETE: self.objects.delete}

        self.lock_waits = LockWaits()
        self.decider = Decider(store, self.lock_waits)
        self.commands = self.decider.line(pause=pause)
        self.reports: Committer[Report, Task | State] = Committer(self.decider.carry_out_reports, pause=pause)
        self.claimer = Claimer(store, notifications, randomness, self._give_back, pause=pause, stopwatch=stopwatch)
        self.submitter = Submitter(store, randomness, self.claimer, self.lock_waits, self.objects, pause=pause)
        self.large = LargePayloads(self.objects, self.claimer, self.commands, self.reports, randomness)
        self.workflows = Workflows(store, randomness, self.decider, self.objects, pause=pause)
        self.progress = ProgressReports(store, pause=pause)
        self.leases = Leases(store, randomness, pause=pause)
        self.workers = Workers(store, randomness, notifications, self.claimer.rescue, pause=pause)
        self.outbox = Outbox(store, randomness, lambda: self.effects)
        self.outgoing = OutgoingAttempts(store, randomness, notifications, self.claimer, self.effects, stopwatch)

        self.tasks, self.runs = TaskViews(store), Runs(store)
        self.payloads = Payloads(self.tasks, self.objects)
        self.changes, self.gauges = Changes(store, pause=pause), Gauges(store, stopwatch)
        self.keys = Keys(store, randomness, stopwatch=stopwatch)
        self.token_keys = TokenKeys(store, randomness, self.secrets)
        self.queues = Queues(store, self.secrets, pause=pause, stopwatch=stopwatch)
        self.kinds, self.schedules = Kinds(store, stopwatch), Schedules(store, randomness)
        self.repair = RetryReplay(store, randomness, self.submitter, self.commands, self.objects)

        self.schedule_loop = ScheduleLoop(store, randomness, notifications, pace)
        self.loops = Loops(
            store, randomness, notifications, self.outbox, self.schedule_loop, self.changes,
            Retention(keep_finished_s), poll_s, self._on_listening,
        )  # fmt: skip

    def _on_listening(self) -> None:
        self.claimer.listening = True

    async def _give_back(self, claimed: Sequence[Claimed]) -> None:
        """Queue tasks again whose caller left; no budget is used. Those that cannot be given back now expire."""
        with contextlib.suppress(Unavailable):
            await self.reports.call_all([Release(*attempt.fence) for attempt in claimed])

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
