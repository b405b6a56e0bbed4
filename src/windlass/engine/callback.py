"""Workers that call back: their signs of life and their reports.

Heartbeats of thousands of attempts share one statement that reads, and one that writes what has to be. Everything else
that a worker says is a command like any other. Tokens were read by whoever calls; their time is held against the
database's here.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from windlass.core import callback as rules
from windlass.core.callback import Finish, HearCancel, Refusal, Scope, TakeUp
from windlass.core.command import storable
from windlass.core.delivery import TOKEN_TTL_MAX_S
from windlass.core.error import LeaseLost, NotFound, WindlassError
from windlass.core.note import Amount, Note
from windlass.core.task import Cancel, Task
from windlass.engine.chance import Chance
from windlass.engine.committer import Committer, Pause
from windlass.engine.decide import Decider
from windlass.engine.note import Notes
from windlass.engine.objects import Objects, too_long
from windlass.engine.secret import Secrets
from windlass.store.heartbeat_table import Pulse
from windlass.store.store import Store

BEATS_MAX = 1000
SECRET_BYTES = 32
CLOCK_FRESH_S = 5.0
KEY_OPENS_S = TOKEN_TTL_MAX_S + 300.0  # after it was replaced: other engines may learn of that a little later
PROGRESS_KEPT = 20_000
SOMEBODY = ""

TokenKeys = list[tuple[UUID, bytes]]


class Beat(msgspec.Struct, frozen=True, gc=False):
    """A sign of life. `starting` if the worker says that it has just begun."""

    scope: Scope
    attempt: int
    worker: str
    starting: bool = False
    seen_at: datetime | None = None
    trace: str | None = None
    noted: bool = False  # a note comes with it


class Heard(msgspec.Struct, frozen=True, gc=False):
    """The answer. `cancel` is what the worker is to be told of. `worker` is who has taken the attempt up, by name if
    that was asked by saying that it has begun: another, if a push went to two. `token` is that of the attempt, if a
    note is to be written; no worker is told of it."""

    now: datetime
    cancel: Cancel | None
    worker: str | None
    token: UUID | None = None


class Callbacks:
    """What workers say to one engine."""

    def __init__(
        self,
        store: Store,
        chance: Chance,
        decider: Decider,
        notes: Notes,
        objects: Objects,
        secrets_: Secrets,
        *,
        pause: Pause,
        stopwatch: Callable[[], float],
    ) -> None:
        self._store, self._chance, self._notes, self._stopwatch = store, chance, notes, stopwatch
        self._objects, self._secrets = objects, secrets_
        self._beats: Committer[Beat, Heard] = Committer(self._hear, batch_max=BEATS_MAX, pause=pause)
        self._commands = decider.line(pause=pause)
        self._clock: tuple[datetime, float] | None = None
        self._progress: dict[UUID, tuple[int, Amount]] = {}

    async def settled(self) -> None:
        """Until all signs of life that have come by now are written down."""
        await self._beats.settled()

    async def close(self) -> None:
        await self._beats.close()
        await self._commands.close()

    # ----------------------------------------------------------------------------------------- what workers say

    async def hear(self, beat: Beat, note: Callable[[UUID], Note] | None = None) -> Heard:
        """A sign of life, and what the attempt says with it if it is `noted`: the note under its token. LeaseLost
        tells the worker to stop."""
        heard = await self._beats.call(beat)
        if heard.worker is None:
            said = TakeUp(beat.scope, beat.attempt, beat.worker, beat.seen_at, beat.starting, beat.trace)
            taken_up = await self._commands.call(said)
            heard = msgspec.structs.replace(heard, worker=taken_up.worker)
        elif heard.cancel is not None and heard.cancel.signalled_at is None and not beat.starting:
            await self._commands.call(HearCancel(beat.scope.task_id, beat.attempt))
        if note is not None and heard.token is not None and self._is_news(made := note(heard.token)):
            await self._notes.write([made])
        return heard

    async def finish(self, said: Finish) -> tuple[Task, datetime]:
        """A report. The task as it is now, and the time."""
        failure = None if said.failure is None else storable(said.failure)
        made = msgspec.structs.replace(said, failure=failure, jitter=self._chance.jitter())
        task = await self._finish_large(made) if too_long(said.result) else await self._commands.call(made)
        self._progress.pop(task.id, None)
        return task, await self.about_now()

    async def _finish_large(self, said: Finish) -> Task:
        """What it returned is too long for a row."""
        assert said.result is not None
        async with self._objects.kept("output", said.result, said.task_id, f"result-{said.attempt}") as text:
            return await self._commands.call(msgspec.structs.replace(said, result=text))

    async def now(self) -> datetime:
        """The database's time."""
        async with self._store.single() as tx:
            now = await tx.now()
        self._clock = (now, self._stopwatch())
        return now

    async def about_now(self) -> datetime:
        """The database's time by our own stopwatch, which is right to within its drift of a few seconds."""
        if self._clock is None or self._stopwatch() - self._clock[1] > CLOCK_FRESH_S:
            return await self.now()
        return self._clock[0] + timedelta(seconds=self._stopwatch() - self._clock[1])

    # ----------------------------------------------------------------------------------------- keys

    async def token_keys(self) -> TokenKeys:
        """The keys of tokens, the one that signs first. The first engine that asks makes one."""
        async with self._store.begin() as tx:
            keys = await tx.heartbeats.token_keys(KEY_OPENS_S)
            if not keys:
                await tx.heartbeats.lock_token_keys()
                keys = await tx.heartbeats.token_keys(KEY_OPENS_S)
            if not keys:
                keys = [self._new_key()]
                await tx.heartbeats.insert_token_key(*keys[0])
        return [(key_id, self._secrets.open_key(kept, key_id)) for key_id, kept in keys]

    def _new_key(self) -> tuple[UUID, bytes]:
        """As it is kept."""
        key_id = self._chance.new_id()
        return key_id, self._secrets.seal_key(secrets.token_bytes(SECRET_BYTES), key_id)

    async def rotate_token_key(self) -> UUID:
        """A new key signs from now on; tokens of the one before stay good until they run out."""
        id_, kept = self._new_key()
        async with self._store.begin() as tx:
            await tx.heartbeats.lock_token_keys()
            await tx.heartbeats.insert_token_key(id_, kept)
        return id_

    # ----------------------------------------------------------------------------------------- together

    async def _hear(self, beats: list[Beat]) -> list[Heard | WindlassError]:
        """One statement reads, and one writes what has to be: the attempts whose rows do not last long enough."""
        async with self._store.single() as tx:
            pulses, now = await tx.heartbeats.pulses([(beat.scope.task_id, beat.attempt) for beat in beats])
        assert now is not None, beats
        self._clock = (now, self._stopwatch())
        usual = Heard(now, None, SOMEBODY)
        outcomes = [_heard(beat, pulse, usual) for beat, pulse in zip(beats, pulses, strict=True)]
        thin = {
            (beat.scope.task_id, beat.attempt): beat
            for beat, pulse, outcome in zip(beats, pulses, outcomes, strict=True)
            if pulse is not None and not pulse.covered and isinstance(outcome, Heard)
        }
        gone = await self._gone(list(thin.values())) if thin else set()
        if not gone:
            return outcomes
        return [
            _silent_too_long() if isinstance(outcome, Heard) and (beat.scope.task_id, beat.attempt) in gone else outcome
            for beat, outcome in zip(beats, outcomes, strict=True)
        ]

    async def _gone(self, beats: list[Beat]) -> set[tuple[UUID, int]]:
        """Which of these could not be kept alive: they ran out just now. In one order, so that none waits in a ring."""
        ordered = sorted(beats, key=lambda beat: beat.scope.task_id.int)
        rows = [(beat.scope.task_id, beat.attempt, beat.seen_at) for beat in ordered]
        async with self._store.single() as tx:
            kept = await tx.heartbeats.keep_alive(rows)
        return {(task_id, attempt) for task_id, attempt, _ in rows} - kept if len(kept) < len(rows) else set()

    def _is_news(self, note: Note) -> bool:
        """Whether a note says anything that was not written down just before."""
        if note.checkpoint is not None or note.lines:
            return True
        if note.progress is None or self._progress.get(note.task_id) == (note.attempt, note.progress):
            return False
        if len(self._progress) >= PROGRESS_KEPT:
            self._progress.clear()
        self._progress[note.task_id] = (note.attempt, note.progress)
        return True


def _heard(beat: Beat, pulse: Pulse | None, usual: Heard) -> Heard | WindlassError:
    """The answer to one, which is the same for most."""
    if pulse is None:
        return NotFound(f"there is no task {beat.scope.task_id}", task_id=beat.scope.task_id)
    try:
        beat.scope.check(pulse, beat.attempt, usual.now)
        rules.check_goes_on(pulse, starting=beat.starting)
    except WindlassError as error:
        return error
    if not pulse.alive:
        return _silent_too_long()
    if pulse.cancel is None and pulse.worker is not None and not beat.starting and not beat.noted:
        return usual
    return Heard(usual.now, pulse.cancel, pulse.worker, pulse.lease_id)


def _silent_too_long() -> LeaseLost:
    return LeaseLost("nothing was heard of this attempt for too long", refusal=Refusal.TASK_EXPIRED)
