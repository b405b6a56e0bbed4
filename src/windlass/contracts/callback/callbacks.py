"""The heartbeats and reports of workers that call back.

The heartbeats of thousands of attempts share one statement that reads, and one that writes the few rows that must
change. Everything else is an ordinary command. The caller has verified the token; its times are compared with the
database's clock here.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from uuid import UUID

import msgspec

from windlass.contracts.callback.rules import Refusal, Scope, SignalCancel, StartAttempt, check_goes_on
from windlass.core.attempt import AttemptReport, Heartbeat, HeartbeatAnswer
from windlass.core.command import storable
from windlass.core.progress import Amount, ProgressReport
from windlass.core.task import Task
from windlass.engine.commit.committer import Committer
from windlass.engine.engine import Engine
from windlass.engine.payloads.objects import too_long
from windlass.errors import LeaseLost, NotFound, WindlassError
from windlass.store.tables.outgoing import AttemptStatus

HEARTBEATS_MAX = 1000
PROGRESS_KEPT = 20_000
UNNAMED = ""


class CallbackHeartbeat(Heartbeat[Scope], frozen=True, gc=False):
    """A heartbeat of a worker that calls back."""


class Callbacks:
    """The callbacks of one engine."""

    def __init__(self, engine: Engine) -> None:
        parts = engine.parts
        self._store, self._objects, self._randomness = parts.store, parts.objects, parts.randomness
        self._notes, self._clock = parts.progress, parts.clock
        self._heartbeats: Committer[CallbackHeartbeat, HeartbeatAnswer] = Committer(
            self._commit_heartbeats, batch_max=HEARTBEATS_MAX, pause=parts.pause
        )
        self._commands = parts.decider.line(pause=parts.pause)
        self._progress: dict[UUID, tuple[int, Amount]] = {}
        parts.outgoing.settled.append(self.settled)
        engine.on_close(self.close)

    async def settled(self) -> None:
        """Wait until all heartbeats received so far are written."""
        await self._heartbeats.settled()

    async def close(self) -> None:
        await self._heartbeats.close()
        await self._commands.close()

    # ----------------------------------------------------------------------------------------- callbacks

    async def heartbeat(
        self, heartbeat: CallbackHeartbeat, progress: Callable[[UUID], ProgressReport] | None = None
    ) -> HeartbeatAnswer:
        """Keep an attempt alive, and write the progress of the heartbeat. Raises LeaseLost if the worker must stop."""
        answer, scope = await self._heartbeats.call(heartbeat), heartbeat.credential
        if answer.worker is None:
            start = StartAttempt(
                scope, heartbeat.worker or UNNAMED, heartbeat.worker_time, heartbeat.starting, heartbeat.trace
            )
            answer = msgspec.structs.replace(answer, worker=(await self._commands.call(start)).worker)
        elif answer.starts_grace and not heartbeat.starting:
            await self._commands.call(SignalCancel(scope.task_id, scope.attempt))
        if progress is not None and answer.token is not None and self._is_news(note := progress(answer.token)):
            await self._notes.write([note])
        return answer

    async def finish(self, report: AttemptReport[Scope]) -> tuple[Task, datetime]:
        """Record a report. Returns the task after it, and the time."""
        failure = None if report.failure is None else storable(report.failure)
        report = msgspec.structs.replace(report, failure=failure, jitter=self._randomness.jitter())
        if too_long(report.result):
            assert report.result is not None
            name = f"result-{report.credential.attempt}"
            async with self._objects.kept("output", report.result, report.task_id, name) as text:
                task = await self._commands.call(msgspec.structs.replace(report, result=text))
        else:
            task = await self._commands.call(report)
        self._progress.pop(task.id, None)
        return task, await self._clock.about_now()

    # ----------------------------------------------------------------------------------------- batches

    async def _commit_heartbeats(self, heartbeats: list[CallbackHeartbeat]) -> list[HeartbeatAnswer | WindlassError]:
        """One statement reads. One writes the attempts whose rows would expire too soon."""
        attempts = [(heartbeat.credential.task_id, heartbeat.credential.attempt) for heartbeat in heartbeats]
        async with self._store.single() as tx:
            statuses, now = await tx.heartbeats.attempt_statuses(attempts)
        assert now is not None, heartbeats
        self._clock.learn(now)
        usual = HeartbeatAnswer(now, worker=UNNAMED)
        outcomes = [_answer(heartbeat, status, usual) for heartbeat, status in zip(heartbeats, statuses, strict=True)]
        due = {
            attempt
            for attempt, status, outcome in zip(attempts, statuses, outcomes, strict=True)
            if status is not None and not status.covered and isinstance(outcome, HeartbeatAnswer)
        }
        if not due:
            return outcomes
        async with self._store.single() as tx:
            kept = await tx.heartbeats.keep_alive(sorted(due))  # sorted, so that concurrent statements do not deadlock
        if len(kept) == len(due):
            return outcomes
        gone = due - kept  # they have just expired
        return [
            _silent_too_long() if attempt in gone and isinstance(outcome, HeartbeatAnswer) else outcome
            for attempt, outcome in zip(attempts, outcomes, strict=True)
        ]

    def _is_news(self, note: ProgressReport) -> bool:
        """Whether a report contains anything that was not just written."""
        if note.checkpoint is not None or note.lines:
            return True
        if note.progress is None or self._progress.get(note.task_id) == (note.attempt, note.progress):
            return False
        if len(self._progress) >= PROGRESS_KEPT:
            self._progress.clear()
        self._progress[note.task_id] = (note.attempt, note.progress)
        return True


def _answer(
    heartbeat: CallbackHeartbeat, status: AttemptStatus | None, usual: HeartbeatAnswer
) -> HeartbeatAnswer | WindlassError:
    """The answer to one heartbeat, which is the same for most."""
    scope = heartbeat.credential
    if status is None:
        return NotFound(f"there is no task {scope.task_id}", task_id=scope.task_id)
    try:
        scope.check(status, usual.now)
        check_goes_on(status, starting=heartbeat.starting)
    except WindlassError as error:
        return error
    if not status.alive:
        return _silent_too_long()
    if status.cancel is None and status.worker is not None and not heartbeat.starting and not heartbeat.with_progress:
        return usual
    return HeartbeatAnswer(usual.now, cancel=status.cancel, worker=status.worker, token=status.lease_id)


def _silent_too_long() -> LeaseLost:
    return LeaseLost("no heartbeat of this attempt has arrived for too long", refusal=Refusal.TASK_EXPIRED)
